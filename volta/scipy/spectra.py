"""Spectra of stretches of signals, and convolutions by transforms, under the names of ``jax.scipy.signal``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import lax
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy.promotion import canonical_axis, promote_floats
from volta.scipy.trends import detrend as without_trend

_COSINES = {
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
    "boxcar": (1.0,),
    "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
    "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
}
"""Windows as sums of cosines, with alternating signs."""
_BOUNDARIES: dict[str, dict[str, Any]] = {
    "zeros": {"mode": "constant"},
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
    "constant": {"mode": "edge"},
}


@attrs.frozen(eq=False)
class _Stretches:
    """How a signal is cut into stretches that overlap."""

    length: int
    step: int
    nfft: int
    window: Array

    @property
    def overlap(self) -> int:
        return self.length - self.step

    def places(self, count: int) -> np.ndarray:
        return np.arange(count, dtype=np.int32)[:, None] * self.step + np.arange(self.length, dtype=np.int32)


def _window(name: str, window: Any, length: int, dtype: np.dtype) -> Array:
    if not isinstance(window, str):
        found = vnp.asarray(window).astype(dtype)
        if found.shape != (length,):
            raise ShapeError(at_user_line(f"{name}: the window has shape {found.shape}, a stretch {length} elements"))
        return found
    if window == "triang":
        rise = np.minimum(np.arange(length) + 1, length + 1 - np.arange(length))  # one longer, without its last element
        return vnp.asarray(((2 * rise - length % 2) / (length + 2 - length % 2)).astype(dtype))
    if window not in _COSINES:
        text = f"{name}: the window must be an array or one of {', '.join(_COSINES)}, triang, not {window!r}"
        raise ValueError(at_user_line(text))
    turn = vnp.arange(length, dtype=np.float64) * (2 * math.pi / length)
    waves = [(-1) ** k * a * vnp.cos(k * turn) for k, a in enumerate(_COSINES[window])]
    total = waves[0]
    for wave in waves[1:]:
        total = total + wave
    return total.astype(dtype)


def _stretches(
    name: str, size: int, window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None, dtype: np.dtype
) -> _Stretches:
    given = 256 if nperseg is None else int(nperseg)
    length = min(given, size) if isinstance(window, str) or nperseg is not None else np.shape(window)[0]
    overlap = length // 2 if noverlap is None else int(noverlap)
    points = length if nfft is None else int(nfft)
    if length < 1 or not 0 <= overlap < length or points < length:
        text = f"nperseg {length} of {size} elements, noverlap {overlap} and nfft {points}"
        raise ValueError(at_user_line(f"{name}: needs 1 <= nperseg, noverlap < nperseg <= nfft, got {text}"))
    return _Stretches(length, length - overlap, points, _window(name, window, length, dtype))


def _spectra(name: str, x: Array, cut: _Stretches, detrend: Any, onesided: bool) -> Array:
    """The transforms of all stretches of the last axis: (…, stretches, frequencies)."""
    count = max(0, (x.shape[-1] - cut.overlap) // cut.step)
    parts = x[..., cut.places(count)]
    if callable(detrend):
        parts = detrend(parts)
    elif detrend in ("constant", "linear"):
        parts = without_trend(parts, -1, detrend)
    elif detrend:
        raise ValueError(
            at_user_line(f"{name}: detrend must be 'constant', 'linear', a function or False, not {detrend!r}")
        )
    transform = vnp.fft.rfft if onesided else vnp.fft.fft
    return transform(parts * cut.window, cut.nfft)


def _frequencies(cut: _Stretches, fs: Any, onesided: bool, dtype: np.dtype) -> Array:
    make = vnp.fft.rfftfreq if onesided else vnp.fft.fftfreq
    return (make(cut.nfft, dtype=np.float64) * fs).astype(dtype)


def stft(
    x: ArrayLike, fs: Any = 1.0, window: Any = "hann", nperseg: int = 256, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = False, return_onesided: bool = True, boundary: str | None = "zeros",
    padded: bool = True, axis: int = -1,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The spectra of stretches of a signal, which overlap.

    Args:
        x: the signal, along ``axis``.
        fs: samples per unit of time.
        window: 'hann', 'hamming', 'blackman', 'boxcar', 'triang', 'nuttall', 'blackmanharris', 'flattop', or an
            array of ``nperseg`` factors.
        nperseg, noverlap, nfft: elements of a stretch, those that neighbours share (half), and of a transform.
        detrend: 'constant' subtracts each stretch's mean, 'linear' its line; a function changes stretches; False: as
            they are.
        return_onesided: of real signals the frequencies from 0 on alone.
        boundary: how half a stretch is put to both ends: 'zeros', 'even', 'odd', 'constant' or None.
        padded: whether zeros make the last stretch whole.

    Returns:
        Frequencies, times, and spectra of shape (…, frequencies, times), scaled so that a wave has its amplitude.

    >>> import volta.numpy as vnp
    >>> volta.scipy.signal.stft(vnp.ones(64), nperseg=16)[2].shape
    (9, 9)
    """
    x = vnp.moveaxis(promote_floats("stft", x)[0], canonical_axis("stft", axis, np.ndim(x)), -1)
    part = dtypes.part_dtype(x.dtype)
    cut = _stretches("stft", x.shape[-1], window, nperseg, noverlap, nfft, part)
    onesided = return_onesided and not dtypes.is_complex(x.dtype)
    half = cut.length // 2 if boundary is not None else 0
    if boundary is not None:
        if boundary not in _BOUNDARIES:
            text = f"stft: the boundary must be None or one of {', '.join(_BOUNDARIES)}, not {boundary!r}"
            raise ValueError(at_user_line(text))
        x = vnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], **_BOUNDARIES[boundary])
    if padded:
        x = vnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -(x.shape[-1] - cut.length) % cut.step)])
    spectra = _spectra("stft", x, cut, detrend, onesided) * (1 / vnp.sum(cut.window))
    count = spectra.shape[-2]
    first = cut.length / 2 if boundary is None else 0.0
    times = (vnp.arange(count, dtype=np.float64) * cut.step + first) / fs
    frequencies = _frequencies(cut, fs, onesided, part)
    return frequencies, times.astype(part), vnp.moveaxis(vnp.swapaxes(spectra, -1, -2), -2, _behind(axis, x.ndim))


