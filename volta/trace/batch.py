"""Batching (vmap): each value may carry one more axis than the function sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.axes import Axis, named
from volta.core.interp import Trace, current_trace, get_aval, use_trace
from volta.ops.base import to_front
from volta.ops.collectives import mentions
from volta.ops.primitive import Family
from volta.trace.jaxpr_trace import here
from volta.trace.tracer import TransformTracer, elements_of

_TOLD = (Family.CALL, Family.CONTROL, Family.COLLECTIVE)
"""Families whose batch rules are given the trace in place of the axis' size: they hand on what it says."""


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

    def __init__(self, parent: Trace, axis: Axis, name: str):
        self.parent = parent
        self.axis = axis
        self.name = name

    def describe(self) -> str:
        return f"vmap maps `{self.name}`"

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[int | None], bool]:
        """Values, their mapped axes, and whether any is mapped."""
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
        return values, dims, mapped

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        values, dims, mapped = self.split(args)
        told = primitive.family in _TOLD
        if not mapped and not (told and self.axis.name is not None and mentions(params, self.axis.name)):
            return self.parent.process_primitive(primitive, values, params)
        with use_trace(self.parent):
            out, out_dim = primitive.batch(values, dims, self if told else self.axis.size, **params)
        if primitive.multiple_results:
            return [self.join(x, d) for x, d in zip(out, out_dim, strict=True)]
        return self.join(out, out_dim)

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        values, dims, _ = self.split(args)
        mapped = tuple(d is not None for d in dims)
        with use_trace(self.parent):
            moved = [x if d is None else to_front(x, d, self.axis.size) for x, d in zip(values, dims, strict=True)]
            return [self.join(x, 0) for x in self.parent.process_custom(call.batched(self, mapped), moved)]

    def join(self, value: Any, dim: int | None) -> Any:
        return value if dim is None else BatchTracer(self, value, dim)

    def front(self, x: Any) -> Any:
        """The value of an output with the mapped axis in front; repeated, if it is not mapped."""
        mine = type(x) is BatchTracer and x._trace is self
        return to_front(x.value, x.dim, self.axis.size) if mine else to_front(x, None, self.axis.size)

    def again(self) -> BatchTrace:
        """A trace over the same axis, to be entered later."""
        return BatchTrace(self.parent, self.axis, self.name)

    @contextmanager
    def entered(self) -> Iterator[Trace]:
        """Maps what runs inside the block, on the trace that is current before it (which it gives).

        It may be entered again on another parent: where a function's derivative is computed in place of the function,
        what it closes over still belongs to this trace.
        """
        before, parent = self.parent, current_trace()
        self.parent = parent
        try:
            with use_trace(self), named(self.axis):
                yield parent
        finally:
            self.parent = before


def batch_flat(
    fun: Callable[..., tuple[Sequence[Any], Any]],
    axis: Axis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    name: str,
) -> tuple[list[Any], list[int | None], Any]:
    """``fun`` mapped over axis ``dims[i]`` of ``args[i]``: outputs, their mapped axes, what else ``fun`` gave."""
    trace = BatchTrace(current_trace(), axis, name)
    with use_trace(trace), named(axis):
        outs, aux = fun(*[trace.join(x, d) for x, d in zip(args, dims, strict=True)])
    values, out_dims = [], []
    for x in outs:
        mine = type(x) is BatchTracer and x._trace is trace
        values.append(x.value if mine else x)
        out_dims.append(x.dim if mine else None)
    return values, out_dims, aux
