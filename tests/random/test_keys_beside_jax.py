"""Typed keys beside JAX's: the same expressions give the same shapes, dtypes and words, or both libraries refuse."""

import copy
import pickle

import numpy as np
import pytest

import volta
from volta.core.extended import is_key

pytestmark = pytest.mark.turns(8)

jax = pytest.importorskip("jax", reason="compares with JAX, which is not installed")

ALIKE = """
key; keys; keys[0]; keys[::-1]; keys[None]; key[...]; keys[np.array([0, 5])]; keys[np.array([True, False, True])]
keys.T; keys.reshape(3, 1); keys.ravel(); keys.flatten(); list(keys); jnp.stack([key, key])
jnp.concatenate([keys, keys])
jnp.where(True, key, keys); jnp.take(keys, 0); jnp.take(keys, np.array([0, 5])); keys.at[0].set(key); keys.at[0].get()
keys.at[5].get(mode='fill'); jnp.expand_dims(keys, 0); jnp.squeeze(keys[None]); jnp.broadcast_to(key, (2,))
jnp.atleast_1d(key); jnp.split(keys, 3); jnp.array_split(keys, 2); jnp.swapaxes(keys[None], 0, 1); jnp.roll(keys, 1)
jnp.flip(keys); jnp.tile(keys, 2); jnp.repeat(keys, 2); jnp.append(keys, keys); jnp.insert(keys, 0, key)
jnp.delete(keys, 0); jnp.vstack([keys, keys]); jnp.hstack([keys, keys]); jnp.select([True], [key], key)
jnp.take_along_axis(keys, np.array([0]), 0); jnp.zeros_like(keys); jnp.ones_like(keys); jnp.full((2,), key)
jnp.zeros(2, key.dtype); jnp.empty_like(keys); jnp.asarray(key); jnp.array([key, key]); key == key; keys == key
keys != keys[::-1]; jnp.array_equal(keys, keys); jnp.isin(keys, key); key in keys; jnp.equal(key, key); len(keys)
jax.random.key_data(keys); jax.random.key_data(jax.random.PRNGKey(0)); jax.random.clone(key)
jax.random.wrap_key_data(jax.random.PRNGKey(0)); jax.random.key_impl(key); jax.random.key_impl(jax.random.PRNGKey(0))
jax.random.split(key, (2, 3)); jax.random.split(jax.random.PRNGKey(0)); jax.random.fold_in(key, 1)
jax.random.key(0, impl=key.dtype); jax.random.key(-1); jax.random.key(True); jax.eval_shape(jax.random.split, key)
jax.ShapeDtypeStruct((2,), key.dtype); jax.eval_shape(jax.random.key, 0); jax.jit(lambda k: k)(key)
jax.vmap(lambda a, b: a == b)(keys, keys); jax.vmap(jax.random.bits)(keys); jax.lax.scan(lambda c, x: (x, c), key, keys)
jax.lax.fori_loop(0, 3, lambda i, k: jax.random.fold_in(k, i), key); jax.lax.map(jax.random.bits, keys)
jax.lax.cond(True, lambda k: k, lambda k: jax.random.fold_in(k, 1), key); jax.lax.rev(keys, (0,))
jax.lax.dynamic_slice(keys, (1,), (2,)); jax.lax.dynamic_update_slice(keys, keys[:1], (1,)); jax.lax.stop_gradient(key)
jax.lax.optimization_barrier(keys); jax.lax.select(True, key, key); jax.lax.full((2,), 0, key.dtype)
jax.device_put(key); jax.device_get(key); jax.tree.map(jnp.zeros_like, {'a': key}); pickle.loads(pickle.dumps(keys))
copy.copy(key); copy.deepcopy(keys); repr(keys); str(key); f'{key}'; key.dtype.name; key.nbytes; keys.size; key.itemsize
jnp.issubdtype(key.dtype, jax.dtypes.prng_key); jnp.issubdtype(key.dtype, jax.dtypes.extended); jnp.result_type(key)
jnp.issubdtype(key.dtype, np.integer); jnp.issubdtype(np.float32, jax.dtypes.prng_key); key.dtype == np.float32
isinstance(key, jax.Array); jax.random.permutation(key, 9); jax.random.randint(key, (5,), 0, 9)
"""

