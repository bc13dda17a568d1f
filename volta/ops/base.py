"""What every family and rule needs: operands made ready to bind, and the structural operations, bound by name.

Rules of one family use operations of others. To keep the imports of this package free of cycles, the few structural
operations that all families need (reshape, transpose, broadcast, sum) are reached here through the registry.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import Shape, ShapedArray
from volta.core.constants import check_held, constant
from volta.core.errors import DTypeError, NotDifferentiableError, ShapeError
from volta.core.extended import is_key
from volta.core.interp import bind, get_aval
from volta.core.source import at_user_line
from volta.ops.primitive import REGISTRY, Linear, Zero

# -- operands ----------------------------------------------------------------------------------------------------------


def signature(avals: Sequence[Any]) -> str:
    """``f32[3], i32[]``: how error messages show operands."""
    return ", ".join(a.aval.short() if isinstance(a, (Linear, Zero)) else a.short() for a in avals)


def shape_error(name: str, avals: Sequence[ShapedArray], why: str) -> ShapeError:
    return ShapeError(at_user_line(f"{name}({signature(avals)}): {why}"))


def dtype_error(name: str, avals: Sequence[ShapedArray], why: str) -> DTypeError:
    return DTypeError(at_user_line(f"{name}({signature(avals)}): {why}"))


def scalar_like(value: Any, aval: ShapedArray, name: str = "convert") -> Any:
    """A Python number as a scalar of ``aval``'s dtype; it stays weak where ``aval`` is weak. Booleans are never weak,
    as where they are traced.

    Raises:
        DTypeError: for a float met by an integer array, a complex number by a real one, or an integer that the dtype
            cannot hold.
    """
    dtype, kind = aval.dtype, type(value)
    fits = (
        kind is bool
        if dtype == dtypes.bool_
        else kind is int
        or kind is bool
        or (kind is float and dtypes.is_inexact(dtype))
        or (kind is complex and dtypes.is_complex(dtype))
    )
    if fits and kind is int and dtypes.is_integer(dtype):
        limits = np.iinfo(dtype)
        fits = limits.min <= value <= limits.max
    if not fits:
        raise DTypeError(
            at_user_line(
                f"{name}: the Python number {value!r} does not fit an operand of dtype {dtype.name}. "
                f"volta.numpy promotes; volta.lax does not: convert one of them with convert_element_type."
            )
        )
    if aval.weak_type and dtype != dtypes.bool_:
        if dtypes.is_number(dtype, True):
            return python_number(value, dtype)
        return bind_named("convert_element_type", value, new_dtype=dtype, weak_type=True)
    return constant(value, dtype)


def python_number(value: Any, dtype: np.dtype) -> Any:
    """A Python number of the kind that a dtype holds."""
    return complex(value) if dtypes.is_complex(dtype) else float(value) if dtypes.is_float(dtype) else value


def operands(name: str, *args: Any) -> tuple[Any, ...]:
    """``args`` ready to bind: each Python number, known or traced, becomes a scalar of its partners' dtype."""
    numbers = [
        i
        for i, a in enumerate(args)
        if (
            a.aval.weak_type and dtypes.is_number(a.aval.dtype, True)
            if isinstance(a, Array)
            else not isinstance(a, (np.ndarray, np.generic))
        )
    ]
    if not numbers:
        return args
    avals = [get_aval(a) for a in args]  # refuses what is no number at all
    partners = [aval for i, aval in enumerate(avals) if i not in numbers]
    if not partners:  # numbers only: the widest Python kind decides, and stays weak
        dtype, weak = dtypes.promote(*((a.dtype, a.weak_type) for a in avals))
        return tuple(_number_like(a, ShapedArray((), dtype, weak), name) for a in args)
    partner = next((a for a in partners if not a.weak_type), partners[0])
    return tuple(_number_like(a, partner, name) if i in numbers else a for i, a in enumerate(args))


def aligned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands of one rank with their sizes of 1 repeated, as the others' sizes are; any others themselves."""
    shapes = [getattr(a, "shape", ()) for a in args]
    for s in shapes:
        if s and s != shapes[0]:
            break
    else:
        return args
    full = [s for s in shapes if s]
    if len(set(map(len, full))) > 1:
        return args
    together = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*full, strict=True))
    if any(n not in (1, t) for s in full for n, t in zip(s, together, strict=True)):
        return args
    return tuple(
        broadcast_to(a, together, range(len(s))) if s and s != together else a
        for a, s in zip(args, shapes, strict=True)
    )


def _number_like(x: Any, aval: ShapedArray, name: str) -> Any:
    if not isinstance(x, Array):
        return scalar_like(x, aval, name)
    if x.aval.dtype == aval.dtype and aval.weak_type:
        return x
    if is_key(aval.dtype) or dtypes.promote((x.aval.dtype, True), (aval.dtype, False))[0] != aval.dtype:
        raise dtype_error(
            name, (x.aval, aval), "volta.numpy promotes; volta.lax does not: use convert_element_type on one of them."
        )
    check_held(x, aval.dtype)
    return bind_named("convert_element_type", x, new_dtype=aval.dtype, weak_type=aval.weak_type)


def settled(x: Any) -> Any:
    """``x`` as it counts among arrays: a Python number, known or traced, in the default dtype of its kind, and weak."""
    aval = get_aval(x)
    if not dtypes.is_number(aval.dtype, aval.weak_type):
        return x
    dtype = dtypes.settled(aval.dtype, True)
    check_held(x, dtype)
    return bind_named("convert_element_type", x, new_dtype=dtype, weak_type=True)


def shape_of(x: Any) -> Shape:
    return x.shape if isinstance(x, (Array, np.ndarray, np.generic)) else get_aval(x).shape


