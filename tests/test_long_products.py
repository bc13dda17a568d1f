"""The benchmark of long products: contenders take turns, and one that cannot run does not stop the others."""

import pytest

from benchmarks import long_products as bench

CASE = ("8x16x4 NN float32", 8, 4, 16, "NN", "float32")


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
    row = bench.measure([Fake("this", [3, 4, 9], turns), Fake("beside", [2, 4, 6], turns), Fake("jax", [], turns)],
                        CASE, 3, 0.1)  # fmt: skip
    assert turns == ["this", "beside", "beside", "this", "this", "beside"]
    assert row["seconds"] == {"this": 4, "beside": 4} and row["ratio"] == 1.5 and row["ratio of the least"] == 1.5
    assert row["errors"] == {"jax": "ImportError: no jax"} and row["flops"] == 2 * 8 * 4 * 16
    assert "1.500" in bench.show([row], ["this", "beside", "jax"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_length_has_control_cases_of_one_block(device):
    found = bench.cases(device)
    assert len({name for name, *_ in found}) == len(found)
    assert {k for _, _, _, k, _, _ in found} >= {4096, 8192, 65536}


def test_a_checkout_beside_this_one_is_a_folder_or_a_commit(tmp_path):
    assert bench.checkout_of(str(bench.harness.ROOT), tmp_path) == bench.harness.ROOT
    (tmp_path / "commit").mkdir()
    found = bench.checkout_of("HEAD", tmp_path / "commit")
    assert (found / "volta" / "core" / "contract.py").is_file()


@pytest.mark.slow
def test_two_checkouts_are_timed_beside_each_other():
    contenders = [bench.Contender(name, "volta", bench.harness.ROOT, "cpu", 1) for name in ("this", "beside")]
    row = bench.measure(contenders, CASE, 2, 0.001)
    for c in contenders:
        c.end()
    assert not row["errors"] and row["ratio"] > 0
