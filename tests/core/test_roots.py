"""Roots of unity: every one is rounded once, whatever the length and the order in which they are asked for."""

import mpmath
import numpy as np
import pytest

from volta.core.roots import _rounded, roots

DTYPES = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}


def rounded(value, bits):
    with mpmath.workprec(bits):
        return +value


def exact(k, n, bits):
    with mpmath.workprec(300):
        angle = 2 * mpmath.pi * int(k) / n
        cos, sin = (x if abs(x) > 1e-60 else mpmath.mpf(0) for x in (mpmath.cos(angle), mpmath.sin(angle)))
    return rounded(cos, bits), rounded(sin, bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 12, 97, 100])
def test_each_is_the_nearest_number(n, dtype):
    cos, sin = roots(np.arange(n), n, dtype)
    assert cos.dtype == sin.dtype == dtype
    for k in range(n):
        assert (mpmath.mpf(float(cos[k])), mpmath.mpf(float(sin[k]))) == exact(k, n, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "n", [1000, 10007, *(pytest.param(n, marks=pytest.mark.slow) for n in (1 << 20, 999_983, 1 << 30))]
)
def test_some_of_a_great_length_are_the_nearest_numbers(n, dtype):
    k = np.random.default_rng(n).integers(0, n, 40)
    cos, sin = roots(k, n, dtype)
    for i, c, s in zip(k, cos, sin, strict=True):
        assert (mpmath.mpf(float(c)), mpmath.mpf(float(s))) == exact(i, n, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [6, 8, 40, 97])
def test_a_root_does_not_depend_on_what_else_is_asked_for(n, dtype):
    k = np.arange(-n, 3 * n)
    for many, one in zip(
        roots(k, n, dtype), zip(*(roots(np.array([i]), n, dtype) for i in k), strict=True), strict=True
    ):
        assert many.tobytes() == np.concatenate(one).tobytes()


@pytest.mark.parametrize("n", [8, 12, 1000])
def test_their_symmetry_is_exact(n):
    cos, sin = roots(np.arange(n), n, np.dtype(np.float64))
    assert (cos[1:] == cos[:0:-1]).all() and (sin[1:] == -sin[:0:-1]).all()
    assert (np.roll(cos, n // 4) == sin).all()
    assert not (np.signbit(cos) & (cos == 0)).any() and not (np.signbit(sin) & (sin == 0)).any()


def test_a_float32_is_rounded_from_the_number_not_from_its_float64():
    tie = 1 + 2.0**-24  # between two float32
    for low, want in ((2.0**-60, 1 + 2.0**-23), (-(2.0**-60), 1.0), (0.0, 1.0)):
        for sign in (1, -1):
            pair = np.array([sign * tie]), np.array([sign * low])
            assert _rounded(pair, np.dtype(np.float32)).astype(np.float32)[0] == np.float32(sign * want)
