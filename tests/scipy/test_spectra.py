"""Spectra of stretches, back to signals, and convolutions by transforms: beside SciPy, under transforms, refused."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.optional import Optional
from volta.errors import ShapeError
from volta.scipy import signal
from volta.testing import assert_bits_equal

theirs = Optional("scipy.signal")
RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((2, 150))
COMPLEX = REAL + 1j * RNG.standard_normal((2, 150))
SETTINGS = [
    {"nperseg": 32},
    {"nperseg": 30, "noverlap": 20, "window": "hamming", "fs": 8.0},
    {"nperseg": 16, "nfft": 40, "window": "blackman", "detrend": "constant"},
    {"nperseg": 25, "return_onesided": False},
    {"window": "boxcar", "noverlap": 0, "nperseg": 50},
    {},
]


def same(ours, others):
    for x, y in zip(ours, others, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("given", SETTINGS)
@pytest.mark.parametrize("x", [REAL, COMPLEX], ids=["real", "complex"])
def test_spectra_are_scipys(x, given):
    more = {"return_onesided": False} if x is COMPLEX else {}  # SciPy warns otherwise
    for boundary in ("zeros", "even", "constant", None):
        words = {"nperseg": 256, **given, **more, "boundary": boundary}
        words["nperseg"] = min(words["nperseg"], 150)
        same(signal.stft(x, **words), theirs.stft(x, **words))
    words = {"nperseg": 150, **given, **more}
    for scaling in ("density", "spectrum"):
        same(signal.welch(x, scaling=scaling, **words), theirs.welch(x, scaling=scaling, **words))
        same(signal.csd(x, x[::-1], scaling=scaling, **words), theirs.csd(x, x[::-1], scaling=scaling, **words))


def test_along_other_axes_and_with_windows_of_ones_own():
    window = np.linspace(1, 2, 20)
    same(signal.stft(REAL.T, axis=0, nperseg=20, window=window), theirs.stft(REAL.T, axis=0, nperseg=20, window=window))
    same(signal.welch(REAL.T, axis=0, nperseg=20), theirs.welch(REAL.T, axis=0, nperseg=20))


@pytest.mark.parametrize("given", [s for s in SETTINGS if "detrend" not in s and "nfft" not in s])
def test_spectra_go_back_to_their_signal(given):
    words = {"nperseg": 64, **given}
    back = {("input_onesided" if k == "return_onesided" else k): v for k, v in words.items()}
    z = np.asarray(signal.stft(REAL, **words)[2])
    got = signal.istft(z, **back)
    same(got[1:], theirs.istft(z, **back)[1:])
    same(signal.istft(z[0], **back), theirs.istft(z[0], **back))
    np.testing.assert_allclose(np.asarray(got[1])[:, :150], REAL, atol=1e-12)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_by_transforms_are_scipys(mode):
    for a, b, axes in ((REAL, REAL[:, :9], None), (COMPLEX, REAL[:1, :20], None), (REAL, REAL[:, :7], (1,))):
        same([signal.fftconvolve(a, b, mode, axes)], [theirs.fftconvolve(a, b, mode, axes)])


def test_under_transforms_the_bits_are_the_same():
    x = vnp.asarray(REAL, "float32")
    f = lambda x: signal.stft(x, nperseg=32)[2]  # noqa: E731
    assert_bits_equal(volta.jit(f)(x), f(x))
    assert_bits_equal(volta.vmap(f)(x), f(x))
    power = lambda x: vnp.sum(signal.welch(x, nperseg=32)[1])  # noqa: E731
    step = 1e-6 * RNG.standard_normal((2, 150))
    slope = (float(power(vnp.asarray(REAL + step))) - float(power(vnp.asarray(REAL - step)))) / 2
    assert np.sum(np.asarray(volta.grad(power)(vnp.asarray(REAL))) * step) == pytest.approx(slope, rel=1e-5)


def test_what_is_refused():
    with pytest.raises(ValueError, match="stft: the window must be an array or one of hann"):
        signal.stft(REAL, window="kaiser")
    with pytest.raises(ShapeError, match=r"stft: the window has shape \(3,\), a stretch 8 elements"):
        signal.stft(REAL, window=np.ones(3), nperseg=8)
    with pytest.raises(ValueError, match="welch|csd: needs 1 <= nperseg, noverlap < nperseg <= nfft"):
        signal.welch(REAL, nperseg=8, noverlap=8)
    with pytest.raises(ValueError, match="stft: the boundary must be None or one of zeros"):
        signal.stft(REAL, boundary="periodic")
    with pytest.raises(ValueError, match="csd: detrend must be 'constant', 'linear'"):
        signal.welch(REAL, detrend="cubic")
    with pytest.raises(ValueError, match="csd: scaling is 'density' or 'spectrum'"):
        signal.csd(REAL, REAL, average="mode")
    with pytest.raises(ShapeError, match="istft: needs an axis of frequencies and one of times"):
        signal.istft(COMPLEX[0])
    with pytest.raises(ValueError, match="fftconvolve: the mode must be"):
        signal.fftconvolve(REAL, REAL, "circular")
    with pytest.raises(ShapeError, match="fftconvolve: needs arrays with elements, of as many axes"):
        signal.fftconvolve(REAL, REAL[0])
