"""What devices say of themselves, and arrays that are put together of what several devices have."""

import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core import device
from volta.errors import ShardingError
from volta.sharding import Mesh, NamedSharding, SingleDeviceSharding
from volta.sharding import PartitionSpec as P


@pytest.fixture
def eight():
    volta.distributed.initialize(8, engine="simulated")
    yield volta.devices()
    volta.distributed.shutdown()


def test_a_device_is_its_name_and_says_what_it_names():
    (cpu,) = volta.devices("cpu")
    assert (cpu, cpu.platform, cpu.device_kind) == ("cpu:0", "cpu", "cpu")
    assert (cpu.id, cpu.process_index, cpu.is_local) == (0, 0, True)
    assert vnp.ones(2).devices() == {cpu}
    assert pickle.loads(pickle.dumps(cpu)) == cpu
    assert device.Device("cuda:1").platform == "gpu"
    assert volta.local_device_count() == volta.device_count("cpu") == 1


def test_simulated_workers_are_devices_of_this_process(eight):
    assert [d.id for d in eight] == list(range(8)) and all(d.is_local and d.process_index == 0 for d in eight)
    assert volta.local_devices() == eight and volta.local_device_count() == 8
    mesh = Mesh(np.array(eight).reshape(2, 4), ("x", "y"))  # NumPy makes plain strings of them
    assert mesh.local_devices == eight and [d.id for d in mesh.devices[1]] == [4, 5, 6, 7]
    assert mesh == volta.make_mesh((2, 4), ("x", "y")) == pickle.loads(pickle.dumps(mesh))
    sharding = NamedSharding(mesh, P("x"))
    assert sharding.device_set == sharding.addressable_devices == set(eight)
    assert volta.device_put(vnp.arange(2), eight[3]).tolist() == [0, 1]


def test_where_others_compute_is_not_here(eight):
    """Of several processes each knows its own devices."""
    device.tell(device.Workers("cpu", 4, (1,)))
    mine = [device.Device(f"cpu:{i}") for i in range(4)]
    assert [d.is_local for d in mine] == [False, True, False, False]
    assert [d.process_index for d in mine] == [0, 1, 2, 3]
    assert device.Device("cuda:0").is_local and device.Device("cuda:0").process_index == 1
    mesh = Mesh(mine, "i")
    assert mesh.local_devices == ["cpu:1"]
    assert list(NamedSharding(mesh, P("i")).addressable_devices_indices_map((8,))) == ["cpu:1"]


def test_an_array_of_the_devices_parts(eight):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for spec in (P("x", "y"), P("y"), P(None, ("x", "y")), P()):
        sharding = NamedSharding(volta.make_mesh((2, 4), ("x", "y")), spec)
        parts = [volta.device_put(x[i], d) for d, i in sharding.addressable_devices_indices_map(x.shape).items()]
        whole = volta.make_array_from_single_device_arrays(x.shape, sharding, parts)
        assert whole.sharding == sharding and whole.devices() == set(eight)
        assert whole.tobytes() == x.tobytes()
        assert [whole.addressable_data(i).tobytes() for i in range(8)] == [p.tobytes() for p in parts]
        assert vnp.sum(whole).tobytes() == vnp.sum(vnp.asarray(x)).tobytes()


def test_parts_that_are_none_are_refused(eight):
    rows = NamedSharding(volta.make_mesh((2,), "i"), P("i"))
    one = vnp.zeros((2, 3))
    with pytest.raises(ShardingError, match=r"parts of shapes \[\(2, 3\), \(2, 3\)\] are needed, got \[\(2, 3\)\]"):
        volta.make_array_from_single_device_arrays((4, 3), rows, [one])
    with pytest.raises(ShardingError, match=r"got \[\(2, 3\), \(1, 3\)\]"):
        volta.make_array_from_single_device_arrays((4, 3), rows, [one, one[:1]])
    with pytest.raises(ShardingError, match="the parts have dtypes float32, float64, and an array has one"):
        volta.make_array_from_single_device_arrays((4, 3), rows, [one, one.astype("float64")])


def test_an_array_of_one_device():
    x = volta.make_array_from_single_device_arrays((2,), SingleDeviceSharding("cpu:0"), [vnp.arange(2)])
    assert x.tolist() == x.addressable_data(0).tolist() == [0, 1]
    with pytest.raises(IndexError):
        x.addressable_data(1)


def test_shard_map_is_a_decorator_too(eight):
    mesh = volta.make_mesh((4, 2), ("i", "j"))

    @volta.shard_map(mesh=mesh, in_specs=(), out_specs=volta.P("i", "j"))
    def places():
        return lax.axis_index(("i", "j"))[None, None]

    assert places().tolist() == np.arange(8).reshape(4, 2).tolist()

    @volta.shard_map(mesh=mesh, in_specs=volta.P("i", "j"), out_specs=volta.P())
    def sizes(_):
        return lax.axis_size(("i", "j"))

    assert int(sizes(volta.device_put(vnp.zeros((16, 8)), volta.NamedSharding(mesh, volta.P("i", "j"))))) == 8
