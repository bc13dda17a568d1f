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
