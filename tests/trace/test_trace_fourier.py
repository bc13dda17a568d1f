"""Fourier transforms are near the exact ones, whatever the length, and their programs are short."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.core.roots import roots
from volta.numpy import fft
from volta.testing import assert_bits_equal
from volta.trace.butterflies import transformed
from volta.trace.fourier import COSTS, Table, chirp_length, factors, radices, transform

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(1)
EPS = {"f4": 2.0**-24, "f8": 2.0**-53}
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 22, 26, 27, 97, 101, 194, 1000, 1024, 4096 * 3)


def error(found, exact):
    """Root mean square, relative."""
    difference = np.asarray(found).astype(exact.dtype) - exact
    return float(np.sqrt(np.mean(np.abs(difference) ** 2) / np.mean(np.abs(exact) ** 2)))


def numbers(dtype, *shape):
    return RNG.standard_normal(shape).astype(dtype)


def allowed(n, dtype):
    """What a transform of n elements may add up: three transforms where there is a chirp."""
    passes, length = (1, n) if radices(n) is not None else (3, chirp_length(n))
    return EPS[dtype] * passes * (1 + 0.15 * np.log2(length))


@sampled("dtype,n", [(d, n) for d in EPS for n in LENGTHS], [("f4", 1), ("f4", 60), ("f8", 1000), ("f4", 97)])
def test_errors_are_those_of_a_good_transform(dtype, n):
    x, y = numbers(dtype, 4, n), numbers(dtype, 4, n)
    exact = np.fft.fft(x.astype(np.longdouble) + 1j * y.astype(np.longdouble))
    assert error(fft.fft(x + 1j * y), exact) <= allowed(n, dtype)
    assert error(fft.ifft(x + 1j * y), np.fft.ifft(x.astype(np.longdouble) + 1j * y)) <= allowed(n, dtype) * 1.5
    half = np.fft.rfft(x.astype(np.longdouble))
    assert error(fft.rfft(x), half) <= allowed(n, dtype) * 1.5
    assert error(fft.irfft(half.astype(np.result_type(x, 1j)), n), x.astype(np.longdouble)) <= allowed(n, dtype) * 2.5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EPS)
def test_errors_grow_as_the_logarithm_does(dtype):
    found = []
    for power in (4, 8, 12, 16, 20):
        x = numbers(dtype, 1 << power) + 1j * numbers(dtype, 1 << power)
        found.append(error(fft.fft(x), np.fft.fft(x.astype(np.clongdouble))) / EPS[dtype])
    assert all(e <= 1 + 0.15 * p for e, p in zip(found, (4, 8, 12, 16, 20), strict=True))


@pytest.mark.parametrize("n", [2, 8, 1024])
def test_what_is_exact_stays_so(n):
    one = np.zeros(n, np.float32)
    one[0] = 3
    assert_bits_equal(fft.fft(one), np.full(n, 3 + 0j, np.complex64))
    flat = np.zeros(n, np.complex64)
    flat[0] = 3 * n
    assert_bits_equal(np.abs(np.asarray(fft.fft(np.full(n, 3, np.float32)))), np.abs(flat))
    assert_bits_equal(fft.ifft(flat).real, np.full(n, 3, np.float32))


@sampled("n", [2, 3, 8, 11, 13, 60, 97], [8, 97])
def test_a_nan_spreads_over_its_own_transform_alone(n):
    for bad in (np.nan, np.inf):
        x = numbers("f4", 3, n)
        x[1, n // 2] = bad
        found = np.asarray(fft.fft(x))
        assert not np.isfinite(found[1]).any() and np.isfinite(found[[0, 2]]).all()
        assert not np.isfinite(np.asarray(fft.rfft(x))[1]).any()


def test_lengths_are_divided_into_few_radices_largest_first():
    assert radices(1) == () and radices(8) == (8,) and radices(1000) == (10, 10, 10)
    assert radices(1 << 20) == (8, 8, 8, 8, 8, 8, 4)
    assert radices(17) is radices(2 * 97) is None
    for n in range(1, 400):
        found = radices(n)
        if found is None:
            assert any(n % p == 0 for p in range(17, n + 1) if all(p % q for q in range(2, p)))
        else:
            assert np.prod(found, initial=1) == n and set(found) <= set(COSTS)
            assert list(found) == sorted(found, reverse=True)


def test_a_chirp_has_room_for_both_sides():
    assert [chirp_length(n) for n in (2, 3, 17, 97, 129)] == [4, 8, 64, 256, 512]


@pytest.mark.parametrize("n", sorted(COSTS))
def test_butterflies_are_transforms(n):
    x = [(numbers("f8"), numbers("f8")) for _ in range(n)]
    exact = np.fft.fft([complex(a, b) for a, b in x])
    found = [complex(float(a), float(b)) for a, b in transformed([(vnp.asarray(a), vnp.asarray(b)) for a, b in x])]
    assert np.allclose(found, exact, rtol=0, atol=1e-14)


def test_the_table_is_of_roots_rounded_once():
    k = np.arange(1, 8)[:, None] * np.arange(2)
    cos, sin = roots(k, 16, np.dtype("f4"))
    found = Table(factors(16, np.dtype("f4")))
    assert radices(16) == (4, 4)
    re, im = found.complex(3, 4)
    j = np.arange(1, 4)[:, None] * np.arange(4)
    cos, sin = roots(j, 16, np.dtype("f4"))
    assert_bits_equal(re, cos)
    assert_bits_equal(im, -sin)
    assert found.at == factors(16, np.dtype("f4")).size


def test_the_definition_of_passes_written_out():
    """Radix by radix, in NumPy's arithmetic: a product of two float32 is exact in float64."""

    def times(a, b, cos, sin):
        def one(x):
            return x.astype("f4").astype("f8")

        return one(a * cos + one(b * sin)), one(a * -sin + one(b * cos))

    n = 320
    x = numbers("f4", n), numbers("f4", n)
    re, im = (v.astype("f8") for v in x)
    rest, inner = n, 1
    for r in radices(n):
        rest //= r
        pieces = zip(*(v.astype("f4").reshape(r, rest, inner) for v in (re, im)), strict=True)
        out = [np.asarray(y, "f8") for y in transformed([tuple(map(vnp.asarray, p)) for p in pieces])]
        for c in range(1, r) if rest > 1 else ():
            cos, sin = (v[:, None].astype("f8") for v in roots(c * np.arange(rest), r * rest, np.dtype("f4")))
            out[c] = times(*out[c], cos, sin)
        re, im = (np.stack([y[part] for y in out], 1).ravel() for part in (0, 1))
        inner *= r
    found = fft.fft((x[0] + 1j * x[1]).astype("c8"))
    assert_bits_equal((found.real, found.imag), (re.astype("f4"), im.astype("f4")))


def test_a_long_transform_is_a_few_kernels():
    def plan(n, f=fft.fft):
        return volta.jit(f).lower(volta.ShapeDtypeStruct((n,), np.complex64)).compile().plan

    assert len(plan(4096).calls) == 4 and len(plan(1000).calls) == 3
    long = volta.make_jaxpr(fft.fft)(volta.ShapeDtypeStruct((1 << 20,), np.complex64))
    (eqn,) = [e for e in long.jaxpr.eqns if "jaxpr" in e.params]
    assert len(eqn.params["jaxpr"].jaxpr.eqns) < 1000


def test_a_transform_of_pairs_is_that_of_complex_numbers():
    x, y = numbers("f4", 12), numbers("f4", 12)
    table = Table(vnp.asarray(factors(12, np.dtype("f4"))))
    re, im = transform((vnp.asarray(x), vnp.asarray(y)), 0, table)
    found = fft.fft((x + 1j * y).astype("c8"))
    assert_bits_equal((re, im), (found.real, found.imag))
