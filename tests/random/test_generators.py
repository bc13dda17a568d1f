"""Generators besides threefry: rbg and unsafe_rbg, whose bits are Philox's."""

import pickle

import numpy as np
import pytest

import volta
from volta import lax, random
from volta import numpy as vnp
from volta.core.extended import KEY_TYPES, RBG, UNSAFE_RBG
from volta.errors import DTypeError, ShapeError
from volta.lax.bit_generator import philox4x32
from volta.testing import assert_bits_equal

IMPLS = ("rbg", "unsafe_rbg")
FULL = 2**32 - 1
STATES = ([1, 2, 3, 4], [0, 0, FULL, 7], [5, 6, FULL - 1, FULL], [FULL] * 4, [0] * 4)
"""Some whose counters carry into the next word, and over all of them."""


def philox_of_numpy(key, counter):
    """The cipher in Python's integers."""
    k, x = list(key), list(counter)
    for turn in range(10):
        if turn:
            k = [(k[0] + 0x9E3779B9) & FULL, (k[1] + 0xBB67AE85) & FULL]
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(b >> 32) ^ x[1] ^ k[0], b & FULL, (a >> 32) ^ x[3] ^ k[1], a & FULL]
    return x


def bits_of_numpy(state, n):
    """Words of bits of a state, one counter after the other."""
    start = state[2] | state[3] << 32 | state[0] << 64 | state[1] << 96
    found = []
    for j in range(-(-n // 4)):
        counter = (start + j) % 2**128
        found += philox_of_numpy(state[:2], [(counter >> 32 * i) & FULL for i in range(4)])
    return np.array(found, np.uint32)


# From the Random123 distribution's known-answer file (kat_vectors: philox4x32, 10 rounds).
@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([FULL] * 4, [FULL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter, key, wanted):
    words = [vnp.asarray(np.uint32(x)) for x in (*key, *counter)]
    assert [x.item() for x in philox4x32(tuple(words[:2]), tuple(words[2:]))] == wanted
    assert philox_of_numpy(key, counter) == wanted


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 31])
def test_bits_are_those_of_the_counters(state, n):
    words = bits_of_numpy(state, 2 * n)
    for dtype in (np.uint8, np.uint16, np.uint32):
        after, bits = lax.rng_bit_generator(np.array(state, np.uint32), (n,), dtype)
        assert_bits_equal(bits, words[:n].astype(dtype))
        low = (state[2] | state[3] << 32) + -(-n // 4)
        assert after.tolist() == [*state[:2], low & FULL, (low >> 32) & FULL]
    _, bits = lax.rng_bit_generator(np.array(state, np.uint32), (n,), np.uint64)
    assert_bits_equal(bits, words.view(np.uint64)[:n])
    wide = np.array(state, np.uint32).view(np.uint64)
    again, bits = lax.rng_bit_generator(wide, (n,), algorithm=lax.RandomAlgorithm.RNG_PHILOX)
    assert_bits_equal(bits, words[:n])
    assert again.dtype == np.uint64 and again.tolist() == [int(wide[0]), (int(wide[1]) + -(-n // 4)) % 2**64]


@pytest.mark.parametrize("impl", IMPLS)
def test_keys_of_other_generators(impl):
    key, raw = random.key(42, impl=impl), random.PRNGKey(42, impl=impl)
    kind = random.key_dtype(impl)
    assert (key.dtype, key.shape, key.nbytes) == (kind, (), 16) and kind in KEY_TYPES
    assert random.key_data(key).tolist() == raw.tolist() == [0, 42, 0, 42]
    assert_bits_equal(random.wrap_key_data(raw, impl=impl), key)
    assert random.key_impl(key) == impl and random.key_impl(raw) == "rbg"
    assert str(kind) == {"rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}[impl]
    assert pickle.loads(pickle.dumps(key)) == key and random.clone(key) == key
    keys = random.split(key, (2, 3))
    assert keys.shape == (2, 3) and keys.dtype == kind
    assert len({tuple(x) for x in random.key_data(keys).reshape(6, 4).tolist()}) == 6
    assert random.fold_in(key, 7).dtype == kind and random.fold_in(key, 7) != random.fold_in(key, 8)
    assert volta.eval_shape(random.split, key) == volta.ShapeDtypeStruct((2,), kind)
    with pytest.raises(DTypeError, match="have no dtype in common"):
        vnp.concatenate([key[None], random.key(1)[None]])


def test_new_keys_of_rbg_are_two_of_threefry():
    words = np.array([1, 2, 3, 4], np.uint32)
    key = random.wrap_key_data(words, impl="rbg")
    for make in (lambda k: random.split(k, 3), lambda k: random.fold_in(k, 9)):
        halves = [random.key_data(make(random.wrap_key_data(x))) for x in (words[:2], words[2:])]
        assert_bits_equal(random.key_data(make(key)), np.concatenate(halves, -1))
    other = random.wrap_key_data(words, impl="unsafe_rbg")
    assert_bits_equal(random.bits(other, (9,)), random.bits(key, (9,)))
    assert_bits_equal(random.key_data(random.split(other, 2)), bits_of_numpy(words.tolist(), 80).reshape(20, 4)[::10])


DRAWS = {
    "bits": lambda k: random.bits(k, (5, 3)),
    "bytes": lambda k: random.bits(k, (7,), np.uint8),
    "wide": lambda k: random.bits(k, (3,), np.uint64),
    "uniform": lambda k: random.uniform(k, (9,)),
    "half": lambda k: random.uniform(k, (9,), "bfloat16"),
    "normal": lambda k: random.normal(k, (6,), np.float64),
    "complex": lambda k: random.normal(k, (2,), np.complex64),
    "integers": lambda k: random.randint(k, (7,), 0, 100),
    "permutation": lambda k: random.permutation(k, 20),
    "gamma": lambda k: random.gamma(k, 1.5, (4,)),
    "poisson": lambda k: random.poisson(k, 3.0, (4,)),
    "binomial": lambda k: random.binomial(k, 9, 0.5, (4,)),
    "choice": lambda k: random.choice(k, 9, (3,), replace=False),
    "categorical": lambda k: random.categorical(k, np.zeros(4, np.float32)),
    "later": lambda k: lax.fori_loop(0, 3, lambda i, k: random.fold_in(random.split(k)[1], i), k),
}


@pytest.mark.turns(6)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", DRAWS)
def test_a_batch_a_jitted_call_and_each_alone_draw_the_same(name, impl):
    draw, keys = DRAWS[name], random.split(random.key(3, impl=impl), 3)
    each = [draw(key) for key in keys]
    assert_bits_equal(volta.vmap(draw)(keys), vnp.stack(each))
    assert_bits_equal(lax.map(draw, keys), vnp.stack(each))
    assert_bits_equal(volta.jit(draw)(keys[1]), each[1])
    if name != "later":
        raw = random.key_data(keys[2])
        if impl == "rbg":
            assert_bits_equal(draw(raw), each[2])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: random.wrap_key_data(np.zeros(4, "u4"), impl="foo"), ValueError, "there are threefry2x32, rbg"),
        (lambda: random.wrap_key_data(np.zeros(2, "u4"), dtype=RBG), DTypeError, r"shape \(..., 4\), got u32\[2\]"),
        (lambda: random.key(1, impl="rbg", dtype=UNSAFE_RBG), ValueError, "give one of them"),
        (lambda: random.normal(np.zeros((3, 4), "u4")), ShapeError, r"got an array of them, u32\[3,4\]"),
        (lambda: random.normal(np.zeros(3, "u4")), DTypeError, r"got u32\[3\]"),
        (lambda: random.key(1, impl="rbg") + 1, DTypeError, "key<rbg>"),
        (lambda: lax.rng_bit_generator(np.zeros(3, "u4"), (2,)), ShapeError, r"got u32\[3\]"),
        (lambda: lax.rng_bit_generator(np.zeros(4, "u8"), (2,)), ShapeError, r"got u64\[4\]"),
        (lambda: lax.rng_bit_generator(np.zeros(4, "i4"), (2,)), DTypeError, "the state is uint32 or uint64"),
        (lambda: lax.rng_bit_generator(np.zeros(4, "u4"), (2,), "f4"), DTypeError, "bits are unsigned"),
        (lambda: lax.rng_bit_generator(np.zeros(4, "u4"), (2,), algorithm=1), ValueError, "there is RNG_PHILOX, got 1"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
