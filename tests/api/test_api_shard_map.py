"""``shard_map`` means what it says of parts, and is cut like any program."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import simulated
from volta import lax
from volta.errors import ShardingError
from volta.sharding import PartitionSpec, make_mesh
from volta.testing import assert_bits_equal, fill

P = PartitionSpec
X = fill("cancel", (8, 4), np.float32, seed=3)


@pytest.fixture
def mesh():
    with simulated(4):
        yield make_mesh((2, 2), ("i", "j"))


def _blocks(x):
    return [x[:4], x[4:]]


def test_collectives_reach_the_other_parts(mesh) -> None:
    cases = {
        "psum": (lambda x: lax.psum(x, "i"), P("i"), P(), _blocks(X)[0] + _blocks(X)[1]),
        "all_gather": (lambda x: lax.all_gather(x, "i", tiled=True), P("i"), P(), X),
        "psum_scatter": (
            lambda x: lax.psum_scatter(x, "i", tiled=True),
            P(None, "i"),
            P("i"),
            X[:, :2] + X[:, 2:],
        ),
        "ppermute": (
            lambda x: lax.ppermute(x, "i", [(0, 1), (1, 0)]),
            P("i"),
            P("i"),
            np.concatenate([X[4:], X[:4]]),
        ),
        "axis_index": (
            lambda x: x * 0 + lax.axis_index("i") * 2 + lax.axis_index("j"),
            P("i", "j"),
            P("i", "j"),
            (X * 0 + np.repeat([0, 2], 4)[:, None] + np.repeat([0, 1], 2)).astype(np.float32),
        ),
        "both": (lambda x: lax.psum(vnp.sum(x, keepdims=True), ("i", "j")), P("i", "j"), P(), None),
        "turned": (lambda x: x + 1, P(("j", "i")), P(("j", "i")), X + 1),
    }
    for name, (f, given, wanted, want) in cases.items():
        mapped = volta.shard_map(f, mesh=mesh, in_specs=given, out_specs=wanted)
        jitted, eager = volta.jit(mapped)(X), mapped(X)
        assert_bits_equal(jitted, eager, name)
        assert jitted.sharding.spec == wanted
        if want is not None:
            assert_bits_equal(jitted, want, name)


def test_a_sum_follows_the_mesh_and_not_the_workers(mesh) -> None:
    """SUM over the mesh's places, in its order: the bits of the sum over a batch of as many parts."""

    def f(x):
        return lax.psum(vnp.sum(x, 0), "i")

    got = volta.jit(volta.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P()))(X)
    assert_bits_equal(got, vnp.sum(vnp.stack([vnp.sum(b, 0) for b in _blocks(X)]), 0))


def test_trees_of_arguments_and_derivatives(mesh) -> None:
    def f(t, w):
        return {"y": t["x"] @ w, "n": lax.psum(1, "i")}

    mapped = volta.shard_map(f, mesh=mesh, in_specs=({"x": P("i")}, P()), out_specs={"y": P("i"), "n": P()})
    out = volta.jit(mapped)({"x": X}, X.T)
    assert_bits_equal(out["y"], X @ vnp.asarray(X.T))
    assert int(out["n"]) == 2

    def loss(x):
        part = volta.shard_map(
            lambda x: lax.psum(vnp.sum(x * x), ("i", "j")), mesh=mesh, in_specs=P("i", "j"), out_specs=P()
        )
        return part(x)

    assert_bits_equal(volta.jit(volta.grad(loss))(X), 2 * X)


def test_what_does_not_fit_is_refused(mesh) -> None:
    def run(f, given, wanted, x=X, **more):
        return volta.shard_map(f, mesh=mesh, in_specs=given, out_specs=wanted, **more)(x)

    refused = {
        "depends on the mesh axis 'i'": lambda: run(lambda x: x, P("i"), P()),
        "is not divisible": lambda: run(lambda x: x, P("i"), P("i"), X[:7]),
        "fewer dimensions than": lambda: run(lambda x: vnp.sum(x), P("i"), P("i")),
        "has no axis 'k'": lambda: run(lambda x: x, P("k"), P("k")),
        "must be a prefix": lambda: run(lambda x: x, (P("i"), P("i")), P("i")),
    }
    for text, act in refused.items():
        with pytest.raises(volta.errors.ShardingError, match=text):
            act()
    assert_bits_equal(run(lambda x: x, P("i"), P(), check_vma=False), X[:4])
    with pytest.raises(TypeError, match="no keyword 'axis_names'"):
        volta.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"i"})


def test_a_mesh_is_asked_for_at_once():
    with pytest.raises(ShardingError, match=r"shard_map: mesh must be a Mesh, such as .*, not None"):
        volta.shard_map(lambda x: x, mesh=None, in_specs=P(), out_specs=P())
