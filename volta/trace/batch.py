"""Batching (vmap): each value may carry one more axis than the function sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.interp import Trace, current_trace, get_aval, use_trace
from volta.trace.jaxpr_trace import here
from volta.trace.tracer import TransformTracer, elements_of


class BatchTracer(TransformTracer):
    """A value whose axis ``dim`` is mapped: the function sees it without that axis."""

    __slots__ = ("value", "dim")

    def __init__(self, trace: BatchTrace, value: Any, dim: int):
        self._trace = trace
        self.value = value
        self.dim = dim
        aval = get_aval(value)
        self.aval = ShapedArray(aval.shape[:dim] + aval.shape[dim + 1 :], aval.dtype, aval.weak_type)
        self.source = here()

    def elements(self) -> str:
        batch = elements_of(self.value)
        return f"each along axis {self.dim} of {batch}" if batch else ""


class BatchTrace(Trace):
    """Interprets an operation through its ``batch`` rule, on the parent trace."""

    def __init__(self, parent: Trace, size: int, name: str):
        self.parent = parent
        self.size = size
        self.name = name

    def describe(self) -> str:
        return f"vmap maps `{self.name}`"

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        values: list[Any] = []
        dims: list[int | None] = []
        mapped = False
        for x in args:
            if type(x) is BatchTracer and x._trace is self:
                values.append(x.value)
                dims.append(x.dim)
                mapped = True
            else:
                values.append(x)
                dims.append(None)
        if not mapped:
            return self.parent.process_primitive(primitive, values, params)
        with use_trace(self.parent):
            out, out_dim = primitive.batch(values, dims, self.size, **params)
        if primitive.multiple_results:
            return [self.join(x, d) for x, d in zip(out, out_dim, strict=True)]
        return self.join(out, out_dim)

    def join(self, value: Any, dim: int | None) -> Any:
        return value if dim is None else BatchTracer(self, value, dim)


def batch_flat(
    fun: Callable[..., tuple[Sequence[Any], Any]], size: int, args: Sequence[Any], dims: Sequence[int | None], name: str
) -> tuple[list[Any], list[int | None], Any]:
    """``fun`` mapped over axis ``dims[i]`` of ``args[i]``: outputs, their mapped axes, what else ``fun`` gave."""
    trace = BatchTrace(current_trace(), size, name)
    with use_trace(trace):
        outs, aux = fun(*[trace.join(x, d) for x, d in zip(args, dims, strict=True)])
    values, out_dims = [], []
    for x in outs:
        mine = type(x) is BatchTracer and x._trace is trace
        values.append(x.value if mine else x)
        out_dims.append(x.dim if mine else None)
    return values, out_dims, aux
