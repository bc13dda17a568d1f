"""How the quick set is chosen: what does not run at one commit runs at another, and of each family some always do."""

import pytest

from tests.sampling import mark_few, mark_turns

PRIMITIVES = ("exp-a", "exp-b", "exp-c", "log-a", "sin a", "sin b")


class Item:
    """Enough of a test to be chosen."""

    def __init__(self, name, *marks):
        self.nodeid, self.marks = f"tests/test_it.py::{name}", [mark.mark for mark in marks]

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark):
        self.marks.append(mark.mark)


def chosen(commit):
    """The names of the tests that are quick at a commit."""
    mark = pytest.mark
    items = [Item(f"test_numbers[{n}]", mark.turns(3)) for n in range(10)]
    items += [Item("test_alone", mark.turns(4)), Item("test_gpu", mark.turns(4), mark.gpu), Item("test_always")]
    items += [Item(f"test_primitives[{case}]", mark.turns(5, each=True)) for case in PRIMITIVES]
    items += [Item(f"test_few[{n}]", mark.few(3)) for n in range(9)]
    mark_few(items)
    mark_turns(items, commit)
    return {item.nodeid.rpartition("::")[2] for item in items if not item.get_closest_marker("slow")}


def test_turns_come_round_and_each_family_has_some():
    quick = [chosen(commit) for commit in range(100, 160)]
    assert set().union(*quick) == chosen(None)
    for names in quick:
        assert sum(name.startswith("test_numbers") for name in names) in (3, 4)
        for primitive in ("exp-", "log-", "sin "):
            assert sum(f"[{primitive}" in name for name in names) == 1
        assert {"test_always", "test_gpu", "test_few[0]", "test_few[4]", "test_few[8]"} <= names
        assert sum(name.startswith("test_few") for name in names) == 3
    assert sum("test_alone" in names for names in quick) == 60 / 4


def test_a_commit_chooses_the_same_each_time():
    assert chosen(7) == chosen(7) != chosen(8)
