"""The same bits, plans and files today and tomorrow: in other processes, with other hash seeds, cold and warm."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import volta
import volta.numpy as vnp
from tests.laws import law_child
from volta.testing import assert_bits_equal, digest, fill
from volta.testing.strategies import programs

HERE = Path(__file__).resolve().parent


def some_programs(count: int) -> list:
    found = []

    @seed(20)
    @given(programs(smooth=True))
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def collect(p) -> None:
        found.append(p)

    collect()
    return found


def run_child(folder: Path, programs: Path, hash_seed: int, saved: Path) -> tuple[list[str], int]:
    own = {"PYTHONHASHSEED": str(hash_seed), "VOLTA_CACHE_DIR": str(folder), "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, "-W", "error", str(HERE / "law_child.py"), str(programs), str(saved)]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    *lines, compiled = done.stdout.splitlines()
    return lines, int(compiled)


@pytest.mark.turns(6)
def test_other_processes_give_the_same_bits_plans_and_files(tmp_path) -> None:
    chosen = some_programs(6)
    (tmp_path / "programs").write_bytes(pickle.dumps(chosen))
    here = law_child.digests(chosen)
    cold, compiled = run_child(tmp_path / "cache", tmp_path / "programs", 1, tmp_path / "first")
    warm, again = run_child(tmp_path / "cache", tmp_path / "programs", 2, tmp_path / "second")
    assert compiled and not again, "the first process compiles, the second finds everything on disk"
    assert here == cold == warm
    volta.io.save(tmp_path / "here", law_child.state(), metadata={"a": "1", "b": "2"})
    files = {name: (tmp_path / name).read_bytes() for name in ("here", "first", "second")}
    assert files["here"] == files["first"] == files["second"]
    for line in here:
        assert line.split()[0] == line.split()[1]


def model(params, x):
    for layer in params["layers"]:
        x = vnp.tanh(x @ layer["w"] + layer["b"])
    return volta.nn.log_softmax(x)


def weights(shape: tuple[int, int], number: int) -> volta.Array:
    return vnp.asarray(fill("normal", shape, seed=number))


def a_model() -> dict:
    sizes = [17, 33, 9]
    shapes = list(zip(sizes, sizes[1:], strict=False))
    return {"layers": [{"w": weights(s, i), "b": vnp.zeros(s[1])} for i, s in enumerate(shapes)]}


def test_save_load_infer(tmp_path) -> None:
    """A loaded model infers the bits of the one that was saved, and is saved as the same bytes."""
    x, params = fill("normal", (5, 17)), a_model()
    want = volta.jit(model)(params, x)
    volta.io.save(tmp_path / "a", params)
    loaded = volta.io.load(tmp_path / "a", like=params)
    assert_bits_equal(model(loaded, x), want)
    assert_bits_equal(volta.jit(model)(volta.io.load(tmp_path / "a"), x), want)
    volta.io.save(tmp_path / "b", loaded)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_training_on_after_a_checkpoint(tmp_path) -> None:
    """Eight steps in one go, and four steps, a file, and four more: the same checkpoint, byte for byte."""
    x, y = fill("normal", (12, 17), seed=7), np.arange(12) % 9
    optimizer = volta.optim.adam(1e-2)

    def step(state):
        params, opt = state

        def loss(params):
            return -vnp.mean(vnp.take_along_axis(model(params, x), y[:, None], axis=1))

        updates, opt = optimizer.update(volta.grad(loss)(params), opt, params)
        return volta.optim.apply_updates(params, updates), opt

    def run(state, steps, f):
        for _ in range(steps):
            state = f(state)
        return state

    start = (a_model(), optimizer.init(a_model()))
    jitted = volta.jit(step)
    whole = run(start, 8, jitted)
    half = run(start, 4, jitted)
    volta.io.save(tmp_path / "half", half)
    rest = run(volta.io.load(tmp_path / "half", like=half), 4, jitted)
    volta.io.save(tmp_path / "whole", whole)
    volta.io.save(tmp_path / "rest", rest)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "rest").read_bytes()
    assert digest(run(start, 3, step)) == digest(run(start, 3, jitted)), "eager training is compiled training"
    donating = volta.jit(step, donate_argnums=0)
    fresh = volta.tree.map(lambda a: vnp.array(np.asarray(a)), start)
    assert digest(run(fresh, 3, donating)) == digest(run(start, 3, jitted))
