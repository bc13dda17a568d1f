"""Arrays and functions over several workers, under JAX's names."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import simulated
from volta.runtime import rounds
from volta.sharding import Mesh, NamedSharding, PartitionSpec, make_mesh
from volta.testing import assert_bits_equal

P = PartitionSpec
X = np.arange(24, dtype=np.float32).reshape(6, 4)


@pytest.fixture
def mesh():
    with simulated(4):
        yield make_mesh((2, 2), ("data", "model"))


def test_devices_are_those_of_all_workers(mesh) -> None:
    assert volta.devices() == volta.local_devices() == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert (volta.device_count(), volta.process_count(), volta.process_index()) == (4, 1, 0)
    assert mesh.shape == {"data": 2, "model": 2} and mesh.size == 4 and mesh.devices.shape == (2, 2)
    assert mesh == Mesh(mesh.devices, ("data", "model")) and hash(mesh) == hash(pickle.loads(pickle.dumps(mesh)))


def test_an_array_lies_as_it_was_put(mesh) -> None:
    x = volta.device_put(X, NamedSharding(mesh, P("data", "model")))
    assert isinstance(x, volta.Array) and x.sharding.spec == P("data", "model")
    assert x.is_fully_addressable and not x.is_fully_replicated
    for shard in x.addressable_shards:
        assert_bits_equal(shard.data, X[shard.index])
    assert x.sharding.devices_indices_map(x.shape)["cpu:1"] == (slice(0, 3), slice(2, 4))
    assert x.sharding.shard_shape(x.shape) == (3, 2)
    assert_bits_equal(np.asarray(x), X)
    assert repr(x) == repr(vnp.asarray(X)) and str(x) == str(vnp.asarray(X))
    assert_bits_equal(pickle.loads(pickle.dumps(x)), X)
    assert_bits_equal(copy.deepcopy(x), X)
    replicated = volta.device_put(X, NamedSharding(mesh, P()))
    assert replicated.is_fully_replicated
    assert sorted(s.replica_id for s in replicated.addressable_shards) == [0, 1, 2, 3]
    plain = vnp.asarray(X)
    assert plain.sharding.device == "cpu:0" and plain.addressable_shards[0].data is plain and plain.is_fully_addressable


def test_numbers_come_out_as_of_any_array(mesh) -> None:
    x = volta.device_put(np.float32(2.5), NamedSharding(mesh, P()))
    assert (float(x), int(x), bool(x), x.item(), x.tolist(), f"{x:.1f}") == (2.5, 2, True, 2.5, 2.5, "2.5")
    with pytest.raises(TypeError, match="cannot be hashed"):
        hash(x)


def test_operations_run_where_arrays_lie(mesh) -> None:
    x = volta.device_put(X, NamedSharding(mesh, P("data")))
    y = vnp.tanh(x) * 2 + X
    assert y.sharding.spec == P("data")
    assert_bits_equal(y, vnp.tanh(X) * 2 + X)
    assert float(x.sum()) == 276.0
    assert_bits_equal(volta.grad(lambda v: vnp.sum(v * v))(x), 2 * X)


def test_jit_follows_its_arguments(mesh) -> None:
    f = volta.jit(lambda t: t["a"] @ t["a"].T)
    want = X @ X.T
    rows, columns = (NamedSharding(mesh, s) for s in (P("data"), P(None, "model")))
    for x in (X, volta.device_put(X, rows), volta.device_put(X, columns), X, volta.device_put(X, rows)):
        assert_bits_equal(f({"a": x}), want)
    assert f.cache_size() == 3, "one program for each way to lie"
    assert f({"a": volta.device_put(X, rows)}).sharding.spec == P("data")


def test_shardings_of_arguments_and_results(mesh) -> None:
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    f = volta.jit(
        lambda x, k: {"a": x * 2, "b": x.sum() + k}, in_shardings=(rows, None), out_shardings={"a": whole, "b": None}
    )
    for x in (X, volta.device_put(X, NamedSharding(mesh, P(None, "model")))):
        out = f(x, 3.0)
        assert out["a"].is_fully_replicated
        assert_bits_equal(out["a"], X * 2)
        assert float(out["b"]) == 279.0
    g = volta.jit(lambda x: x + 1, out_shardings=rows)
    assert g(X).sharding.spec == P("data")


def test_constraints_say_where_values_are_cut(mesh) -> None:
    s = NamedSharding(mesh, P(None, "model"))

    def f(x):
        return vnp.sum(volta.lax.with_sharding_constraint(x * 2, s) ** 2)

    x = volta.device_put(X, NamedSharding(mesh, P("data")))
    assert_bits_equal(volta.jit(f)(x), vnp.sum((X * 2) ** 2))
    assert_bits_equal(volta.jit(f)(X), vnp.sum((X * 2) ** 2))
    assert_bits_equal(volta.jit(volta.grad(f))(x), volta.grad(lambda v: vnp.sum((v * 2) ** 2))(X))
    assert volta.lax.with_sharding_constraint(X, s).sharding == s
    assert volta.jit(lambda v: volta.lax.with_sharding_constraint(v, s))(X).sharding.spec == s.spec
    one = NamedSharding(mesh, P("model"))
    mapped = volta.jit(volta.vmap(lambda r: volta.lax.with_sharding_constraint(r + 1, one)))(X)
    assert mapped.sharding.spec == P(None, "model")
    assert_bits_equal(mapped, X + 1)
    primal, tangent = volta.jit(lambda v: volta.jvp(f, (v,), (v,)))(X)
    assert float(tangent) == 2 * float(primal)


def test_what_was_moved_is_what_was_planned(mesh) -> None:
    """Simulated workers count nothing as sent between processes; the plan's bytes are those between workers."""
    rows = NamedSharding(mesh, P("data"))
    lowered = volta.jit(lambda x: x, in_shardings=rows, out_shardings=NamedSharding(mesh, P())).lower(X)
    compiled = lowered.compile()
    plan = compiled.plan
    assert [plan.bytes_sent(r) for r in range(4)] == [plan.bytes_received(r) for r in range(4)] == [48] * 4
    before = rounds.TRAFFIC.sent
    assert_bits_equal(compiled(X), X)
    assert rounds.TRAFFIC.sent - before == sum(plan.bytes_sent(r) for r in range(4))
    assert "all-gather" in plan.as_text() and f"rank 0 peak={plan.peak_of(0)}" in plan.as_text()
    assert compiled.peak_live_bytes >= X.nbytes and "all-gather" in plan._repr_html_()


