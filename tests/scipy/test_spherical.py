"""Spherical harmonics: SciPy's values, orthonormal on the sphere, slopes by differences, one set of bits."""

import numpy as np
import pytest
import scipy.special

import volta
import volta.numpy as vnp
from volta.core.errors import ArgumentError, DTypeError
from volta.scipy.special import sph_harm_y
from volta.testing.bits import assert_bits_equal

R = np.random.default_rng(3)
DEGREES = R.integers(-1, 12, 200)
ORDERS = R.integers(-12, 13, 200)
POLAR, AZIMUTH = R.uniform(0, np.pi, 200), R.uniform(-7, 7, 200)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(dtype):
    polar, azimuth = POLAR.astype(dtype), AZIMUTH.astype(dtype)
    polar[:3] = 0, np.pi, np.pi / 2
    got = np.asarray(sph_harm_y(DEGREES, ORDERS, polar, azimuth))
    want = scipy.special.sph_harm_y(DEGREES, ORDERS, polar.astype("f8"), azimuth.astype("f8"))
    assert got.dtype == ("complex64" if dtype == "float32" else "complex128")
    bound = 1e-7 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound)
    assert (got[np.abs(ORDERS) > DEGREES] == 0).all()


def test_large_degrees_and_orders():
    n, m = np.array([60, 60, 60, 200]), np.array([60, -1, 33, -150])
    want = scipy.special.sph_harm_y(n, m, 1.1, 0.3)
    np.testing.assert_allclose(sph_harm_y(n, m, np.float64(1.1), np.float64(0.3)), want, rtol=1e-11)


def test_orthonormal():
    """Gauss' points along the polar axis and equal steps around it integrate these products exactly."""
    x, w = np.polynomial.legendre.leggauss(8)
    around = 2 * np.pi * np.arange(16) / 16
    pairs = np.array([(n, m) for n in range(6) for m in range(-n, n + 1)]).T
    y = np.asarray(sph_harm_y(*pairs[:, :, None, None], np.arccos(x)[:, None], around))
    inner = np.einsum("iab,jab,a->ij", y, y.conj(), w) * 2 * np.pi / 16
    np.testing.assert_allclose(inner, np.eye(len(y)), atol=1e-13)


def test_slopes():
    def real(polar, azimuth):
        return vnp.real(sph_harm_y(np.array([5, 4, 3]), np.array([-3, 0, 3]), polar, azimuth)).sum()

    at, h = (np.float64(0.7), np.float64(1.3)), 1e-6
    for forward in (volta.jacfwd, volta.jacrev):
        got = forward(real, argnums=(0, 1))(*at)
        for i, slope in enumerate(got):
            low, high = (tuple(x + s * h * (j == i) for j, x in enumerate(at)) for s in (-1, 1))
            np.testing.assert_allclose(slope, (real(*high) - real(*low)) / (2 * h), rtol=1e-8)


def test_the_same_bits_jitted_and_batched():
    jitted = volta.jit(lambda n, m, t, p: sph_harm_y(n, m, t, p, n_max=12))
    one = sph_harm_y(DEGREES, ORDERS, POLAR, AZIMUTH, n_max=12)
    assert_bits_equal(jitted(DEGREES, ORDERS, POLAR, AZIMUTH), one)
    assert_bits_equal(volta.vmap(jitted)(DEGREES, ORDERS, POLAR, AZIMUTH), one)
    assert_bits_equal(sph_harm_y(DEGREES, ORDERS, POLAR, AZIMUTH), one)  # a longer recurrence changes nothing


def test_degrees_above_the_largest_count_as_it():
    assert_bits_equal(sph_harm_y(10, 2, 0.5, 0.1, n_max=6), sph_harm_y(6, 2, 0.5, 0.1))


def test_errors():
    with pytest.raises(ArgumentError, match="give it as n_max"):
        volta.jit(sph_harm_y)(2, 1, 0.5, 0.5)
    with pytest.raises(ArgumentError, match="diff_n must be None or 0, got 1"):
        sph_harm_y(2, 1, 0.5, 0.5, diff_n=1)
    with pytest.raises(DTypeError, match="m must be integers, got"):
        sph_harm_y(2, 1.0, 0.5, 0.5)