def _behind(axis: int, ndim: int) -> int:
    """Where the frequencies go, with the times last: to the signal's axis."""
    place = axis % ndim
    return place if place < ndim - 1 else ndim - 1


def istft(
    Zxx: ArrayLike, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, input_onesided: bool = True, boundary: bool = True, time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:  # fmt: skip
    """The signal of which :func:`stft` gave the spectra, by the same settings.

    Returns:
        Times, and the signal along the axis of times.

    >>> import volta.numpy as vnp
    >>> x = vnp.sin(vnp.arange(64.0))
    >>> y = volta.scipy.signal.istft(volta.scipy.signal.stft(x, nperseg=16)[2], nperseg=16)[1]
    >>> bool(vnp.allclose(x, y, atol=1e-5))
    True
    """
    z = vnp.asarray(Zxx)
    if z.ndim < 2 or time_axis % z.ndim == freq_axis % z.ndim:
        raise ShapeError(at_user_line(f"istft: needs an axis of frequencies and one of times, got shape {z.shape}"))
    time_axis, freq_axis = time_axis % z.ndim, freq_axis % z.ndim
    z = vnp.moveaxis(promote_floats("istft", z)[0], (time_axis, freq_axis), (-2, -1))
    points = z.shape[-1]
    whole = 2 * (points - 1) if input_onesided else points
    part = dtypes.part_dtype(z.dtype)
    size = whole if nperseg is None else int(nperseg)
    if nfft is None:  # of an odd number of points half the spectrum is as long as of one less
        nfft = size if input_onesided and size == whole + 1 else whole
    cut = _stretches("istft", size, window, size, noverlap, nfft, part)
    parts = vnp.fft.irfft(z, cut.nfft) if input_onesided else vnp.fft.ifft(z, cut.nfft)
    count = z.shape[-2]
    length = cut.length + (count - 1) * cut.step
    parts = parts[..., : cut.length] * (cut.window * vnp.sum(cut.window))
    places = cut.places(count)
    total = vnp.zeros((*z.shape[:-2], length), parts.dtype).at[..., places].add(parts)
    weight = vnp.zeros(length, part).at[places].add(vnp.broadcast_to(cut.window**2, places.shape))
    x = total / vnp.where(weight > 1e-10, weight, 1)
    if boundary:
        half = cut.length // 2
        x = x[..., half : length - half]
    x = vnp.moveaxis(x, -1, time_axis - (freq_axis < time_axis))
    return (vnp.arange(x.shape[time_axis - (freq_axis < time_axis)], dtype=np.float64) / fs).astype(part), x


def csd(
    x: ArrayLike, y: ArrayLike | None, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True,
    scaling: str = "density", axis: int = -1, average: str = "mean",
) -> tuple[Array, Array]:  # fmt: skip
    """The cross-spectrum of two signals, by Welch's method: the mean over stretches that overlap.

    The shorter of two signals has zeros behind it. ``scaling`` is 'density' (power by frequency) or 'spectrum' (power),
    ``average`` 'mean' or 'median' (of the parts, without its bias). Other arguments are those of :func:`stft`;
    a ``y`` of None is ``x``. Returns frequencies, and the spectrum along ``axis``.

    >>> import volta.numpy as vnp
    >>> volta.scipy.signal.csd(vnp.ones(64), vnp.arange(64.0), nperseg=16)[1].shape
    (9,)
    """
    if scaling not in ("density", "spectrum") or average not in ("mean", "median"):
        text = f"scaling is 'density' or 'spectrum', average 'mean' or 'median', not {scaling!r} and {average!r}"
        raise ValueError(at_user_line(f"csd: {text}"))
    a, b = promote_floats("csd", x, x if y is None else y)
    a, b = (vnp.moveaxis(v, canonical_axis("csd", axis, v.ndim), -1) for v in (a, b))
    longest = max(a.shape[-1], b.shape[-1])
    a, b = (vnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, longest - v.shape[-1])]) for v in (a, b))
    part = dtypes.part_dtype(a.dtype)
    cut = _stretches("csd", a.shape[-1], window, nperseg, noverlap, nfft, part)
    onesided = return_onesided and not dtypes.is_complex(a.dtype)
    left = _spectra("csd", a, cut, detrend, onesided)
    right = left if y is None else _spectra("csd", b, cut, detrend, onesided)
    power = fs * vnp.sum(cut.window**2) if scaling == "density" else vnp.sum(cut.window) ** 2
    products = vnp.conj(left) * right
    found = (_median(products) if average == "median" else vnp.mean(products, axis=-2)) / power
    if onesided:
        twice = np.full(found.shape[-1], 2.0, part)
        twice[0] = 1
        if cut.nfft % 2 == 0:
            twice[-1] = 1
        found = found * twice
    return _frequencies(cut, fs, onesided, part), vnp.moveaxis(found, -1, axis)


