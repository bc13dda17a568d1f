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
