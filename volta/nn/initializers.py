"""Initializers: functions ``init(key, shape, dtype)`` for parameters, under the names of ``jax.nn.initializers``.

>>> import volta.random
>>> init = glorot_uniform()
>>> init(volta.random.key(0), (3, 4)).shape
(3, 4)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import volta.numpy as vnp
from volta import lax, random
from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array
from volta.core.errors import ShapeError
from volta.core.floats import standard
from volta.core.source import at_user_line

Initializer = Callable[..., Any]
Axes = int | Sequence[int]


def zeros(key: Any, shape: Any, dtype: Any = dtypes.DEFAULT_FLOAT) -> Array:
    """Zeros; the key is not used."""
    return vnp.zeros(shape, dtype)


def ones(key: Any, shape: Any, dtype: Any = dtypes.DEFAULT_FLOAT) -> Array:
    """Ones; the key is not used."""
    return vnp.ones(shape, dtype)


def constant(value: Any, dtype: Any = dtypes.DEFAULT_FLOAT) -> Initializer:
    """One value everywhere (an array broadcasts)."""

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        return vnp.full(shape, value, dtype)

    return init


def _times(x: Array, factor: Any) -> Array:
    """In the dtype that was asked for, whatever that of the factor is."""
    return vnp.multiply(x, vnp.asarray(factor, x.dtype))


def uniform(scale: Any = 1e-2, dtype: Any = dtypes.DEFAULT_FLOAT) -> Initializer:
    """Uniform in [0, scale)."""

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        return _times(random.uniform(key, shape, dtype), scale)

    return init


def normal(stddev: Any = 1e-2, dtype: Any = dtypes.DEFAULT_FLOAT) -> Initializer:
    """Normal with mean 0 and the given standard deviation."""

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        return _times(random.normal(key, shape, dtype), stddev)

    return init


def truncated_normal(
    stddev: Any = 1e-2, dtype: Any = dtypes.DEFAULT_FLOAT, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """Normal, cut off at ``lower`` and ``upper`` standard deviations (and then not rescaled)."""

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        return _times(random.truncated_normal(key, lower, upper, shape, dtype), stddev)

    return init


def _axes(axes: Axes, shape: tuple[int, ...]) -> tuple[int, ...]:
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    if any(not -len(shape) <= a < len(shape) for a in named):
        raise ShapeError(
            at_user_line(
                f"initializer: shape {shape} has no axis {axes} of inputs or outputs. Fan-in and fan-out need at least "
                "two axes; name those there are (in_axis=[], out_axis=[0]), or use normal or zeros"
            )
        )
    return tuple(a % len(shape) for a in named)


def _fans(shape: tuple[int, ...], in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """How many inputs feed an output, and how many outputs an input feeds; further axes are a receptive field."""
    ins, outs, batch = (_axes(a, shape) for a in (in_axis, out_axis, batch_axis))
    field = math.prod(n for i, n in enumerate(shape) if i not in (*ins, *outs, *batch))
    return math.prod(shape[i] for i in ins) * field, math.prod(shape[i] for i in outs) * field


_FANS: dict[str, Callable[[float, float], float]] = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: math.sqrt(fan_in * fan_out),
}


def _in_a_disc(key: Any, shape: Any, dtype: Any, deviation: float, uniform: bool) -> Array:
    """Complex numbers around 0, uniform in a disc, or normal and cut at two standard deviations, as JAX draws them."""
    size, angle = random.split(key)
    part = dtypes.part_dtype(dtypes.canonicalize(dtype))
    drawn = random.uniform(size, shape, part)
    if uniform:
        radius = vnp.sqrt(2 * drawn)
    else:
        radius = vnp.sqrt(-vnp.log1p(drawn * math.expm1(-4.0)))
        deviation /= 0.95311164380491208
    theta = 2 * math.pi * random.uniform(angle, shape, part)
    return vnp.multiply(lax.complex(radius * vnp.cos(theta), radius * vnp.sin(theta)), deviation)


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: Any = dtypes.DEFAULT_FLOAT,
) -> Initializer:
    """Random numbers of variance ``scale / n``, where n is the fan that ``mode`` names.

    ``mode``: 'fan_in', 'fan_out', 'fan_avg' (their mean) or 'fan_geo_avg' (their geometric mean). ``distribution``:
    'truncated_normal', 'normal' or 'uniform'.
    """
    if mode not in _FANS:
        raise ValueError(at_user_line(f"variance_scaling: mode must be one of {', '.join(_FANS)}, not {mode!r}"))
    if distribution not in ("truncated_normal", "normal", "uniform"):
        raise ValueError(
            at_user_line(
                f"variance_scaling: distribution must be truncated_normal, normal or uniform, not {distribution!r}"
            )
        )

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        fan_in, fan_out = _fans(tuple(shape), in_axis, out_axis, batch_axis)
        n = _FANS[mode](fan_in, fan_out)
        variance = scale / max(n, 1.0)
        if distribution == "normal":
            return vnp.multiply(random.normal(key, shape, dtype), math.sqrt(variance))
        if dtypes.is_complex(dtypes.canonicalize(dtype)):
            return _in_a_disc(key, shape, dtype, math.sqrt(variance), distribution == "uniform")
        if distribution == "uniform":
            return vnp.multiply(random.uniform(key, shape, dtype, -1.0, 1.0), math.sqrt(3 * variance))
        # cut at two standard deviations, the normal distribution has this standard deviation: undo it
        return vnp.multiply(
            random.truncated_normal(key, -2.0, 2.0, shape, dtype), math.sqrt(variance) / 0.87962566103423978
        )

    return init


def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = dtypes.DEFAULT_FLOAT) -> Initializer:
    """Matrices whose rows or columns, whichever are fewer, are orthonormal, times ``scale``.

    Columns lie along ``column_axis``; the other axes together count the rows. The signs are drawn too, so that every
    orthogonal matrix is as likely as any other.

    Raises:
        ShapeError: the shape that is asked for has fewer than two axes.
    """

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        shape = tuple(shape)
        if len(shape) < 2:
            raise ShapeError(
                at_user_line(f"orthogonal: matrices have at least two axes, got shape {shape}; use normal")
            )
        columns = shape[column_axis]
        if not math.prod(shape):
            return vnp.zeros(shape, dtype)
        rest = [n for i, n in enumerate(shape) if i != column_axis % len(shape)]
        drawn = random.orthogonal(key, math.prod(rest), (), dtype, columns)
        return vnp.multiply(vnp.moveaxis(vnp.reshape(drawn, (*rest, columns)), -1, column_axis), scale)

    return init


def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = dtypes.DEFAULT_FLOAT) -> Initializer:
    """Kernels of convolutions (of one to three dimensions, channels last) that are an :func:`orthogonal` matrix in the
    middle and zero around it, so that a deep stack of them keeps lengths.

    Raises:
        ShapeError: the shape that is asked for has another number of axes than 3, 4 or 5, or more channels go in than
            out.
    """
    matrix = orthogonal(scale, column_axis, dtype)

    @standard
    def init(key: Any, shape: Any, dtype: Any = dtype) -> Array:
        shape = tuple(shape)
        if len(shape) not in (3, 4, 5):
            raise ShapeError(
                at_user_line(f"delta_orthogonal: kernels have 3, 4 or 5 axes, got shape {shape}; use orthogonal")
            )
        if shape[-1] < shape[-2]:
            raise ShapeError(
                at_user_line(
                    f"delta_orthogonal: {shape[-2]} channels into {shape[-1]} cannot keep lengths, got shape {shape}; "
                    "use orthogonal"
                )
            )
        middle = tuple((n - 1) // 2 for n in shape[:-2])
        return vnp.zeros(shape, dtype).at[middle].set(matrix(key, shape[-2:], dtype))

    return init


def _named(name: str, scale: float, mode: str, distribution: str, what: str) -> Callable[..., Initializer]:
    def make(
        in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = dtypes.DEFAULT_FLOAT
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{what}: ``variance_scaling({scale}, {mode!r}, {distribution!r})``."
    return make


glorot_uniform = _named("glorot_uniform", 1.0, "fan_avg", "uniform", "Glorot's uniform initializer")
glorot_normal = _named("glorot_normal", 1.0, "fan_avg", "truncated_normal", "Glorot's normal initializer")
lecun_uniform = _named("lecun_uniform", 1.0, "fan_in", "uniform", "LeCun's uniform initializer")
lecun_normal = _named("lecun_normal", 1.0, "fan_in", "truncated_normal", "LeCun's normal initializer")
he_uniform = _named("he_uniform", 2.0, "fan_in", "uniform", "He's uniform initializer")
he_normal = _named("he_normal", 2.0, "fan_in", "truncated_normal", "He's normal initializer")
xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal

__all__ = [
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
