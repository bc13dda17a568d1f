"""Benchmarks of checkouts beside each other: they take turns, and one that cannot run does not stop the others."""

import numpy as np
import pytest

from benchmarks import beside, checkouts, harness, long_products, programs
from tests.numba_cuda.conftest import install  # noqa: F401

CASE = ["8x16x4 NN float32", 8, 4, 16, "NN", "float32"]


class Fake:
    def __init__(self, name, seconds, turns):
        self.name, self.seconds, self.turns = name, iter(seconds), turns

    def ask(self, question):
        if isinstance(question, list):
            return "ready" if self.name != "jax" else "ImportError: no jax"
        self.turns.append(self.name)
        return next(self.seconds)


def test_contenders_take_turns_and_the_ratio_is_that_of_rounds():
    turns = []
    row = checkouts.measure([Fake("this", [3, 4, 9], turns), Fake("beside", [2, 4, 6], turns), Fake("jax", [], turns)],
                            CASE, 3, 0.1)  # fmt: skip
    assert turns == ["this", "beside", "beside", "this", "this", "beside"]
    assert row["seconds"] == {"this": 4, "beside": 4} and row["ratio"] == 1.5 and row["ratio of the least"] == 1.5
    assert row["errors"] == {"jax": "ImportError: no jax"} and row["name"] == CASE[0]
    assert "1.500" in beside.show([row], ["this", "beside", "jax"])


def test_a_checkout_beside_this_one_is_a_folder_or_a_commit(tmp_path):
    assert checkouts.checkout_of(str(harness.ROOT), tmp_path) == harness.ROOT
    (tmp_path / "commit").mkdir()
    found = checkouts.checkout_of("HEAD", tmp_path / "commit")
    assert (found / "volta" / "core" / "contract.py").is_file()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_measured_has_a_name_of_its_own(device):
    found = beside.calls(programs.volta(), device)
    assert len(found) > 20 and len({name.split(",")[0] for name in found}) >= 19


def test_arrays_lie_on_the_device_that_is_asked_for(install):  # noqa: F811
    install()
    assert [beside.on(device).array(np.ones(3)).device for device in ("cpu", "cuda")] == ["cpu:0", "cuda:0"]


@pytest.mark.slow
@pytest.mark.parametrize("bench, case", [(long_products, CASE), (beside, ["call of one argument"])])
def test_two_checkouts_are_timed_beside_each_other(bench, case):
    contenders = [
        checkouts.Contender(bench.__file__, name, "volta", harness.ROOT, "cpu", 1) for name in ("this", "beside")
    ]
    row = bench.measure(contenders, case, 2, 0.001)
    for c in contenders:
        c.end()
    assert not row["errors"] and row["ratio"] > 0


@pytest.mark.slow
def test_first_steps_are_of_fresh_processes():
    row = beside.first_steps({"this": harness.ROOT, "beside": harness.ROOT}, "width 64, 2 layers", "cpu", 1)
    assert min(row["least"].values()) > 0
