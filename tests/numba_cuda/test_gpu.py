"""On a GPU: programs follow their arguments, and the bits are the CPU's. Without one these tests skip, and say so."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors, nn
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal


def missing():
    try:
        devices.cuda()
    except errors.DeviceError as error:
        return str(error)
    return ""


WHY = missing()
needs_gpu = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


PROGRAMS = {
    "gelu": (nn.gelu, (normal(100, 200),)),
    "softmax": (nn.softmax, (normal(30, 5000),)),
    "columns": (lambda x: (x.sum(0), vnp.argmax(x, 0)), (normal(5000, 33),)),
    "product": (lambda x: nn.relu(x @ x.T), (normal(65, 300),)),
    "scatter": (lambda x: x.at[vnp.arange(100) % 7].add(x[:100]), (normal(120, 5),)),
    "gradient": (volta.grad(lambda x: vnp.sum(nn.log_softmax(x @ x.T) ** 2)), (normal(20, 40),)),
}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gpu_computes_the_cpus_bits(name):
    f, args = PROGRAMS[name]
    f = volta.jit(f)
    assert_bits_equal(f(*volta.device_put(args, "cuda")), f(*args))


@pytest.mark.gpu
@needs_gpu
def test_results_stay_on_the_gpu_until_they_are_read():
    x = volta.device_put(normal(10), "cuda")
    y = x * 2
    assert (x.device, y.device) == ("cuda:0", "cuda:0")
    assert volta.device_put(y, "cpu").device == "cpu:0"
    with volta.default_device("cuda"):
        assert vnp.ones(3).device == "cuda:0"


@pytest.mark.gpu
@needs_gpu
def test_a_donated_array_is_gone_and_its_memory_used():
    x = volta.device_put(normal(1000), "cuda")
    address = x.buffer().address
    y = volta.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and y.buffer().address == address


@pytest.mark.skipif(not WHY, reason="there is a GPU")
def test_without_a_gpu_the_error_says_so():
    for ask in (lambda: volta.device_put(1.0, "cuda"), lambda: volta.devices("cuda")):
        with pytest.raises(errors.DeviceError, match=r"no NVIDIA GPU"):
            ask()
