"""Functions beside SciPy's where arguments are at the ends of their ranges, complex or left out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.scipy import signal, special, stats

scipy_signal = pytest.importorskip("scipy.signal")
scipy_special = pytest.importorskip("scipy.special")
scipy_stats = pytest.importorskip("scipy.stats")

RNG = np.random.default_rng(11)


def near(got: Any, want: Any, rtol: float = 1e-5) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def test_incomplete_beta_of_parameters_without_a_density() -> None:
    ends = np.float32([0, 0.5, 2, np.inf, np.nan, -1])
    grid = np.meshgrid(ends, ends, np.float32([-1, 0, 0.5, 1, 2, np.nan]))
    near(special.betainc(*grid), scipy_special.betainc(*grid))


def test_hypergeometric_polynomials_and_signs_at_one() -> None:
    a, b, c, x = np.float64([[0, 1, 1, 1], [-2, 3, 1.5, 1], [-3, 2.5, 2, 1], [2, -2, 0.7, 4], [2.5, -3.2, 1, 1],
                             [3.3, -4.1, 2.2, 1], [0.5, 0.3, 3.3, 1], [0.4, -1, 0.3, -7]]).T  # fmt: skip
    near(special.hyp2f1(a, b, c, x), scipy_special.hyp2f1(a, b, c, x), 1e-12)


def test_integrals_of_negative_numbers_and_choices_from_nothing() -> None:
    x = np.float32([-np.inf, -30, -4, -0.5, 0, 0.5, 30, np.inf, np.nan])
    for got, want in zip(special.sici(x), scipy_special.sici(x), strict=True):
        near(got, want)
    n, k = np.meshgrid(np.arange(4.0), np.arange(4.0))
    near(special.comb(n, k, repetition=True), scipy_special.comb(n, k, repetition=True))


@pytest.mark.parametrize("scale", [0.3, 3.0, 40.0])
def test_gamma_of_complex_numbers(scale: float) -> None:
    z = (RNG.standard_normal(200) + 1j * RNG.standard_normal(200)) * scale
    z = np.concatenate([z, 1 + z / scale * 0.05, 2 + z / scale * 0.05, z.real + 0j, z.real + 1e-9j, z.real - 1e-9j])
    want = scipy_special.loggamma(z)
    assert np.max(np.abs(np.asarray(special.loggamma(z)) - want) / np.maximum(np.abs(want), 0.1)) < 1e-13
    assert special.loggamma(z.astype(np.complex64)).dtype == np.complex64
    inside = np.abs(want.real) < 300
    near(special.gamma(z[inside]), scipy_special.gamma(z[inside]), 1e-11)
    slopes = np.asarray(volta.vmap(volta.grad(special.loggamma, holomorphic=True))(z))
    known = scipy_special.digamma(z)
    assert np.max(np.abs(slopes - known) / np.maximum(np.abs(known), 1)) < 1e-10
    poles = np.array([0, -1, -5 + 0j])
    assert np.isnan(np.asarray(special.gamma(poles))).all()


REAL_ALONE = "dawsn erfcx exp1 expi gammasgn log_ndtr sici spence fresnel digamma erf gammaln i0e ndtri zeta".split()


@pytest.mark.parametrize("name", REAL_ALONE)
def test_no_function_drops_an_imaginary_part(name: str) -> None:
    """Complex numbers are what SciPy has of them, or refused: never those of the real part."""
    z = np.array([0.5 + 0.5j], np.complex64)
    operands = (z, z) if name == "zeta" else (z,)
    with pytest.raises((volta.errors.DTypeError, NotImplementedError)):
        getattr(special, name)(*operands)


def test_spherical_harmonics_of_angles_below_zero_and_beyond_half_a_turn() -> None:
    n, m, theta = np.meshgrid([2, 3], [-3, -2, -1, 0, 1, 2, 3], [-2.0, -0.5, 0.0, 0.5, 4.0], indexing="ij")
    kept = np.abs(m) <= n
    n, m, theta = n[kept].astype(np.int32), m[kept].astype(np.int32), theta[kept]
    near(special.sph_harm_y(n, m, theta, 0.3), scipy_special.sph_harm_y(n, m, theta, 0.3), 1e-12)


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
def test_there_are_no_ranks_among_nan(method: str) -> None:
    x = np.float32([[3, 1, 3, 2], [3, np.nan, 1, 0]])
    for axis in (None, 0, 1):
        near(stats.rankdata(x, method, axis=axis), scipy_stats.rankdata(x, method, axis=axis))
        empty = np.zeros((0, 2, 3) if axis != 1 else (2, 0, 3), np.float32)
        assert stats.rankdata(empty, method, axis=axis).shape == scipy_stats.rankdata(empty, method, axis=axis).shape


@pytest.mark.parametrize("time, frequency", [(-1, -2), (0, 1), (1, 0), (0, 2), (2, 1)])
def test_signals_come_back_along_their_axis(time: int, frequency: int) -> None:
    z = np.moveaxis(RNG.integers(-9, 9, (3, 9, 5)), (1, 2), (frequency, time))
    for nfft in (None, 16, 24):
        settings = {"nperseg": 16, "nfft": nfft, "time_axis": time, "freq_axis": frequency, "window": "blackman"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = scipy_signal.istft(z, **settings)[1] if nfft != 24 else None
        if want is not None:  # an error of SciPy's in times counts the wrong axis
            near(signal.istft(z, **settings)[1], want, 1e-4)
        times, x = signal.istft(z, **{**settings, "nfft": None})
        assert times.shape[0] in x.shape


WINDOWS = "hann hamming blackman boxcar triang nuttall blackmanharris flattop".split()


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_boundaries_and_trends_of_stretches(window: str) -> None:
    x = RNG.standard_normal((2, 50)).astype(np.float32)
    for size, boundary, detrend in ((8, "odd", "linear"), (9, "even", "constant"), (8, None, np.abs)):
        own = vnp.abs if detrend is np.abs else detrend
        settings = {"window": window, "nperseg": size, "boundary": boundary}
        got, want = signal.stft(x, detrend=own, **settings), scipy_signal.stft(x, detrend=detrend, **settings)
        for a, b in zip(got, want, strict=True):
            near(a, b, 1e-4)
    for average in ("mean", "median"):
        settings = {"window": window, "nperseg": 8, "average": average}
        near(signal.csd(x, x[:, :30], **settings)[1], scipy_signal.csd(x, x[:, :30], **settings)[1], 1e-4)
        near(signal.welch(x, **settings)[1], scipy_signal.welch(x, **settings)[1], 1e-4)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_by_transforms(mode: str) -> None:
    a, b = RNG.standard_normal((6, 7)).astype(np.float32), RNG.standard_normal((3, 2)).astype(np.float32)
    for name in ("convolve", "correlate"):
        near(getattr(signal, name)(a, b, mode, "fft"), getattr(scipy_signal, name)(a, b, mode, "direct"), 1e-4)
        with pytest.raises(ValueError, match="the method must be 'auto', 'direct' or 'fft'"):
            getattr(signal, name)(a, b, mode, "sum")
    near(signal.fftconvolve(a, a, mode, axes=1), scipy_signal.fftconvolve(a, a, mode, axes=1), 1e-4)


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_odd_reflections(mode: str) -> None:
    for shape, width in (((4,), (3, 9)), ((3, 2), ((1, 0), (4, 5))), ((1, 3), (2, 2))):
        x = RNG.integers(-9, 9, shape).astype(np.float32)
        for kind in ("even", "odd"):
            near(vnp.pad(x, width, mode, reflect_type=kind), np.pad(x, width, mode, reflect_type=kind))
    with pytest.raises(ValueError, match="reflect_type must be 'even' or 'odd'"):
        vnp.pad(x, 1, mode, reflect_type="both")


def test_where_nothing_is_left_in_the_probabilities_have_no_logarithm() -> None:
    x, mask = np.float32([[5, 1, -4], [1, 2, 3]]), np.array([[0, 0, 0], [1, 0, 1]], bool)
    near(nn.softmax(x, where=mask)[0], [0, 0, 0])
    near(nn.log_softmax(x, where=mask)[0], [-np.inf] * 3)
    slope = volta.grad(lambda v: nn.log_softmax(v, where=mask)[1, 0])(x)
    assert np.isfinite(np.asarray(slope)).all()
