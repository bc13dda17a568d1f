"""Shapes: reshaping, moving, broadcasting, joining, splitting and repeating. No function here changes a number."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import as_shape
from volta.core.errors import ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast_array,
    broadcast_shapes_of,
    canonical_axes,
    canonical_axis,
    convert,
    promote_dtypes,
    type_of,
)
from volta.ops import lax


def shape(a: ArrayLike) -> tuple[int, ...]:
    """The shape of an array or number."""
    return type_of("shape", a).shape


def ndim(a: ArrayLike) -> int:
    """The number of dimensions."""
    return type_of("ndim", a).ndim


def size(a: ArrayLike, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or of those along one axis or several."""
    aval = type_of("size", a)
    return math.prod(aval.shape[i] for i in canonical_axes("size", axis, aval.ndim))


def reshape(a: ArrayLike, shape: Any, order: str = "C", *, copy: bool | None = None) -> Array:
    """``a`` with another shape of as many elements; one size may be -1.

    >>> volta.numpy.reshape(volta.numpy.arange(6), (2, -1)).shape
    (2, 3)
    """
    aval = aval_of("reshape", a)
    if order == "F":
        return transpose(reshape(transpose(a), _fill_in(shape, aval.shape)[::-1]))
    if order != "C":
        raise ValueError(at_user_line(f"reshape: order must be 'C' or 'F', not {order!r}"))
    new = _fill_in(shape, aval.shape)
    return as_value(a) if new == aval.shape else lax.reshape(as_value(a), new)


