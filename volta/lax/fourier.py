"""``lax.fft``: discrete Fourier transforms of the last axes, under the names of ``jax.lax``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from typing import Any

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops.base import canonical_ints, dtype_error, shape_error
from volta.runtime.array import as_array
from volta.trace.fft import Fourier

__all__ = ["FftType", "fft"]


class FftType(enum.IntEnum):
    """What :func:`fft` does: complex numbers there and back, real numbers to half of their transform and back.

    >>> lax.FftType["RFFT"]
    <FftType.RFFT: 2>
    """

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: ArrayLike, fft_type: FftType | str | int, fft_lengths: Sequence[int]) -> Array:
    """A transform of the last axes, as many as there are lengths; nothing promoted, padded or cut.

    Args:
        x: of complex64 or complex128, for RFFT of float32 or float64; its last axes have these lengths, for IRFFT the
            last one n // 2 + 1.
        fft_type: FFT, IFFT (times 1 over all lengths), RFFT or IRFFT (times the same).

    Raises:
        ShapeError: where lengths and shape do not fit. DTypeError: for other dtypes. ValueError: for another type.

    >>> lax.fft(np.float32([1, 2, 1, 0]), lax.FftType.RFFT, (4,)).tolist()
    [(4+0j), -2j, 0j]
    """
    kind, lengths, aval = _kind(fft_type), canonical_ints("fft", "fft_lengths", fft_lengths), get_aval(x)
    given = (
        dtypes.is_complex(aval.dtype) if kind is not FftType.RFFT else aval.dtype in (dtypes.float32, dtypes.float64)
    )
    if not given:
        asked = "float32 or float64" if kind is FftType.RFFT else "complex64 or complex128"
        raise dtype_error("fft", (aval,), f"{kind.name} takes {asked}; use convert_element_type on the operand")
    if not lengths:
        return x if isinstance(x, Array) else as_array(x)
    last = lengths[-1] // 2 + 1 if kind is FftType.IRFFT else lengths[-1]
    if len(lengths) > aval.ndim or min(lengths) < 1 or aval.shape[aval.ndim - len(lengths) :] != (*lengths[:-1], last):
        raise shape_error("fft", (aval,), f"{kind.name} of lengths {lengths} takes last axes {(*lengths[:-1], last)}")
    pairs = list(zip(range(aval.ndim - len(lengths), aval.ndim), lengths, strict=True))
    back = kind in (FftType.IFFT, FftType.IRFFT)
    scale = 1 / prod(lengths) if back else None
    if kind is FftType.RFFT:
        axis, n = pairs.pop()
        x = Fourier("half", axis, n)(x)
    behind = [pairs.pop()] if kind is FftType.IRFFT else []
    for axis, n in pairs if behind else reversed(pairs):
        x = Fourier("complex", axis, n, back, None if behind or axis != pairs[0][0] else scale)(x)
    for axis, n in behind:
        x = Fourier("real", axis, n, scale=scale)(x)
    return x


def _kind(fft_type: Any) -> FftType:
    try:
        return FftType[fft_type] if isinstance(fft_type, str) else FftType(int(fft_type))
    except (KeyError, ValueError, TypeError):
        names = ", ".join(FftType.__members__)
        raise ValueError(at_user_line(f"fft: fft_type={fft_type!r:.60}; it is one of {names}")) from None
