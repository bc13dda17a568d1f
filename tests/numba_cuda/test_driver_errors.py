"""What goes wrong with a driver, a device or a module is an error that says so, and what the way out is."""

import gc
import os
import warnings

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors
from volta.numba_cuda.device import cuda_api, driver
from volta.numba_cuda.device.graph import Launches, Module, Row, allow_shared
from volta.runtime import devices

pytestmark = pytest.mark.turns(6)


def put(x):
    return volta.device_put(x, "cuda")


def test_no_driver(install, monkeypatch):
    install()
    monkeypatch.setattr(cuda_api.ctypes, "CDLL", lambda path: (_ for _ in ()).throw(OSError(path)))
    driver.use(None)
    with pytest.raises(errors.DeviceError, match="no NVIDIA driver on this machine"):
        volta.devices("cuda")
    assert driver.count() == 0


def test_a_driver_that_lacks_a_function(install, monkeypatch):
    install()
    monkeypatch.setattr(cuda_api.ctypes, "CDLL", lambda path: object())
    driver.use(None)
    with pytest.raises(errors.DeviceError, match=r"driver is too old: it has no cuInit"):
        put(1.0)


def test_an_old_driver(install):
    install(version=11080)
    with pytest.raises(errors.DeviceError, match=r"knows CUDA 11\.8; Volta needs one that knows 12\.0 or newer"):
        put(1.0)


def test_a_driver_without_devices(install):
    install(devices=0)
    with pytest.raises(errors.DeviceError, match="no NVIDIA GPU can be used: CUDA_ERROR_NO_DEVICE"):
        put(1.0)


def test_a_gpu_that_is_too_old(install):
    install(capability="6.1")
    with pytest.raises(errors.DeviceError, match=r"cuda:0, Fake GPU.*capability 6\.1.*7\.0"):
        put(np.ones(3, np.float32)) + 1


@pytest.mark.parametrize("name", ["cuda:7", "cuda:-1", "cuda:x", "tpu", "cpu:1"])
def test_a_device_that_is_not_there(gpu, name):
    with pytest.raises(errors.DeviceError, match="there is no device"):
        volta.device_put(1.0, name)
    with pytest.raises(errors.DeviceError, match=r"there is no GPU 99; the driver sees \d"):
        driver.device(99)


def test_a_module_that_is_none(gpu):
    with pytest.raises(errors.DeviceError, match=r"(?s)CUDA_ERROR_INVALID_PTX.*compute capability.*assembler says: \S"):
        Module(gpu, ".version 7.8\n.target sm_75\n.address_size 64\nthis is no PTX\n")


def test_ptx_of_a_newer_version(fake):
    fake.fail["cuModuleLoadDataEx"] = cuda_api.UNSUPPORTED_PTX
    with pytest.raises(
        errors.DeviceError, match=r"(?s)UNSUPPORTED_PTX_VERSION.*newer version.*13\.0.*update the driver"
    ):
        put(np.ones(3, np.float32)) + 1
    assert float((put(np.ones(3, np.float32)) + 1)[0]) == 2  # once the module loads, the program runs


def test_an_unknown_kernel(gpu):
    module = Module(gpu, PTX)
    assert module.function("nothing")
    with pytest.raises(errors.DeviceError, match=r"no kernel 'something': CUDA_ERROR_NOT_FOUND"):
        module.function("something")
    module.unload()
    module.unload()


PTX = """
.version 7.8
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 args)
{
    ret;
}
"""


def test_a_launch_that_the_device_cannot_do(gpu):
    function = Module(gpu, PTX).function("nothing")
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.check(Launches(gpu.main, [Row(function, 1, 4096, 0)]).launch())
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        allow_shared(gpu, function, 1 << 20)
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        Launches(gpu.main, [Row(function, 0, 32, 0)] * 5)  # while a graph is recorded
    assert float((put(np.ones(3, np.float32)) + 1)[0]) == 2