def _fill_in(new: Any, old: tuple[int, ...]) -> tuple[int, ...]:
    dims = (new,) if isinstance(new, (int, np.integer)) else tuple(new)
    unknown = [i for i, d in enumerate(dims) if not isinstance(d, Tracer) and d == -1]
    if unknown:
        rest = as_shape("reshape", [d for i, d in enumerate(dims) if i not in unknown])
        known, total = math.prod(rest), math.prod(old)
        if len(unknown) > 1 or known == 0 or total % known:
            raise ShapeError(at_user_line(f"reshape: shape {old} ({total} elements) does not fit {dims}"))
        dims = tuple(total // known if i in unknown else d for i, d in enumerate(dims))
    out = as_shape("reshape", dims)
    if math.prod(out) != math.prod(old):
        raise ShapeError(
            at_user_line(f"reshape: shape {old} has {math.prod(old)} elements, the new shape {out} {math.prod(out)}")
        )
    return out


def ravel(a: ArrayLike, order: str = "C") -> Array:
    """The elements in row-major order, as one axis."""
    return reshape(a, (aval_of("ravel", a).size,), order)


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """The axes in the order ``axes`` (None: reversed)."""
    nd = aval_of("transpose", a).ndim
    if axes is None:
        order = tuple(range(nd))[::-1]
    else:
        order = tuple(canonical_axis("transpose", x, nd) for x in axes)
        if sorted(order) != list(range(nd)):
            raise ShapeError(at_user_line(f"transpose: {tuple(axes)} does not name each of the {nd} axes once"))
    return as_value(a) if order == tuple(range(nd)) else lax.transpose(a, order)


permute_dims = transpose


def matrix_transpose(a: ArrayLike) -> Array:
    """The last two axes swapped."""
    if (aval := aval_of("matrix_transpose", a)).ndim < 2:
        raise ShapeError(at_user_line(f"matrix_transpose: needs a matrix, got shape {aval.shape}"))
    return swapaxes(a, -1, -2)


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Two axes swapped."""
    nd = aval_of("swapaxes", a).ndim
    order = list(range(nd))
    i, j = canonical_axis("swapaxes", axis1, nd), canonical_axis("swapaxes", axis2, nd)
    order[i], order[j] = j, i
    return transpose(a, order)


def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """The axes ``source`` moved to ``destination``, the others in their order."""
    nd = aval_of("moveaxis", a).ndim
    src = [canonical_axis("moveaxis", x, nd) for x in (source if isinstance(source, (tuple, list)) else (source,))]
    items = destination if isinstance(destination, (tuple, list)) else (destination,)
    dst = [canonical_axis("moveaxis", x, nd) for x in items]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise ShapeError(
            at_user_line(f"moveaxis: source {source} and destination {destination} must pair distinct axes")
        )
    order = [i for i in range(nd) if i not in src]
    for to, frm in sorted(zip(dst, src, strict=True)):
        order.insert(to, frm)
    return transpose(a, order)


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """``axis`` moved back until it lies before ``start``."""
    nd = aval_of("rollaxis", a).ndim
    axis = canonical_axis("rollaxis", axis, nd)
    start = start + nd if start < 0 else start
    return moveaxis(a, axis, start - 1 if axis < start else start)


def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Axes of size 1 removed (None: all of them)."""
    old = aval_of("squeeze", a).shape
    axes = [i for i, n in enumerate(old) if n == 1] if axis is None else canonical_axes("squeeze", axis, len(old))
    for x in axes:
        if old[x] != 1:
            raise ShapeError(at_user_line(f"squeeze: axis {x} of shape {old} has size {old[x]}, not 1"))
    return reshape(a, tuple(n for i, n in enumerate(old) if i not in axes))


def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """New axes of size 1, at the places ``axis`` of the result."""
    old = aval_of("expand_dims", a).shape
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    places = canonical_axes("expand_dims", axis, len(old) + count)
    rest = iter(old)
    return reshape(a, tuple(1 if i in places else next(rest) for i in range(len(old) + count)))


def atleast_1d(*arys: ArrayLike) -> Any:
    """Arrays of at least one dimension."""
    out = [reshape(a, (1,)) if ndim(a) == 0 else as_value(a) for a in arys]
    return out[0] if len(out) == 1 else out


def atleast_2d(*arys: ArrayLike) -> Any:
    """Arrays of at least two dimensions: a vector becomes a row."""
    out = [reshape(a, (1,) * (2 - ndim(a)) + shape(a)) if ndim(a) < 2 else as_value(a) for a in arys]
    return out[0] if len(out) == 1 else out


def atleast_3d(*arys: ArrayLike) -> Any:
    """Arrays of at least three dimensions: (N,) becomes (1, N, 1) and (M, N) becomes (M, N, 1)."""
    out = []
    for a in arys:
        s = shape(a)
        out.append(reshape(a, {0: (1, 1, 1), 1: (1, *s, 1), 2: (*s, 1)}.get(len(s), s)))
    return out[0] if len(out) == 1 else out


# -- broadcasting ------------------------------------------------------------------------------------------------------


def broadcast_to(array: ArrayLike, shape: Any) -> Array:
    """``array`` expanded to ``shape`` under NumPy's rules."""
    target, own = as_shape("broadcast_to", shape), aval_of("broadcast_to", array).shape
    if len(own) > len(target) or any(n not in (1, m) for n, m in zip(own[::-1], target[::-1], strict=False)):
        raise ShapeError(
            at_user_line(
                f"broadcast_to: shape {own} does not expand to {target}: from the right, sizes must be equal or 1"
            )
        )
    return as_value(broadcast_array(as_value(array), target))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to."""
    return broadcast_shapes_of("broadcast_shapes", [as_shape("broadcast_shapes", s) for s in shapes])


def broadcast_arrays(*args: ArrayLike) -> tuple[Array, ...]:
    """The arrays expanded to their common shape."""
    target = broadcast_shapes_of("broadcast_arrays", [aval_of("broadcast_arrays", a).shape for a in args])
    return tuple(as_value(broadcast_array(a, target)) for a in args)


# -- joining and splitting ---------------------------------------------------------------------------------------------


def _sequence(name: str, arrays: Any, dtype: Any = None) -> list[Any]:
    """The arrays in their common dtype, or in ``dtype``: a number is rounded once, to that."""
    out = list(arrays)
    if not out:
        raise ValueError(at_user_line(f"{name}: needs at least one array"))
    promoted = promote_dtypes(name, *out)
    return promoted if dtype is None else [convert(a, dtypes.canonicalize(dtype)) for a in out]


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0, dtype: Any = None) -> Array:
    """Arrays joined along an existing ``axis`` (None: flat). Their dtypes are promoted.

    Raises:
        ShapeError: when they differ in rank, or in another axis.
    """
    items = _sequence("concatenate", arrays, dtype)
    if axis is None:
        items, axis = [ravel(a) for a in items], 0
    first = shape(items[0])
    axis = canonical_axis("concatenate", axis, len(first))
    for a in items:
        s = shape(a)
        if len(s) != len(first) or s[:axis] != first[:axis] or s[axis + 1 :] != first[axis + 1 :]:
            raise ShapeError(
                at_user_line(
                    f"concatenate: shapes {first} and {s} may differ only in axis {axis}, along which they join"
                )
            )
    return as_value(items[0]) if len(items) == 1 else lax.concatenate(items, axis)


concat = concatenate


def stack(arrays: Sequence[ArrayLike], axis: int = 0, dtype: Any = None) -> Array:
    """Arrays of one shape joined along a new ``axis``."""
    items = _sequence("stack", arrays, dtype)
    first = shape(items[0])
    for a in items:
        if shape(a) != first:
            raise ShapeError(at_user_line(f"stack: all shapes must be equal, got {first} and {shape(a)}"))
    return concatenate([expand_dims(a, axis) for a in items], canonical_axis("stack", axis, len(first) + 1))


def vstack(tup: Sequence[ArrayLike], dtype: Any = None) -> Array:
    """Arrays joined along the first axis; vectors are rows."""
    return concatenate([atleast_2d(a) for a in _sequence("vstack", tup, dtype)], 0)


def hstack(tup: Sequence[ArrayLike], dtype: Any = None) -> Array:
    """Arrays joined along the second axis; vectors along their only one."""
    items = [atleast_1d(a) for a in _sequence("hstack", tup, dtype)]
    return concatenate(items, 0 if items[0].ndim == 1 else 1)


def dstack(tup: Sequence[ArrayLike], dtype: Any = None) -> Array:
    """Arrays joined along the third axis."""
    return concatenate([atleast_3d(a) for a in _sequence("dstack", tup, dtype)], 2)


def column_stack(tup: Sequence[ArrayLike]) -> Array:
    """Vectors joined as the columns of a matrix."""
    return concatenate([reshape(a, (-1, 1)) if ndim(a) < 2 else a for a in _sequence("column_stack", tup)], 1)


def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """``values`` joined to the end of ``arr``."""
    return concatenate([arr, values], axis)


def array_split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """:func:`split` that allows parts of unequal size: the first ones are longer by one."""
    old = aval_of("array_split", ary).shape
    axis = canonical_axis("array_split", axis, len(old))
    if isinstance(indices_or_sections, (int, np.integer)):
        if indices_or_sections < 1:
            raise ValueError(
                at_user_line(f"array_split: the number of parts must be positive, got {indices_or_sections}")
            )
        part, longer = divmod(old[axis], int(indices_or_sections))
        ends = np.cumsum([part + (i < longer) for i in range(indices_or_sections)]).tolist()
    else:
        ends = [slice(None, int(i)).indices(old[axis])[1] for i in indices_or_sections] + [old[axis]]
    if ends == sorted(ends) and ends[-1] == old[axis]:
        return lax.split(ary, np.diff([0, *ends]).tolist(), axis)
    out, begin = [], 0
    for end in ends:  # indices out of order overlap or leave gaps, as in NumPy
        lower = [begin if i == axis else 0 for i in range(len(old))]
        upper = [builtins.max(begin, end) if i == axis else n for i, n in enumerate(old)]
        out.append(lax.slice(ary, tuple(lower), tuple(upper)))
        begin = end
    return out


def split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """``ary`` in equal parts along ``axis``, or cut before each of the given indices."""
    old = aval_of("split", ary).shape
    place = canonical_axis("split", axis, len(old))
    if isinstance(indices_or_sections, (int, np.integer)) and old[place] % indices_or_sections:
        raise ShapeError(
            at_user_line(f"split: axis {axis} of shape {old} has no {indices_or_sections} equal parts; use array_split")
        )
    return array_split(ary, indices_or_sections, place)


def hsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """:func:`split` along the second axis (a vector's only one)."""
    return split(ary, indices_or_sections, 0 if ndim(ary) == 1 else 1)


def vsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """:func:`split` along the first axis."""
    return split(ary, indices_or_sections, 0)


def dsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """:func:`split` along the third axis."""
    return split(ary, indices_or_sections, 2)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along ``axis``, without it: what :func:`stack` puts together.

    >>> [v.tolist() for v in unstack(np.int32([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    aval = aval_of("unstack", x)
    axis = canonical_axis("unstack", axis, aval.ndim)
    return tuple(lax.index_in_dim(x, i, axis, False) for i in range(aval.shape[axis]))


# -- repeating and reordering ------------------------------------------------------------------------------------------


def tile(A: ArrayLike, reps: Any) -> Array:
    """``A`` repeated ``reps`` times along each axis."""
    counts, own = as_shape("tile", reps), shape(A)
    nd = builtins.max(len(counts), len(own))
    counts, own = (1,) * (nd - len(counts)) + counts, (1,) * (nd - len(own)) + own
    if builtins.all(c == 1 for c in counts):
        return reshape(A, own)
    places = tuple(2 * i + 1 for i in range(nd))
    wide = lax.broadcast_in_dim(
        reshape(A, own), tuple(v for pair in zip(counts, own, strict=True) for v in pair), places
    )
    return reshape(wide, tuple(c * n for c, n in zip(counts, own, strict=True)))


def flip(m: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """The elements in reverse order along ``axis`` (None: along all)."""
    axes = canonical_axes("flip", axis, ndim(m))
    return lax.rev(m, axes) if axes else as_value(m)


def fliplr(m: ArrayLike) -> Array:
    """Columns in reverse order."""
    return flip(m, 1)


def flipud(m: ArrayLike) -> Array:
    """Rows in reverse order."""
    return flip(m, 0)


def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """``m`` turned by 90 degrees ``k`` times, from the first of ``axes`` to the second."""
    a, b = (canonical_axis("rot90", x, ndim(m)) for x in axes)
    if k % 4 == 0:
        return as_value(m)
    if k % 4 == 2:
        return flip(m, (a, b))
    return swapaxes(flip(m, b), a, b) if k % 4 == 1 else flip(swapaxes(m, a, b), b)
