"""Large families of tests: the quick set runs the members that stand for the law, the whole run all of them."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def sampled(
    names: str,
    values: Iterable[Any],
    quick: Collection[Any] | Callable[[Any], bool],
    ids: Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` whose values are marked slow, but for the ``quick`` ones (listed, or by a predicate).

    Raises ValueError where none is quick: what only the whole run tests breaks unseen.
    """
    found = list(values)
    is_quick = quick if callable(quick) else lambda x: x in quick
    if not any(map(is_quick, found)):
        raise ValueError(f"no member of {names} is quick")
    several = "," in names
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *(x if several else (x,)), marks=() if is_quick(x) else pytest.mark.slow, id=ids(x) if ids else None
            )
            for x in found
        ],
    )


def mark_few(items: Iterable[pytest.Item]) -> None:
    """Mark slow all but n cases, evenly spread, of each parametrised test that is marked ``few(n)``."""
    families: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            families.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for cases in families.values():
        (n,) = cases[0].get_closest_marker("few").args  # type: ignore[union-attr]
        quick = {round(i * (len(cases) - 1) / max(n - 1, 1)) for i in range(n)}
        for i, case in enumerate(cases):
            if i not in quick:
                case.add_marker(pytest.mark.slow)
