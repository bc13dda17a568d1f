"""Training that goes on where it was: states kept in one file, whatever the number of workers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import draw_sharding, mesh_of, simulated
from volta import io, optim, random, train
from volta.io import format as fmt
from volta.sharding import NamedSharding, PartitionSpec
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

P = PartitionSpec
ADAM = optim.adam(1e-2)
BATCH, WIDTH = 4096 + 100, 2048  # matrices of four blocks each


def _loss(params, x):
    """Of a net that learns to give its input back."""
    return vnp.mean((vnp.tanh(x @ params["in"]) @ params["out"] - x) ** 2)


def _start():
    keys = random.split(random.key(0))
    params = {"in": random.normal(keys[0], (8, WIDTH)), "out": random.normal(keys[1], (WIDTH, 8))}
    return {"params": params, "optimizer": ADAM.init(params)}


@volta.jit
def _step(state, key):
    """One step; the batch follows from the key alone, so it belongs to no worker."""
    x = random.normal(key, (BATCH, 8))
    if volta.device_count() > 1:
        x = volta.lax.with_sharding_constraint(x, NamedSharding(mesh_of(volta.device_count()), P("data")))
    gradients = volta.grad(_loss)(state["params"], x)
    updates, optimizer = ADAM.update(gradients, state["optimizer"], state["params"])
    return {"params": optim.apply_updates(state["params"], updates), "optimizer": optimizer}


def _run(folder, steps, size):
    """Go on to so many steps on so many workers."""
    state = _start()
    _step.clear_cache()
    with simulated(size):
        if size > 1:
            mesh = mesh_of(size)
            whole = volta.tree.map(lambda x: NamedSharding(mesh, P()), state["params"])
            state = volta.device_put(
                state, {"params": whole, "optimizer": train.shardings(state["optimizer"], mesh, "data")}
            )
            assert not state["optimizer"][0].mu["in"].is_fully_replicated
        state, done = train.resume(folder, state)
        for i in range(done, steps):
            state = _step(state, random.fold_in(random.key(9), i))
            train.save(folder, i + 1, state)
    return done


def _bytes(folder, steps):
    return Path(folder, f"step-{steps:09d}.safetensors").read_bytes()


@pytest.mark.turns(6)
def test_a_run_goes_on_with_other_workers_to_the_same_bytes(tmp_path) -> None:
    assert _run(tmp_path / "alone", 3, 1) == 0
    assert _run(tmp_path / "several", 1, 3) == 0
    assert _run(tmp_path / "several", 2, 2) == 1
    assert _run(tmp_path / "several", 3, 1) == 2
    assert _bytes(tmp_path / "several", 3) == _bytes(tmp_path / "alone", 3)
    assert sorted(os.listdir(tmp_path / "several")) == ["step-000000002.safetensors", "step-000000003.safetensors"]


@pytest.mark.slow
def test_any_order_of_workers_ends_in_the_same_bytes(tmp_path) -> None:
    _run(tmp_path / "alone", 3, 1)
    for sizes in itertools.permutations((2, 4, 7)):
        folder = tmp_path / "-".join(map(str, sizes))
        for i, size in enumerate(sizes):
            _run(folder, i + 1, size)
        assert _bytes(folder, 3) == _bytes(tmp_path / "alone", 3), sizes


def test_a_file_does_not_say_how_its_arrays_lay(tmp_path) -> None:
    rng = np.random.default_rng(0)
    state = {"a": rng.random((7, 6), np.float32), "b": vnp.full((5,), np.nan), "c": rng.random(()) > 2, "n": 3}
    io.save(tmp_path / "plain", state)
    with simulated(4):
        mesh = mesh_of(4, (2, 2))
        for _ in range(5):
            put = {
                k: x if k == "n" else volta.device_put(x, draw_sharding(rng, mesh, np.shape(x)))
                for k, x in state.items()
            }
            io.save(tmp_path / "cut", put)
            assert (tmp_path / "cut").read_bytes() == (tmp_path / "plain").read_bytes()
            back = io.load(tmp_path / "cut", like=put)
            assert back["a"].sharding == put["a"].sharding and back["n"] == 3
            assert_bits_equal(back["a"], state["a"])


def test_what_cannot_be_resumed_says_so(tmp_path, monkeypatch) -> None:
    state = {"w": vnp.ones(3)}
    assert train.resume(tmp_path / "none", state) == (state, 0)
    path = train.save(tmp_path, 4, state)
    with pytest.raises(ValueError, match="keep 0"):
        train.save(tmp_path, 5, state, keep=0)
    with pytest.raises(ValueError, match="step -1"):
        train.save(tmp_path, -1, state)
    with pytest.raises(volta.errors.FormatError, match="does not fit"):
        train.resume(tmp_path, {"w": vnp.ones(4)})
    with monkeypatch.context() as patched:
        patched.setattr(fmt, "CONTRACT", "strict-v9-00000000")
        with pytest.raises(volta.errors.FormatError, match="made under contract strict-v2"):
            train.resume(tmp_path, state)
    broken = bytearray(Path(path).read_bytes())
    broken[-1] ^= 1
    Path(path).write_bytes(broken)
    with pytest.raises(volta.errors.FormatError, match="SHA-256"):
        train.resume(tmp_path, state)


def test_states_are_cut_between_blocks() -> None:
    """Sums over a state's arrays then need no element from a neighbour."""
    with simulated(3):
        mesh = mesh_of(3)
        arrays = {
            "long": vnp.zeros(5 * 4096 + 1),
            "wide": vnp.zeros((640, 64)),
            "odd": vnp.zeros((9000, 3)),
            "small": vnp.zeros(9),
        }
        cut = train.shardings(arrays, mesh, "data")
        assert dict(cut["long"].bounds)[0] == (0, 4096, 3 * 4096, 5 * 4096 + 1)
        assert dict(cut["wide"].bounds)[0] == (0, 192, 384, 640)
        assert dict(cut["odd"].bounds)[0] == (0, 0, 4096, 9000)
        assert cut["small"].spec == P()
        placed = volta.device_put(arrays, cut)
        plan = volta.jit(lambda t: [vnp.sum(x * x) for x in volta.tree.leaves(t)]).lower(placed).compile().plan
        assert all(e.kind == "nodes" for together in plan.partition.exchanges for e in together)