def test_donated_arrays_are_gone(mesh) -> None:
    x = volta.device_put(X, NamedSharding(mesh, P("data")))
    f = volta.jit(lambda v: v + 1, donate_argnums=0)
    assert_bits_equal(f(x), X + 1)
    assert x.is_deleted() and "donated" in repr(x)
    with pytest.raises(volta.errors.DonatedBufferError, match="donated"):
        f(x)


def test_an_array_moves_to_another_sharding(mesh) -> None:
    x = volta.device_put(X, NamedSharding(mesh, P("data")))
    y = volta.device_put(x, NamedSharding(mesh, P(("data", "model"))))
    assert [s.data.shape for s in y.addressable_shards] == [(1, 4), (2, 4), (1, 4), (2, 4)]
    other = make_mesh((4,), ("all",))
    assert_bits_equal(volta.device_put(y, NamedSharding(other, P("all"))), X)
    assert_bits_equal(volta.device_put(y, "cpu"), X)
    assert_bits_equal(volta.distributed.process_allgather({"y": y, "n": 3})["y"], X)
    both = volta.device_put({"a": X, "b": X}, {"a": NamedSharding(mesh, P("data")), "b": None})
    assert both["a"].sharding.spec == P("data") and both["b"] is X
    assert_bits_equal(volta.device_get(y), X)
    assert volta.block_until_ready(y) is y


