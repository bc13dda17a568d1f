"""Random keys on a GPU, or its stand-in: they are words there as anywhere."""

import copy

import numpy as np
import pytest

import volta
from volta import random
from volta.testing import assert_bits_equal

KEYS = random.split(random.key(3), 4)


@pytest.fixture
def there(gpu):
    return volta.device_put(KEYS, "cuda:0")


def test_keys_come_and_go(there):
    assert there.device == "cuda:0" and there.dtype == KEYS.dtype and repr(there) == repr(KEYS)
    for back in (volta.device_get(there), copy.deepcopy(there), volta.device_put(there, "cpu")):
        assert back.device == "cpu:0"
        assert_bits_equal(back, KEYS)
    with pytest.raises(TypeError, match="key_data"):
        np.asarray(there)
    assert_bits_equal(random.key_data(there), random.key_data(KEYS))


def test_programs_there_have_the_same_bits(there):
    def f(keys):
        return keys[::-1], keys == keys[2], random.split(keys[1]), random.uniform(keys[3], (5,))

    assert_bits_equal(volta.jit(f)(there), f(KEYS))
    assert_bits_equal(there[1], KEYS[1])


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_generators_have_the_same_bits_there(gpu, impl):
    keys = random.split(random.key(3, impl=impl), 2)

    def f(keys):
        key = keys[1]
        drawn = [random.bits(key, (5, 3)), random.bits(key, (7,), np.uint8), random.bits(key, (3,), np.uint64)]
        drawn += [random.uniform(key, (9,)), random.randint(key, (7,), 0, 100), random.permutation(key, 20)]
        return drawn, random.split(random.fold_in(key, 9), 3), volta.vmap(lambda k: random.normal(k, (5,)))(keys)

    there = volta.device_put(keys, "cuda:0")
    assert there.dtype == keys.dtype and repr(there) == repr(keys)
    assert_bits_equal(volta.jit(f)(there), f(keys))