def dtype_of(x: Any) -> np.dtype:
    return get_aval(x).dtype


def canonical_axis(name: str, axis: Any, ndim: int) -> int:
    """``axis`` as an int from 0; negative axes count from the end."""
    try:
        index = int(axis.__index__())
    except (AttributeError, TypeError):
        raise ShapeError(at_user_line(f"{name}: an axis must be a Python int, got {axis!r:.60}")) from None
    if not -ndim <= index < ndim:
        raise ShapeError(at_user_line(f"{name}: axis {axis} is out of range for an array of {ndim} dimensions"))
    return index % ndim


def canonical_axes(name: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """``axes`` (an int or a sequence) as sorted distinct ints from 0."""
    items = axes if isinstance(axes, (tuple, list)) else (axes,)
    result = tuple(sorted(canonical_axis(name, a, ndim) for a in items))
    if len(builtins.set(result)) != len(result):
        raise ShapeError(at_user_line(f"{name}: axes {tuple(items)} repeat an axis"))
    return result


def canonical_ints(name: str, what: str, values: Any) -> tuple[int, ...]:
    """A static sequence of ints (a shape, a permutation) as a tuple of Python ints."""
    if type(values) is tuple:
        for v in values:
            if type(v) is not int:
                break
        else:
            return values
    items = values if isinstance(values, (tuple, list)) else np.atleast_1d(values) if _is_static(values) else None
    try:
        return tuple(int(v.__index__()) for v in items)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        raise ShapeError(
            at_user_line(f"{name}: {what} must be Python ints known while tracing, got {values!r:.60}")
        ) from None


def _is_static(values: Any) -> bool:
    return isinstance(values, (int, np.integer, np.ndarray))


# -- structural operations ---------------------------------------------------------------------------------------------


def bind_named(name: str, *args: Any, **params: Any) -> Any:
    return bind(REGISTRY[name], *args, **params)


def reshape_to(x: Any, shape: Shape) -> Any:
    return x if shape_of(x) == shape else bind_named("reshape", x, new_sizes=shape)


def permute(x: Any, permutation: Sequence[int]) -> Any:
    permutation = tuple(permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    return bind_named("transpose", x, permutation=permutation)


def move_axis(x: Any, source: int, target: int) -> Any:
    """``x`` with axis ``source`` at place ``target``, the others in order."""
    rest = [d for d in range(len(shape_of(x))) if d != source]
    rest.insert(target, source)
    return permute(x, rest)


def broadcast_to(x: Any, shape: Shape, dimensions: Sequence[int] = ()) -> Any:
    """``broadcast_in_dim`` unless there is nothing to do."""
    if shape_of(x) == shape and tuple(dimensions) == tuple(range(len(shape))):
        return x
    return bind_named("broadcast_in_dim", x, shape=shape, broadcast_dimensions=tuple(dimensions))


def spread(x: Any, shape: Shape) -> Any:
    """``x``, of rank 0 or of the shape already, in the given shape."""
    return x if shape_of(x) == shape else broadcast_to(x, shape)


def fill(shape: Shape, value: Any, dtype: np.dtype) -> Any:
    """An array of one value (a NumPy scalar where ``shape`` is empty); of keys, whose words have that value."""
    if is_key(dtype):
        kind: Any = dtype
        return bind_named("random_wrap", fill((*shape, kind.words), value, dtypes.uint32), impl=kind.impl)
    scalar = constant(value, dtype)
    return scalar if shape == () else broadcast_to(scalar, shape)


def zeros_of(aval: ShapedArray) -> Any:
    return fill(aval.shape, 0, aval.dtype)


def instantiate(x: Any) -> Any:
    """A tangent or cotangent as a value: a symbolic Zero becomes zeros."""
    return zeros_of(x.aval) if isinstance(x, Zero) else x


def sum_axes(x: Any, axes: Sequence[int]) -> Any:
    return bind_named("reduce_sum", x, axes=tuple(axes)) if axes else x


def unbroadcast(ct: Any, aval: ShapedArray) -> Any:
    """The cotangent of a rank-0 operand that was used for every element: the sum."""
    shape = shape_of(ct)
    return sum_axes(ct, range(len(shape))) if aval.shape == () and shape != () else ct


def zero_like(x: Any) -> Zero:
    """The symbolic zero tangent of a value."""
    return Zero(get_aval(x).strip_weak())


def all_zero(tangents: Sequence[Any]) -> bool:
    return all(isinstance(t, Zero) for t in tangents)


def linear_jvp(name: str, linear_args: int = 1) -> Any:
    """The jvp of a primitive that is linear in its first operands: the tangents go through the primitive itself."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = bind_named(name, *primals, **params)
        if all_zero(tangents[:linear_args]):
            return out, zero_like(out)
        inputs = [instantiate(t) for t in tangents[:linear_args]] + list(primals[linear_args:])
        return out, bind_named(name, *inputs, **params)

    return jvp


def backwards_only(name: str) -> NotDifferentiableError:
    """The error for a forward derivative of a function whose rule is for reverse ones."""
    return NotDifferentiableError(
        at_user_line(
            f"forward derivatives (jvp, jacfwd, linearize) of `{name}` are not known: it is a custom_vjp, whose rule "
            "runs backwards. Use volta.vjp, grad or jacrev, or give it a rule by volta.custom_jvp"
        )
    )


def to_front(x: Any, dim: int | None, size: int) -> Any:
    """A batch rule's operand with the mapped axis in front; an operand that is not mapped is broadcast."""
    if dim is None:
        shape = shape_of(x)
        return broadcast_to(x, (size, *shape), range(1, len(shape) + 1))
    return move_axis(x, dim, 0)
