"""Cosine transforms under the names of ``scipy.fft``, as ``jax.scipy.fft`` has them: of real numbers, types 1 to 4.

>>> from volta.scipy.fft import dct, idct
>>> idct(dct(np.float32([1, 2, 4, 8]))).round(5).tolist()
[1.0, 2.0, 4.0, 8.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.roots import roots
from volta.core.source import at_user_line
from volta.numpy import fft as fourier
from volta.numpy.promotion import aval_of, canonical_axis
from volta.ops import base, lax
from volta.ops.base import shape_of

__all__ = ["dct", "dctn", "idct", "idctn"]

Axes = Sequence[int] | int | None


def dct(x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The sums of 2 x[k] cos(π c (2k + 1) / 2n) over k, for each c below n: the cosine transform of type 2.

    Args:
        x: (…, m, …), real; all but float64 counts as float32.
        type: 1, 2, 3 or 4, as SciPy says what they are.
        n: how many elements are transformed: the first of them, with zeros behind where there are fewer (None: m).
        norm: None or "backward"; "forward" divides by 2n (2n - 2 of type 1), "ortho" makes the matrix orthogonal.

    Raises:
        DTypeError: for complex numbers. ShapeError: for an axis that is not there, too few elements.
        ValueError: for another type or ``norm``.

    >>> volta.scipy.fft.dct(np.float32([1, 1])).tolist()
    [4.0, 0.0]
    """
    return _transformed("dct", x, type, n, axis, norm, back=False)


