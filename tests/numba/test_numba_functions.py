"""`volta.numba`: functions for code that Numba compiles have the bits of Volta's own kernels, in every function."""

import math

import numba
import numpy as np
import pytest

import volta
import volta.numba as vn
import volta.numpy as vnp
from tests.sampling import sampled
from volta.errors import DTypeError, ShapeError
from volta.numba.elementwise import arity
from volta.ops.primitive import REGISTRY
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

FUNCTIONS = {p.public: p for p in REGISTRY.values() if arity(p)}
QUICK = ("erf", "sin", "atan2")


def numbers(dtype, count, seed=0):
    """Numbers of any magnitude, and any bits at all."""
    rng = np.random.default_rng(seed)
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    wild = rng.integers(0, np.iinfo(word).max, count, word, endpoint=True).view(dtype)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, 2], dtype)
    return np.concatenate([rng.standard_normal(count).astype(dtype) * 10, wild, special])


def compiled(function, count, **options):
    """Numba's loop around a function of ``count`` operands."""

    def one(out, x, y, z):
        for i in range(out.size):
            out[i] = function(x[i])

    def two(out, x, y, z):
        for i in range(out.size):
            out[i] = function(x[i], y[i])

    def three(out, x, y, z):
        for i in range(out.size):
            out[i] = function(x[i], y[i], z[i])

    return numba.njit(**options)((one, two, three)[count - 1])


@sampled("name", sorted(FUNCTIONS), QUICK)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_every_function_has_the_bits_of_its_primitive(name, dtype) -> None:
    """Also where the code around it is compiled with fastmath."""
    primitive, count = FUNCTIONS[name], arity(FUNCTIONS[name])
    operands = [numbers(dtype, 300, seed) for seed in range(3)]
    expected = np.asarray(primitive.bind(*operands[:count]))
    for options in ({}, {"fastmath": True}):
        out = np.empty(operands[0].size, expected.dtype)
        compiled(getattr(vn, name), count, **options)(out, *operands)
        assert_bits_equal(out, expected)


def test_every_function_of_floats_of_the_vocabulary_is_there() -> None:
    assert set(vn.__all__) == {*FUNCTIONS, "sum", "dot"}
    assert set("exp log tanh erf sin cos log1p expm1 pow rsqrt fma lgamma rem max".split()) <= set(vn.__all__)
    assert all(getattr(vn, name).__doc__ and getattr(vn, name).__name__ == name for name in FUNCTIONS)


def test_they_are_not_those_of_the_mathematics_library() -> None:
    """So there is something to promise: on this sample, some numbers differ."""
    x = numbers(np.float64, 3000)[:3000]
    assert any(vn.tanh(v) != math.tanh(v) for v in x[:500]) or any(vn.exp(v) != math.exp(v) for v in x[:500] / 9)


LENGTHS = (0, 1, 64, 257, 4097, 20011)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_sum_and_dot_have_their_orders(dtype) -> None:
    total = numba.njit(lambda x: vn.sum(x))
    product = numba.njit(fastmath=True)(lambda x, y: vn.dot(x, y))
    rng = np.random.default_rng(3)
    for n in LENGTHS:
        x, y = rng.standard_normal((2, n)).astype(dtype)
        assert_bits_equal(dtype(total(x)), np.asarray(vnp.sum(x))[()])
        assert_bits_equal(dtype(product(x, y)), np.asarray(vnp.dot(x, y))[()])
        assert_bits_equal((vn.sum(x), vn.dot(x, y)), (dtype(total(x)), dtype(product(x, y))))


@pytest.mark.slow
def test_sum_of_arrays_of_several_axes_and_of_views() -> None:
    total = numba.njit(lambda x: vn.sum(x))
    x = np.random.default_rng(4).standard_normal((70, 90)).astype(np.float32)
    assert_bits_equal(np.float32(total(x)), np.asarray(vnp.sum(x))[()])
    assert_bits_equal(np.float32(total(x.T[::2])), np.asarray(vnp.sum(np.ascontiguousarray(x.T[::2])))[()])


def test_in_a_kernel_of_ones_own() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def softplus(x, out):
        for i in range(x.size):
            out[i] = vn.log1p(vn.exp(x[i]))

    x = numbers(np.float32, 100)
    assert_bits_equal(volta.jit(softplus)(x), volta.jit(lambda x: volta.lax.log1p(volta.lax.exp(x)))(x))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(numba.TypingError, match=r"volta.numba.exp takes numbers of one dtype.* got int64: convert"):
        numba.njit(lambda x: vn.exp(x))(3)
    with pytest.raises(numba.TypingError, match="volta.numba.sum takes an array of float32 or float64"):
        numba.njit(lambda x: vn.sum(x))(np.arange(3))
    with pytest.raises(DTypeError, match="volta.numba.atan2 takes numbers of one dtype"):
        vn.atan2(np.float32(1), 2.0)
    with pytest.raises(DTypeError, match="volta.numba.sum takes an array"):
        vn.sum(np.arange(3))
    with pytest.raises(DTypeError, match="one dtype"):
        vn.dot(np.ones(3), np.ones(3, np.float32))
    with pytest.raises(ShapeError, match=r"one length, got \(3,\) and \(4,\)"):
        vn.dot(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="one length"):
        numba.njit(lambda x, y: vn.dot(x, y))(np.ones(3), np.ones(4))