def test_parts_make_an_array(mesh) -> None:
    rows = NamedSharding(mesh, P("data"), bounds={0: (0, 1, 6)})
    x = volta.make_array_from_process_local_data(rows, X, X.shape)
    y = volta.make_array_from_callback(X.shape, rows, lambda index: X[index])
    assert x.sharding == y.sharding == rows
    assert_bits_equal((x, y), (X, X))


def test_a_closed_over_array_may_be_cut(mesh) -> None:
    w = volta.device_put(X, NamedSharding(mesh, P("data")))
    assert_bits_equal(volta.jit(lambda v: w.T @ v)(X), X.T @ X)


def test_python_is_called_outside_of_programs_of_several_workers(mesh, capsys) -> None:
    x = volta.device_put(X, NamedSharding(mesh, P("data")))

    def f(x):
        volta.debug.print("the sum is {s}", s=x.sum())
        return x * 2

    with pytest.raises(volta.errors.UnsupportedOperationError, match="calls a Python function"):
        volta.jit(f)(x)
    f(x)
    assert capsys.readouterr().out == "the sum is 276.0\n"


def test_what_does_not_fit_is_refused(mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    refused = {
        "has no axis 'nope'": lambda: NamedSharding(mesh, P("nope")),
        "cuts dimensions 0 and 1 along one axis": lambda: NamedSharding(mesh, P("data", "data")),
        "fewer dimensions": lambda: volta.device_put(np.ones(3), NamedSharding(mesh, P("data", "model"))),
        "cannot be cut at": lambda: volta.device_put(X, NamedSharding(mesh, P("data"), bounds={0: (0, 7, 6)})),
        "has no dimension 5": lambda: volta.device_put(X, NamedSharding(mesh, P("data"), bounds={5: (0, 7, 6)})),
        "there are 4 devices": lambda: make_mesh((9,), ("x",)),
        "axis names must be distinct": lambda: make_mesh((2, 2), ("x", "x")),
        "need as many axis names": lambda: Mesh(np.array(["cpu:0"]), ("x", "y")),
        "once each": lambda: Mesh(np.array(["cpu:0", "cpu:0"]), ("x",)),
        "and there are cpu:0": lambda: volta.device_put(X, NamedSharding(Mesh(np.array(["cpu:9"]), ("x",)), P("x"))),
        "an entry is None": lambda: P(3),
        "must be a NamedSharding or None": lambda: volta.jit(lambda x: x, in_shardings=P("data"))(X),
        "must be a prefix": lambda: volta.jit(lambda x: x, in_shardings=(rows, rows))(X),
        "different meshes": lambda: (
            volta.device_put(X, rows) + volta.device_put(X, NamedSharding(make_mesh((4,), ("z",)), P("z")))
        ),
        "one program runs on one mesh": lambda: volta.jit(
            lambda x: x, out_shardings=NamedSharding(make_mesh((4,), ("z",)), P("z"))
        )(volta.device_put(X, rows)),
        "parts of different shapes": lambda: NamedSharding(mesh, P("data")).shard_shape((3,)),
        "this process has": lambda: volta.make_array_from_process_local_data(rows, X[:3], (6, 4)),
        "is of shape": lambda: volta.make_array_from_callback((6, 4), rows, lambda index: X),
    }
    for text, act in refused.items():
        with pytest.raises(volta.errors.ShardingError, match=text):
            act()
    with pytest.raises(AttributeError, match="does not change"):
        mesh.ranks = ()


def test_workers_are_asked_for_once() -> None:
    with simulated(2):
        assert volta.distributed.is_initialized()
        with pytest.raises(volta.errors.DistributedError, match="already"):
            volta.distributed.initialize(2, engine="simulated")
    assert not volta.distributed.is_initialized() and volta.devices() == ["cpu:0"]
    with pytest.raises(volta.errors.DistributedError, match="no engine 'smoke'"):
        volta.distributed.initialize(2, engine="smoke")
    with pytest.raises(volta.errors.DistributedError, match="number of workers"):
        volta.distributed.initialize(engine="simulated")
