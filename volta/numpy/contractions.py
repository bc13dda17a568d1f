"""Sums of products: matmul, dot, tensordot, outer, … Each is one ``dot_general`` where NumPy's meaning allows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import ShapedArray
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy import binary, complexes, shaping
from volta.numpy.promotion import aval_of, canonical_axis, promote_dtypes, promote_floats
from volta.numpy.reductions import any as _any
from volta.numpy.reductions import sum as _sum
from volta.ops import lax

Labels = Sequence[Any]
Axes = tuple[int, ...]


def summed(x: Array, axes: Sequence[int]) -> Array:
    """The sum over axes in the operand's own dtype, as products need it; of booleans it is whether one is True."""
    if not axes:
        return x
    own = get_aval(x).dtype
    return _any(x, tuple(axes)) if own == dtypes.bool_ else _sum(x, tuple(axes), dtype=own)


def contract(
    x: ArrayLike, xs: Labels, y: ArrayLike, ys: Labels, out: Labels, precision: Any, preferred_element_type: Any
) -> Array:
    """The sum of ``x * y`` over labels that ``out`` lacks; each axis has a label, none twice in one operand.

    Labels in both operands and in ``out`` are batch axes. A label of one operand that ``out`` lacks is summed first.
    """
    paired = _pair(tuple(xs), tuple(ys), tuple(out))
    if paired.lonely != ((), ()):
        x, y = (summed(v, lonely) for v, lonely in zip((x, y), paired.lonely, strict=True))
    if get_aval(x).dtype == dtypes.bool_:
        x, y = (lax.convert_element_type(v, dtypes.int32) for v in (x, y))
        result = lax.dot_general(x, y, paired.numbers, precision, preferred_element_type)
        result = lax.ne(result, np.int32(0))
    else:
        result = lax.dot_general(x, y, paired.numbers, precision, preferred_element_type)
    return result if paired.order is None else shaping.transpose(result, paired.order)


@attrs.frozen
class _Paired:
    """Axes of two operands: those that are summed first in each, the dimension numbers of their product, and the order
    of its axes in the result (None: as they are)."""

    lonely: tuple[Axes, Axes]
    numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
    order: Axes | None


@functools.lru_cache(512)
def _pair(xs: tuple[Any, ...], ys: tuple[Any, ...], out: tuple[Any, ...]) -> _Paired:
    """What labels mean. It depends on nothing else, and eager products ask again and again."""
    lonely_x = tuple(i for i, v in enumerate(xs) if v not in ys and v not in out)
    lonely_y = tuple(i for i, v in enumerate(ys) if v not in xs and v not in out)
    xs = tuple(v for i, v in enumerate(xs) if i not in lonely_x)
    ys = tuple(v for i, v in enumerate(ys) if i not in lonely_y)
    shared = [v for v in xs if v in ys]
    batch = [v for v in shared if v in out]
    over = [v for v in shared if v not in out]
    numbers = (
        (tuple(xs.index(v) for v in over), tuple(ys.index(v) for v in over)),
        (tuple(xs.index(v) for v in batch), tuple(ys.index(v) for v in batch)),
    )
    have = batch + [v for v in xs if v not in shared] + [v for v in ys if v not in shared]
    order = tuple(have.index(v) for v in out)
    return _Paired((lonely_x, lonely_y), numbers, None if order == tuple(range(len(order))) else order)


def _misfit(name: str, a: ShapedArray, b: ShapedArray, i: int, j: int) -> ShapeError:
    return ShapeError(
        at_user_line(
            f"{name}: shapes {a.shape} and {b.shape} do not fit: the sum runs over axis {i} of the first, of size "
            f"{a.shape[i]}, and axis {j} of the second, of size {b.shape[j]}. Transpose one with .T or .mT."
        )
    )


