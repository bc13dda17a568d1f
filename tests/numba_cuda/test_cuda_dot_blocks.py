"""Products with weights in blocks on the host runner: CUDA's kernel has the CPU's bits, in every format."""

import numpy as np
import pytest

import volta
from tests.block_weights import random_blocks
from volta import nn
from volta.core.block_formats import FORMATS
from volta.numba_cuda.schedule import Schedule
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import kernel_class

KERNELS = HostKernels()


def operands(name, m, n, blocks):
    x = np.random.default_rng(m).standard_normal((m, blocks * FORMATS[name].elements)).astype(np.float32)
    return x, nn.QuantizedArray(random_blocks(name, n, blocks), name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(1)
def test_every_format_has_the_cpus_bits(name):
    for m, n, blocks in ((1, 70, 3), (3, 33, 1), (8, 5, 2)):
        check_on_host(nn.linear, *operands(name, m, n, blocks), orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["7.0", "7.5", "8.6", "9.0"])
def test_every_gpu_has_room_for_it(capability):
    for name in ("Q8_0", "Q6_K"):
        check_on_host(nn.linear, *operands(name, 2, 40, 9), orders=("shuffled",), capability=capability)


@pytest.mark.slow
def test_long_sums():
    check_on_host(nn.linear, *operands("Q4_K", 2, 9, 37), orders=("shuffled",), kernels=KERNELS)


def test_few_rows_are_unpacked_in_the_product_and_many_before_it():
    for rows, kernels in ((1, ["dot"]), (8, ["dot"]), (9, None)):
        x, w = operands("Q4_K", rows, 600, 2)
        plan, _ = build_plan(volta.make_jaxpr(nn.linear)(x, w), scheduler=Schedule())
        names = [kernel_class(call.kernel) for call in plan.calls]
        assert (names == kernels) if kernels else "while" in names
