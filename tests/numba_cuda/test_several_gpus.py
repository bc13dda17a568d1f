"""Programs on two devices: on two GPUs where they are, and everywhere on a stand-in for a driver that sees two."""

import gc
import json

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.thread_support import run_threads
from volta import errors, io, nn, random
from volta.commands.main import main
from volta.numba_cuda.device import driver
from volta.numba_cuda.device.blocks import rounded
from volta.numba_cuda.device.driver import counters
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

BOTH = ("cuda:0", "cuda:1")


@pytest.fixture(params=["stand-in", pytest.param("GPUs", marks=pytest.mark.gpu)])
def two(request):
    """Two devices; whether they are GPUs."""
    if request.param == "stand-in":
        request.getfixturevalue("install")(devices=2)
    elif driver.count() < 2:
        pytest.skip(f"needs two GPUs, the driver sees {driver.count()}")
    return request.param == "GPUs"


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def put(x, device):
    return volta.device_put(x, device)


PROGRAMS = {
    "elementwise": (lambda x: nn.gelu(x) * 2 + vnp.exp(-x), (normal(7, 33),)),
    "reductions": (lambda x: (nn.softmax(x), vnp.sum(x, 0), vnp.sum(x), vnp.argmax(x, 1)), (normal(5, 300),)),
    "product": (lambda x, w: nn.relu(x @ w), (normal(17, 65), normal(65, 9))),
    "order": (
        lambda x: (vnp.sort(x, 1), vnp.cumsum(x, 0), vnp.asarray(x).at[vnp.arange(6) % 4].add(1.5)),
        (normal(6, 50),),
    ),
    "gradient": (
        volta.value_and_grad(lambda w, x: vnp.sum(nn.log_softmax(vnp.tanh(x @ w)) ** 2)),
        (normal(6, 4), normal(3, 6)),
    ),
    "attention": (lambda x: nn.dot_product_attention(x, x * 2, x + 1, is_causal=True), (normal(1, 20, 2, 8),)),
}


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(2)
def test_each_device_computes_the_cpus_bits(two, name):
    f, args = PROGRAMS[name]
    compiled, want = volta.jit(f), f(*put(args, "cpu"))
    for device in BOTH:
        placed = put(args, device)
        out = compiled(*placed)
        assert {x.device for x in volta.tree.leaves(out)} == {device}
        assert_bits_equal(out, want)
        assert_bits_equal(compiled(*placed), want)
        assert_bits_equal(f(*placed), want)  # operation by operation


def test_training_on_the_second_device_and_moving_half_way_changes_nothing(two, tmp_path):
    def step(w, key):
        x = random.normal(key, (8, 6))
        g = volta.grad(lambda w: vnp.sum(nn.log_softmax(x @ w) ** 2))(w)
        return w - 0.1 * g, random.fold_in(key, 1)

    step = volta.jit(step, donate_argnums=0)

    def train(*path):
        w, key = put((normal(6, 4), random.key(3)), path[0])
        for device in path:
            w, key = put((w, key), device)
            for _ in range(3):
                w, key = step(w, key)
            assert w.device == volta.runtime.devices.resolve(device)
        file = tmp_path / "model.safetensors"
        io.save(file, {"w": w})
        return file.read_bytes()

    want = train("cpu", "cpu")
    for path in (("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cuda:0", "cuda:1"), ("cuda:1", "cpu")):
        assert train(*path) == want


@pytest.mark.slow
def test_the_second_device_is_verified_by_name(two, tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["verify", "--device", "cuda:1", "--json", str(path), "inference"]) == 0, capsys.readouterr().out
    info = devices.gpu("cuda:1").info
    assert json.loads(path.read_text())["device"].startswith(f"cuda:1 ({info.name}")
    assert devices.memory_stats("cuda:1").peak > 1_000_000 and devices.memory_stats("cuda:0").peak < 1_000_000 or two


# -- where things run --------------------------------------------------------------------------------------------------


