"""Reductions across rows of large arrays run in long vectors, lane by lane, with the bits of the usual form."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.numba_cpu import loop_schedule
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal, fill

REDUCTIONS = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: vnp.prod(x, 0),
    "max": lambda x: vnp.max(x, 0),
    "argmax": lambda x: vnp.argmax(x, 0),
    "of products": lambda x: (x * (x + 1)).sum(0),
    "two": lambda x: (x.sum(0), (x * x).sum(0)),
    "a later pass": lambda x: ((x - x.mean(0)) ** 2).mean(0),
    "much else": lambda x: (vnp.tanh(x) * vnp.exp(-x * x) + x).sum(0),
    "with rows kept": lambda x: (x * 2, (x * 2).sum(0)),
    "transposed": lambda x: x.T.sum(1),
    "in the middle": lambda x: x.reshape(2, -1, x.shape[1]).sum(1),
    "gathered": lambda x: x[::-1][:, np.arange(x.shape[1]) // 2].sum(0),
}
SHAPES = [(2, 64), (64, 130), (130, 300), (4098, 257), (9000, 128), (200, 1500)]
CASES = {f"{name} {shape} {dtype}": (f, shape, dtype)
         for name, f in REDUCTIONS.items() for shape in SHAPES for dtype in ("float32", "float64", "float16", "int32")
         if dtype != "int32" or name in ("sum", "prod", "max", "argmax")}  # fmt: skip
QUICK = (
    "sum (4098, 257) float32",
    "argmax (130, 300) int32",
    "two (200, 1500) float16",
    "a later pass (64, 130) float64",
)


@pytest.fixture
def from_size(monkeypatch):
    """Runs a function with kernels in their wide form from so many elements on; with the names of these kernels."""

    def run(least, f, x):
        with monkeypatch.context() as patch:
            patch.setattr(loop_schedule, "LARGE", least)
            PLAN_CACHE.clear()
            g = volta.jit(lambda x: f(x))
            found = g(x)
            texts = g.lower(x).compile().executable.plan.kernel_texts().values()
        PLAN_CACHE.clear()
        return found, [t for t in texts if "registers" in t and "col" in t]

    return run


@sampled("name", CASES, quick=QUICK)
def test_long_vectors_have_the_bits_of_short_ones(name, from_size) -> None:
    f, shape, dtype = CASES[name]
    x = fill("normal", shape, dtype)
    wide, _ = from_size(1, f, x)
    usual, none = from_size(1 << 60, f, x)
    assert not none
    assert_bits_equal(wide, usual)


def test_large_arrays_are_reduced_in_long_vectors(from_size) -> None:
    """Those whose lanes are neighbours; light bodies in the longest."""
    x = fill("normal", (300, 2048), "float32")
    for name, registers in (("sum", 16), ("much else", 4)):
        _, (text,) = from_size(1 << 18, REDUCTIONS[name], x)
        assert f"in vectors of {registers} registers" in text
    _, none = from_size(1 << 18, lambda x: x[:, np.arange(2048) // 2].sum(0), x)
    assert not none


def test_columns_are_cut_for_many_threads() -> None:
    """A task is 64 columns, however long the vectors are."""
    x = fill("normal", (300, 1100), "float32")
    (launch,) = volta.jit(lambda x: x.sum(0)).lower(x).compile().executable.plan.all_launches()
    assert launch.kernel.wide == 16
    assert (launch.tasks, launch.pieces) == (18, 2)


@pytest.mark.parametrize("threads", [2, 3, 5, 16])
def test_a_thread_visits_its_columns_in_vectors_of_several_lengths(threads, from_size) -> None:
    """Neighbouring tasks of a thread are one range."""
    x, before = fill("normal", (300, 1100), "float32"), volta.get_num_threads()
    usual, _ = from_size(1 << 60, lambda x: (x.sum(0), vnp.argmax(x, 0)), x)
    try:
        volta.set_num_threads(threads)
        found, texts = from_size(1, lambda x: (x.sum(0), vnp.argmax(x, 0)), x)
    finally:
        volta.set_num_threads(before)
    assert texts and all("in vectors of 16 registers" in text for text in texts)
    assert_bits_equal(found, usual)
