"""CUDA's kernels for panels, run on the host: the CPU's bits, whatever the order of threads."""

from __future__ import annotations

import pytest

from tests.numba_cpu.panels import FUNCTIONS, matrices
from tests.sampling import sampled
from volta.testing.host_grid import HostKernels, check_on_host

KERNELS = HostKernels()
pytestmark = pytest.mark.turns(2)


@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in FUNCTIONS for n in (5, 40, 70) for dtype in ("f4", "f8")],
    [("cholesky", 5, "f4"), ("lu", 5, "f8"), ("lower", 5, "f4")],
)
def test_cuda_panels_have_the_bits_of_the_cpu(name, n, dtype):
    check_on_host(FUNCTIONS[name], matrices(n, dtype), kernels=KERNELS)