def test_small_kernels_of_a_graph_go_first(fake):
    device, args = devices.gpu("cuda:0"), put(np.ones(2, np.float32))
    function = Module(device, PTX).function("nothing")
    rows = [Row(function, grid, 32, args.buffer().address) for grid in (1024, 1, 1025, 5000)]
    Launches(device.main, rows)
    assert fake.priorities == {1024: -5, 1: -5}


def test_sizes_that_do_not_fit(gpu):
    x = put(np.ones(3, np.float32))
    compiled = volta.jit(lambda x: x + 1).lower(x).compile()
    with pytest.raises((TypeError, ValueError), match="float32"):
        compiled(put(np.ones(4, np.float32)))
    host = np.ones(1 << 20, np.uint8)
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):  # beyond the memory of the device
        gpu.copy(x.buffer().address, 8, 1 << 20, gpu.main) if gpu.info.name == "Fake GPU" else _bad_copy(gpu, host)


def _bad_copy(gpu, host):
    gpu.to_device(8, host.ctypes.data, len(host) // 2, gpu.main)
    gpu.synchronize()


def test_a_fault_takes_the_device_from_the_process(fake):
    """The driver answers every call after it with the same error: so does Volta, and says why."""
    x = put(np.ones(3, np.float32))
    y = x + 1
    np.asarray(y)
    fake.sticky = 700
    said = r"CUDA_ERROR_ILLEGAL_ADDRESS.*cuda:0 \(Fake GPU.*lost.*restarted"
    for use in (np.asarray, lambda y: y + 1, lambda y: put(np.ones(5)), lambda y: y.block_until_ready()):
        with pytest.raises(errors.DeviceLostError, match=said):
            use(y)
    assert isinstance(errors.DeviceLostError(""), errors.DeviceError)
    assert float((vnp.ones(3) + 1)[0]) == 2  # the CPU is as it was
    del x, y
    gc.collect()  # dropping what was there raises nothing


def test_a_failed_call_gives_donated_arrays_back(fake):
    f = volta.jit(lambda x: x + 1, donate_argnums=0)
    x = put(np.ones(3, np.float32))
    x = f(x)
    live = devices.memory_stats().live
    fake.fail["cuLaunchKernel"] = 1
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        f(x)
    assert not x.is_deleted() and devices.memory_stats().live == live
    assert float(f(x)[0]) == 3
    fake.fail["cuMemcpyHtoDAsync"] = 1
    with pytest.raises(errors.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        f(put(np.ones(3, np.float32)))
    y = put(np.ones(3, np.float32))
    fake.fail["cuGraphInstantiateWithFlags"] = 2
    long = volta.jit(_long)
    with pytest.raises(errors.OutOfMemoryError, match="RESOURCE_EXHAUSTED"):
        long(y)
    assert long(y).device == "cuda:0" and not y.is_deleted()


def _long(x):
    for _ in range(5):
        x = vnp.cumsum(x) @ vnp.outer(x, x)
    return x


def test_objects_of_the_driver_are_given_back(fake):
    """Graphs, events and streams go with what made them; memory goes back to the pool, and from there on trim."""
    f = volta.jit(_long)
    x = put(np.ones(4, np.float32))
    np.asarray(f(x))
    with devices.profile():
        f(x)
    with devices.stream():
        f(x)
    made = fake.log["cuGraphInstantiateWithFlags"]
    assert made and fake.log.get("cuGraphExecDestroy", 0) < made
    del f, x
    volta.runtime.plan_cache.PLAN_CACHE.clear()
    gc.collect()
    assert fake.log["cuGraphExecDestroy"] == fake.log["cuGraphDestroy"] == made
    gpu = devices.gpu("cuda:0")
    assert gpu.pool.stats().live == 0
    gpu.pool.trim()
    assert not fake.allocations
    with devices.stream():
        pass
    assert fake.log["cuStreamCreate"] == 3  # the side stream was used again


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told(fake):
    put(1.0)
    read, write = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # JAX, where another test has imported it, warns of any fork
        child = os.fork()
    if not child:
        try:
            put(1.0)
            said = "nothing"
        except errors.DeviceError as error:
            said = str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert "CUDA does not survive fork" in os.read(read, 1000).decode()
    os.close(read)
