"""Families of expressions that are drawn for themselves, as they take operands of their own dtypes and shapes.

Functions that no library has under one name are composed: made of a package that has `numpy`, `lax` and rules for
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

Package = Any
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 100, 300, -5, 0.0, -0.0, 1.0, 0.5, 0.1, 2.0, -1.5, 3.0, 1e10, 1e300, 1e-300)
NUMBERS += (float("inf"), float("nan"), True, False)
WIDE = {"float32": 4, "float64": 2}


@attrs.frozen
class Family:
    """How often it is drawn, and how often its leaves have each shape and dtype."""

    odds: float
    shapes: dict[tuple[int, ...], float]
    dtypes: dict[str, int]
    numbers: tuple[complex, ...] = (0.5, 2, -1.5)  # Python's
    regular: float = 1.0  # how often all floats are of usual size


FAMILIES = {
    "general": Family(
        0.68,
        {(5,): 45, (2, 3): 35, (): 10, (2, 1): 8, (0,): 2},
        {"float32": 30, "float64": 14, "float16": 8, "bfloat16": 8, "int32": 10, "int8": 5, "uint8": 5, "int16": 3,
         "uint16": 3, "int64": 4, "uint32": 4, "uint64": 3, "bool": 5},
        NUMBERS,
        0.4,
    ),
    "complex": Family(
        0.12, {(5,): 4, (2, 3): 4, (): 1, (2, 1): 1}, {"complex64": 6, "complex128": 3, "float32": 2, "int32": 1},
        (0.5, 2, -1, 0.0, 1j, -1 + 0j, 0.5 - 2j),
    ),
    "matrices": Family(
        0.08, {(3, 3): 3, (2, 3, 3): 1}, WIDE | {"complex64": 2, "complex128": 1, "int32": 1, "bfloat16": 1}
    ),
    "signals": Family(
        0.08, {(5,): 3, (2, 3): 2, (4, 4): 1},
        WIDE | {"complex64": 2, "complex128": 1, "int32": 1, "uint8": 1, "float16": 1},
    ),
    "rules": Family(0.04, {(5,): 3, (2, 3): 2, (): 1}, WIDE | {"float16": 1}),
}  # fmt: skip

NUMPY = SimpleNamespace(numpy=np)
"""What a composed function is made of for NumPy."""


# -- matrices ----------------------------------------------------------------------------------------------------------


def _regular(p: Package, x: Any) -> Any:
    """A matrix that can be inverted: operands of the family are at most 3, so that its diagonal outweighs its rows."""
    return x + 10 * p.numpy.eye(3, dtype=np.int8)


def _definite(p: Package, x: Any) -> Any:
    return x @ p.numpy.conj(p.numpy.swapaxes(x, -1, -2)) + p.numpy.eye(3, dtype=np.int8)


def of_regular(name: str) -> Callable[[Package], Callable[..., Any]]:
    def made(p: Package) -> Callable[..., Any]:
        def applied(x: Any, *more: Any, **params: Any) -> Any:
            x = x.astype(p.numpy.result_type(x, *more))  # before the sum rounds
            return getattr(p.numpy.linalg, name)(_regular(p, x), *more, **params)

        return applied

    return made


def of_definite(name: str) -> Callable[[Package], Callable[..., Any]]:
    return lambda p: lambda x: getattr(p.numpy.linalg, name)(_definite(p, x))


def log_of_det(p: Package) -> Callable[..., Any]:
    """Both results of slogdet in one."""

    def of(x: Any) -> Any:
        sign, size = p.numpy.linalg.slogdet(_regular(p, x))
        return sign * size

    return of


def triangle_of_qr(p: Package) -> Callable[..., Any]:
    """R with a positive diagonal, which makes it the only one."""

    def of(x: Any) -> Any:
        r = p.numpy.linalg.qr(_regular(p, x)).R
        diagonal = p.numpy.diagonal(r, axis1=-2, axis2=-1)
        return p.numpy.conj(diagonal / p.numpy.abs(diagonal))[..., None] * r

    return of


# -- signals -----------------------------------------------------------------------------------------------------------


def conv(p: Package) -> Callable[..., Any]:
    """`lax.conv` of two operands of shape (C, W): a batch of one, a filter of one."""
    return lambda x, y, stride, padding: p.lax.conv(x[None], y[None], (stride,), padding)


def conv_by_numpy(x: np.ndarray, y: np.ndarray, stride: int, padding: str) -> np.ndarray:
    width = y.shape[1]
    if padding == "SAME":
        places = -(-x.shape[1] // stride)
        missing = max((places - 1) * stride + width - x.shape[1], 0)
        x = np.pad(x, ((0, 0), (missing // 2, missing - missing // 2)))
    firsts = range(0, x.shape[1] - width + 1, stride)
    return np.array([(x[:, i : i + width] * y).sum() for i in firsts])[None, None]


# -- rules -------------------------------------------------------------------------------------------------------------
# Each is not the derivative: one that is not followed shows.


def custom_jvp(p: Package) -> Callable[..., Any]:
    def ruled(x: Any, of: str) -> Any:
        f = p.custom_jvp(lambda x: getattr(p.numpy, of)(x) * x)

        @f.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return f(*primals), 3 * p.numpy.cos(primals[0]) * tangents[0]

        return f(x)

    return ruled


def custom_vjp(p: Package) -> Callable[..., Any]:
    def ruled(x: Any, of: str) -> Any:
        f = p.custom_vjp(lambda x: getattr(p.numpy, of)(x) * x)
        f.defvjp(lambda x: (f(x), p.numpy.sin(x)), lambda kept, ct: (3 * ct * kept,))
        return f(x)

    return ruled