def matmul(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The matrix product; leading axes are batches and broadcast. A vector is a row on the left, a column on the right.

    Shapes (…, M, K) and (…, K, N) give (…, M, N). ``precision='highest'`` adds float32 products up in float64;
    ``precision='exact'`` adds products of integers up, in any order.

    >>> volta.numpy.matmul(volta.numpy.ones((2, 3)), volta.numpy.ones((3, 1))).shape
    (2, 1)
    """
    A, B = aval_of("matmul", a), aval_of("matmul", b)
    kept_a, xs, kept_b, ys, out = _matmul_labels(A, B)
    a, b = promote_dtypes("matmul", a, b)
    if kept_a is not None:
        a = lax.reshape(a, kept_a)
    if kept_b is not None:
        b = lax.reshape(b, kept_b)
    return contract(a, xs, b, ys, out, precision, preferred_element_type)


_Shape = tuple[int, ...] | None


@functools.lru_cache(512)
def _matmul_labels(A: ShapedArray, B: ShapedArray) -> tuple[_Shape, Labels, _Shape, Labels, Labels]:
    """Of each operand the shape without axes that broadcast (None: as it is) and the labels; those of the result."""
    if A.ndim == 0 or B.ndim == 0:
        raise ShapeError(at_user_line(f"matmul: shapes {A.shape} and {B.shape}: scalars are multiplied with *, not @"))
    k = -2 if B.ndim > 1 else -1
    if A.shape[-1] != B.shape[k]:
        raise _misfit("matmul", A, B, -1, k)
    ra, rb = A.shape[:-2], B.shape[:-2]
    nb = max(len(ra), len(rb))
    xs: list[Any] = []
    ys: list[Any] = []
    out: list[Any] = []
    drop_a: list[int] = []
    drop_b: list[int] = []
    for i in range(-nb, 0):  # a batch axis of size 1 that meets a larger one (or none) is no batch axis at all
        na = ra[i] if -i <= len(ra) else None
        n = rb[i] if -i <= len(rb) else None
        if na is not None and n is not None and na != n and 1 not in (na, n):
            raise ShapeError(
                at_user_line(
                    f"matmul: shapes {A.shape} and {B.shape}: batch axis {i - 2} has {na} and {n}; they must broadcast"
                )
            )
        out.append(i)
        if na is not None:
            (drop_a if na == 1 and n not in (None, 1) else xs).append(i)
        if n is not None:
            (drop_b if n == 1 and na not in (None, 1) else ys).append(i)
    kept_a = tuple(n for i, n in enumerate(A.shape) if i - len(ra) not in drop_a or i >= len(ra))
    kept_b = tuple(n for i, n in enumerate(B.shape) if i - len(rb) not in drop_b or i >= len(rb))
    xs += (["m"] if A.ndim > 1 else []) + ["k"]
    ys += ["k"] + (["n"] if B.ndim > 1 else [])
    out += (["m"] if A.ndim > 1 else []) + (["n"] if B.ndim > 1 else [])
    return kept_a if drop_a else None, tuple(xs), kept_b if drop_b else None, tuple(ys), tuple(out)


def dot(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum over the last axis of ``a`` and the last but one of ``b``; all other axes stay, those of ``a`` first."""
    A, B = aval_of("dot", a), aval_of("dot", b)
    if A.ndim == 0 or B.ndim == 0:
        return binary.multiply(a, b)
    k = -2 if B.ndim > 1 else -1
    if A.shape[-1] != B.shape[k]:
        raise _misfit("dot", A, B, -1, k)
    return tensordot(
        a, b, ((A.ndim - 1,), (B.ndim + k,)), precision=precision, preferred_element_type=preferred_element_type
    )


def tensordot(
    a: ArrayLike, b: ArrayLike, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """The sum over pairs of axes: the last ``axes`` of ``a`` with the first of ``b``, or two sequences of axes."""
    a, b = promote_dtypes("tensordot", a, b)
    A, B = aval_of("tensordot", a), aval_of("tensordot", b)
    if isinstance(axes, (int, np.integer)):
        if axes > min(A.ndim, B.ndim):
            raise ShapeError(
                at_user_line(f"tensordot: {axes} axes of shapes {A.shape} and {B.shape} cannot be summed over")
            )
        left, right = tuple(range(A.ndim - axes, A.ndim)), tuple(range(axes))
    else:
        pair = [v if isinstance(v, (tuple, list)) else (v,) for v in axes]
        left = tuple(canonical_axis("tensordot", v, A.ndim) for v in pair[0])
        right = tuple(canonical_axis("tensordot", v, B.ndim) for v in pair[1])
    if len(left) != len(right):
        raise ShapeError(at_user_line(f"tensordot: axes {axes} must pair as many axes of both operands"))
    for i, j in zip(left, right, strict=True):
        if A.shape[i] != B.shape[j]:
            raise _misfit("tensordot", A, B, i, j)
    xs: list[Any] = [("a", i) for i in range(A.ndim)]
    ys: list[Any] = [("b", i) for i in range(B.ndim)]
    for n, (i, j) in enumerate(zip(left, right, strict=True)):
        xs[i] = ys[j] = ("sum", n)
    out = [v for v in (*xs, *ys) if v[0] != "sum"]
    return contract(a, xs, b, ys, out, precision, preferred_element_type)


def vdot(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of products of all elements, of ``a`` their conjugates."""
    a, b = promote_dtypes("vdot", a, b)
    a = complexes.conjugate(a)
    return dot(shaping.ravel(a), shaping.ravel(b), precision=precision, preferred_element_type=preferred_element_type)


def vecdot(
    x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """The sum of products along one axis, of ``x1`` the conjugates; the others broadcast."""
    x1 = complexes.conjugate(x1)
    x1, x2 = shaping.moveaxis(x1, axis, -1), shaping.moveaxis(x2, axis, -1)
    A, B = aval_of("vecdot", x1), aval_of("vecdot", x2)
    if A.shape[-1] != B.shape[-1]:
        raise _misfit("vecdot", A, B, -1, -1)
    row = matmul(
        shaping.expand_dims(x1, -2),
        shaping.expand_dims(x2, -1),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    return shaping.squeeze(row, (-2, -1))


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Matrices times vectors: shapes (…, M, K) and (…, K) give (…, M); leading axes broadcast.

    >>> volta.numpy.matvec(volta.numpy.ones((2, 3)), volta.numpy.ones(3))
    Array([3., 3.], dtype=float32)
    """
    return shaping.squeeze(matmul(x1, shaping.expand_dims(x2, -1)), -1)


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Vectors times matrices: shapes (…, K) and (…, K, N) give (…, N); leading axes broadcast.

    Of a complex vector the conjugates are taken, as by :func:`vecdot`.

    >>> volta.numpy.vecmat(volta.numpy.ones(2), volta.numpy.ones((2, 3)))
    Array([2., 2., 2.], dtype=float32)
    """
    return shaping.squeeze(matmul(shaping.expand_dims(complexes.conjugate(x1), -2), x2), -2)


def inner(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum over the last axes of both."""
    A, B = aval_of("inner", a), aval_of("inner", b)
    if A.ndim == 0 or B.ndim == 0:
        return binary.multiply(a, b)
    return tensordot(a, b, ((-1,), (-1,)), precision=precision, preferred_element_type=preferred_element_type)


def outer(a: ArrayLike, b: ArrayLike) -> Array:
    """Every product of an element of ``a`` with one of ``b``, as a matrix."""
    a, b = promote_dtypes("outer", a, b)
    return binary.multiply(shaping.reshape(a, (-1, 1)), shaping.reshape(b, (1, -1)))


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """The Kronecker product."""
    a, b = promote_dtypes("kron", a, b)
    nd = max(aval_of("kron", a).ndim, aval_of("kron", b).ndim)
    a = shaping.reshape(a, (1,) * (nd - shaping.ndim(a)) + shaping.shape(a))
    b = shaping.reshape(b, (1,) * (nd - shaping.ndim(b)) + shaping.shape(b))
    sizes = tuple(m * n for m, n in zip(shaping.shape(a), shaping.shape(b), strict=True))
    wide = binary.multiply(
        shaping.expand_dims(a, tuple(range(1, 2 * nd, 2))), shaping.expand_dims(b, tuple(range(0, 2 * nd, 2)))
    )
    return shaping.reshape(wide, sizes)


def cross(
    a: ArrayLike, b: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """The cross product of vectors of 3 elements along an axis (of 2: its third component)."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = shaping.moveaxis(a, axisa, -1), shaping.moveaxis(b, axisb, -1)
    na, nb = shaping.shape(a)[-1], shaping.shape(b)[-1]
    if na not in (2, 3) or nb not in (2, 3):
        raise ShapeError(at_user_line(f"cross: vectors have 2 or 3 elements, got {na} and {nb}"))

    def part(x: Array, n: int, i: int) -> Any:
        return lax.index_in_dim(x, i, -1, False) if i < n else 0

    a0, a1, a2 = (part(a, na, i) for i in range(3))
    b0, b1, b2 = (part(b, nb, i) for i in range(3))

    def minor(p: Any, q: Any, r: Any, s: Any) -> Array:
        return binary.subtract(binary.multiply(p, q), binary.multiply(r, s))

    last = minor(a0, b1, a1, b0)
    if na == nb == 2:
        return last
    return shaping.stack(shaping.broadcast_arrays(minor(a1, b2, a2, b1), minor(a2, b0, a0, b2), last), axisc)


def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full", *, precision: Any = None) -> Array:
    """The discrete convolution of two vectors, in floats; ``mode`` is 'full', 'same' or 'valid'."""
    return _slide("convolve", a, shaping.flip(v), mode, precision)


def correlate(a: ArrayLike, v: ArrayLike, mode: str = "valid", *, precision: Any = None) -> Array:
    """The correlation of two vectors, of ``v`` the conjugates, in floats; ``mode`` is 'full', 'same' or 'valid'."""
    return _slide("correlate", a, complexes.conjugate(v), mode, precision)


def _slide(name: str, a: Array, v: Array, mode: str, precision: Any) -> Array:
    a, v = promote_floats(name, a, v)
    A, V = aval_of(name, a), aval_of(name, v)
    if A.ndim != 1 or V.ndim != 1 or 0 in (A.size, V.size):
        raise ShapeError(
            at_user_line(f"{name}: needs two vectors that are not empty, got shapes {A.shape} and {V.shape}")
        )
    if mode not in ("full", "same", "valid"):
        raise ValueError(at_user_line(f"{name}: mode must be 'full', 'same' or 'valid', not {mode!r}"))
    if V.size > A.size:  # the longer one stays in place: the same sums in the same order
        a, v, A, V = shaping.flip(v), shaping.flip(a), V, A
    n = V.size
    low, high = {"full": (n - 1, n - 1), "same": (n // 2, (n - 1) // 2), "valid": (0, 0)}[mode]
    a = lax.pad(a, A.dtype.type(0), ((low, high, 0),))
    count = A.size + low + high - n + 1
    where = np.arange(count, dtype=np.int32)[:, None] + np.arange(n, dtype=np.int32)
    return matmul(lax.gather(a, [where], axes=(0,), mode="clip"), v, precision=precision)


def multi_dot(arrays: Sequence[ArrayLike], *, precision: Any = None) -> Array:
    """A product of several matrices, in the order of least work, which the shapes say alone.

    The first may be a row vector and the last a column vector. Of orders that are as dear the one that begins most to
    the left is taken.

    Raises:
        ShapeError: there are fewer than two arrays, one is no matrix, or neighbours do not fit.

    >>> vnp.linalg.multi_dot([vnp.ones((3, 2)), vnp.ones((2, 4)), vnp.ones(4)]).tolist()
    [8.0, 8.0, 8.0]
    """
    shapes = [aval_of("multi_dot", x).shape for x in arrays]
    last = len(shapes) - 1
    if last < 1 or any(len(s) != 2 and not (len(s) == 1 and i in (0, last)) for i, s in enumerate(shapes)):
        text = f"needs two or more matrices, of which the first and the last may be vectors, got shapes {shapes}"
        raise ShapeError(at_user_line(f"multi_dot: {text}"))
    if any(a[-1] != b[0] for a, b in itertools.pairwise(shapes)):
        raise ShapeError(at_user_line(f"multi_dot: neighbours must fit, got shapes {shapes}"))
    rows = [1 if len(shapes[0]) == 1 else shapes[0][0], *(s[0] for s in shapes[1:])]
    cuts = _cheapest_cuts((*rows, 1 if len(shapes[last]) == 1 else shapes[last][1]))

    def product(first: int, end: int) -> Any:
        if end - first == 1:
            return arrays[first]
        cut = cuts[first, end]
        return matmul(product(first, cut), product(cut, end), precision=precision)

    return product(0, len(arrays))


def _cheapest_cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where the chain of matrices first to end, matrix i being sizes[i] by sizes[i + 1], is cut into two products."""
    count = len(sizes) - 1
    work = {(i, i + 1): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(2, count + 1):
        for first in range(count - length + 1):
            end = first + length
            ends = sizes[first] * sizes[end]
            cost = {c: work[first, c] + work[c, end] + ends * sizes[c] for c in range(first + 1, end)}
            cut = max(c for c in cost if cost[c] == min(cost.values()))
            work[first, end], cuts[first, end] = cost[cut], cut
    return cuts
