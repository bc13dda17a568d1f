"""What is first called with arguments on a GPU is compiled for that GPU; for the default device, when it runs there."""

import gc
import weakref

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.numba_cpu import unit
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


def put(x, device="cuda"):
    return volta.device_put(x, device)


def kernels_of_the_cpu():
    """How many were compiled or found so far."""
    return unit.stats()


@pytest.mark.parametrize("donate", [(), (0,)], ids=["kept", "donated"])
def test_a_call_on_a_gpu_compiles_nothing_for_the_cpu(gpu, donate):
    f = volta.jit(lambda x, n: vnp.cumsum(vnp.tanh(x * n) + 0.625, 1), donate_argnums=donate)
    before = kernels_of_the_cpu()
    y = f(put(X), 3)
    again = f(put(X), np.int32(3))
    assert y.device == again.device == "cuda:0" and kernels_of_the_cpu() == before
    here = f(vnp.asarray(X), 3)
    assert here.device == "cpu:0" and kernels_of_the_cpu() != before
    for found in (y, again, f(put(X), 3), f(X, 3)):
        assert_bits_equal(np.asarray(found), np.asarray(here))


def test_an_argument_on_a_gpu_may_come_behind_others(gpu):
    f = volta.jit(lambda n, x: n * x)
    for n in (2.0, np.float32(2), vnp.float32(2), put(np.float32(2))):
        y = f(n, put(X))
        assert y.device == "cuda:0"
        assert_bits_equal(np.asarray(y), 2 * X)


def test_an_operation_by_itself_compiles_nothing_for_the_cpu(gpu):
    x, before = put(X[:3, :5]), kernels_of_the_cpu()
    y = vnp.arctan2(x, x)
    assert y.device == "cuda:0" and kernels_of_the_cpu() == before


def test_a_default_gpu_is_not_compiled_for_before_it_is_needed(install):
    install(devices=2)
    f = volta.jit(lambda x: vnp.exp(x) - 0.375)
    with volta.default_device("cuda:0"):
        x = put(X, "cuda:1")
        assert f(x).device == "cuda:1" and devices.memory_stats("cuda:0").allocations == 0
        assert f(X).device == "cuda:0" and f(x).device == "cuda:1"
        assert f(put(X, "cpu")).device == "cuda:0"
    assert f(X).device == "cpu:0"


@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_what_is_compiled_keeps_no_argument(gpu, default):
    """An array that a program was once called with is the user's to give back."""
    with volta.default_device(default):
        f, x = volta.jit(lambda x: vnp.sin(x) * 1.125), put(X)
        y = f(x)
        alive = weakref.ref(x.buffer())
        del x
        gc.collect()
        assert alive() is None
        assert_bits_equal(np.asarray(y), np.asarray(f(put(X))))


def test_an_array_that_is_gone_is_said_to_be(gpu):
    f, g, x = volta.jit(lambda x: x + 1, donate_argnums=0), volta.jit(lambda x: x - 1.75), put(X)
    f(x)
    for call in (g, f, lambda x: x * 1.75):
        with pytest.raises(volta.errors.DonatedBufferError):
            call(x)