REFUSED = """
key + 1; key + key; 1 + key; key * 2; -key; abs(key); key < key; key == 1; key == np.uint32([0, 0]); ~key; key & key
jnp.sin(key); jnp.sum(keys); jnp.max(keys); jnp.sort(keys); jnp.argsort(keys); jnp.dot(keys, keys); jnp.cumsum(keys)
jnp.any(keys); jnp.where(True, key, 0); jnp.arange(3, dtype=key.dtype); jnp.pad(keys, 1); keys.at[0].add(key)
jnp.asarray(key, jnp.uint32); np.asarray(key); np.add(key, 1); bool(key); int(key); float(key); hash(key)
len(key); iter(key); key[0]; memoryview(key); jnp.result_type(key, 1); jnp.promote_types(key.dtype, np.float32)
jnp.finfo(key.dtype)
jax.lax.add(key, key); jax.lax.lt(key, key); jax.lax.sort(keys); jax.lax.convert_element_type(key, np.uint32)
jax.lax.bitcast_convert_type(key, np.uint32); jax.jit(lambda k: k + 1)(key); jax.grad(lambda k: 1.0)(key)
jax.random.split(keys); jax.random.fold_in(keys, 1); jax.random.uniform(keys); jax.random.uniform(1)
jax.random.uniform(np.zeros(2)); jax.random.uniform(np.zeros(3, np.uint32)); jax.random.wrap_key_data(key)
jax.random.wrap_key_data(np.zeros(2, np.int32)); jax.random.key_impl(np.zeros(2)); jax.random.key(0, impl='foo')
jax.random.key(1.5); jax.random.key(jnp.arange(2)); jax.random.key(key); jax.random.key(2**64)
jax.random.key(0, impl='threefry2x32', dtype=key.dtype); jax.random.fold_in(key, jnp.arange(2))
"""


def expressions(text):
    return [part.strip() for line in text.split("\n") for part in line.split("; ") if part.strip()]


def value(expression, library):
    names = {"jax": library, "jnp": library.numpy, "np": np, "copy": copy, "pickle": pickle}
    key = library.random.key(0)
    return eval(expression, {**names, "key": key, "keys": library.random.split(key, 3)})


def plain(x):
    """What can be compared of a result: keys as their words, types as their texts."""
    if isinstance(x, (list, tuple)):
        return [plain(item) for item in x]
    if isinstance(x, dict):
        return {name: plain(item) for name, item in x.items()}
    if hasattr(x, "shape") and not hasattr(x, "__array__"):
        return (x.shape, str(x.dtype))
    if isinstance(x, (jax.Array, volta.Array)):
        keyed = is_key(x.dtype) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        words = x
        if keyed:
            words = (volta if isinstance(x, volta.Array) else jax).random.key_data(x)
        return str(x.dtype), x.shape, np.asarray(words).tolist()
    return str(x) if not isinstance(x, (int, float)) else x


@pytest.mark.parametrize("expression", expressions(ALIKE))
def test_what_jax_gives_volta_gives(expression):
    found, wanted = (value(expression, library) for library in (volta, jax))
    assert plain(found) == plain(wanted)


@pytest.mark.parametrize("expression", expressions(REFUSED))
def test_what_jax_refuses_volta_refuses(expression):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever JAX raises there
        value(expression, jax)
    family = (TypeError, ValueError, IndexError, OverflowError, volta.errors.VoltaError)
    with pytest.raises(family) as ours:
        value(expression, volta)
    assert not isinstance(ours.value, volta.errors.ArgumentError), "the error says what is wrong, not that something is"
    if isinstance(theirs.value, IndexError):
        assert isinstance(ours.value, IndexError)


GENERATORS = """
key; jax.random.split(key, 3); jax.random.split(key, (2, 2)); jax.random.fold_in(key, 9); jax.random.bits(key, (7,))
jax.random.bits(key); jax.random.bits(key, (5, 3), 'uint8'); jax.random.bits(key, (0,)); jax.random.uniform(key, (9,))
jax.random.bits(key, (6,), 'uint16'); jax.random.randint(key, (9,), 0, 1000); jax.random.permutation(key, 40)
jax.random.key_data(jax.random.split(jax.random.fold_in(key, 3))); jax.random.clone(key); jax.random.key_impl(key)
jax.random.bernoulli(key, 0.3, (8,)); jax.random.rademacher(key, (8,)); jax.random.wrap_key_data(words, impl=impl)
jax.random.bits(jax.random.wrap_key_data(words, impl=impl), (9,)); repr(key); key == key; key.dtype; key.dtype.name
jax.lax.rng_bit_generator(words, (5,)); jax.lax.rng_bit_generator(words, (3, 2), np.uint8)
"""


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("expression", expressions(GENERATORS))
def test_generators_are_jax_s_on_a_cpu(expression, impl):
    """In batches they are not: JAX draws for all keys of a batch from the first."""

    def value(library):
        names = {"jax": library, "np": np, "key": library.random.key(5, impl=impl), "impl": impl}
        words = library.numpy.asarray(np.array([7, 8, 2**32 - 1, 2**32 - 1], np.uint32))
        return eval(expression, {**names, "words": words})

    assert plain(value(volta)) == plain(value(jax))
