"""Reductions by functions, groups of rows, halves of products, fewer bits: beside NumPy and JAX, and refused."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.optional import Optional
from volta import lax
from volta.errors import DTypeError, ShapeError, TreeError
from volta.testing import assert_bits_equal

jax = Optional("jax")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "shape, axes", [((7,), (0,)), ((3, 4, 5), (0, 2)), ((2, 3), ()), ((0, 3), (0,)), ((3, 0), (0,))]
)
def test_reductions_by_functions_are_numpys(shape, axes):
    x = RNG.integers(-9, 9, shape).astype(np.int32)
    for f, ours, start in ((np.add, lax.add, 0), (np.minimum, lax.min, 99), (np.bitwise_xor, lax.bitwise_xor, 0)):
        got = lax.reduce(x, np.int32(start), ours, axes)
        want = f.reduce(x, axis=axes, initial=start) if axes else f(x, start)
        np.testing.assert_array_equal(np.asarray(got), want)
    np.testing.assert_array_equal(
        np.asarray(lax.reduce_xor(x, axes)), np.bitwise_xor.reduce(x, axis=axes) if axes else x
    )


def test_a_reduction_of_pairs_and_its_transforms():
    """The largest with its position, by a function of two pairs of scalars that makes a choice."""

    def later(a, b):
        return lax.cond(a[0] >= b[0], lambda: a, lambda: b)

    x = vnp.asarray(RNG.standard_normal((5, 9)), "float32")
    where = lax.broadcasted_iota(np.int32, (5, 9), 1)
    first = (np.float32(-np.inf), np.int32(-1))
    values, places = lax.reduce((x, where), first, later, (1,))
    np.testing.assert_array_equal(np.asarray(places), np.argmax(np.asarray(x), 1))
    alone = [lax.reduce((x[i], where[i]), first, later, (0,))[0] for i in range(5)]
    assert_bits_equal(values, vnp.stack(alone))
    total = lambda x: lax.reduce(x, np.float32(1), lambda a, b: a + b, (0, 1))  # noqa: E731
    assert_bits_equal(volta.jit(total)(x), total(x))
    assert_bits_equal(volta.grad(total)(x), vnp.ones((5, 9)))


def test_upper_halves_of_products_are_exact():
    for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        edges = [info.min, info.max, 0, 1, info.max // 3, info.min // 2, info.max - 1]
        pairs = list(itertools.product(edges, edges))
        x, y = (np.array([p[i] for p in pairs], dtype) for i in (0, 1))
        want = np.array([int(a) * int(b) >> info.bits for a, b in pairs], dtype)
        np.testing.assert_array_equal(np.asarray(lax.mulhi(x, y)), want)


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0, 0], [1, 1, 1], [5, 0, 2]])
def test_rows_have_the_bits_of_their_groups_products(sizes):
    x = RNG.standard_normal((7, 300)).astype(np.float32)
    w = RNG.standard_normal((3, 300, 4)).astype(np.float32)
    got = volta.jit(lax.ragged_dot)(x, w, np.array(sizes))
    ends = np.cumsum(sizes)
    want = [lax.dot(x[e - n : e], m) for e, n, m in zip(ends, sizes, w, strict=True) if n]
    assert_bits_equal(got, vnp.concatenate([*want, vnp.zeros((7 - ends[-1], 4))]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fewer_bits_are_those_of_narrower_floats(dtype):
    info = np.finfo(dtype)
    x = np.concatenate([RNG.standard_normal(500) * 2.0 ** RNG.integers(-30, 16, 500), [0.0, -0.0, np.inf, -np.inf]])
    x = np.concatenate([x, [np.nan, 65504, 65519, 65520, -65536, 6.1e-5, 6.0e-5, 1 + 2**-11, 1 + 3 * 2**-11]])
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
        half = x.astype(np.float16)
    half = np.where(np.abs(half) < np.finfo(np.float16).smallest_normal, np.copysign(0, half), half).astype(dtype)
    half = np.where(np.abs(x) < np.finfo(np.float16).smallest_normal, np.copysign(0, x), half).astype(dtype)
    assert_bits_equal(lax.reduce_precision(x, 5, 10), half)
    assert_bits_equal(lax.reduce_precision(x, info.bits - info.nmant - 1, info.nmant), x)
    if dtype == "float32":
        assert_bits_equal(lax.reduce_precision(x, 8, 7), x.astype(ml_dtypes.bfloat16).astype(dtype))
    slope = volta.grad(lambda x: vnp.sum(lax.reduce_precision(x, 5, 2)))(vnp.asarray(x[:9]))
    assert_bits_equal(slope, np.ones(9, dtype))


def test_fewer_bits_are_jaxs():
    x = (RNG.standard_normal(4000) * 2.0 ** RNG.integers(-20, 20, 4000)).astype(np.float32)
    for form in ((4, 3), (5, 2), (3, 0), (8, 23), (6, 12), (8, 30)):
        np.testing.assert_array_equal(np.asarray(lax.reduce_precision(x, *form)), jax.lax.reduce_precision(x, *form))


def test_what_is_refused():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"reduce: operands must have one shape, got \[\(2, 3\), \(3,\)\]"):
        lax.reduce((x, x[0]), (x[0, 0], x[0, 0]), lambda a, b: a, (0,))
    with pytest.raises(TreeError, match="reduce: the initial value"):
        lax.reduce((x, x), np.float32(0), lambda a, b: a, (0,))
    with pytest.raises(TreeError, match="reduce: what the function returns"):
        lax.reduce((x, x), (np.float32(0),) * 2, lambda a, b: a[0], (0,))
    with pytest.raises(DTypeError, match="mulhi: takes integers of one dtype"):
        lax.mulhi(x, x)
    with pytest.raises(ShapeError, match=r"ragged_dot: takes \(m, k\), \(g, k, n\) and \(g,\)"):
        lax.ragged_dot(x, x, np.array([1]))
    with pytest.raises(DTypeError, match="ragged_dot: group sizes are integers"):
        lax.ragged_dot(x, np.ones((1, 3, 2), np.float32), np.ones(1, np.float32))
    with pytest.raises(DTypeError, match="reduce_precision: takes floats"):
        lax.reduce_precision(np.arange(3), 5, 10)
    with pytest.raises(ValueError, match="reduce_precision: needs 1 bit or more of exponent"):
        lax.reduce_precision(x, 0, 3)
