"""The CPU's kernels for panels have the bits of the programs that panels mean."""

from __future__ import annotations

import numpy as np
import pytest

import volta
from tests.numba_cpu.panels import FUNCTIONS, matrices
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu.schedule import Schedule
from volta.testing import assert_bits_equal
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.panels import Panel

PROGRAMS = [{"options": CompileOptions(fusion=False)}, pytest.param({"kernels": "njit"}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("settings", PROGRAMS)
@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in FUNCTIONS for n in (1, 5, 16, 33, 70) for dtype in ("f4", "f8")],
    [("cholesky", 5, "f4"), ("lu", 33, "f4"), ("lower", 16, "f8")],
)
def test_a_panel_has_the_bits_of_its_program(name, n, dtype, settings):
    f, a = volta.jit(FUNCTIONS[name]), matrices(n, dtype)
    found = f(a)
    with volta.execution_context(**settings):
        wanted = f(a)
    for x, y in zip(found, wanted, strict=True):
        assert_bits_equal(x, y)


def calls(f, a):
    plan, _ = build_plan(volta.make_jaxpr(f)(a), scheduler=Schedule(512))
    return [call.details() for top in plan.calls for call in top.nested() if isinstance(call.kernel, Panel)]


def test_columns_of_a_panel_are_one_kernel():
    a = matrices(64, "f4")
    below = "substitute f32 batch=5 width=32 length=64"
    assert calls(lax.linalg.cholesky, a) == ["cholesky f32 batch=5 width=32 length=32", below]
    assert calls(lambda a: lax.linalg.lu(a)[0], a) == ["lu f32 batch=5 width=32 length=64", f"{below} unit"]


def test_complex_panels_are_their_programs():
    a = matrices(5, "f8")[:1] * (1 + 0j)
    assert not calls(lax.linalg.cholesky, a)
    np.testing.assert_allclose(lax.linalg.cholesky(a)[0], np.linalg.cholesky(a[0].real), rtol=1e-12, atol=1e-12)
