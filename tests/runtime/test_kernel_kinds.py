"""The context's kernels: what is asked for is checked, plans are kept by it, and it costs nobody else anything."""

import os
import subprocess
import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import mesh_of, simulated
from volta.core.errors import ArgumentError, ContextError, DeviceError, UnsupportedOperationError
from volta.runtime import gateway
from volta.runtime.context import ExecutionContext
from volta.sharding import NamedSharding, PartitionSpec

pytestmark = pytest.mark.turns(6)


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(ContextError, match="no kernels 'fortran'; there are 'llvm', 'njit', 'python'"):
        with volta.execution_context(kernels="fortran"):
            pass


@pytest.mark.turns(6)
def test_the_environment_sets_them_and_is_checked() -> None:
    code = "import volta; print(volta.current_context().kernels); print(volta.numpy.ones(2) + 1)"
    assert run(code, VOLTA_KERNELS="python").stdout == "python\n[2. 2.]\n"
    refused = run(code, VOLTA_KERNELS="fortran")
    assert refused.returncode and "VOLTA_KERNELS: there are no kernels 'fortran'" in refused.stderr


def test_each_kind_has_plans_of_its_own() -> None:
    f = volta.jit(lambda x: x * 3 + 0.5)
    before = volta.current_context()
    found = []
    for kind in ("llvm", "python", "llvm"):
        with volta.execution_context(kernels=kind) as context:
            assert context.kernels == kind
            f(np.float32(2))
            found.append(f._entries.find(next(k for k in f._entries if k[2] == context)))
    assert found[0] is found[2] is not found[1]
    assert volta.current_context() is before
    assert ExecutionContext(kernels="python") != ExecutionContext()


def test_eager_operations_and_nested_blocks_too() -> None:
    with volta.execution_context(kernels="python"), volta.execution_context(memory_budget=10**9) as inner:
        assert inner.kernels == "python"
        np.testing.assert_array_equal(vnp.ones(3) + 1, [2, 2, 2])


def test_a_gpu_runs_its_own_kernels() -> None:
    program = volta.make_jaxpr(lambda x: x + 1)(np.float32(1))
    with pytest.raises(DeviceError, match="kernels='njit' runs plans on the CPU"):
        gateway.compile(program, context=ExecutionContext(backend="cuda", kernels="njit"))


def test_importing_volta_loads_no_generator() -> None:
    """Nor numba-cuda, nor anything of SciPy's: Numba itself asks SciPy, where it is there, for its version."""
    code = (
        "import sys, numba; before = set(sys.modules); import volta; volta.jit(lambda x: x + 1)(1.0); "
        "print([m for m in set(sys.modules) - before if m.startswith(('volta.numba_source', 'numba.cuda', 'scipy'))])"
    )
    assert run(code, VOLTA_KERNELS="").stdout == "[]\n"


@pytest.mark.parametrize("ask", ["source", "kernel"])
def test_a_kernel_that_is_not_there_is_named(ask) -> None:
    compiled = volta.jit(lambda x: (vnp.sum(x), vnp.sum(x, 0))).lower(np.ones((70000, 2), np.float32)).compile()
    with pytest.raises(ArgumentError, match="plan .* has no kernel 'sort'; there are volta_"):
        getattr(compiled, ask)("sort")
    with pytest.raises(ArgumentError, match="kernels whose names have 'volta' in them"):
        getattr(compiled, ask)("volta")
    with pytest.raises(ArgumentError, match="a kernel is asked for by its name or a part of it, got None"):
        getattr(compiled, ask)(None)


def test_what_is_run_in_parts_or_by_several_workers_has_no_one_text() -> None:
    called = volta.jit(lambda x: volta.pure_callback(lambda y: y, x, x) + 1).lower(np.ones(3, np.float32)).compile()
    for ask in (lambda c: c.as_text("numba"), lambda c: c.source("map"), lambda c: c.peak_live_bytes):
        with pytest.raises(UnsupportedOperationError, match=": `<lambda>` calls Python functions, so it is run in"):
            ask(called)
    with simulated(2):
        cut = volta.device_put(np.ones((4, 2), np.float32), NamedSharding(mesh_of(2), PartitionSpec("data")))
        spread = volta.jit(lambda x: x * 2).lower(cut).compile()
        assert spread.as_text() == spread.plan.as_text()
        with pytest.raises(UnsupportedOperationError, match=r"as_text\('numba'\): `<lambda>` is compiled for several"):
            spread.as_text("numba")
        for ask in ("source", "kernel"):
            with pytest.raises(UnsupportedOperationError, match=f"{ask}: `<lambda>` is compiled for several workers"):
                getattr(spread, ask)("map")
        with pytest.raises(DeviceError, match="is compiled for several workers, but code compiled by Numba"):
            volta.njit(spread)
    with pytest.raises(UnsupportedOperationError, match="no code that could be called without Python"):
        volta.njit(called)


def test_a_text_that_is_not_there_is_named() -> None:
    compiled = volta.jit(lambda x: x + 1).lower(np.float32(1)).compile()
    with pytest.raises(ArgumentError, match="no text 'fortran'; there are 'numba' and None"):
        compiled.as_text("fortran")
    assert compiled.as_text().startswith("plan ")
