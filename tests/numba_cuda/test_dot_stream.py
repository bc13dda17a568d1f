"""Products whose weights stream through Hopper's multiprocessors, on the host runner: they have the CPU's bits."""

import pytest

from tests.numba_cuda.test_cuda_dot_blocks import operands
from volta import nn
from volta.testing.host_grid import HostKernels, check_on_host

KERNELS = HostKernels()


def check(name, m, n, blocks, orders=("shuffled",)):
    check_on_host(nn.linear, *operands(name, m, n, blocks), orders=orders, kernels=KERNELS, capability="9.0a")


@pytest.mark.parametrize("m, n, blocks", [(1, 70, 3), (2, 9, 16), (1, 13, 18)])
def test_columns_rows_and_chunks_of_any_number(m, n, blocks):
    check("Q4_K", m, n, blocks)
