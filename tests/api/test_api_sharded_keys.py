"""Random keys that lie on several workers."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import simulated
from volta import io, lax, random
from volta.sharding import NamedSharding, make_mesh
from volta.sharding import PartitionSpec as P
from volta.testing import assert_bits_equal

KEYS = random.split(random.key(3), 8)


@pytest.fixture(scope="module")
def cut():
    with simulated(4):
        yield NamedSharding(make_mesh((4,), ("data",)), P("data"))


def test_programs_over_cut_keys_have_one_workers_bits(cut):
    def f(keys):
        joined = keys[::-1], keys == keys[0], vnp.concatenate([keys, keys]), keys.reshape(2, 4)
        drawn = volta.vmap(lambda k: random.uniform(k, (3,)))(keys), volta.vmap(random.split)(keys)
        return keys, joined, drawn, lax.scan(lambda c, k: (k, (c, random.uniform(k))), keys[0], keys)

    there = volta.device_put(KEYS, cut)
    out = volta.jit(f)(there)
    assert_bits_equal(out, volta.jit(f)(KEYS))
    assert out[0].dtype == KEYS.dtype and out[0].sharding.spec == P("data")
    assert_bits_equal(volta.jit(lambda k: lax.with_sharding_constraint(random.split(k, 8), cut))(random.key(3)), KEYS)
    assert_bits_equal(volta.jit(lambda k: k[::-1], donate_argnums=0)(volta.device_put(KEYS, cut)), KEYS[::-1])


def test_cut_keys_come_and_go(cut, tmp_path):
    there = volta.device_put(KEYS, cut)
    assert repr(there) == repr(KEYS) and there.shape == (8,) and there.sharding == cut
    assert_bits_equal(there.addressable_shards[1].data, KEYS[2:4])
    assert_bits_equal(volta.device_get(there), KEYS)
    assert_bits_equal(random.wrap_key_data(random.key_data(there)), KEYS)
    with pytest.raises(TypeError, match="key_data"):
        np.asarray(there)
    path = str(tmp_path / "keys")
    io.save(path, {"keys": there})
    assert_bits_equal(io.load(path)["keys"], KEYS)
    loaded = io.load(path, like={"keys": there})["keys"]
    assert_bits_equal(loaded, KEYS)
    assert loaded.sharding == cut