def test_every_device_is_listed(two):
    assert volta.devices("cuda")[:2] == list(BOTH) and volta.device_count("cuda") == driver.count()
    count = driver.count()
    with pytest.raises(errors.DeviceError, match=rf"no device 'cuda:{count}'; there are cuda:0, cuda:1"):
        put(1.0, f"cuda:{count}")


def test_a_program_runs_where_its_arguments_are(two):
    """Whatever the default device is, and whatever it was compiled for."""
    x = {device: put(normal(3, 4), device) for device in BOTH}
    f = volta.jit(lambda x: nn.softmax(x) + 1)
    want = np.asarray(f(normal(3, 4)))
    for default in ("cpu", *BOTH):
        with volta.default_device(default):
            ahead = f.lower(normal(3, 4)).compile()
            for device in BOTH:
                for y in (f(x[device]), ahead(x[device]), x[device] + normal(3, 4), 1.5 - x[device]):
                    assert y.device == device
                assert_bits_equal(np.asarray(ahead(x[device])), want)
            assert vnp.ones(3).device == devices.resolve(default)
            assert f(normal(3, 4)).device == devices.resolve(default)


def test_arguments_on_two_devices_are_refused(two):
    x, y = put(normal(3), "cuda:0"), put(normal(3), "cuda:1")
    z = put(normal(5), "cuda:1")
    add = volta.jit(lambda a, b: a + b, donate_argnums=0)
    for default in ("cpu", *BOTH):
        with volta.default_device(default):
            for f in (lambda a, b: a + b, add, volta.jit(volta.grad(lambda a, b: vnp.sum(a * b)))):
                with pytest.raises(errors.DeviceError, match=r"cuda:0 and cuda:1.*device_put"):
                    f(x, y)
                with pytest.raises(errors.DeviceError, match=r"cuda:1 and cuda:0.*device_put"):
                    f(y, x)
    with pytest.raises(errors.DeviceError, match=r"cuda:1 and cuda:0"):
        volta.jit(lambda n, a, b, c: (n + a, b + c))(normal(2), z[:2], x, x)
    assert not x.is_deleted() and not y.is_deleted()
    assert_bits_equal(np.asarray(add(put(x, "cuda:1"), y)), normal(3) * 2)


def test_an_array_that_a_function_closes_over_follows_its_arguments(two):
    table = put(normal(40), "cuda:0")
    f = volta.jit(lambda x: nn.softmax(x * table))
    want = np.asarray(volta.jit(lambda x: nn.softmax(x * normal(40)))(normal(3, 40)))
    for device in (*BOTH, "cpu", "cuda:1"):
        out = f(put(normal(3, 40), device))
        assert out.device == devices.resolve(device)
        assert_bits_equal(np.asarray(out), want)
    assert table.device == "cuda:0"


def test_donated_memory_is_used_on_each_device(two):
    f = volta.jit(lambda x: x + 1, donate_argnums=0)
    for device in (*BOTH, *BOTH):
        x = put(normal(1000), device)
        address = x.buffer().address
        y = f(x)
        assert x.is_deleted() and y.buffer().address == address and y.device == device


# -- from one to the other ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4097, 600_000])
def test_an_array_moves_between_devices(two, size):
    host = normal(size)
    x = put(host, "cuda:0")
    before = counters.device_to_device, counters.host_to_device, counters.device_to_host
    y = put(x, "cuda:1")
    z = put(y, "cuda:0")
    after = counters.device_to_device, counters.host_to_device, counters.device_to_host
    assert [b - a for a, b in zip(before, after, strict=True)] == [2 * host.nbytes, 0, 0]  # not through the host
    assert (x.device, y.device, z.device) == ("cuda:0", "cuda:1", "cuda:0")
    for array in (x, y, z, put(y, "cpu")):
        assert_bits_equal(np.asarray(array), host)
    assert put(y, "cuda:1") is y or put(y, "cuda:1").buffer() is y.buffer()


