"""Long sums of floats by jumps: the bits of the chain, whatever the numbers, and however wrong the guesses are."""

import numpy as np
import pytest

import volta
from tests.sampling import sampled
from volta import lax
from volta.numba_cuda import kernels
from volta.numba_cuda.ordering import chains, jumps, scan_steps
from volta.testing.host_grid import check_on_host, run_on_host
from volta.xla_like.compile import build_plan

pytestmark = pytest.mark.turns(6)

BLOCKS = 600


def normal(n, dtype="float32"):
    return np.random.default_rng(0).standard_normal((1, n)).astype(dtype)


def ties(n):
    """Halves of units: many sums lie in the middle between two numbers once they are large."""
    x = np.random.default_rng(0).integers(-3, 5, (1, n)).astype(np.float32) * np.float32(2.0**-12)
    x[0, 0] = 4096
    return x


def ladder(n):
    """Numbers of very different sizes, which leave binades all the time."""
    return (normal(n) * np.exp2(np.random.default_rng(1).integers(-20, 20, n))).astype(np.float32)


def with_a(*numbers):
    def make(n):
        x = normal(n)
        x[0, [n // 2, n // 2 + n // 4]] = numbers
        return x

    return make


NUMBERS = {
    "normal": normal,
    "uniform": lambda n: np.random.default_rng(0).random((1, n), np.float32),
    "negative": lambda n: np.full((1, n), -3.7, np.float32),
    "ties": ties,
    "ladder": ladder,
    "a NaN": with_a(1, np.nan),
    "infinities": with_a(np.inf, -np.inf),
    "subnormal": lambda n: (normal(n) * 1e-42).astype(np.float32),
    "huge": lambda n: (normal(n) * 1e37).astype(np.float32),
    "zeros": lambda n: np.zeros((1, n), np.float32),
    "negative zeros": lambda n: -np.zeros((1, n), np.float32),
    "float64": lambda n: normal(n, "float64"),
    "float16": lambda n: normal(n, "float16"),
}


@sampled("name", list(NUMBERS), quick=["ties", "ladder", "a NaN"])
def test_a_long_sum_has_the_bits_of_its_chain(name):
    check_on_host(lambda x: lax.cumsum(x, 1), NUMBERS[name](256 * BLOCKS + 77), orders=("shuffled",))


@sampled("wrong", [0.9999, 0.0], quick=[0.0])
def test_wrong_guesses_move_no_bit(monkeypatch, wrong):
    make = jumps.Maker.make

    def misled(self, numbers, guess):
        make(self, numbers, self.b.fmul(guess, guess.type(wrong)))

    monkeypatch.setattr(jumps.Maker, "make", misled)
    x = np.random.default_rng(0).random((1, 256 * BLOCKS), np.float32)
    check_on_host(lambda x: lax.cumsum(x, 1), x, orders=("shuffled",))


def test_most_leaves_are_jumped_over(monkeypatch):
    """Walking along a leaf is made to be wrong: only those in which the sum leaves its binade show it."""
    traversed = chains._LongChain.traversed
    monkeypatch.setattr(
        chains._LongChain,
        "traversed",
        lambda self, *args: self.b.fadd(traversed(self, *args), self.identity().type(2.0**-9)),
    )
    x = np.full((1, 256 * 2048), 2.0**-8, np.float32)
    plan = run_on_host(lambda x: lax.cumsum(x, 1), x)
    got, want = float(plan.outputs[0][0, -1]), 2048.0
    assert not plan.violations and 0 < (got - want) * 2**9 < 20  # of 64 leaves


@sampled("rows, pieces", [(1, 5), (1, 40), (1, 64), (3, 20)], quick=[(1, 40), (3, 20)])
def test_a_long_row_is_scanned_in_parts(rows, pieces):
    """The first chain waits for the first part's totals alone, and is traversed while the others are found."""
    plan, _ = build_plan(volta.make_jaxpr(lambda x: lax.cumsum(x, 1))(np.zeros((rows, pieces << 18), np.float32)))
    launches = kernels.launches_of(plan)
    names = [x.source.name.split("_")[2] for x in launches]
    parts, prepared = (5, 2) if rows == 1 and pieces >= 16 else (1, 1)
    assert sorted(names) == sorted([*["totals", "jumps"] * prepared, *["long", "apply"] * parts])

    def behind(k):
        return {k}.union(*(behind(p) for p in launches[k].after))

    for k, name in enumerate(names):
        before = [names[p] for p in behind(k)]
        if name == "long":
            assert before.count("totals") == (1 if k == names.index("long") else prepared) and "apply" not in before
        if name == "apply":
            assert before.count("apply") == 1


def test_parts_cover_all_pieces():
    for pieces in range(1, 100):
        parts = scan_steps.parts_of(1, pieces)
        assert [first for first, _ in parts] == [0, *(stop for _, stop in parts[:-1])] and parts[-1][1] == pieces
        assert all(first < stop for first, stop in parts)


@sampled("reverse", [False, True], quick=[True])
def test_parts_of_a_row_have_the_bits_of_all(monkeypatch, reverse):
    monkeypatch.setattr(scan_steps, "ENOUGH_PIECES", 1)
    check_on_host(lambda x: lax.cumsum(x, 1, reverse=reverse), normal(256 * 1024 * 8 - 1000), orders=("shuffled",))


@pytest.mark.slow
def test_long_rows_have_chains_of_their_own():
    check_on_host(lambda x: lax.cumsum(x, 1, reverse=True), normal(3 * 256 * 1100).reshape(3, -1), orders=("shuffled",))


@pytest.mark.slow
def test_a_long_chain_of_products():
    x = 1 + np.float32(0.001) * normal(256 * BLOCKS)
    check_on_host(lambda x: lax.cumprod(x, 1), x, orders=("shuffled",))