def idct(x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of :func:`dct` of the same ``type`` and ``norm``.

    >>> volta.scipy.fft.idct(np.float32([4, 0])).tolist()
    [1.0, 1.0]
    """
    return _transformed("idct", x, type, n, axis, norm, back=True)


def dctn(x: ArrayLike, type: int = 2, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """:func:`dct` along several axes: all where neither is given, the last ``len(s)`` where ``s`` is.

    >>> volta.scipy.fft.dctn(np.ones((2, 2), np.float32)).tolist()
    [[16.0, 0.0], [0.0, 0.0]]
    """
    return _over("dctn", x, type, s, axes, norm, back=False)


def idctn(x: ArrayLike, type: int = 2, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """The inverse of :func:`dctn`."""
    return _over("idctn", x, type, s, axes, norm, back=True)


def _over(name: str, x: Any, kind: int, s: Axes, axes: Axes, norm: Any, back: bool) -> Any:
    lengths, given = (v if v is None or isinstance(v, (tuple, list)) else (v,) for v in (s, axes))
    found, sizes = fourier.several_axes(name, x, lengths, given)
    for axis, n in zip(found, sizes, strict=True):
        x = _transformed(name, x, kind, n, axis, norm, back)
    return x


def _transformed(name: str, x: Any, kind: int, n: Any, axis: Any, norm: Any, back: bool) -> Any:
    if kind not in (1, 2, 3, 4):
        raise ValueError(at_user_line(f"{name}: type={kind!r}; it is 1, 2, 3 or 4"))
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(at_user_line(f'{name}: norm={norm!r}; it is "backward", "ortho" or "forward"'))
    if dtypes.is_complex(aval_of(name, x).dtype):
        raise DTypeError(at_user_line(f"{name}: takes real numbers, not {aval_of(name, x).dtype}; transform its parts"))
    axis = canonical_axis(name, axis, aval_of(name, x).ndim)
    x = base.move_axis(fourier.fitted(name, x, n, axis), axis, len(shape_of(x)) - 1)
    size = shape_of(x)[-1]
    if kind == 1 and size < 2:
        raise ShapeError(at_user_line(f"{name}: of type 1 takes two elements or more, got {size}"))
    which = {2: 3, 3: 2}.get(kind, kind) if back else kind
    whole = 2 * (size - 1 if kind == 1 else size)
    out = _orthogonal(x, which) if norm == "ortho" else _KINDS[which](x)
    if back == (norm in (None, "backward")) and norm != "ortho":
        out = lax.mul(out, 1 / whole)
    return base.move_axis(out, len(shape_of(x)) - 1, axis)


def _orthogonal(x: Any, kind: int) -> Any:
    """Types whose first, and of type 1 the last, element has another weight than the others."""
    n, dtype = shape_of(x)[-1], base.dtype_of(x)
    before, after = np.ones(n), np.full(n, 1 / sqrt(2 * n))
    if kind == 1:
        before[[0, -1]], after[:] = sqrt(2), 1 / sqrt(2 * (n - 1))
        after[[0, -1]] /= sqrt(2)
    elif kind == 2:
        after[0] /= sqrt(2)
    elif kind == 3:
        before[0] = sqrt(2)
    weigh: Callable[[Any, np.ndarray], Any] = lambda y, w: lax.mul(y, _spread(w.astype(dtype), y))  # noqa: E731
    return weigh(_KINDS[kind](weigh(x, before)), after)


def _spread(line: np.ndarray, like: Any) -> Any:
    return base.broadcast_to(line, shape_of(like), (len(shape_of(like)) - 1,))


@lru_cache(64)
def _turns(k: str, n: int, dtype: np.dtype) -> np.ndarray:
    """exp(-πi k / 2n) for whole k ("whole"), and exp(-πi (2k + 1) / 4n) ("half")."""
    cos, sin = roots(np.arange(n), 4 * n, dtype) if k == "whole" else roots(2 * np.arange(n) + 1, 8 * n, dtype)
    return (cos - 1j * sin).astype(dtypes.complex_dtype(dtype))


def _first(x: Any) -> Any:
    """As the transform of a signal that is continued by its mirror image."""
    n = shape_of(x)[-1]
    last = len(shape_of(x)) - 1
    mirrored = lax.rev(lax.slice_in_dim(x, 1, n - 1, axis=last), (last,))
    return lax.real(fourier.rfft(lax.concatenate([x, mirrored], last)))


def _second(x: Any) -> Any:
    """As the transform of the even elements, followed by the odd ones in reverse."""
    n, last = shape_of(x)[-1], len(shape_of(x)) - 1
    odd = lax.rev(lax.slice_in_dim(x, 1, n, 2, last), (last,)) if n > 1 else lax.slice_in_dim(x, 0, 0, axis=last)
    half = fourier.rfft(lax.concatenate([lax.slice_in_dim(x, 0, n, 2, last), odd], last))
    turned = lax.mul(half, _spread(_turns("whole", n, base.dtype_of(x))[: n // 2 + 1], half))
    mirrored = lax.rev(lax.slice_in_dim(lax.imag(turned), 1, (n + 1) // 2, axis=last), (last,))
    return lax.mul(lax.concatenate([lax.real(turned), lax.neg(mirrored)], last), 2.0)


def _third(x: Any) -> Any:
    """What the second type does, back."""
    n, last = shape_of(x)[-1], len(shape_of(x)) - 1
    h = n // 2 + 1
    first = lax.slice_in_dim(x, 0, 1, axis=last)
    behind = lax.rev(lax.slice_in_dim(x, n - h + 1, n, axis=last), (last,))
    im = lax.concatenate([lax.mul(first, 0.0), lax.neg(behind)], last)
    half = lax.complex(lax.slice_in_dim(x, 0, h, axis=last), im)
    back = lax.mul(half, lax.conj(_spread(_turns("whole", n, base.dtype_of(x))[:h], half)))
    v = fourier.irfft(back, n, norm="forward")
    even, odd = lax.slice_in_dim(v, 0, (n + 1) // 2, axis=last), lax.slice_in_dim(v, (n + 1) // 2, n, axis=last)
    odd = lax.rev(odd, (last,))
    if n % 2:
        odd = lax.pad(odd, np.zeros((), base.dtype_of(x)), [(0, 0, 0)] * last + [(0, 1, 0)])
    pairs = [lax.expand_dims(y, (last + 1,)) for y in (even, odd)]
    whole = base.reshape_to(lax.concatenate(pairs, last + 1), (*shape_of(x)[:-1], n + n % 2))
    return lax.slice_in_dim(whole, 0, n, axis=last)


def _fourth(x: Any) -> Any:
    """As a transform of twice the length, of what is turned by half a step."""
    n, last = shape_of(x)[-1], len(shape_of(x)) - 1
    given = lax.convert_element_type(x, dtypes.complex_dtype(base.dtype_of(x)))
    turned = lax.mul(given, _spread(_turns("half", n, base.dtype_of(x)), given))
    out = lax.slice_in_dim(fourier.fft(turned, 2 * n), 0, n, axis=last)
    return lax.mul(lax.real(lax.mul(out, _spread(_turns("whole", n, base.dtype_of(x)), out))), 2.0)


_KINDS: dict[int, Callable[[Any], Any]] = {1: _first, 2: _second, 3: _third, 4: _fourth}

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
