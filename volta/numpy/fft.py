"""``volta.numpy.fft``: discrete Fourier transforms, under NumPy's names.

Any length, along any axes, of float32 and float64 (complex64 and complex128); the other dtypes count as float32. A
transform has the bits of its definition (docs/determinism.md), whatever is beside it in a batch.

>>> import volta.numpy as vnp
>>> vnp.fft.fft(np.float32([1, 0, 0, 0])).tolist()
[(1+0j), (1+0j), (1+0j), (1+0j)]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.source import at_user_line
from volta.numpy import creation, taking
from volta.numpy.promotion import as_value, aval_of, canonical_axis, convert
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.fft import Fourier

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Axes = Sequence[int] | None


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The sums of ``a[k] exp(-2πi k c / n)`` over k, for each c below n.

    Args:
        a: (…, m, …), real or complex.
        n: how many elements are transformed: the first of them, with zeros behind where there are fewer (None: m).
        axis: along which.
        norm: what the sums are multiplied by: 1 ("backward", or None), 1/√n ("ortho") or 1/n ("forward").

    Returns:
        (…, n, …) in complex128 for float64 and complex128, else in complex64.

    Raises:
        ShapeError: for an axis that is not there, or no elements. ValueError: for another ``norm``.

    >>> vnp.fft.fft(np.float32([1, 2, 1, 0])).tolist()
    [(4+0j), -2j, 0j, 2j]
    """
    return _complex("fft", a, n, axis, norm, back=False)


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of :func:`fft`: sums with ``exp(2πi k c / n)``, times 1/n ("backward"), 1/√n or 1 ("forward").

    >>> vnp.fft.ifft(np.complex64([4, -2j, 0, 2j])).real.tolist()
    [1.0, 2.0, 1.0, 0.0]
    """
    return _complex("ifft", a, n, axis, norm, back=True)


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first half of :func:`fft` of real numbers, elements 0 to n // 2: the others mirror them.

    Of an even length it takes half the time.

    Returns:
        (…, n // 2 + 1, …) in complex64, or complex128 for float64.

    Raises:
        DTypeError: for complex ``a``. As :func:`fft`.

    >>> vnp.fft.rfft(np.float32([1, 2, 1, 0])).tolist()
    [(4+0j), -2j, 0j]
    """
    return _half("rfft", a, n, axis, norm, back=False)


def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The n real numbers whose :func:`rfft` is ``a``. Of an element that mirrors itself the imaginary part is not read.

    Args:
        a: (…, m, …).
        n: how many numbers: 2 (m - 1) where it is not given. ``a`` is cut to n // 2 + 1 elements, or gets zeros.

    >>> vnp.fft.irfft(np.complex64([4, -2j, 0])).tolist()
    [1.0, 2.0, 1.0, 0.0]
    """
    return _real("irfft", a, n, axis, norm, back=True)


def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The n real numbers that are :func:`fft` of a signal that mirrors itself, of which ``a`` is the first half.

    >>> vnp.fft.hfft(np.complex64([1, 2, 1])).tolist()
    [6.0, 0.0, -2.0, 0.0]
    """
    return _real("hfft", _conj("hfft", a), n, axis, norm, back=False)


def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of :func:`hfft`: of n real numbers, n // 2 + 1 elements.

    >>> vnp.fft.ihfft(np.float32([6, 0, -2, 0])).real.tolist()
    [1.0, 2.0, 1.0]
    """
    return lax.conj(_half("ihfft", a, n, axis, norm, back=True))


def fftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """:func:`fft` along several axes, the last one first.

    Args:
        s: how many elements are transformed along each of ``axes``.
        axes: all where neither is given, the last ``len(s)`` where ``s`` is.

    Raises:
        ShapeError: where ``s`` and ``axes`` are not of one length. As :func:`fft`.

    >>> vnp.fft.fftn(np.ones((2, 2), np.float32)).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _over("fftn", a, s, axes, norm, back=False)


def ifftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """:func:`ifft` along several axes, the last one first; see :func:`fftn`."""
    return _over("ifftn", a, s, axes, norm, back=True)


def fft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str | None = None) -> Array:
    """:func:`fftn` along the last two axes."""
    return _over("fft2", a, s, axes, norm, back=False)


def ifft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str | None = None) -> Array:
    """:func:`ifftn` along the last two axes."""
    return _over("ifft2", a, s, axes, norm, back=True)


def rfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """:func:`rfft` along the last of several axes, then :func:`fft` along the others, the last one first.

    >>> vnp.fft.rfftn(np.ones((2, 2), np.float32)).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _half_over("rfftn", a, s, axes, norm)


def rfft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str | None = None) -> Array:
    """:func:`rfftn` along the last two axes."""
    return _half_over("rfft2", a, s, axes, norm)


def irfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str | None = None) -> Array:
    """The inverse of :func:`rfftn`: :func:`ifft` along all axes but the last, then :func:`irfft` along that one.

    >>> vnp.fft.irfftn(np.complex64([[4, 0], [0, 0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return _real_over("irfftn", a, s, axes, norm)


def irfft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str | None = None) -> Array:
    """:func:`irfftn` along the last two axes."""
    return _real_over("irfft2", a, s, axes, norm)


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of :func:`fft`'s elements, in cycles per unit of the spacing ``d``: 0, 1, …, -2, -1 over n d.

    >>> vnp.fft.fftfreq(5, 0.2).tolist()
    [0.0, 1.0, 2.0, -2.0, -1.0]
    """
    n = _length("fftfreq", n)
    return _frequencies("fftfreq", np.r_[: (n + 1) // 2, -(n // 2) : 0], n, d, dtype, device)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of :func:`rfft`'s elements: 0, 1, …, n // 2 over n d.

    >>> vnp.fft.rfftfreq(4, 0.25).tolist()
    [0.0, 1.0, 2.0]
    """
    n = _length("rfftfreq", n)
    return _frequencies("rfftfreq", np.r_[: n // 2 + 1], n, d, dtype, device)


def fftshift(x: ArrayLike, axes: Any = None) -> Array:
    """Each of ``axes`` (None: all) rolled by half of its length: frequency 0 comes to the middle.

    >>> vnp.fft.fftshift(np.float32([0, 1, 2, -2, -1])).tolist()
    [-2.0, -1.0, 0.0, 1.0, 2.0]
    """
    return _shifted("fftshift", x, axes, lambda n: n // 2)


def ifftshift(x: ArrayLike, axes: Any = None) -> Array:
    """What :func:`fftshift` has shifted, back.

    >>> vnp.fft.ifftshift(np.float32([-2, -1, 0, 1, 2])).tolist()
    [0.0, 1.0, 2.0, -2.0, -1.0]
    """
    return _shifted("ifftshift", x, axes, lambda n: -(n // 2))


# -- one axis ----------------------------------------------------------------------------------------------------------


def fitted(name: str, a: Any, n: Any, axis: int) -> Any:
    """The first n elements along an axis of what is to be transformed, with zeros behind where there are fewer."""
    a, axis, n = _operand(name, a, n, axis, lambda m: m)
    return _fitted(a, axis, n)


def _complex(name: str, a: Any, n: Any, axis: Any, norm: Any, back: bool) -> Any:
    a, axis, n = _operand(name, a, n, axis, lambda m: m)
    return Fourier("complex", axis, n, back, _scale(name, norm, n, back))(_fitted(_in_complex(a), axis, n))


def _half(name: str, a: Any, n: Any, axis: Any, norm: Any, back: bool) -> Any:
    a, axis, n = _operand(name, a, n, axis, lambda m: m)
    if dtypes.is_complex(base.dtype_of(a)):
        text = f"{name}: takes real numbers, not {base.dtype_of(a)}; take a.real, or transform with volta.numpy.fft.fft"
        raise DTypeError(at_user_line(text))
    return Fourier("half", axis, n, scale=_scale(name, norm, n, back))(_fitted(a, axis, n))


def _real(name: str, a: Any, n: Any, axis: Any, norm: Any, back: bool) -> Any:
    a, axis, n = _operand(name, a, n, axis, lambda m: 2 * (m - 1))
    return Fourier("real", axis, n, scale=_scale(name, norm, n, back))(_fitted(_in_complex(a), axis, n // 2 + 1))


def _conj(name: str, a: Any) -> Any:
    return lax.conj(as_value(a)) if dtypes.is_complex(aval_of(name, a).dtype) else a


def _operand(name: str, a: Any, n: Any, axis: Any, default: Any) -> tuple[Any, int, int]:
    """A float or complex array, the axis counted from the front, and the length of the transform."""
    aval = aval_of(name, a)
    axis = canonical_axis(name, axis, aval.ndim)
    n = default(aval.shape[axis]) if n is None else _length(name, n)
    if n < 1:
        raise ShapeError(
            at_user_line(
                f"{name}: a transform needs an element or more, got {n} along axis {axis} of shape {aval.shape}"
            )
        )
    return _wide(name, a), axis, n


def _wide(name: str, a: Any) -> Any:
    """An array of complex numbers, of float64, or else of float32."""
    dtype = aval_of(name, a).dtype
    stays = dtype == dtypes.float64 or dtypes.is_complex(dtype)
    return convert(as_value(a), dtype if stays else dtypes.float32)


def _length(name: str, n: Any) -> int:
    try:
        length = operator.index(n)
    except TypeError:
        raise ShapeError(at_user_line(f"{name}: a length is a Python int, not {n!r:.60}")) from None
    if length < 1:
        raise ShapeError(at_user_line(f"{name}: a transform needs an element or more, got a length of {length}"))
    return length


def _in_complex(a: Any) -> Any:
    return lax.convert_element_type(a, dtypes.complex_dtype(base.dtype_of(a)))


def _fitted(a: Any, axis: int, n: int) -> Any:
    """The first n elements along an axis, with zeros behind where there are fewer."""
    m = shape_of(a)[axis]
    if m >= n:
        return lax.slice_in_dim(a, 0, n, axis=axis)
    config = [(0, n - m if d == axis else 0, 0) for d in range(len(shape_of(a)))]
    return lax.pad(a, np.zeros((), base.dtype_of(a)), config)


def _scale(name: str, norm: Any, n: int, back: bool) -> float | None:
    if norm == "ortho":
        return 1 / sqrt(n)
    if norm not in (None, "backward", "forward"):
        raise ValueError(at_user_line(f'{name}: norm={norm!r}; it is "backward", "ortho" or "forward"'))
    return 1 / n if back == (norm != "forward") else None


# -- several axes ------------------------------------------------------------------------------------------------------


def several_axes(name: str, a: Any, s: Any, axes: Any, half: bool = False) -> tuple[list[int], list[int | None]]:
    """Axes counted from the front, and the length asked for along each (None: as it is)."""
    ndim = aval_of(name, a).ndim
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    found = [canonical_axis(name, axis, ndim) for axis in axes]
    lengths: list[int | None] = [None] * len(found)
    if s is not None:
        lengths = [None if operator.index(n) == -1 else _length(name, n) for n in s]
    if len(lengths) != len(found):
        raise ShapeError(
            at_user_line(f"{name}: {len(lengths)} lengths s={tuple(s)} for {len(found)} axes {tuple(axes)}")
        )
    if half and not found:
        raise ShapeError(at_user_line(f"{name}: needs an axis, along which numbers are real"))
    return found, lengths


def _over(name: str, a: Any, s: Any, axes: Any, norm: Any, back: bool) -> Any:
    found, lengths = several_axes(name, a, s, axes)
    out = _in_complex(_wide(name, a))
    for axis, n in zip(reversed(found), reversed(lengths), strict=True):
        out = _complex(name, out, n, axis, norm, back)
    return out


def _half_over(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
    found, lengths = several_axes(name, a, s, axes, half=True)
    out = _half(name, a, lengths[-1], found[-1], norm, back=False)
    for axis, n in zip(reversed(found[:-1]), reversed(lengths[:-1]), strict=True):
        out = _complex(name, out, n, axis, norm, back=False)
    return out


def _real_over(name: str, a: Any, s: Any, axes: Any, norm: Any) -> Any:
    found, lengths = several_axes(name, a, s, axes, half=True)
    if s is not None and lengths[-1] is None:  # in NumPy and SciPy -1 says that there are as many results as operands
        lengths[-1] = aval_of(name, a).shape[found[-1]]
    out = a
    for axis, n in zip(found[:-1], lengths[:-1], strict=True):
        out = _complex(name, out, n, axis, norm, back=True)
    return _real(name, out, lengths[-1], found[-1], norm, back=True)


# -- frequencies -------------------------------------------------------------------------------------------------------


def _frequencies(name: str, k: np.ndarray, n: int, d: Any, dtype: Any, device: Any) -> Any:
    kind = dtypes.DEFAULT_FLOAT if dtype is None else dtypes.canonicalize(dtype)
    whole = creation.asarray(k, dtype=kind, device=device)
    return whole / (d * n)


def _shifted(name: str, x: Any, axes: Any, by: Any) -> Any:
    aval = aval_of(name, x)
    given = range(aval.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    found = [canonical_axis(name, axis, aval.ndim) for axis in given]
    return taking.roll(x, tuple(by(aval.shape[axis]) for axis in found), tuple(found))


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