def _median(x: Array) -> Array:
    """The median over the last axis but one, divided by what it is too small by (Allen et al., 2012)."""
    halves = 2.0 * np.arange(1, (x.shape[-2] - 1) // 2 + 1)
    bias = 1 + np.sum(1 / (halves + 1) - 1 / halves)
    middle = [vnp.median(part, axis=-2) / float(bias) for part in (vnp.real(x), vnp.imag(x))]
    return lax.complex(*middle) if dtypes.is_complex(x.dtype) else middle[0]


def welch(
    x: ArrayLike, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
    axis: int = -1, average: str = "mean",
) -> tuple[Array, Array]:  # fmt: skip
    """The power spectrum of a signal by Welch's method: :func:`csd` with itself, whose values are real.

    >>> import volta.numpy as vnp
    >>> volta.scipy.signal.welch(vnp.sin(vnp.arange(64.0)), nperseg=16)[1].dtype
    dtype('float32')
    """
    frequencies, power = csd(
        x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
    )
    return frequencies, vnp.real(power)


def fftconvolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", axes: int | Sequence[int] | None = None) -> Array:
    """Two arrays convolved along axes (all), by a product of their transforms: much faster for long ones.

    Args:
        in1, in2: arrays of as many axes; sizes of axes that are not convolved are equal, or 1.
        mode: 'full', 'same' (of ``in1``'s sizes) or 'valid' (where both overlap wholly).

    >>> import volta.numpy as vnp
    >>> vnp.round(volta.scipy.signal.fftconvolve(vnp.arange(3.0), vnp.ones(2)), 3).tolist()
    [0.0, 1.0, 3.0, 2.0]
    """
    a, b = promote_floats("fftconvolve", in1, in2)
    if mode not in ("full", "same", "valid"):
        raise ValueError(at_user_line(f"fftconvolve: the mode must be 'full', 'same' or 'valid', not {mode!r}"))
    if a.ndim != b.ndim or 0 in (*a.shape, *b.shape) or not a.ndim:
        text = f"fftconvolve: needs arrays with elements, of as many axes, got shapes {a.shape} and {b.shape}"
        raise ShapeError(at_user_line(text))
    named = range(a.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    chosen = [canonical_axis("fftconvolve", d, a.ndim) for d in named]
    sizes = [a.shape[d] + b.shape[d] - 1 for d in chosen]
    if dtypes.is_complex(a.dtype):
        out = vnp.fft.ifftn(vnp.fft.fftn(a, sizes, chosen) * vnp.fft.fftn(b, sizes, chosen), sizes, chosen)
    else:
        out = vnp.fft.irfftn(vnp.fft.rfftn(a, sizes, chosen) * vnp.fft.rfftn(b, sizes, chosen), sizes, chosen)
    if mode == "full":
        return out
    taken = [slice(None)] * a.ndim
    for d, n in zip(chosen, sizes, strict=True):
        wanted = a.shape[d] if mode == "same" else abs(a.shape[d] - b.shape[d]) + 1
        first = (n - wanted) // 2
        taken[d] = slice(first, first + wanted)
    return out[tuple(taken)]
