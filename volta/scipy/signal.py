"""Convolutions, trends and spectra, under the names of ``jax.scipy.signal``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import volta.numpy as vnp
from volta import lax
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy.promotion import promote_dtypes
from volta.scipy.spectra import csd, fftconvolve, istft, stft, welch
from volta.scipy.trends import detrend

__all__ = [
    "convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend", "fftconvolve", "istft", "stft", "welch",
]  # fmt: skip

_MODES = ("full", "same", "valid")


def _convolved(name: str, x: Any, kernel: Any, mode: str, precision: Any) -> Array:
    """``x`` convolved with ``kernel``, of as many axes."""
    if mode not in _MODES:
        raise ValueError(at_user_line(f"{name}: the mode must be 'full', 'same' or 'valid', not {mode!r}"))
    x, kernel = promote_dtypes(name, x, kernel)
    if x.ndim != kernel.ndim:
        text = f"{name}: both arrays must have as many axes, got shapes {x.shape} and {kernel.shape}"
        raise ShapeError(at_user_line(text))
    if 0 in x.shape or 0 in kernel.shape:
        raise ShapeError(at_user_line(f"{name}: arrays of shapes {x.shape} and {kernel.shape} have no elements"))
    if not x.ndim:
        return x * kernel
    if mode == "valid":
        larger = [n >= m for n, m in zip(x.shape, kernel.shape, strict=True)]
        if not all(larger):
            if any(n > m for n, m in zip(x.shape, kernel.shape, strict=True)):
                text = f"{name}: 'valid' needs one array that is not shorter along any axis: {x.shape}, {kernel.shape}"
                raise ShapeError(at_user_line(text))
            x, kernel = kernel, x
    shape = x.shape
    pads = [(0, 0) if mode == "valid" else (m - 1, m - 1) for m in kernel.shape]
    flipped = vnp.flip(kernel)
    out = lax.conv_general_dilated(
        x[None, None], flipped[None, None], (1,) * x.ndim, pads, precision=precision
    )[0, 0]  # fmt: skip
    if mode == "same":
        starts = [(m - 1) // 2 for m in kernel.shape]
        out = out[tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))]
    return out


def _by_transforms(name: str, method: str) -> bool:
    if method not in ("auto", "direct", "fft"):
        raise ValueError(at_user_line(f"{name}: the method must be 'auto', 'direct' or 'fft', not {method!r}"))
    return method == "fft"


def convolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """Two arrays convolved, in as many dimensions as both have.

    Args:
        in1: (n1, n2, …).
        in2: (m1, m2, …), as many axes.
        mode: 'full', 'same' (of ``in1``'s shape), or 'valid' (where both overlap wholly).
        method: 'auto' and 'direct' are sums of products, 'fft' is :func:`fftconvolve`.
        precision: of the products.

    Raises:
        ShapeError: for other numbers of axes, and arrays without elements.
        ValueError: for other modes and methods.

    >>> convolve(vnp.asarray([1.0, 2.0]), vnp.asarray([1.0, 1.0])).tolist()
    [1.0, 3.0, 2.0]
    """
    if _by_transforms("convolve", method):
        return fftconvolve(in1, in2, mode)
    return _convolved("convolve", in1, in2, mode, precision)


def correlate(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """:func:`convolve` with ``in2`` reversed along all axes and conjugated.

    >>> correlate(vnp.asarray([1.0, 2.0]), vnp.asarray([1.0, 3.0])).tolist()
    [3.0, 7.0, 2.0]
    """
    by_transforms = _by_transforms("correlate", method)
    in1, in2 = vnp.asarray(in1), vnp.asarray(in2)
    turned = mode == "valid" and any(n < m for n, m in zip(in1.shape, in2.shape, strict=False))
    if by_transforms:
        return fftconvolve(in1, vnp.conj(vnp.flip(in2)), mode)
    out = _convolved("correlate", in1, vnp.conj(vnp.flip(in2)), mode, precision)
    return vnp.flip(vnp.conj(_swapped(in1, in2, mode, precision))) if turned else out


def _swapped(in1: Any, in2: Any, mode: str, precision: Any) -> Array:
    return _convolved("correlate", in2, vnp.conj(vnp.flip(in1)), mode, precision)


def _of_images(name: str, in1: Any, in2: Any, boundary: str, fillvalue: float) -> None:
    if boundary != "fill" or fillvalue != 0:
        raise NotImplementedError(at_user_line(f"{name}: beyond the edges there are zeros; pad the image first"))
    if vnp.ndim(in1) != 2 or vnp.ndim(in2) != 2:
        raise ShapeError(at_user_line(f"{name}: two matrices are needed, got {vnp.shape(in1)} and {vnp.shape(in2)}"))


def convolve2d(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", boundary: str = "fill", fillvalue: float = 0,
    precision: Any = None,
) -> Array:  # fmt: skip
    """:func:`convolve` of matrices, with zeros beyond the edges.

    >>> convolve2d(vnp.ones((2, 2)), vnp.ones((2, 2)), "valid").tolist()
    [[4.0]]
    """
    _of_images("convolve2d", in1, in2, boundary, fillvalue)
    return _convolved("convolve2d", in1, in2, mode, precision)


def correlate2d(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", boundary: str = "fill", fillvalue: float = 0,
    precision: Any = None,
) -> Array:  # fmt: skip
    """:func:`correlate` of matrices, with zeros beyond the edges.

    >>> correlate2d(vnp.ones((2, 2)), vnp.ones((2, 2)), "valid").tolist()
    [[4.0]]
    """
    _of_images("correlate2d", in1, in2, boundary, fillvalue)
    if mode != "same":
        return correlate(in1, in2, mode, precision=precision)
    return vnp.flip(_convolved("correlate2d", vnp.flip(vnp.asarray(in1)), vnp.conj(vnp.asarray(in2)), mode, precision))


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
