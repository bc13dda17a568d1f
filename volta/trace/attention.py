"""How attention is linearized: its tangent is one linear call, whose transpose is attention's own kernels.

The jvp rule of ``attention`` is made of ordinary operations on the whole matrix of scores; run backwards, they would
store that matrix. So the linear program of ``grad`` gets one equation instead, ``attention_tangent``. It carries these
operations as its program and means exactly them, but is transposed to ``attention_dq`` and ``attention_dkv``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops import base
from volta.ops.attention import attention_p, cotangents, fold_batch, unfold_batch
from volta.ops.attention_derivatives import Rest, tangent
from volta.ops.base import bind_named
from volta.ops.primitive import Linear, Zero, complete
from volta.trace.calls import jit_p
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.meaning import means_its_program

Mask = tuple[bool, ...]
_CACHED = 1024

# Operands of attention_tangent: queries, keys, values, then attention's results, then the tangents of those of the
# first three that ``wrt`` marks, then start and mask as attention has them.
_KNOWN = 6


@lru_cache(maxsize=_CACHED)
def _program(avals: tuple[ShapedArray, ...], wrt: Mask, params: tuple[tuple[str, Any], ...]) -> ClosedJaxpr:
    """The operations that attention_tangent means."""
    given = dict(params)

    def run(*args: Any) -> tuple[list[Any], None]:
        n = _KNOWN + sum(wrt)
        live = iter(args[_KNOWN:n])
        q, k, v = args[:3]
        tangents = [next(live) if m else Zero(get_aval(x)) for m, x in zip(wrt, (q, k, v), strict=True)]
        rest = Rest.of(args[n:], given["started"], given["masked"])
        return [tangent(q, k, v, rest, tangents, scale=given["scale"], causal=given["causal"])], None

    program, _ = trace_to_jaxpr(run, avals, "attention_tangent")
    return program


def _bind(args: Sequence[Any], wrt: Mask, params: dict[str, Any]) -> Any:
    avals = tuple(get_aval(x).strip_weak() for x in args)
    program = _program(avals, wrt, tuple(sorted(params.items())))
    (out,) = attention_tangent_p.bind(*args, jaxpr=program, name="attention_tangent", wrt=wrt, **params)
    return out


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, **params: Any) -> Any:
    return jit_p.jvp(primals, tangents, jaxpr=jaxpr, name=name)  # type: ignore[operator]


def _batch(
    args: Sequence[Any],
    dims: Sequence[int | None],
    trace: Any,
    *,
    jaxpr: ClosedJaxpr,
    name: str,
    wrt: Mask,
    **params: Any,
) -> Any:
    size = trace.axis.size
    return [unfold_batch(_bind(fold_batch(args, dims, size, params["masked"]), wrt, params), size)], [0]


def _transpose(
    cts: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr, name: str, wrt: Mask, **params: Any
) -> list[Any]:
    (ct,) = cts
    n = _KNOWN + sum(wrt)
    (q, k, v, out, m, l), live, rest = operands[:_KNOWN], operands[_KNOWN:n], operands[n:]  # noqa: E741
    wanted = iter(isinstance(x, Linear) for x in live)
    needs_q, needs_k, needs_v = (next(wanted) if m else False for m in wrt)
    given: list[Any] = [None] * 3
    if not isinstance(ct, Zero):
        work = dtypes.compute_dtype(base.dtype_of(out))
        both = bind_named("mul", *(_converted(x, work) for x in (ct, out)))
        args = (q, k, v, ct, m, l, base.sum_axes(both, (3,)), *rest)
        if needs_k or needs_v:
            given = list(cotangents(args, params, needs_q=needs_q, heads=get_aval(k).shape[1]))
        elif needs_q:
            given[0] = bind_named("attention_dq", *args, **params)
    needed = (needs_q, needs_k, needs_v)
    answers = [g if need else None for g, need, m in zip(given, needed, wrt, strict=True) if m]
    return [*[None] * _KNOWN, *answers, *[None] * len(rest)]


def _converted(x: Any, dtype: Any) -> Any:
    if base.dtype_of(x) == dtype:
        return x
    return bind_named("convert_element_type", x, new_dtype=dtype, weak_type=False)


def _linearize(nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, name: str, wrt: Mask, **params: Any) -> Any:
    return jit_p.linearize(nonzero, *primals, jaxpr=jaxpr, name=name)  # type: ignore[misc]


attention_tangent_p = means_its_program(
    "attention_tangent",
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="The tangent of attention's result; its transpose is attention_dq and attention_dkv.",
)


def _linearize_attention(nonzero: Mask, *primals: Any, **params: Any) -> Any:
    outs = list(attention_p.bind(*primals, **params))
    wrt = tuple(nonzero[:3])

    def linear(*tangents: Any) -> list[Any]:
        return [] if not any(wrt) else [_bind([*primals[:3], *outs, *tangents, *primals[3:]], wrt, params)]

    return outs, (any(wrt), False, False), linear


complete(attention_p, linearize=_linearize_attention)
