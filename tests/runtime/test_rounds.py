"""Simulated workers on GPUs: rounds of exchanges move bytes within their memories, not through the host."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.laws.test_law_workers import PROGRAMS
from tests.numba_cuda.conftest import install  # noqa: F401
from tests.workers import draw_sharding, mesh_of
from volta import io, lax
from volta.numba_cuda.device import driver
from volta.numba_cuda.device.driver import counters
from volta.runtime import devices, rounds, workers
from volta.sharding import NamedSharding
from volta.sharding import PartitionSpec as P
from volta.testing import assert_bits_equal, fill


@pytest.fixture(params=["stand-in", pytest.param("GPUs", marks=pytest.mark.gpu)])
def gpus(request):
    """A function that simulates workers on so many devices: they take turns at these."""
    if request.param == "GPUs" and driver.count() < 2:
        pytest.skip(f"needs two GPUs, the driver sees {driver.count()}")

    def simulate(size: int, count: int = 2) -> None:
        if request.param == "stand-in":
            request.getfixturevalue("install")(devices=count)
        volta.distributed.initialize(size, engine="simulated", device="cuda")

    yield simulate
    if workers.started():
        volta.distributed.shutdown()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(3)
def test_programs_have_the_cpus_bits(gpus, name: str, count: int) -> None:
    f, shapes = PROGRAMS[name]
    args = [fill("cancel" if i == 0 else "normal", shape, np.float32, seed=i) for i, shape in enumerate(shapes)]
    want = volta.jit(f)(*args)
    gpus(3, count)
    rng, mesh = np.random.default_rng(len(name)), mesh_of(3)
    placed = [volta.device_put(x, draw_sharding(rng, mesh, x.shape, 0.1)) for x in args]
    found = volta.jit(f)(*placed)
    assert_bits_equal(found, want)
    for x in (*placed, *volta.tree.leaves(found)):
        assert [s.data.device for s in x.addressable_shards] == [f"cuda:{i % driver.count()}" for i in range(3)]


def test_bytes_stay_on_the_devices(gpus) -> None:
    gpus(4)
    rows = NamedSharding(mesh_of(4), P("data"))
    x = volta.device_put(fill("normal", (3 * 4096 + 5, 6), np.float32), rows)
    f = volta.jit(lambda x: (x.T @ vnp.tanh(x), x * 2), out_shardings=NamedSharding(rows.mesh, P()))
    plan = f.lower(x).compile().plan
    f(x)
    copied, sent = (counters.host_to_device, counters.device_to_host), rounds.TRAFFIC.sent
    f(x)
    assert (counters.host_to_device, counters.device_to_host) == copied
    assert rounds.TRAFFIC.sent - sent == sum(plan.bytes_sent(r) for r in range(4)) > 0


def test_arrays_are_cut_saved_and_loaded_where_their_workers_are(gpus, tmp_path) -> None:
    gpus(2)
    assert volta.devices("cuda") == ["cuda:0", "cuda:1"] and volta.devices("cpu") == ["cpu:0"]
    x = fill("normal", (7, 6), np.float32)
    columns = NamedSharding(mesh_of(2), P(None, "data"))
    for made in (
        volta.device_put(x, columns),
        volta.device_put(volta.device_put(x, "cuda:1"), columns),
        volta.make_array_from_callback(x.shape, columns, lambda index: x[index]),
        volta.make_array_from_process_local_data(columns, x),
    ):
        assert [s.data.device for s in made.addressable_shards] == ["cuda:0", "cuda:1"]
        assert_bits_equal(made, x)
    io.save(tmp_path / "cut", {"x": made})
    io.save(tmp_path / "plain", {"x": x})
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "plain").read_bytes()
    back = io.load(tmp_path / "cut", like={"x": made})["x"]
    assert [s.data.device for s in back.addressable_shards] == ["cuda:0", "cuda:1"]
    assert_bits_equal(back, x)
    whole, before = volta.device_put(x, "cuda:0"), counters.device_to_host
    assert [s.data.shape for s in volta.device_put(whole, columns).addressable_shards] == [(7, 3)] * 2
    assert counters.device_to_host == before, "what is on a device already is cut there"


def test_what_a_loop_makes_is_exchanged_when_it_is_there(gpus) -> None:
    def f(x, place=lambda y: y):
        y = lax.while_loop(lambda c: vnp.sum(c[1]) < 5, lambda c: (vnp.tanh(c[0] + 1), c[1] + 1), (x, vnp.zeros(())))[0]
        return place(y * 2) + 1

    x = fill("normal", (40, 3), np.float32)
    want = volta.jit(f)(x)
    gpus(2)
    rows, columns = (NamedSharding(mesh_of(2), spec) for spec in (P("data"), P(None, "data")))
    found = volta.jit(lambda x: f(x, lambda y: lax.with_sharding_constraint(y, columns)), out_shardings=rows)
    assert_bits_equal(found(volta.device_put(x, rows)), want)


def test_without_a_gpu_the_error_says_why(install) -> None:  # noqa: F811
    install(devices=0)
    with pytest.raises(volta.errors.DeviceError, match="no NVIDIA GPU"):
        volta.distributed.initialize(2, engine="simulated", device="cuda")
    with pytest.raises(volta.errors.DistributedError, match="not 'tpu'"):
        volta.distributed.initialize(2, engine="simulated", device="tpu")
    assert not workers.started() and devices.HOST in volta.devices()
