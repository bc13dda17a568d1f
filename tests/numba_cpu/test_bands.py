"""Loops that run band by band: one launch, with the bits of a launch each, and no more memory."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from tests.xla_like.xla_support import plan_of, struct
from volta.numba_cpu import bands
from volta.numba_cpu.dot_schedule import LARGE_ROWS, Tiling
from volta.numpy import fft
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal, fill
from volta.testing.kernel_kinds import assert_kernels_agree
from volta.xla_like.compile import CompileOptions
from volta.xla_like.kernels import Joined, kernel_class

pytestmark = pytest.mark.turns(6)

APART = CompileOptions(epilogues=False)


def cumulated(x):
    """Passes over rows that cannot be one loop: each reads its row at other places."""
    for shift in (1, 2, 4):
        x = x + 0.5 * vnp.roll(vnp.tanh(x), shift, 1)
    return x


def both(f, *args):
    """Its results as they are by default, and with every loop a launch of its own."""
    together = volta.jit(f)(*args)
    PLAN_CACHE.clear()
    with volta.execution_context(options=APART):
        apart = volta.jit(lambda *args: f(*args))(*args)
    return together, apart


PROGRAMS = {
    "passes": (cumulated, (600, 512)),
    "a transform": (fft.fft, (300, 1024)),
    "of real numbers": (fft.rfft, (300, 1000)),
    "and back": (lambda x: fft.irfft(fft.rfft(x), 1000), (300, 1000)),
    "two axes": (lambda x: fft.fft2(x), (512, 600)),
    "rows and their sums": (lambda x: vnp.sum(cumulated(x) * 2, 1), (600, 512)),
    "gradient": (volta.grad(lambda x: vnp.sum(cumulated(x))), (600, 512)),
}


@sampled("name", list(PROGRAMS), quick=["passes", "of real numbers", "rows and their sums"])
@pytest.mark.parametrize("threads", [1, 3])
def test_bands_have_the_bits_of_launches_by_themselves(name, threads) -> None:
    f, shape = PROGRAMS[name]
    before = volta.get_num_threads()
    volta.set_num_threads(threads)
    try:
        assert_bits_equal(*both(f, fill("ladder" if "transform" not in name else "normal", shape)))
    finally:
        volta.set_num_threads(before)


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
def test_texts_run_bands_too(kind, monkeypatch) -> None:
    monkeypatch.setattr(bands, "LEAST", 1)
    x = fill("normal", (70, 33))
    assert any(isinstance(c.kernel, Joined) for c in plan_of(cumulated, x).calls)
    assert_kernels_agree(cumulated, x, kinds=[kind])


def test_loops_over_the_same_rows_are_one_call() -> None:
    x = struct(600, 512)
    _, call = plan_of(cumulated, x).calls  # the first tanh has no rows
    assert len(call.parts) == 3
    assert len(plan_of(cumulated, x, options=APART).calls) == 4
    (call,) = plan_of(fft.fft, struct(600, 1024, dtype=np.complex64)).calls
    assert len(call.parts) == 4


@pytest.mark.parametrize("f", [cumulated, lambda x: fft.fft(x, axis=-1), lambda x: cumulated(cumulated(x))])
def test_no_more_memory_is_taken(f) -> None:
    together, apart = (plan_of(f, struct(700, 1024), options=o) for o in (CompileOptions(), APART))
    assert len(together.calls) < len(apart.calls)
    assert together.arena_bytes <= apart.arena_bytes


NOT_JOINED = {
    "rows of others": lambda x: vnp.roll(vnp.tanh(x), 1, 0) * 2 + vnp.roll(vnp.tanh(x), 1, 1),
    "columns": lambda x: vnp.tanh(x) / vnp.sum(vnp.tanh(x), 0),
    "what does not pass anything on": lambda x: (x[:, ::-1] * 2, vnp.roll(x[:, :-1], 1, 1)),
}


@pytest.mark.parametrize("name", NOT_JOINED)
def test_what_is_not_row_by_row_stays_apart(name) -> None:
    assert not any(isinstance(c.kernel, Joined) for c in plan_of(NOT_JOINED[name], struct(600, 1024)).calls)


def test_little_stays_apart_as_it_is_in_the_cache_anyway() -> None:
    assert not any(isinstance(c.kernel, Joined) for c in plan_of(cumulated, struct(100, 100)).calls)
    few = bands.LEAST_ROWS - 1
    assert not any(isinstance(c.kernel, Joined) for c in plan_of(cumulated, struct(few, 1 << 15)).calls)


def test_an_argument_that_is_given_away_is_still_overwritten() -> None:
    x = np.ones((600, 512), np.float32)
    plan = plan_of(cumulated, x, donated=(0,))
    assert plan.peak_live_bytes <= plan_of(cumulated, x, donated=(0,), options=APART).peak_live_bytes


def test_a_large_product_is_cut_by_columns_unless_loops_follow_it() -> None:
    """Either way with the same bits: rows of a band are whole where a loop reads them, else tasks are some columns."""
    m, k, n = LARGE_ROWS + 8, 270, 1100
    x, w = fill("ladder", (m, k)), fill("ladder", (k, n))
    alone, followed = (volta.jit(f) for f in (lambda x, w: x @ w, lambda x, w: vnp.tanh(x @ w)))
    widths = []
    for f in (alone, followed):
        launches = f.lower(x, w).compile().plan.all_launches()
        found = [part for launch in launches for part in launch.each() if kernel_class(part.kernel) == "dot"]
        widths += [launch.words[Tiling.TASK_COLS] for launch in found]
    assert widths[0] < n <= widths[1]
    assert_bits_equal(vnp.tanh(alone(x, w)), followed(x, w))
