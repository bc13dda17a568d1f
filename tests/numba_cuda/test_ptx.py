"""Every primitive's CUDA kernels compile to PTX without a GPU, and the text keeps the rules of strict kernels."""

import pytest

from tests.ops.cases import cases, dtypes_of, vocabulary
from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.numba_cuda import kernels, ptx
from volta.xla_like.compile import build_plan


def program_of(case):
    """The program of one equation that a case is."""
    invars = tuple(Var(ShapedArray(x.shape, x.dtype)) for x in case.args)
    result = case.primitive.abstract(*[v.aval for v in invars], **case.params)
    outs = tuple(Var(a) for a in (result if case.primitive.multiple_results else [result]))
    return ClosedJaxpr(Jaxpr((), invars, (Eqn(case.primitive, invars, outs, case.params),), outs), ())


def sources_of(case):
    plan, _ = build_plan(program_of(case))
    return {launch.source.name: launch.source for launch in kernels.launches_of(plan)}


@pytest.mark.parametrize("primitive", vocabulary(), ids=lambda p: p.name)
def test_kernels_of_every_primitive_compile_and_keep_the_rules(primitive):
    sources = {}
    for dtype in dtypes_of(primitive):
        for case in cases(primitive, dtype):
            sources.update(sources_of(case))
    if sources:
        text = ptx.compile_ptx(sources.values(), "9.0")
        assert ptx.violations(text) == []
        for name in sources:
            assert f".entry {name}(" in text
