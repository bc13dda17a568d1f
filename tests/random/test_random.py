"""Laws of the samplers, known answers of Threefry, and errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta import random
from volta.core.errors import DTypeError, ShapeError
from volta.random.threefry import threefry2x32
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

SEEDS = st.integers(0, 2**32 - 1)


def raw(x):
    return np.asarray(random.key_data(x) if vnp.issubdtype(x.dtype, volta.dtypes.prng_key) else x).tobytes()


# From the Random123 distribution's known-answer file (kat_vectors: threefry2x32, 20 rounds).
@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(counter, key, expected):
    words = [vnp.asarray(np.uint32(w)) for w in (*key, *counter)]
    got = threefry2x32((words[0], words[1]), words[2], words[3])
    assert tuple(int(w) for w in got) == expected


SAMPLERS = {
    "bits": lambda key, n: random.bits(key, (n,)),
    "uniform": lambda key, n: random.uniform(key, (n,), minval=-3.0, maxval=2.5),
    "uniform16": lambda key, n: random.uniform(key, (n,), "bfloat16"),
    "normal": lambda key, n: random.normal(key, (n,)),
    "normal64": lambda key, n: random.normal(key, (n,), "float64"),
    "truncated_normal": lambda key, n: random.truncated_normal(key, -1.0, 2.0, (n,)),
    "randint": lambda key, n: random.randint(key, (n,), -5, 17),
    "bernoulli": lambda key, n: random.bernoulli(key, 0.3, (n,)),
    "rademacher": lambda key, n: random.rademacher(key, (n,)),
    "exponential": lambda key, n: random.exponential(key, (n,)),
    "gumbel": lambda key, n: random.gumbel(key, (n,)),
    "laplace": lambda key, n: random.laplace(key, (n,)),
    "logistic": lambda key, n: random.logistic(key, (n,)),
    "categorical": lambda key, n: random.categorical(key, vnp.zeros(5), shape=(n,)),
    "permutation": lambda key, n: random.permutation(key, n),
    "choice": lambda key, n: random.choice(key, n, (n,)),
}


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.few(6)
def test_eager_jit_and_vmap_have_the_same_bits(name):
    """One key gives one sample, however it is asked for (laws 2 and 3 of the contract)."""
    draw = SAMPLERS[name]
    keys = random.split(random.key(1), 3)
    alone = [draw(key, 70) for key in keys]
    assert raw(alone[0]) == raw(draw(keys[0], 70))
    assert raw(alone[0]) == raw(volta.jit(draw, static_argnums=1)(keys[0], 70))
    batch = volta.vmap(lambda key: draw(key, 70))(keys)
    assert [raw(x) for x in batch] == [raw(x) for x in alone]
    assert len({raw(x) for x in alone}) == 3, "different keys gave the same sample"


@given(SEEDS, st.integers(0, 100), st.integers(0, 100))
def test_an_element_depends_on_its_index_alone(seed, n, more):
    """The first n elements are the same in a longer sample: the counter is the logical index."""
    key = random.key(seed)
    short, long = np.asarray(random.bits(key, (n,))), np.asarray(random.bits(key, (n + more,)))
    np.testing.assert_array_equal(short, long[:n])
    np.testing.assert_array_equal(short, np.asarray(random.bits(key, (n, 1)))[:, 0])


def test_split_and_fold_in_are_one_family():
    key = random.key(9)
    keys = random.split(key, 5)
    assert [raw(k) for k in keys] == [raw(random.fold_in(key, i)) for i in range(5)]
    nested = random.split(key, (2, 3))
    assert_bits_equal(nested.reshape(6)[:5], keys)


def test_keys_are_traced_like_any_array():
    def f(seed):
        return random.uniform(random.fold_in(random.key(seed), seed), (3,))

    assert raw(volta.jit(f)(np.int32(5))) == raw(f(5))


@given(SEEDS)
def test_samples_stay_in_their_range(seed):
    key = random.key(seed)
    u = np.asarray(random.uniform(key, (200,), minval=-3.0, maxval=2.5))
    assert (u >= -3).all() and (u < 2.5).all()
    i = np.asarray(random.randint(key, (200,), -5, 17))
    assert (i >= -5).all() and (i < 17).all()
    t = np.asarray(random.truncated_normal(key, -0.5, 0.25, (200,)))
    assert (t > -0.5).all() and (t < 0.25).all()
    assert sorted(np.asarray(random.permutation(key, 50)).tolist()) == list(range(50))
    c = np.asarray(random.choice(key, 50, (20,), replace=False))
    assert len(set(c.tolist())) == 20
    assert all(np.isfinite(np.asarray(random.gumbel(key, (200,)))))


def test_moments():
    """Wrong by construction would show here; the bits themselves are compared with JAX."""
    n = 40_000
    key = random.key(0)
    expected = {  # mean and standard deviation
        "normal": (0, 1),
        "exponential": (1, 1),
        "gumbel": (0.5772, np.pi / 6**0.5),
        "laplace": (0, 2**0.5),
        "logistic": (0, np.pi / 3**0.5),
    }
    for name, (mean, deviation) in expected.items():
        x = np.asarray(getattr(random, name)(key, (n,), "float64"))
        assert abs(x.mean() - mean) < 5 * deviation / n**0.5, name
        assert abs(x.std() - deviation) < 0.03 * deviation, name
    assert abs(np.asarray(random.bernoulli(key, 0.3, (n,))).mean() - 0.3) < 0.02
    counts = np.bincount(np.asarray(random.randint(key, (n,), 0, 7)), minlength=7)
    assert (abs(counts - n / 7) < 5 * (n / 7) ** 0.5).all()
    p = np.array([0.1, 0.0, 0.6, 0.3], "f4")
    drawn = np.bincount(np.asarray(random.choice(key, 4, (n,), p=p)), minlength=4) / n
    np.testing.assert_allclose(drawn, p, atol=0.02)
    assert drawn[1] == 0
    logits = np.log(np.array([0.1, 0.6, 0.3], "f4"))
    drawn = np.bincount(np.asarray(random.categorical(key, logits, shape=(n,))), minlength=3) / n
    np.testing.assert_allclose(drawn, [0.1, 0.6, 0.3], atol=0.02)


def test_choice_without_replacement_takes_slices_along_an_axis():
    x = vnp.asarray(np.arange(24).reshape(2, 12))
    got = np.asarray(random.choice(random.key(3), x, (2, 3), replace=False, axis=1))
    assert got.shape == (2, 2, 3)
    np.testing.assert_array_equal(got[1], got[0] + 12)


def test_gradients_flow_through_samples():
    """Reparametrisation: the sample is a constant, its scale is not."""
    key = random.key(0)
    gradient = volta.grad(lambda s: vnp.sum(s * random.normal(key, (5,))))(2.0)
    np.testing.assert_allclose(float(gradient), np.asarray(random.normal(key, (5,))).sum(), rtol=1e-6)
    assert np.isfinite(float(volta.grad(lambda high: random.uniform(key, (), maxval=high))(2.0)))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda k: random.bits(np.zeros(3, "u4")), DTypeError, "random.bits: the key must be"),
        (lambda k: random.normal(random.split(k)), ShapeError, "vmap"),
        (lambda k: random.uniform(k, (2,), "int32"), DTypeError, "must be a float dtype"),
        (lambda k: random.bits(k, (2,), "int32"), DTypeError, "unsigned"),
        (lambda k: random.randint(k, (2,), 0, 5, "float32"), DTypeError, "integer dtype"),
        (lambda k: random.randint(k, (2,), 0.0, 5), DTypeError, "bounds must be integers"),
        (lambda k: random.uniform(k, (2,), minval=np.zeros(3, "f4")), ShapeError, "broadcast"),
        (lambda k: random.uniform(k, (-1,)), ShapeError, r"random.uniform: shape \(-1,\) has a negative size"),
        (lambda k: random.normal(k, 2.5), ShapeError, "random.normal: a shape is an int or a tuple of ints"),
        (lambda k: random.key(1.5), DTypeError, "seed must be an integer"),
        (lambda k: random.key(np.arange(2)), ShapeError, "vmap"),
        (lambda k: random.key(2**64), OverflowError, "64 bits"),
        (lambda k: random.fold_in(k, -1), OverflowError, "2\\*\\*32"),
        (lambda k: random.fold_in(k, 0.5), DTypeError, "integer scalar"),
        (lambda k: random.bernoulli(k, 1), DTypeError, "must be a float"),
        (lambda k: random.categorical(k, np.zeros((2, 3), "f4"), shape=(4,)), ShapeError, "must end with"),
        (lambda k: random.categorical(k, np.zeros(3, "f4"), axis=1), ShapeError, "axis"),
        (lambda k: random.categorical(k, np.zeros(3), shape=(4,), replace=False), ValueError, "draw 4 of 3 categories"),
        (lambda k: random.categorical(k, np.zeros((1, 3)), shape=(4,), replace=False), ShapeError, "without replace"),
        (lambda k: random.gumbel(k, (2,), mode="fine"), ValueError, "random.gumbel: mode is 'low' or 'high', not"),
        (lambda k: random.bernoulli(k, 0.5, mode="highest"), ValueError, "random.bernoulli: mode is"),
        (lambda k: random.key(0, impl="threefry2x32", dtype=k.dtype), ValueError, "give one of them"),
        (lambda k: random.rademacher(k, (2,), "uint8"), DTypeError, "random.rademacher: there is no -1 in uint8"),
        (lambda k: random.ball(k, 2, 0), ValueError, "random.ball: there is no distribution of p = 0"),
        (lambda k: random.generalized_normal(k, 0.0), ValueError, "random.generalized_normal: there is no"),
        (lambda k: random.truncated_normal(k, np.zeros(2), np.zeros(3)), ShapeError, "truncated_normal: parameters of"),
        (lambda k: random.choice(k, np.float32(3)), ShapeError, "axis 0 is out of range"),
        (lambda k: random.key_dtype("mt19937"), ValueError, "random.key_dtype: impl='mt19937'"),
        (lambda k: random.choice(k, 3, (4,), replace=False), ValueError, "without replacement"),
        (lambda k: random.choice(k, 0, (4,)), ValueError, "nothing"),
        (lambda k: random.choice(k, 3, p=np.ones(2, "f4")), ShapeError, "shape"),
        (lambda k: random.permutation(k, np.float32(1)), DTypeError, "rank 1"),
        (lambda k: random.permutation(k, np.zeros((2, 3)), axis=2), ShapeError, "axis"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(random.key(0))


@pytest.mark.parametrize("name", ["bits", "uniform", "normal", "exponential", "bernoulli"])
def test_a_sample_is_one_kernel(name):
    """Counters, cipher and what follows fuse: besides scalars (the key schedule) one kernel, and no temporaries."""
    draw = SAMPLERS[name]
    plan = volta.jit(draw, static_argnums=1).lower(random.key(0), 5000).compile().plan
    big = [buffer for buffer in plan.buffers if buffer.aval.size > 2]
    assert [(b.kind, b.aval.size) for b in big] == [("output", 5000)]
    assert sum(big[0].id in call.writes for call in plan.calls) == 1


@pytest.mark.parametrize("name", ["bits", "normal", "permutation", "randint"])
def test_threads_change_no_bit(name):
    before = volta.get_num_threads()
    try:
        samples = []
        for threads in (1, 2, 3):
            volta.set_num_threads(threads)
            samples.append(raw(SAMPLERS[name](random.key(4), 100_003)))
    finally:
        volta.set_num_threads(before)
    assert samples[0] == samples[1] == samples[2]


SEEDS = [0, 7, -7, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, -(2**40), 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


@pytest.mark.parametrize("function", [random.key, lambda i: random.fold_in(random.key(1), i)], ids=["key", "fold_in"])
def test_python_integers_mean_the_same_as_arguments_of_jit(function):
    compiled = volta.jit(function)
    for seed in SEEDS:
        try:
            want = function(seed)
        except OverflowError:
            with pytest.raises(OverflowError):
                compiled(seed)
        else:
            assert_bits_equal(compiled(seed), want)


DEFAULTS = {
    **dict.fromkeys(
        ("normal", "uniform", "gumbel", "exponential", "laplace", "logistic", "cauchy", "maxwell"), "float32"
    ),
    **dict.fromkeys(("bits",), "uint32"),
    **dict.fromkeys(("rademacher",), "int32"),
}
WITH_PARAMETERS = {
    "gamma": (2.0,),
    "beta": (2.0, 0.5),
    "t": (3.0,),
    "poisson": (4.0,),
    "geometric": (0.5,),
    "randint": ((), 0, 9),
    "truncated_normal": (-1.0, 1.0),
    "orthogonal": (2,),
    "ball": (2,),
    "wald": (1.0,),
}


@pytest.mark.parametrize("name", [*DEFAULTS, *WITH_PARAMETERS])
def test_none_is_the_default_dtype(name):
    """As programs pass on what they were not given; to NumPy None is float64."""
    draw, key = getattr(random, name), random.key(2)
    args = ((3,),) if name in DEFAULTS else WITH_PARAMETERS[name]
    assert_bits_equal(draw(key, *args, dtype=None), draw(key, *args))
    assert draw(key, *args).dtype == DEFAULTS.get(
        name, "int32" if name in ("poisson", "geometric", "randint") else "float32"
    )


def test_an_integer_array_of_rank_0_is_a_range():
    key = random.key(3)
    for five in (np.int64(5), np.array(5), vnp.asarray(5)):
        assert_bits_equal(random.permutation(key, five), random.permutation(key, 5))
        assert_bits_equal(random.choice(key, five, (4,), replace=False), random.choice(key, 5, (4,), replace=False))
    with pytest.raises(volta.errors.TracerIntegerConversionError):
        volta.jit(lambda n: random.permutation(key, n))(5)


def test_unitary_matrices():
    q = np.asarray(random.orthogonal(random.key(1), 3, (4,), "complex64", 2))
    assert q.shape == (4, 3, 2)
    np.testing.assert_allclose(q.conj().swapaxes(1, 2) @ q, np.broadcast_to(np.eye(2), (4, 2, 2)), atol=2e-6)


def test_none_is_no_dtype_elsewhere():
    with pytest.raises(DTypeError, match="None is not a dtype"):
        vnp.ones(3).astype(None)


def test_small_probabilities_need_twice_the_bits():
    n = 4_000_000
    fine = np.asarray(random.bernoulli(random.key(0), 1e-6, (n,), mode="high")).sum()
    assert abs(fine - n * 1e-6) < 5 * (n * 1e-6) ** 0.5 and fine > 0
    coarse, high = (random.gumbel(random.key(0), (n,), mode=mode).max().item() for mode in ("low", "high"))
    assert (
        coarse < 16.7 and np.isfinite(high) and random.gumbel(random.key(0), (9,), "float16", "high").dtype == "float16"
    )
