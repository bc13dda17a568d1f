"""Operations that move, join or make elements, and products, under JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta import lax
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops import base
from volta.ops.base import dtype_of


def _broadcast(e: Equation, x: Any, *sizes: Any) -> Any:
    return lax.broadcast_in_dim(x, e.outs[0].shape, e.params["broadcast_dimensions"])


def _pad(e: Equation, x: Any, value: Any) -> Any:
    return lax.pad(x, value, [tuple(map(int, low_high)) for low_high in e.params["padding_config"]])


def _reshape(e: Equation, x: Any, *sizes: Any) -> Any:
    if e.params.get("dimensions") is not None:
        x = lax.transpose(x, e.params["dimensions"])
    return base.reshape_to(x, e.outs[0].shape)


def _slice(e: Equation, x: Any) -> Any:
    return lax.slice(x, e.params["start_indices"], e.params["limit_indices"], e.params["strides"])


def _dynamic_slice(e: Equation, x: Any, *starts: Any) -> Any:
    return lax.dynamic_slice(x, starts, e.params["slice_sizes"])


def _iota(e: Equation, *sizes: Any) -> Any:
    return lax.broadcasted_iota(e.outs[0].dtype, e.outs[0].shape, e.params["dimension"])


def _empty(e: Equation, *operands: Any) -> Any:
    return [base.zeros_of(aval) for aval in e.outs]


def _same(e: Equation, *values: Any) -> Sequence[Any]:
    return values


def _precision(e: Equation) -> str | None:
    """JAX's precision of a product by Volta's name: products of float32 are float32's unless it is named."""
    asked = e.params.get("precision")
    kinds = asked if isinstance(asked, tuple) else (asked,)
    names = [str(getattr(kind, "name", kind)).upper() for kind in kinds if kind is not None]
    if any(name not in _PRECISIONS for name in names):
        raise NotImplementedError(f"precision {names}; those that are translated are {', '.join(sorted(_PRECISIONS))}")
    return max((_PRECISIONS[name] for name in names), default=None, key=_ORDER.index)


_PRECISIONS = {
    "DEFAULT": None, "HIGH": None, "HIGHEST": "highest", "F32_F32_F32": None, "F64_F64_F64": None,
    "TF32_TF32_F32": "tf32", "BF16_BF16_F32": "bf16",
}  # fmt: skip
_ORDER = [None, "bf16", "tf32", "highest"]


def _same_dtype(e: Equation, lhs: Any, rhs: Any) -> tuple[Any, Any, np.dtype | None]:
    """Operands of one dtype, and the result's if it is another."""
    out = e.outs[0].dtype
    if dtype_of(lhs) != dtype_of(rhs):
        lhs, rhs = (lax.convert_element_type(x, out) for x in (lhs, rhs))
    return lhs, rhs, None if out == dtype_of(lhs) else out


def _dot_general(e: Equation, lhs: Any, rhs: Any) -> Any:
    lhs, rhs, out = _same_dtype(e, lhs, rhs)
    (lc, rc), (lb, rb) = e.params["dimension_numbers"]
    numbers = ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
    return lax.dot_general(lhs, rhs, numbers, _precision(e), out)


def _conv_general_dilated(e: Equation, lhs: Any, rhs: Any) -> Any:
    lhs, rhs, out = _same_dtype(e, lhs, rhs)
    p, numbers = e.params, e.params["dimension_numbers"]
    return lax.conv_general_dilated(
        lhs,
        rhs,
        p["window_strides"],
        p["padding"],
        p["lhs_dilation"],
        p["rhs_dilation"],
        lax.ConvDimensionNumbers(*(tuple(map(int, s)) for s in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))),
        p["feature_group_count"],
        p["batch_group_count"],
        _precision(e),
        out,
    )


def _fft(e: Equation, x: Any) -> Any:
    return lax.fft(x, e.params["fft_type"].name, e.params["fft_lengths"])


RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda e, *xs: lax.concatenate(xs, e.params["dimension"]),
    "conv_general_dilated": _conv_general_dilated,
    "device_put": _same,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": lambda e, x, update, *starts: lax.dynamic_update_slice(x, update, starts),
    "empty": _empty,
    "empty2": _empty,
    "fft": _fft,
    "iota": _iota,
    "layout_constraint": _same,
    "optimization_barrier": lambda e, *xs: base.bind_named("optimization_barrier", *xs),
    "pad": _pad,
    "pvary": _same,
    "reshape": _reshape,
    "rev": lambda e, x: lax.rev(x, e.params["dimensions"]),
    "reshard": _same,
    "relayout": _same,
    "sharding_constraint": _same,
    "slice": _slice,
    "split": lambda e, x: lax.split(x, e.params["sizes"], e.params["axis"]),
    "squeeze": lambda e, x: base.reshape_to(x, e.outs[0].shape),
    "stack": lambda e, *xs: lax.stack(xs, e.params["axis"]),
    "tile": lambda e, x: lax.tile(x, e.params["reps"]),
    "transpose": lambda e, x: base.permute(x, e.params["permutation"]),
    "zeros_like": _empty,
    "unstack": lambda e, x: lax.unstack(x, e.params["axis"]),
}
