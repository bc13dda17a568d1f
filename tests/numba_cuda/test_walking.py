"""Maps that read what is moved: rows that a thread walks, and groups of neighbours that are read side by side."""

import numpy as np
import pytest

import volta.numpy as vnp
from tests.sampling import sampled
from tests.xla_like.test_moving import MOVED, STENCILS, program
from volta import nn
from volta.numba_cuda.loops import walking
from volta.testing import fill
from volta.testing.host_grid import HostKernels, check_on_host, run_on_host

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()


def rolls(x):
    return vnp.roll(x, 1, 0) + vnp.roll(x, -1, 0) + vnp.roll(x, 1, 1) + vnp.roll(x, -1, 1)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + vnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin


@pytest.fixture
def walked(monkeypatch):
    """However few elements there are."""
    monkeypatch.setattr(walking, "FILLED", 1)


WAYS = [(8, 1), (8, 2), (3, 2), (1, 1)]
"""Rows that a thread walks, and how many of them together."""


@sampled("rows, together", WAYS, quick=WAYS[1:3])
@sampled("name", list(STENCILS), quick=["four rolls", "of a pad"])
def test_rows_that_are_walked_have_the_cpus_bits(walked, monkeypatch, name, rows, together) -> None:
    short = [] if name in ("far rolls", "a roll of a part") else [(5, 3), (9, 8)]
    monkeypatch.setattr(walking, "ROWS", rows)
    monkeypatch.setattr(walking, "TOGETHER", together)
    kernels = HostKernels()
    for shape in [(13, 72), (3, 130), (40, 40), *short]:
        check_on_host(STENCILS[name], fill("normal", shape), kernels=kernels)


@sampled("moved", list(MOVED), quick=["roll", "reflect", "pad with a number"])
def test_whatever_is_moved_is_walked(walked, moved) -> None:
    check_on_host(program(moved, "with itself", 1), fill("normal", (10, 70)), kernels=KERNELS)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_what_all_rows_share_is_read_for_all_of_them(walked, dtype) -> None:
    x, table = fill("normal", (2, 5, 11, 64), dtype), fill("normal", (5, 1, 64), dtype, 1)
    check_on_host(rotated, x, table, table + 1, kernels=KERNELS)
    check_on_host(nn.rotary_embedding, x, np.arange(5, dtype=np.int32), kernels=KERNELS)


def test_a_donated_operand_is_overwritten_by_who_has_read_it(walked) -> None:
    x = fill("normal", (21, 64))
    check_on_host(lambda x, y: x * 2 + vnp.roll(y, 1, 1), x, x + 1, donated=(0,), kernels=KERNELS)


GROUPS = 64 // walking.LANES

ENDS = {  # a program, and how many groups of a row are neither in range nor out of it
    "rolls": (rolls, 2),
    "a roll by whole groups": (lambda x: x + vnp.roll(x, 8, 1), 0),
    "a padding": (lambda x: vnp.pad(x, ((0, 0), (2, 2))) * 2, 2),
    "halves": (lambda x: x + vnp.concatenate([x[:, 32:], x[:, :32]], 1), 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_groups_are_read_side_by_side_but_for_those_at_ends(monkeypatch, name) -> None:
    """What is computed element by element is not written here, so it is seen which groups are."""
    store = walking.WalkEmitter.store

    def beside(e, number, s, value, lanes, *rest):
        if lanes > 1:
            store(e, number, s, value, lanes, *rest)

    monkeypatch.setattr(walking.WalkEmitter, "store", beside)
    f, ends = ENDS[name]
    x = abs(fill("normal", (16, 64))) + 1
    want = np.asarray(f(x))
    (got,) = run_on_host(f, x, kernels=HostKernels()).outputs
    missing = (got.reshape(want.shape) != want).reshape(16, -1, walking.LANES)
    assert (missing.any(-1).sum(1) == ends).all()
    assert missing.shape[1] >= GROUPS