@pytest.mark.parametrize("side", [False, True])
def test_what_moves_is_what_queued_work_computes(two, side):
    """The copy comes after the work of either device's streams, and the source's memory is reused after the copy."""
    f = volta.jit(lambda x: nn.softmax(vnp.tanh(x)) + 1)
    host = normal(300, 400)
    want = np.asarray(f(host))
    for here, there in (BOTH, BOTH[::-1]):
        x = put(host, here)
        with devices.stream(here) if side else volta.default_device("cpu"):
            y = f(x)
            with devices.stream(there) if side else volta.default_device("cpu"):
                z = put(y, there)
                del y
                for _ in range(3):
                    put(np.full_like(host, np.nan), here).block_until_ready()
                again = f(z)
        assert (z.device, again.device) == (there, there)
        assert_bits_equal(np.asarray(z), want)
        assert_bits_equal(np.asarray(again), np.asarray(f(want)))


# -- memory ------------------------------------------------------------------------------------------------------------


def test_each_device_has_a_pool_and_a_limit_of_its_own(two):
    for device in BOTH:
        put(1.0, device)  # what a device's first array sets up
    before = [devices.memory_stats(device).live for device in BOTH]
    x = put(normal(1000, 30), "cuda:1")
    after = [devices.memory_stats(device).live for device in BOTH]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, rounded(x.nbytes)]
    devices.pool("cuda:1").trim()
    with devices.memory_limit(devices.memory_stats("cuda:1").reserved, "cuda:1"):
        with pytest.raises(errors.OutOfMemoryError, match="cuda:1 has no memory"):
            held = [put(np.zeros(1 << 22, np.float32), "cuda:1") for _ in range(100)]
        assert put(np.zeros(1 << 24, np.float32), "cuda:0").device == "cuda:0"
    assert_bits_equal(np.asarray(x), normal(1000, 30))
    del x
    held = None
    gc.collect()
    assert held is None and devices.memory_stats("cuda:1").live <= before[1] + (1 << 16)


# -- threads and streams -----------------------------------------------------------------------------------------------


def test_threads_use_a_device_each(two):
    """Four threads, two a device, train programs that they share, and pass results on."""
    step = volta.jit(volta.value_and_grad(lambda w, x: vnp.sum(nn.log_softmax(vnp.tanh(x @ w)) ** 2)))
    count, pairs = (200, 20) if two else (8, 2)

    def train(device, seed):
        w, x = put((normal(6, 4, seed=seed), normal(3, 6, seed=seed)), device)
        for _ in range(count):
            loss, g = step(w, x)
            w = w - 0.1 * g
        return np.asarray(w), np.asarray(loss)

    want = [train("cpu", seed) for seed in range(pairs)]

    def work(number):
        here, there = BOTH[number % 2], BOTH[1 - number % 2]
        with volta.default_device(here), devices.stream(here):
            for seed in range(pairs):
                got = train(here, seed)
                assert_bits_equal(got, want[seed])
                moved = put(put(got[0], here), there)
                assert_bits_equal(np.asarray(moved * 2), got[0] * 2)
                assert vnp.ones(3).device == here

    run_threads(work, 4)


def test_both_devices_work_at_once(two):
    """Work is queued on one while the other has not finished, and waiting for one says nothing about the other."""
    f = volta.jit(lambda x: vnp.tanh(x @ x.T) @ x)
    x = {device: put(normal(20, 30), device) for device in BOTH}
    want = np.asarray(f(f(normal(20, 30))))
    out = dict(x)
    for _ in range(2):
        out = {device: f(y) for device, y in out.items()}
    for device in BOTH[::-1]:
        assert_bits_equal(np.asarray(out[device]), want)


def test_a_profile_says_what_ran_on_the_second_device(two):
    f, x = volta.jit(lambda x: nn.softmax(x) + 1), put(normal(30, 40), "cuda:1")
    f(x)
    with devices.profile() as found:
        out = f(x)
    assert len(found.rows) >= 1 and all(row.microseconds > 0 for row in found.rows)
    assert_bits_equal(np.asarray(out), np.asarray(f(normal(30, 40))))
