"""Keys, bits, uniform, randint and permutation have JAX's bits; the rest agrees to rounding. JAX is only read here."""

import functools
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
from volta import random

pytestmark = pytest.mark.turns(6)

jax = pytest.importorskip("jax", reason="compares with jax.random, which is not installed")

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
OPTIMIZED = {"xla_backend_optimization_level": 3}
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def quick_or_slow(dtype, *quick):
    """JAX compiles a program for each dtype, which takes seconds."""
    return dtype if dtype in quick else pytest.param(dtype, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def wide_jax():
    """JAX with its 64-bit types, which Volta always has."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def narrow_jax(wide_jax):
    """JAX as it comes, where an int is an int32 as in Volta."""
    with jax.enable_x64(False):
        yield


def assert_same_bits(ours, theirs):
    if volta.numpy.issubdtype(ours.dtype, volta.dtypes.prng_key):
        ours = random.key_data(ours)
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(ours.view(f"u{ours.itemsize}"), theirs.view(f"u{theirs.itemsize}"))


def uniform_for_users(shape, dtype):
    """As JAX compiles it outside of tests: where it optimizes (`tests/conftest.py`), it fuses a product and a sum."""
    f = functools.partial(jax.random.uniform, shape=shape, dtype=dtype)
    return jax.jit(lambda key, low, high: f(key, minval=low, maxval=high), compiler_options=OPTIMIZED)


def both(seed):
    return random.key(seed), jax.random.PRNGKey(seed)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**31, 2**32 - 1, 2**40 + 3, -(2**31) - 1, -(2**63), 2**63 - 1])
def test_keys(seed):
    assert_same_bits(*both(seed))


@pytest.mark.parametrize("seed", [-1, -5, -(2**31), 2**31 - 1])
def test_keys_of_python_numbers_that_fit_32_bits(seed, narrow_jax):
    assert_same_bits(*both(seed))
    assert_same_bits(volta.jit(random.key)(seed), jax.random.PRNGKey(seed))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_keys_from_arrays(dtype):
    for seed in (0, 77, np.iinfo(dtype).max, np.iinfo(dtype).min):
        seed = np.asarray(seed, dtype)
        assert_same_bits(random.key(seed), jax.random.PRNGKey(seed))


@given(SEEDS, st.integers(0, 2**32 - 1))
def test_fold_in(seed, data):
    ours, theirs = both(seed)
    assert_same_bits(random.fold_in(ours, data), jax.random.fold_in(theirs, data))


@pytest.mark.parametrize("num", [1, 2, 5, (), (3,), (2, 3), 0])
def test_split(num):
    ours, theirs = both(42)
    assert_same_bits(random.split(ours, num), jax.random.split(theirs, num))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 0, 3), (1025,)])
@pytest.mark.few(6)
def test_bits(dtype, shape):
    ours, theirs = both(7)
    assert_same_bits(random.bits(ours, shape, dtype), jax.random.bits(theirs, shape, dtype))


@pytest.mark.parametrize("dtype", [quick_or_slow(d, "float32") for d in FLOATS])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.7, 2.9), (1e-3, 1e-2), (5.0, 5.0)])
def test_uniform(dtype, bounds):
    ours, theirs = both(7)
    with jax.disable_jit(dtype == "float16"):  # compiled, some versions of XLA round to it once instead of twice
        want = uniform_for_users((33, 7), dtype)(theirs, *bounds)
    assert_same_bits(random.uniform(ours, (33, 7), dtype, *bounds), want)


def test_uniform_with_bounds_for_each_element():
    ours, theirs = both(7)
    low, high = np.linspace(-2, 0, 5, dtype="f4"), np.linspace(0.5, 3, 5, dtype="f4")
    want = uniform_for_users((4, 5), "float32")(theirs, low, high)
    assert_same_bits(random.uniform(ours, (4, 5), "float32", low, high), want)


@pytest.mark.parametrize("dtype", [quick_or_slow(d, "int32", "uint8") for d in INTS])
@pytest.mark.parametrize("bounds", [(0, 10), (3, 3), (7, 2), (-5, 100), (-1000, 100000), "all"])
def test_randint(dtype, bounds):
    info = np.iinfo(dtype)
    low, high = (info.min, min(info.max, 2**62) + 1) if bounds == "all" else bounds
    ours, theirs = both(3)
    assert_same_bits(random.randint(ours, (50,), low, high, dtype), jax.random.randint(theirs, (50,), low, high, dtype))


@pytest.mark.parametrize("n", [0, 1, 2, 10, 1000, 3000])
@pytest.mark.few(2)
def test_permutation_of_a_range(n):
    ours, theirs = both(5)
    theirs = jax.random.permutation(theirs, n)
    assert_same_bits(random.permutation(ours, n), np.asarray(theirs).astype("i4"))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.few(2)
def test_permutation_of_an_array(axis, independent):
    x = np.arange(60, dtype="f4").reshape(3, 20)
    ours, theirs = both(5)
    assert_same_bits(
        random.permutation(ours, x, axis, independent), jax.random.permutation(theirs, x, axis, independent)
    )


@pytest.mark.parametrize("name", ["normal", "exponential", "gumbel", "laplace", "logistic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.few(4)
def test_distributions_agree_to_rounding(name, dtype):
    ours, theirs = both(11)
    x = np.asarray(getattr(random, name)(ours, (500,), dtype))
    y = np.asarray(getattr(jax.random, name)(theirs, (500,), dtype))
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps)


def test_truncated_normal_agrees_to_rounding():
    ours, theirs = both(11)
    x = np.asarray(random.truncated_normal(ours, -1.0, 2.0, (500,)))
    y = np.asarray(jax.random.truncated_normal(theirs, -1.0, 2.0, (500,), "float32"))
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@given(SEEDS, st.floats(0, 1, width=32), SHAPES)
def test_bernoulli(seed, p, shape):
    ours, theirs = both(seed)
    assert_same_bits(random.bernoulli(ours, np.float32(p), shape), jax.random.bernoulli(theirs, np.float32(p), shape))


@pytest.mark.slow
def test_categorical_and_choice_draw_the_same(narrow_jax):
    ours, theirs = both(13)
    logits = np.random.default_rng(0).standard_normal((4, 6, 5)).astype("f4")
    for axis, shape in ((-1, None), (1, None), (1, (9, 4, 5)), (0, (2, 6, 5))):
        np.testing.assert_array_equal(
            random.categorical(ours, logits, axis, shape), jax.random.categorical(theirs, logits, axis, shape)
        )
    p = np.array([0.1, 0.2, 0.3, 0.15, 0.25], "f4")
    x = np.arange(15).reshape(3, 5)
    for replace in (True, False):
        for weights in (None, p):
            np.testing.assert_array_equal(
                random.choice(ours, 5, (2, 2), replace, weights), jax.random.choice(theirs, 5, (2, 2), replace, weights)
            )
            np.testing.assert_array_equal(
                random.choice(ours, x, (2,), replace, weights, axis=1),
                jax.random.choice(theirs, x, (2,), replace, weights, axis=1),
            )
    np.testing.assert_array_equal(
        random.choice(ours, 5, (1000,), True, p), jax.random.choice(theirs, 5, (1000,), True, p)
    )


LOGITS = np.random.default_rng(0).standard_normal((4, 3, 7)).astype("f4")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.few(3)
def test_categories(axis, replace):
    ours, theirs = both(5)
    batch = tuple(np.delete(LOGITS.shape, axis))
    for prefix in ((), (2,), (3, 1)):
        shape = (*prefix, *batch)
        want = jax.random.categorical(theirs, LOGITS, axis, shape, replace=replace)
        found = random.categorical(ours, LOGITS, axis, shape, replace=replace)
        np.testing.assert_array_equal(found, want)
        if replace:  # rows that are there once
            once = random.categorical(ours, LOGITS[:1] if axis else LOGITS[:, :1], axis, shape)
            assert once.shape == shape
    drawn = np.asarray(random.categorical(ours, LOGITS[0, 0], shape=(7,), replace=False))
    assert sorted(drawn.tolist()) == list(range(7))


@pytest.mark.parametrize("mode", ["low", "high"])
def test_modes(mode, narrow_jax):
    ours, theirs = random.key(5), jax.random.key(5)
    want, found = (np.asarray(r.gumbel(k, (1000,), mode=mode)) for r, k in ((jax.random, theirs), (random, ours)))
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)
    p = np.float32([1e-4, 0.3, 1e-9, 0, 1])
    want, found = (r.bernoulli(k, p, (5000, 5), mode=mode) for r, k in ((jax.random, theirs), (random, ours)))
    np.testing.assert_array_equal(found, want)
    weights = np.float32([0.1, 0.2, 0.3, 0.2, 0.2])
    want, found = (
        r.choice(k, 5, (3,), replace=False, p=weights, mode=mode) for r, k in ((jax.random, theirs), (random, ours))
    )
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", [n for n in dir(jax.random) if n[0] != "_" and n != "random_gamma_p"])
def test_names_and_arguments_are_jaxs(name):
    """In their order; Volta says how results lie by `device_put`."""
    theirs = [p for p in inspect.signature(getattr(jax.random, name)).parameters if p != "out_sharding"]
    ours = list(inspect.signature(getattr(random, name)).parameters)
    if name == "key_dtype":
        theirs = ["impl"]
    assert {*theirs} <= {*ours}
    assert [p for p in ours if p in theirs] == theirs  # other versions of JAX may have fewer
