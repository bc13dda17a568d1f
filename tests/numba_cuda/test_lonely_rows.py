"""Rows that have a block of threads for themselves have the CPU's bits, on the host runner."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.numba_cuda.loops.row_variants import choose_row
from volta.offline import plan_on_cuda
from volta.testing.host_grid import ORDERS, HostKernels, check_on_host
from volta.xla_like.kernels import LoopKernel

KERNELS = HostKernels()
ROWS = {
    "rms norm": lambda x: nn.rms_norm(x + 1, x[0]),
    "softmax": nn.softmax,
    "layer norm": lambda x: nn.layer_norm(x, x[0], x[0] * 2),
    "sums": lambda x: (vnp.sum(x, 1), vnp.max(x, 1), vnp.prod(1 + x / 512, 1)),
    "positions": lambda x: (vnp.argmax(x, 1), vnp.argmin(x, 1)),
    "dtypes": lambda x: (vnp.any(x > 3, 1), vnp.sum(x.astype(np.float16), 1), vnp.sum(x.astype(np.int32), 1)),
    "float64": lambda x: vnp.var(x.astype(np.float64), 1),
}


def operand(rows, length):
    x = np.random.default_rng(length).standard_normal((rows, length)).astype(np.float32)
    x[0, 5], x[-1, -1] = -0.0, x[-1, 7]
    return x


def variants(f, x):
    calls = plan_on_cuda(volta.make_jaxpr(f)(x))[0].calls
    return [choose_row(c, "9.0") for c in calls if isinstance(c.kernel, LoopKernel) and c.kernel.mode == "row"]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rows, length", [(1, 4096), (3, 1025), (2, 1536)])
@pytest.mark.few(2)
def test_they_have_the_cpus_bits(name, rows, length):
    x = operand(rows, length)
    fits = length < 4096 or name not in ("positions", "float64")  # states of 8 bytes, which threads exchange
    assert all(bool(v.spread) is fits for v in variants(ROWS[name], x))
    check_on_host(ROWS[name], x, orders=("shuffled",), kernels=KERNELS)


def test_any_order_of_threads_and_in_place():
    for length in (1024, 1100):
        check_on_host(nn.softmax, operand(2, length), orders=ORDERS, donated=(0,), kernels=KERNELS)


def test_numbers_that_are_none():
    x = operand(4, 1200)
    x[0, 3], x[1, 4], x[2] = np.nan, np.inf, -np.inf
    for name in ("softmax", "sums", "positions"):
        check_on_host(ROWS[name], x, orders=("shuffled",), kernels=KERNELS)


def test_many_rows_and_short_or_long_ones_share_blocks():
    for rows, length in ((64, 2048), (1, 512), (1, 5000)):
        assert not any(v.spread for v in variants(nn.softmax, operand(rows, length)))
