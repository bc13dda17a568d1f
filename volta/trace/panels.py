"""Panels of matrices as one equation each: it means a program that goes column by column, and backends have kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.trace.calls import jit_p
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.meaning import means_its_program
from volta.xla_like.panels import PANEL

_CACHED = 1024  # programs kept


@attrs.frozen
class PanelProgram:
    """A function of matrices with one batch axis, as `xla_like.panels` names it. Complex numbers are its program's."""

    kind: str
    value: Callable[..., Sequence[Any]]

    def __call__(self, *operands: Any, unit: bool = False) -> list[Any]:
        avals = tuple([get_aval(x).strip_weak() for x in operands])
        if dtypes.is_complex(avals[0].dtype):
            return list(self.value(*operands, unit=unit))
        return panel_p.bind(*operands, jaxpr=_program(self, avals, unit), kind=self.kind, unit=unit)


@lru_cache(maxsize=_CACHED)
def _program(of: PanelProgram, avals: tuple[ShapedArray, ...], unit: bool) -> ClosedJaxpr:
    program, _ = trace_to_jaxpr(lambda *xs: (list(of.value(*xs, unit=unit)), None), avals, of.kind)
    eqns = tuple(e.replace(source=None) for e in program.eqns)
    return ClosedJaxpr(program.jaxpr.replace(eqns=eqns), program.consts)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, kind: str, unit: bool) -> Any:
    return jit_p.jvp(primals, tangents, jaxpr=jaxpr, name=kind)  # type: ignore[operator]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, jaxpr: ClosedJaxpr, kind: str, unit: bool
) -> Any:
    return jit_p.batch(args, dims, trace, jaxpr=jaxpr, name=kind)


def _linearize(nonzero: Any, *primals: Any, jaxpr: ClosedJaxpr, kind: str, unit: bool) -> Any:
    return jit_p.linearize(nonzero, *primals, jaxpr=jaxpr, name=kind)  # type: ignore[misc]


panel_p = means_its_program(
    PANEL,
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    doc="A few columns of matrices, eliminated one by one: means exactly its program.",
)
