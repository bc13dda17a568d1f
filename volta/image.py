"""Resampling images, under the names of ``jax.image``.

Each axis is multiplied by a matrix of weights: kernels centred at the places in the input that pixels of the output
come from.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import volta.numpy as vnp
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.policy import Precision
from volta.core.source import at_user_line
from volta.numpy.promotion import as_value, canonical_axis, promote_floats

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]

_LEAST = 1000 * float(np.finfo(np.float32).eps)


class ResizeMethod(enum.Enum):
    """How pixels are made of their neighbours.

    >>> ResizeMethod.from_string("bilinear")
    <ResizeMethod.LINEAR: 1>
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method of a name: 'nearest', 'linear', 'cubic', 'lanczos3', 'area' and so on."""
        if s not in _NAMES:
            raise ValueError(at_user_line(f"resize: there is no method {s!r}; there are {', '.join(_NAMES)}"))
        return _NAMES[s]


_NAMES = {
    **dict.fromkeys(("linear", "bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR),
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), ResizeMethod.CUBIC),
    **dict.fromkeys(("cubic-pytorch", "bicubic-pytorch"), ResizeMethod.CUBIC_PYTORCH),
    "nearest": ResizeMethod.NEAREST,
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    "area": ResizeMethod.AREA,
}


def _triangle(x: Any) -> Any:
    return vnp.maximum(0, 1 - x)


def _cubic(a: float) -> Callable[[Any], Any]:
    """The cubic kernel of a slope ``a`` at 1 (Keys)."""

    def kernel(x: Any) -> Any:
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return vnp.where(x >= 2, 0, vnp.where(x >= 1, outer, inner))

    return kernel


def _lanczos(radius: float) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        y = radius * vnp.sin(math.pi * x) * vnp.sin(math.pi * x / radius)
        far = x > 1e-3
        out = vnp.where(far, y / (math.pi**2 * vnp.where(far, x, 1) ** 2), 1)
        return vnp.where(x > radius, 0, out)

    return kernel


_KERNELS: dict[ResizeMethod, tuple[int, Callable[[Any], Any] | None]] = {
    ResizeMethod.LINEAR: (1, _triangle),
    ResizeMethod.LANCZOS3: (3, _lanczos(3.0)),
    ResizeMethod.LANCZOS5: (5, _lanczos(5.0)),
    ResizeMethod.CUBIC: (2, _cubic(-0.5)),
    ResizeMethod.CUBIC_PYTORCH: (2, _cubic(-0.75)),
    ResizeMethod.AREA: (1, None),
}


def _over_their_sum(weights: Any) -> Any:
    total = vnp.sum(weights, 0, keepdims=True)
    there = vnp.abs(total) > _LEAST
    return vnp.where(there, weights / vnp.where(there, total, 1), 0)


def _weights(size: int, out: int, scale: Any, shift: Any, method: ResizeMethod, antialias: bool, padded: bool) -> Array:
    """How much of each of ``size`` pixels is in each of ``out``: a matrix (size, out)."""
    radius, kernel = _KERNELS[method]
    inverse = 1.0 / scale
    places = vnp.arange(out, dtype=scale.dtype)
    if kernel is None:
        left = (places - shift) * inverse
        pixels = vnp.arange(size, dtype=scale.dtype)[:, None]
        overlap = vnp.minimum(left + inverse, pixels + 1) - vnp.maximum(left, pixels)
        return _over_their_sum(vnp.maximum(0.0, overlap))
    center = (places + 0.5) * inverse - shift * inverse - 0.5
    spread = vnp.maximum(inverse, 1.0) if antialias else 1.0
    beyond = radius if padded else 0
    pixels = vnp.arange(-beyond, size + beyond, dtype=scale.dtype)
    weights = kernel(vnp.abs(center - pixels[:, None]) / spread)
    if padded:  # what is beyond an edge counts as the edge
        edges = vnp.clip(vnp.arange(-beyond, size + beyond), 0, size - 1)
        return _over_their_sum(vnp.zeros((size, out), weights.dtype).at[edges].add(weights))
    inside = vnp.logical_and(center >= -0.5, center <= size - 0.5)
    return vnp.where(inside, _over_their_sum(weights), 0)


def _method(method: str | ResizeMethod, antialias: bool) -> tuple[ResizeMethod, bool]:
    """The method, and whether edges count for what is beyond: PyTorch's cubic one is Keys's where it antialiases."""
    found = ResizeMethod.from_string(method) if isinstance(method, str) else method
    if found is not ResizeMethod.CUBIC_PYTORCH:
        return found, False
    return (ResizeMethod.CUBIC, False) if antialias else (found, True)


def _resampled(
    image: Any, shape: Any, axes: Sequence[int], scale: Any, shift: Any, method: Any, antialias: bool,
    precision: Any, padded: bool = False,
) -> Array:  # fmt: skip
    for i, axis in enumerate(axes):
        weights = _weights(image.shape[axis], shape[axis], scale[i], shift[i], method, antialias, padded)
        moved = vnp.moveaxis(image, axis, -1)
        out = vnp.matmul(moved, weights.astype(image.dtype), precision=precision)
        image = vnp.moveaxis(out, -1, axis)
    return image


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = Precision.HIGHEST,
) -> Array:
    """An image of ``shape`` whose place ``p * scale + translation`` is place p of ``image``, along ``spatial_dims``.

    Args:
        image: any array; integers become float32.
        shape: of the result: as many axes, the others of the same sizes.
        spatial_dims: the axes to resample.
        scale: (len(spatial_dims),), may be traced.
        translation: (len(spatial_dims),), may be traced.
        method: 'linear', 'cubic', 'lanczos3', 'lanczos5', 'cubic-pytorch' or 'area'. Not 'nearest'.
        antialias: whether kernels grow where the image shrinks.
        precision: of the matrix products.

    Returns:
        The image; pixels that come from outside are 0.

    Raises:
        ShapeError: axes or numbers that do not fit.
        ValueError: for 'nearest' and unknown methods.

    >>> x = vnp.asarray([1.0, 2.0, 3.0])
    >>> scale_and_translate(x, (3,), (0,), vnp.asarray([1.0]), vnp.asarray([1.0]), "linear").tolist()
    [0.0, 1.0, 2.0]
    """
    image = promote_floats("scale_and_translate", image)[0]
    axes = [canonical_axis("scale_and_translate", d, image.ndim) for d in spatial_dims]
    scale, translation = promote_floats("scale_and_translate", vnp.asarray(scale), vnp.asarray(translation))
    if len(shape) != image.ndim or scale.shape != (len(axes),) or translation.shape != (len(axes),):
        text = f"shape {tuple(shape)}, {scale.shape} scales and {translation.shape} translations along axes {axes}"
        raise ShapeError(at_user_line(f"scale_and_translate: {text} do not fit an image of shape {image.shape}"))
    if any(n != m for i, (n, m) in enumerate(zip(image.shape, shape, strict=True)) if i not in axes):
        text = f"axes that are not in spatial_dims keep their sizes: {image.shape} and {tuple(shape)}"
        raise ShapeError(at_user_line(f"scale_and_translate: {text}"))
    found, padded = _method(method, antialias)
    if found is ResizeMethod.NEAREST:
        raise ValueError(at_user_line("scale_and_translate: 'nearest' is for resize only"))
    return _resampled(image, shape, axes, scale, translation, found, antialias, precision, padded)


def resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = Precision.HIGHEST,
) -> Array:
    """``image`` in another ``shape``, whose sizes say how it is scaled along each axis.

    Args:
        image: any array; integers become float32, but by 'nearest' they stay.
        shape: as many sizes as the image has.
        method: 'nearest', 'linear', 'cubic', 'lanczos3', 'lanczos5', 'cubic-pytorch' or 'area'.
        antialias: whether kernels grow where the image shrinks.
        precision: of the matrix products.

    Raises:
        ShapeError: for another number of axes.
        ValueError: for unknown methods.

    >>> resize(vnp.asarray([[1.0, 3.0]]), (1, 4), "linear").tolist()
    [[1.0, 1.5, 2.5, 3.0]]
    """
    image = as_value(image)
    found, padded = _method(method, antialias)
    if len(shape) != image.ndim:
        text = f"resize: the new shape {tuple(shape)} must have as many axes as the image, {image.shape}"
        raise ShapeError(at_user_line(text))
    if found is ResizeMethod.NEAREST:
        for axis, (n, m) in enumerate(zip(image.shape, shape, strict=True)):
            if n != m:
                places = np.floor((np.arange(m, dtype=np.float32) + np.float32(0.5)) * np.float32(n) / np.float32(m))
                image = vnp.take(image, places.astype(np.int32), axis)
        return image
    image = promote_floats("resize", image)[0]
    axes = [i for i, (n, m) in enumerate(zip(image.shape, shape, strict=True)) if n != m]
    ratios = [1.0 if shape[i] == 0 else shape[i] / image.shape[i] for i in axes]
    scale = vnp.asarray(ratios, "float32")
    return _resampled(image, shape, axes, scale, vnp.zeros_like(scale), found, antialias, precision, padded)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
