"""How the quick set is chosen: what does not run at one commit runs at another, and of each family some always do."""

import types

import pytest

from tests.sampling import LARGE, mark_cases, mark_few, mark_turns, without_turn

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


@pytest.mark.parametrize("count", [1, LARGE, LARGE + 1, 1000])
def test_slow_cases_of_large_families_take_turns_in_the_whole_run(count):
    slow = list(range(count))
    ran = [set(slow) - set(without_turn(slow, commit)) for commit in range(100)]
    assert all(1 <= len(cases) <= LARGE for cases in ran) and set().union(*ran) == set(slow)


class Spec:
    """Enough of a case that pytest has not made an item of."""

    def __init__(self, n):
        self.id, self.marks = str(n), []


def cases_of(count, *marks, run, commit=0):
    """The cases of a test that a run makes items of."""
    metafunc = types.SimpleNamespace(_calls=[Spec(n) for n in range(count)], definition=Item("test_it", *marks))
    mark_cases(metafunc, commit, run)
    return [int(spec.id) for spec in metafunc._calls]


def test_cases_without_a_turn_are_left_out_before_they_are_made():
    few, slow, many = pytest.mark.few(2), pytest.mark.slow, 3 * LARGE
    assert cases_of(9, few, run="quick") == [0, 8]
    assert cases_of(9, slow, run="quick") == [0]  # which says that the test is there, and slow
    assert cases_of(9, few, run="whole") == cases_of(9, few, run="asked") == list(range(9))
    found = [cases_of(many, slow, run="whole", commit=commit) for commit in range(3)]
    assert all(len(cases) == LARGE for cases in found) and sorted(sum(found, [])) == list(range(many))
    everything = list(range(many))
    assert cases_of(many, slow, run="asked") == cases_of(many, slow, run="whole", commit=None) == everything
    assert cases_of(many, slow, pytest.mark.gpu, run="whole") == everything
    assert {0, many - 1} < set(cases_of(many, few, run="whole"))  # who is quick has a turn each time
