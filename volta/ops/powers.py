"""Powers to an integer that is only known when the program runs, with the bits of ``integer_pow``."""

from __future__ import annotations

from typing import Any

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import bind, get_aval
from volta.ops import arithmetic, base, scalar
from volta.ops.elementwise import NUMBER, batch_elementwise, check_dtypes, common_shape
from volta.ops.primitive import Domain, Family, Primitive, Zero, register
from volta.ops.selection import convert_element_type, select

__all__ = ["pow_int"]


def _abstract(x: ShapedArray, n: ShapedArray) -> ShapedArray:
    if n.dtype != dtypes.int64:
        raise base.dtype_error("pow_int", (x, n), "the exponent must be int64; use convert_element_type.")
    dtype = check_dtypes("pow_int", (x,), NUMBER)
    return ShapedArray(common_shape("pow_int", (x, n)), dtype, x.weak_type and n.weak_type)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x, n), t = primals, tangents[0]
    ans = pow_int(x, n)
    if isinstance(t, Zero):
        return ans, base.zero_like(ans)
    constant = arithmetic.eq(n, 0)  # its derivative is 0, also where 1 / x, or the tangent, is no number
    zero = base.scalar_like(0, get_aval(t).strip_weak())
    # nothing infinite may be computed and not chosen: its own derivatives would not be chosen either, times 0
    less = select(constant, base.scalar_like(0, get_aval(n)), arithmetic.sub(n, 1))
    factor = arithmetic.mul(convert_element_type(n, base.dtype_of(t)), pow_int(x, less))
    share = arithmetic.mul(select(constant, zero, t), factor)
    return ans, base.spread(share, base.shape_of(ans))


pow_int_p = register(
    Primitive(
        "pow_int",
        Family.ELEMENTWISE,
        abstract=_abstract,
        jvp=_jvp,
        batch=batch_elementwise("pow_int"),
        emit=scalar.pow_int,
        domain=Domain(0.3, 2.0, NUMBER),
        doc="Elementwise x to the power of an int64, by the products of integer_pow.",
    )
)


def pow_int(x: Any, n: Any) -> Any:
    """``x ** n`` for an integer ``n``, with the bits that ``integer_pow`` gives where ``n`` is a static integer.

    An integer to a negative power is rounded towards zero: 1 and -1 to themselves or their square, all else to 0.

    Args:
        x: floats or integers.
        n: int64 (or a Python number); of the shape of ``x``, or one of them of rank 0.

    Raises:
        ShapeError, DTypeError: for others.

    >>> lax.pow_int(np.float32([1, 2, 3]), np.int64(3))
    Array([ 1.,  8., 27.], dtype=float32)
    """
    return bind(pow_int_p, x, n)
