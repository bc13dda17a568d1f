"""Trends of signals, and signals without them."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core.array import Array, ArrayLike
from volta.core.source import at_user_line
from volta.numpy.promotion import canonical_axis, promote_floats


def detrend(
    data: ArrayLike, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: bool | None = None
) -> Array:
    """``data`` less its mean ('constant') or the line of least squares ('linear') along ``axis``, between breaks.

    >>> detrend(vnp.asarray([1.0, 2.0, 6.0]), type="constant").tolist()
    [-2.0, -1.0, 3.0]
    """
    x = promote_floats("detrend", data)[0]
    axis = canonical_axis("detrend", axis, x.ndim)
    if type in ("constant", "c"):
        return x - vnp.mean(x, axis, keepdims=True)
    if type not in ("linear", "l"):
        raise ValueError(at_user_line(f"detrend: the type must be 'linear' or 'constant', not {type!r}"))
    n = x.shape[axis]
    breaks = np.unique(np.r_[0, np.atleast_1d(bp), n])
    if breaks[0] < 0 or breaks[-1] > n:
        raise ValueError(at_user_line(f"detrend: breaks must be between 0 and {n}, got {bp}"))
    rows = vnp.moveaxis(x, axis, 0).reshape(n, -1)
    parts = []
    for start, end in zip(breaks[:-1], breaks[1:], strict=True):
        part = rows[int(start) : int(end)]
        places = vnp.arange(1, part.shape[0] + 1, dtype=x.dtype) - (part.shape[0] + 1) / 2
        mean, square = vnp.mean(part, 0), vnp.sum(places * places)
        slope = vnp.matmul(places, part) / vnp.where(square > 0, square, 1)
        parts.append(part - mean - places[:, None] * slope)
    out = vnp.concatenate(parts).reshape(vnp.moveaxis(x, axis, 0).shape)
    return vnp.moveaxis(out, 0, axis)
