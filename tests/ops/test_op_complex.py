"""Complex numbers: derivatives beside JAX's, special values and branch cuts beside NumPy's, errors of operations."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.optional import Optional
from volta import lax
from volta.core.errors import DTypeError
from volta.ops import REGISTRY
from volta.ops.primitive import Family
from volta.testing.cases import cases, draw, rng_of, vocabulary

pytestmark = pytest.mark.turns(6)

jax = Optional("jax")

COMPLEX = np.dtype(np.complex128)
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-300, -1e300, 1e-310, np.inf, -np.inf, np.nan, 710.0, np.pi / 2]
PLANE = np.array([complex(x, y) for x in EDGES for y in EDGES])
# Functions whose special values are Annex G's in NumPy as well: its expm1 has none, its log1p loses digits.
FUNCTIONS = ("exp exp2 log log2 log10 sqrt sinh cosh tanh sin cos tan asin acos atan asinh acosh atanh abs").split()


@pytest.fixture
def with_float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_and_branch_cuts_are_numpys(name):
    with np.errstate(all="ignore"):
        want = getattr(np, name)(PLANE)
    got = np.asarray(getattr(vnp, name)(PLANE))
    for ours, theirs in ((got.real, want.real), (got.imag, want.imag)):
        same = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs)) | np.isnan(ours) & np.isnan(theirs)
        with np.errstate(invalid="ignore"):
            near = np.abs(ours - theirs) <= 1e-13 * np.abs(theirs)
            tiny = np.abs(theirs) < 1e-300  # NumPy's root rounds subnormals twice
            near |= tiny & (np.abs(ours - theirs) < 1e-6 * np.abs(theirs))
        near &= (
            (theirs != 0) | (np.signbit(ours) == np.signbit(theirs)) | ~np.isfinite(PLANE)
        )  # of these the standard's
        assert np.all(same | near), [(PLANE[i], got[i], want[i]) for i in np.flatnonzero(~(same | near))[:5]]


def test_tests_of_numbers_look_at_both_parts():
    for name in ("isfinite", "isnan", "isinf", "iscomplex", "isreal", "logical_not"):
        np.testing.assert_array_equal(np.asarray(getattr(vnp, name)(PLANE)), getattr(np, name)(PLANE))


NOT_OF_JAX = "complex convert_element_type select_n integer_pow sign is_finite eq ne copy fma log2 log10".split()
DERIVED = [
    case
    for p in vocabulary()
    if p.family is Family.ELEMENTWISE and p.pairs is not None
    if p.name not in NOT_OF_JAX
    for case in cases(p, COMPLEX)[:1]
]


@pytest.mark.usefixtures("with_float64")
@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_derivatives_are_jaxs_in_both_directions(case):
    ours, theirs = getattr(lax, case.primitive.public), getattr(jax.lax, case.primitive.public)
    tangents = [draw(rng_of(str(case)), x.shape, x.dtype, -1, 1) for x in case.args]
    out, dout = volta.jvp(ours, case.args, tuple(tangents))
    want, dwant = jax.jvp(theirs, case.args, tuple(tangents))
    np.testing.assert_allclose(np.asarray(out), want, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(dout), dwant, rtol=1e-10)
    ct = draw(rng_of("ct"), out.shape, out.dtype, -1, 1)
    for mine, other in zip(volta.vjp(ours, *case.args)[1](ct), jax.vjp(theirs, *case.args)[1](ct), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-10)


def test_the_derivative_of_a_direction_turns_with_it():
    z, t, h = np.complex128(3 + 4j), np.complex128(1 - 2j), 1e-6
    _, got = volta.jvp(lax.sign, (z,), (t,))
    want = (np.sign(z + h * t) - np.sign(z - h * t)) / (2 * h)
    np.testing.assert_allclose(complex(got), want, rtol=1e-8)


def test_parts_and_conjugates_are_transposed_without_conjugation():
    z, x = np.complex64([1 + 2j, 3 - 1j]), np.float32([2, 5])
    assert np.array_equal(volta.vjp(lax.real, z)[1](x)[0], x + 0j)
    assert np.array_equal(volta.vjp(lax.imag, z)[1](x)[0], -1j * x)
    assert np.array_equal(volta.vjp(lax.conj, z)[1](z)[0], z.conj())
    re, im = volta.vjp(lax.complex, x, x)[1](z)
    assert np.array_equal(re, z.real) and np.array_equal(im, -z.imag)
    (ct,) = volta.vjp(lambda x: lax.convert_element_type(x, np.complex64), x)[1](z)
    assert ct.dtype == np.float32 and np.array_equal(ct, z.real)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_quotients_neither_overflow_nor_vanish(dtype):
    """Beside exact quotients, at numbers of all sizes."""
    fractions = pytest.importorskip("fractions")
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    low, high = np.log2(float(info.tiny)) / 1.01, np.log2(float(info.max)) / 1.01
    parts = [rng.choice([-1, 1], 400) * 2.0 ** rng.uniform(low, high, 400) for _ in range(4)]
    x, y = (parts[0] + 1j * parts[1]).astype(dtype), (parts[2] + 1j * parts[3]).astype(dtype)
    got = np.asarray(lax.div(x, y))
    for a, b, q in zip(x, y, got, strict=True):
        c, d, e, f = (fractions.Fraction(float(v)) for v in (a.real, a.imag, b.real, b.imag))
        size = e * e + f * f
        want = (c * e + d * f) / size, (d * e - c * f) / size
        if max(map(abs, want)) > float(info.max) / 4 or max(map(abs, want)) < float(info.tiny) * 2:
            continue
        off = max(abs(fractions.Fraction(float(v)) - w) for v, w in zip((q.real, q.imag), want, strict=True))
        assert off <= 8 * float(info.eps) * max(map(abs, want)), (a, b, q)


def test_what_is_divided_by_zero_is_infinite_part_by_part():
    z = np.array([1 + 1j, -1 + 2j, 0, 1j, complex(np.inf, 1)])
    with np.errstate(all="ignore"):
        want = z / np.complex128(0)
    np.testing.assert_array_equal(np.asarray(lax.div(z, np.complex128(0))), want)


@pytest.mark.parametrize("name", ["lt", "ge", "max", "rem", "floor", "erf", "atan2", "and", "nextafter"])
def test_what_has_no_meaning_is_refused(name):
    z = np.complex64([1j])
    primitive = REGISTRY[name]
    with pytest.raises(DTypeError, match=rf"{name}\(c64\[1\].*has no meaning for complex numbers"):
        getattr(lax, primitive.public)(*[z] * (1 if name in ("floor", "erf") else 2))


def test_other_refusals():
    z = np.complex64([1j, 2])
    for refused in (lax.argmax, lax.cummax):
        with pytest.raises(DTypeError, match="has no meaning for complex numbers"):
            refused(z, 0)
    with pytest.raises(DTypeError, match="there is no mul of them"):
        vnp.asarray(z).at[np.array([0, 0])].multiply(2)
    with pytest.raises(DTypeError, match="use real and imag"):
        lax.bitcast_convert_type(z, np.uint64)
    with pytest.raises(DTypeError, match="parts are float32 or float64, not float16"):
        lax.complex(np.float16(1), np.float16(2))
    with pytest.raises(DTypeError, match="real.*takes complex operands"):
        lax.real(np.float32(1))
    with pytest.raises(DTypeError, match=r"1j does not fit an operand of dtype float32"):
        lax.add(np.float32(1), 1j)
