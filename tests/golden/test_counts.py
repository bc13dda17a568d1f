"""No program costs more than is on record: kernels, launches, bytes, instructions, on both backends.

After a change that is meant: python scripts/baselines.py, which says what moved; read it, and say why in the commit.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.counting import RECORD, TRACED, Counts, counts, moved

ON_RECORD: dict[str, Counts] = json.loads(RECORD.read_text(encoding="utf-8"))


def test_every_program_is_on_record() -> None:
    assert list(ON_RECORD) == list(TRACED)


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", TRACED)
def test_counts_do_not_grow(name: str) -> None:
    found = counts(name)
    assert found.keys() == ON_RECORD[name].keys()
    grown = {what: n for what, n in found.items() if n > ON_RECORD[name][what]}
    assert not grown, "\n".join(moved({name: ON_RECORD[name]}, {name: grown}))


def test_what_moved_is_said() -> None:
    before, now = {"a": {"x": 100, "y": 5, "z": 0}}, {"a": {"x": 110, "y": 5, "z": 2}, "b": {"x": 1}}
    assert list(moved(before, now)) == ["a: x 100 -> 110 (+10.0%)", "a: z 0 -> 2", "b: x 1 (new)"]
