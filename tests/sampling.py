"""Large families of tests: the quick set runs the members that stand for the law, the whole run all of them.

`sampled` and ``few(n)`` name the same members every time. ``turns(n)`` takes turns: each commit runs one part in n, and
which part it is depends on the commit alone, so that a failure comes back wherever that commit is tested. At night all
have it, and so have the slow cases of tests with more than `LARGE` of them, which take turns in the whole run by day.
"""

import functools
import os
import re
import subprocess
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

LARGE = 12
"""Of more slow cases than these the whole run has a part at each commit."""

_FIRST_WORD = re.compile(r"[^- ]*")


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


def mark_few(items: Iterable[Any]) -> None:
    """Mark slow all but n cases, evenly spread, of each parametrised test that is marked ``few(n)``."""
    for cases in _families(items, "few").values():
        (n,) = cases[0].get_closest_marker("few").args  # type: ignore[union-attr]
        quick = {round(i * (len(cases) - 1) / max(n - 1, 1)) for i in range(n)}
        for i, case in enumerate(cases):
            if i not in quick:
                case.add_marker(pytest.mark.slow)


def mark_turns(items: Iterable[Any], commit: int | None) -> None:
    """Mark slow what has not its turn at this commit: of a test that is marked ``turns(n)`` all but every n-th case.

    Of n cases or more some have their turn at each commit; of fewer, and of a test without cases, one in n commits.
    With ``turns(n, each=True)`` the cases whose ids begin alike (up to a dash or a space) are a family of their own, of
    which one case at least has its turn: those of a primitive, say. Without a commit all have; on a GPU, too.
    """
    if commit is None:
        return
    for name, cases in _families(items, "turns").items():
        mark = cases[0].get_closest_marker("turns")
        assert mark is not None
        n = min(mark.args[0], len(cases)) if mark.kwargs.get("each") else mark.args[0]
        first = commit + zlib.crc32(repr(name).encode())
        for i, case in enumerate(cases):
            if (first + i) % n:
                case.add_marker(pytest.mark.slow)


@attrs.frozen
class _Case:
    """A case of a parametrised test that pytest has not made an item of yet: enough of an item to be marked."""

    nodeid: str
    of_test: Callable[[str], pytest.Mark | None]
    spec: Any

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.spec.marks if mark.name == name), None) or self.of_test(name)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.spec.marks.append(marker.mark)


def mark_cases(metafunc: pytest.Metafunc, commit: int | None, run: str) -> None:
    """Mark the cases of a parametrised test before pytest makes items of them, and leave out those of no part in a run.

    The run is of the ``quick`` tests, the ``whole``, or of what somebody ``asked`` for by name, who gets all of it. The
    quick set is a quarter of all cases, and every process of a run collects them: making an item of each case only to
    deselect it took a third of the time. One slow case is left where all are, so that the test is known as slow.
    """
    specs = metafunc._calls
    test = metafunc.definition
    of_test = functools.cache(test.get_closest_marker)  # the same for thousands of cases
    cases = [_Case(f"{test.nodeid}[{spec.id}]", of_test, spec) for spec in specs]
    mark_few(cases)
    mark_turns(cases, commit)
    slow = [case.spec for case in cases if case.get_closest_marker("slow")]
    if run == "quick":
        left_out = slow[len(slow) == len(specs) :]
    elif run == "whole" and commit is not None and not test.get_closest_marker("gpu"):
        left_out = without_turn(slow, commit + zlib.crc32(test.nodeid.encode()))
    else:
        return
    absent = set(map(id, left_out))
    specs[:] = [spec for spec in specs if id(spec) not in absent]


def without_turn(slow: list[Any], number: int) -> list[Any]:
    """Of the slow cases of a test those that the whole run of a commit leaves out: none of few."""
    parts = -(-len(slow) // LARGE)
    return [case for i, case in enumerate(slow) if (number + i) % parts]


def _families(items: Iterable[Any], marker: str) -> dict[tuple[str, ...], list[Any]]:
    """The cases of each test with this marker that are not slow."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for item in items:
        mark = item.get_closest_marker(marker)
        if mark and not item.get_closest_marker("slow") and not (marker == "turns" and item.get_closest_marker("gpu")):
            test, _, case = item.nodeid.partition("[")
            name = (test, _FIRST_WORD.match(case)[0]) if mark.kwargs.get("each") else (test,)  # type: ignore[index]
            found.setdefault(name, []).append(item)
    return found


def commit_number() -> int | None:
    """A number of the commit that is tested, 0 outside of a repository; or what ``VOLTA_TEST_TURN`` says instead: a
    number, or ``all``, which is None. So it is at night."""
    if os.environ.get("VOLTA_HYPOTHESIS_PROFILE") == "nightly":
        return None
    if given := os.environ.get("VOLTA_TEST_TURN"):
        return None if given == "all" else int(given)
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    try:
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()[:8], 16)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0
