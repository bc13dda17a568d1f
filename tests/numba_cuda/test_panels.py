"""CUDA's kernels for panels, run on the host: the CPU's bits, whatever the order of threads."""

from __future__ import annotations

import re

import numpy as np
import pytest

import volta
from tests.numba_cpu.panels import FUNCTIONS, ROTATED, matrices
from tests.sampling import sampled
from volta.numba_cuda import kernels
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.launches import every
from volta.numba_cuda.panels.panels import REFLECTED
from volta.offline import plan_on_cuda
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.panels import ROWS

KERNELS = HostKernels()
pytestmark = pytest.mark.turns(6)


@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in FUNCTIONS for n in (5, 40, 70) for dtype in ("f4", "f8")],
    [("cholesky", 5, "f4"), ("lu", 5, "f8"), ("lower", 5, "f4"), ("qr", 5, "f4")],
)
def test_cuda_panels_have_the_bits_of_the_cpu(name, n, dtype):
    check_on_host(FUNCTIONS[name], matrices(n, dtype), kernels=KERNELS)


@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in ROTATED for n in (2, 8, 17, 34) for dtype in ("f4", "f8")],
    [("eigh", 2, "f4")],
)
def test_cuda_rotations_have_the_bits_of_the_cpu(name, n, dtype):
    """34 elements are more than a warp has lanes."""
    check_on_host(ROTATED[name], matrices(n, dtype), kernels=KERNELS)


def test_long_columns_of_qr_are_reflected_by_the_whole_gpu():
    for n, wanted in ((REFLECTED, True), (REFLECTED + 1, False)):
        plan, _ = plan_on_cuda(volta.make_jaxpr(FUNCTIONS["qr"])(np.zeros((n, 32), np.float32)))
        calls = [call.details() for top in plan.calls for call in top.nested()]
        assert any(x.startswith("qr ") for x in calls) is wanted


@pytest.mark.parametrize("dtype", ["f4", pytest.param("f8", marks=pytest.mark.slow)])
def test_kernels_of_panels_compile_and_keep_the_rules(dtype):
    """Their static shared memory is what every GPU since 2014 has."""
    for f, n in [*((f, 70) for f in FUNCTIONS.values()), *((f, ROWS) for f in ROTATED.values())]:
        plan, _ = plan_on_cuda(volta.make_jaxpr(f)(matrices(n, dtype)))
        every_one = every(kernels.launches_of(plan, "9.0"))
        launches = [x for x in every_one if re.match("volta_(panel|rotations)", x.source.name)]
        sources = {x.source.name: x.source for x in launches}
        assert sources and max(x.shared for x in launches) <= 48 << 10
        text = ptx.compile_ptx(list(sources.values()))
        assert not ptx.violations(text)
        for entry in text.split(".visible .entry")[1:]:
            used = {name: int(n) for name, n in re.findall(r"(\w+)\[(\d+)\];", text) if name in entry}
            assert sum(used.values()) <= 48 << 10
