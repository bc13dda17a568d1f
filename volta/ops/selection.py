"""Selecting and converting: elementwise primitives whose operands or results differ in dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import contract, dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.constants import check_held
from volta.core.extended import is_key, refusal
from volta.core.interp import bind, get_aval
from volta.ops import base, scalar
from volta.ops.base import dtype_error, shape_error
from volta.ops.elementwise import ANY, batch_elementwise, check_dtypes, common_shape
from volta.ops.primitive import Domain, Family, Linear, NoDerivative, Primitive, Zero, register

__all__ = ["bitcast_convert_type", "convert_element_type", "select", "select_n"]

# -- select ------------------------------------------------------------------------------------------------------------


def _select_abstract(which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
    avals = (which, *cases)
    if which.dtype != dtypes.bool_:
        raise dtype_error("select_n", avals, "the predicate must be bool; compare it with 0 first.")
    if len(cases) != 2:
        raise shape_error("select_n", avals, f"takes two cases, got {len(cases)}")
    dtype = check_dtypes("select_n", cases, ANY)
    return ShapedArray(common_shape("select_n", avals), dtype, all(c.weak_type for c in cases))


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = bind(select_n_p, *primals)
    if base.all_zero(tangents[1:]):
        return out, base.zero_like(out)
    # a rank-0 zero is enough: select_n spreads it
    cases = [base.fill((), 0, t.aval.dtype) if isinstance(t, Zero) else t for t in tangents[1:]]
    tangent = bind(select_n_p, primals[0], *cases)
    return out, base.spread(tangent, base.shape_of(out))


def _select_transpose(ct: Any, which: Any, *cases: Any) -> list[Any]:
    if isinstance(ct, Zero):
        return [None] * 3
    zero = base.fill((), 0, base.dtype_of(ct))
    result: list[Any] = [None]
    for i, case in enumerate(cases):
        if isinstance(case, Linear):
            share = bind(select_n_p, which, *(ct if j == i else zero for j in range(2)))
            result.append(base.unbroadcast(share, case.aval))
        else:
            result.append(None)
    return result


select_n_p = register(
    Primitive(
        "select_n",
        Family.ELEMENTWISE,
        abstract=_select_abstract,
        jvp=_select_jvp,
        batch=batch_elementwise("select_n"),
        transpose=_select_transpose,
        emit=lambda b, which, case0, case1: scalar.select(b, which, case1, case0),
        domain=Domain(kinds=ANY),
        of_keys=True,
        doc="Elementwise choice: the first case where the predicate is False, the second where it is True.",
    )
)


def select_n(which: Any, *cases: Any) -> Array:
    """Elementwise choice between two cases, or by int32 numbers between any number of them.

    Args:
        which: bool, or the number of the case, which is moved inside; of the cases' shape or rank 0.
        cases: operands of one dtype; each of the common shape or rank 0.

    Raises:
        DTypeError: where ``which`` is neither bool nor int32, or the cases differ in dtype.

    >>> lax.select_n(np.array([True, False]), np.array([1, 2]), np.array([10, 20]))
    Array([10,  2], dtype=int64)
    """
    cases = base.operands("select_n", *cases)
    if get_aval(which).dtype != dtypes.int32 or not cases:
        return bind(select_n_p, which, *cases)
    chosen = (
        base.spread(cases[0], base.shape_of(which)) if len(cases) == 1 and not base.shape_of(cases[0]) else cases[0]
    )
    for i, case in enumerate(cases[1:], 1):
        later = base.bind_named("ge", *base.operands("select_n", which, i))
        chosen = bind(select_n_p, later, chosen, case)
    return chosen


def select(pred: Any, on_true: Any, on_false: Any) -> Array:
    """Elementwise ``on_true`` where ``pred`` else ``on_false``; shapes and dtypes as in :func:`select_n`.

    >>> lax.select(np.array([True, False]), np.array([1, 2]), 0)
    Array([1, 0], dtype=int64)
    """
    return select_n(pred, on_false, on_true)


def _refuse_keys(name: str, x: ShapedArray, new_dtype: np.dtype) -> None:
    """Random keys are no numbers: ``random.key_data`` and ``wrap_key_data`` lead from one to the other."""
    if is_key(x.dtype):
        raise dtype_error(name, (x,), refusal(x.dtype))
    if is_key(new_dtype):
        raise dtype_error(name, (x,), f"{new_dtype} is made of words: use random.wrap_key_data, or random.key(seed)")


# -- conversion --------------------------------------------------------------------------------------------------------


def _convert_abstract(x: ShapedArray, *, new_dtype: np.dtype, weak_type: bool) -> ShapedArray:
    _refuse_keys("convert_element_type", x, new_dtype)
    return ShapedArray(x.shape, new_dtype, weak_type)


def _convert_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = convert_element_type(primals[0], **params)
    both = dtypes.is_inexact(params["new_dtype"]) and dtypes.is_inexact(base.dtype_of(primals[0]))
    if isinstance(tangents[0], Zero) or not both:
        return out, base.zero_like(out)
    return out, convert_element_type(tangents[0], params["new_dtype"])


def _convert_transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
    return [None if isinstance(ct, Zero) else convert_element_type(ct, x.aval.dtype)]


convert_element_type_p = register(
    Primitive(
        "convert_element_type",
        Family.ELEMENTWISE,
        abstract=_convert_abstract,
        jvp=_convert_jvp,
        batch=batch_elementwise("convert_element_type"),
        transpose=_convert_transpose,
        emit=lambda b, x, *, new_dtype, weak_type=False: scalar.convert(b, x, new_dtype.name),
        domain=Domain(kinds=ANY),
        doc="Elementwise conversion to another dtype; float to integer saturates and takes NaN to 0.",
    )
)


def convert_element_type(operand: Any, new_dtype: Any, weak_type: bool = False) -> Array:
    """``operand`` in another dtype: floats round to nearest even, float to integer saturates and takes NaN to 0. Of a
    complex number that becomes a real one the real part is left; as a bool it says whether the number is not 0.

    Raises:
        DTypeError: where ``new_dtype`` is not a dtype that Volta computes with.

    >>> lax.convert_element_type(np.float32([1.9, -1e20, np.nan]), np.int32)
    Array([          1, -2147483648,           0], dtype=int32)
    """
    dtype, aval = dtypes.canonicalize(new_dtype), get_aval(operand)
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return operand
    check_held(operand, dtype)
    return bind(convert_element_type_p, operand, new_dtype=dtype, weak_type=weak_type)


def _bitcast_abstract(x: ShapedArray, *, new_dtype: np.dtype, old_dtype: np.dtype) -> ShapedArray:
    _refuse_keys("bitcast_convert_type", x, new_dtype)
    if x.dtype.itemsize != new_dtype.itemsize or dtypes.bool_ in (x.dtype, new_dtype):
        raise dtype_error(
            "bitcast_convert_type", (x,), f"{new_dtype.name} has another item size, or one of them is bool"
        )
    if dtypes.is_complex(x.dtype) or dtypes.is_complex(new_dtype):
        raise dtype_error("bitcast_convert_type", (x,), "complex numbers have two parts: use real and imag")
    return ShapedArray(x.shape, new_dtype)


def _bitcast_emit(b: Any, x: Any, *, new_dtype: np.dtype, old_dtype: np.dtype) -> Any:
    if old_dtype == new_dtype:
        return x
    bits = scalar.to_bits(b, x, old_dtype)  # the value does not show its dtype where it is a half float
    if dtypes.is_float(old_dtype):
        # Which NaN an operation gives depends on the machine, and on whether a compiler folded it. The test is one
        # of integers: compilers drop selections between NaNs.
        is_nan = bits & ((1 << (8 * old_dtype.itemsize - 1)) - 1) > contract.INFINITY_BITS[old_dtype.name]
        bits = b.select(is_nan, contract.NAN_BITS[old_dtype.name], bits)
    return scalar.from_bits(b, bits, new_dtype)


bitcast_convert_type_p = register(
    Primitive(
        "bitcast_convert_type",
        Family.ELEMENTWISE,
        abstract=_bitcast_abstract,
        jvp=NoDerivative("bits have no derivative", zero=True),
        batch=batch_elementwise("bitcast_convert_type"),
        emit=_bitcast_emit,
        domain=Domain(kinds=("float", "int")),
        doc="The same bits read as another dtype of the same item size; every NaN has the bits of the one NaN.",
    )
)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Array:
    """The bits of ``operand`` read as another dtype of the same item size.

    Every NaN is read as the one NaN: positive, quiet, without payload (0x7fc00000 for float32).

    Raises:
        DTypeError: where the item sizes differ.

    >>> lax.bitcast_convert_type(np.float32(1), np.int32)
    Array(1065353216, dtype=int32)
    """
    return bind(
        bitcast_convert_type_p, operand, new_dtype=dtypes.canonicalize(new_dtype), old_dtype=get_aval(operand).dtype
    )
