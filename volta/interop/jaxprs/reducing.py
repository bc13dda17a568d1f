"""Reductions, sorts, running totals and windows, under JAX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta import lax
from volta.api.autodiff import vjp
from volta.api.forward import jvp
from volta.core import dtypes
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops.base import dtype_of, shape_of

_REDUCTIONS = "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or".split()
_SCANS = "cumsum cumprod cummax cummin".split()
_MONOIDS = {
    "add": (lax.add, lax.reduce_sum), "mul": (lax.mul, lax.reduce_prod), "max": (lax.max, lax.reduce_max),
    "min": (lax.min, lax.reduce_min), "and": (lax.bitwise_and, lax.reduce_and), "or": (lax.bitwise_or, lax.reduce_or),
}  # fmt: skip
"""How two values are combined, and how those along axes are."""


def _reduced(function: Callable[..., Any]) -> Rule:
    return lambda e, x: function(x, e.params["axes"]) if e.params["axes"] else x


def _scanned(function: Callable[..., Any]) -> Rule:
    return lambda e, x: function(x, e.params["axis"], e.params["reverse"])


def _arg(function: Callable[..., Any]) -> Rule:
    def rule(e: Equation, x: Any) -> Any:
        (axis,) = e.params["axes"]
        return function(x, axis, e.outs[0].dtype)

    return rule


def _reduce_xor(e: Equation, x: Any) -> Any:
    for axis in sorted(e.params["axes"], reverse=True):
        size = shape_of(x)[axis]
        if size == 0:
            raise NotImplementedError("of no elements it is not translated")
        x = lax.index_in_dim(lax.associative_scan(lax.bitwise_xor, x, axis=axis), size - 1, axis, keepdims=False)
    return x


def _cumlogsumexp(e: Equation, x: Any) -> Any:
    return lax.associative_scan(vnp.logaddexp, x, e.params["reverse"], e.params["axis"])


def _sort(e: Equation, *operands: Any) -> Any:
    return lax.sort(operands, e.params["dimension"], e.params["is_stable"], e.params["num_keys"])


def _top_k(e: Equation, x: Any) -> Any:
    return lax.top_k(x, e.params["k"], axis=e.params.get("axis", -1))


def _approx_top_k(e: Equation, x: Any) -> Any:
    best = lax.approx_max_k if e.params["is_max_k"] else lax.approx_min_k
    return best(x, e.params["k"], e.params["reduction_dimension"])


def _monoid(e: Equation) -> str:
    """The one operation of the program that says how a reduction combines."""
    program = e.params["jaxpr"]
    jaxpr = getattr(program, "jaxpr", program)
    name = jaxpr.eqns[0].primitive.name if len(jaxpr.eqns) == 1 else ""
    if name not in _MONOIDS or list(jaxpr.eqns[0].invars) != list(jaxpr.invars) or len(jaxpr.invars) != 2:
        raise NotImplementedError(f"combines by a function of its own; it may be one of {', '.join(sorted(_MONOIDS))}")
    return name


def _reduce(e: Equation, x: Any, start: Any) -> Any:
    combine, reduced = _MONOIDS[_monoid(e)]
    axes = e.params["dimensions"]
    return combine(reduced(x, axes) if axes else x, start)


# -- windows -----------------------------------------------------------------------------------------------------------


def _windows(e: Equation, x: Any, start: Any, combine: Callable[..., Any]) -> Any:
    p = e.params
    dilations = p.get("base_dilation"), p.get("window_dilation")
    return lax.reduce_window(
        x, start, combine, p["window_dimensions"], p["window_strides"], p["padding"], *dilations
    )  # fmt: skip


def _least(dtype: np.dtype, largest: bool) -> Any:
    """What no element is beyond: the start of a maximum, or of a minimum."""
    if dtypes.is_float(dtype):
        return np.asarray(np.inf if largest else -np.inf, dtype)[()]
    if dtype == dtypes.bool_:
        return np.bool_(largest)
    limits = np.iinfo(dtype)
    return np.asarray(limits.max if largest else limits.min, dtype)[()]


def _largest(e: Equation, x: Any) -> Any:
    return _windows(e, x, _least(dtype_of(x), False), lax.max)


def _smallest(e: Equation, x: Any) -> Any:
    return _windows(e, x, _least(dtype_of(x), True), lax.min)


def _sums(e: Equation, x: Any) -> Any:
    return _windows(e, x, np.zeros((), dtype_of(x))[()], lax.add)


def _combined(e: Equation, x: Any, start: Any) -> Any:
    return _windows(e, x, start, _MONOIDS[_monoid(e)][0])


def _extreme(e: Equation) -> Callable[[Any], Any]:
    pick = _largest if "ge" in str(e.params["select_prim"]) else _smallest
    return lambda x: pick(e, x)


def _select_and_scatter_add(e: Equation, source: Any, operand: Any) -> Any:
    """The derivative of a maximum (or minimum) over windows, backwards."""
    (ct,) = vjp(_extreme(e), operand)[1](source)
    return ct


def _select_and_gather_add(e: Equation, tangents: Any, operand: Any) -> Any:
    """The derivative of a maximum (or minimum) over windows, forwards."""
    return jvp(_extreme(e), (operand,), (tangents,))[1]


RULES: dict[str, Rule] = {
    **{name: _reduced(getattr(lax, name)) for name in _REDUCTIONS},
    **{name: _scanned(getattr(lax, name)) for name in _SCANS},
    "approx_top_k": _approx_top_k,
    "argmax": _arg(lax.argmax),
    "argmin": _arg(lax.argmin),
    "cumlogsumexp": _cumlogsumexp,
    "reduce": _reduce,
    "reduce_window": _combined,
    "reduce_window_max": _largest,
    "reduce_window_min": _smallest,
    "reduce_window_sum": _sums,
    "reduce_xor": _reduce_xor,
    "select_and_gather_add": _select_and_gather_add,
    "select_and_scatter_add": _select_and_scatter_add,
    "sort": _sort,
    "top_k": _top_k,
}
