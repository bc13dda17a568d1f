"""Kernels of programs as PTX for named compute capabilities, where there is no GPU and no driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from volta.core import contract
from volta.core.ir import ClosedJaxpr
from volta.numba_cuda import ptx
from volta.numba_cuda.kernels import launches_of
from volta.xla_like.compile import build_plan
from volta.xla_like.plan import ExecutionPlan


@attrs.frozen
class Compiled:
    """A program's kernels for one compute capability: PTX, and each launch's kernel, blocks and threads."""

    name: str
    capability: str
    ptx: str
    launches: tuple[tuple[str, int, int], ...]
    contract: str = contract.ID


def compile_plan(plan: ExecutionPlan, capabilities: Sequence[str] = ("7.5", "8.0", "8.9", "9.0")) -> list[Compiled]:
    """A plan's kernels as PTX for each capability, checked against the rules of strict kernels.

    Raises:
        UnsupportedOperationError: a call of the plan has no CUDA kernel.
        AssertionError: the text breaks a rule (a bug of Volta's).
        ValueError: an unknown capability.
    """
    out = []
    for capability in capabilities:
        launches = launches_of(plan, capability)
        sources = {x.source.name: x.source for x in launches}
        table = tuple((x.source.name, x.grid, x.threads) for x in launches)
        text = ptx.compile_ptx(sources.values(), capability)
        found = ptx.violations(text)
        if found:
            raise AssertionError(f"{plan.name} for {capability}: " + "; ".join(found))
        out.append(Compiled(plan.name, capability, text, table))
    return out


def compile_programs(programs: Iterable[tuple[str, ClosedJaxpr]], capabilities: Sequence[str]) -> list[Compiled]:
    """Several programs, by name, for several capabilities."""
    return [x for name, program in programs for x in compile_plan(build_plan(program, name=name)[0], capabilities)]
