"""A batch in parts on a device: the bits of the host's, wherever the arguments lie."""

import numpy as np

import volta
import volta.numpy as vnp
from volta import scaling
from volta.testing.bits import assert_bits_equal

RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(9, 4)).astype(np.float32)


def loss(w, x):
    return vnp.mean(vnp.tanh(x @ w) ** 2)


def test_parts_on_a_device_have_the_bits_of_the_host(gpu):
    step = scaling.accumulate(volta.value_and_grad(loss), 2, 1)
    want = volta.jit(volta.value_and_grad(loss))(W, X)
    with volta.default_device("cuda"):
        found = step(W, X)
    assert_bits_equal(found, want)
    found = step(volta.device_put(W, "cuda"), volta.device_put(X, "cuda"))
    assert_bits_equal(found, want)
    assert all(x.device == "cuda:0" for x in found)
