"""Files that are written beside the program, by one worker or by several: the same bytes, all at once or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.workers import mesh_of, simulated
from volta import io, train
from volta.core.errors import DistributedError
from volta.io import format as fmt
from volta.io import saving, structure
from volta.sharding import NamedSharding, PartitionSpec


def test_a_state_is_saved_as_it_was(tmp_path) -> None:
    """It is donated to the next step, and NumPy's arrays are written to, while the file is being written."""
    step = volta.jit(lambda s: {"w": s["w"] * 2 + 1, "n": s["n"]}, donate_argnums=0)
    state = {"w": vnp.arange(1 << 20, dtype=np.float32), "n": np.arange(1 << 18)}
    io.save(tmp_path / "want", state, {"step": "0"})
    begun = train.save(tmp_path / "run", 0, state, asynchronous=True)
    old = state["n"]
    state = step(state)
    old += 1
    assert Path(begun.result()).read_bytes() == (tmp_path / "want").read_bytes()
    assert begun.done() and begun.result() == begun.path
    assert float(state["w"][3]) == 7


def test_files_follow_each_other_and_old_ones_go(tmp_path) -> None:
    for step in range(4):
        begun = train.save(tmp_path, step, {"w": vnp.full(3, step)}, keep=2, asynchronous=True)
    state, step = train.resume(tmp_path, {"w": vnp.zeros(3, np.int32)})  # waits for the last
    assert step == 3 and state["w"].tolist() == [3, 3, 3] and begun.done()
    assert sorted(os.listdir(tmp_path)) == ["step-000000002.safetensors", "step-000000003.safetensors"]


def test_what_goes_wrong_is_said_once(tmp_path, monkeypatch) -> None:
    with pytest.raises(volta.errors.TreeError):  # what cannot be saved is refused at once
        train.save(tmp_path, 0, {"w": object()}, asynchronous=True)
    with monkeypatch.context() as patched:
        patched.setattr(fmt, "write", lambda *args: (_ for _ in ()).throw(OSError("no space")))
        begun = train.save(tmp_path, 1, {"w": vnp.ones(3)}, asynchronous=True)
        with pytest.raises(OSError, match="no space"):
            begun.result()
        train.save(tmp_path, 2, {"w": vnp.ones(3)}, asynchronous=True)
        with pytest.raises(OSError, match="no space"):
            train.save(tmp_path, 3, {"w": vnp.ones(3)}, asynchronous=True)
    assert os.listdir(tmp_path) == []
    assert train.save(tmp_path, 4, {"w": vnp.ones(3)}).endswith("4.safetensors")


ENDS = """
import os, sys
import volta.numpy as vnp
from volta import train
from volta.io import format as fmt
if sys.argv[2] == "fails":
    fmt.write = lambda *args: (_ for _ in ()).throw(OSError("no space"))
train.save(sys.argv[1], 1, {"w": vnp.zeros(1 << 22)}, asynchronous=True)
"""


@pytest.mark.parametrize("how", ["ends", "fails"])
@pytest.mark.few(1)
@pytest.mark.turns(6)
def test_a_program_that_ends_waits_for_its_file(tmp_path, how: str) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    if how == "ends":
        assert os.listdir(tmp_path) == ["step-000000001.safetensors"] and not done.stderr
        assert train.resume(tmp_path, {"w": vnp.ones(1 << 22)})[1] == 1
    else:
        assert os.listdir(tmp_path) == [] and "was not saved: OSError('no space')" in done.stderr


def test_of_what_is_cut_each_worker_writes_its_parts() -> None:
    with simulated(3):
        rows = NamedSharding(mesh_of(3), PartitionSpec("data"))
        x = np.arange(14.0, dtype=np.float32).reshape(7, 2)
        tree = {"b": volta.device_put(x, rows), "a": vnp.ones(2), "c": [volta.device_put(x + 1, rows)]}
        _, arrays, own = saving.described(tree)
        assert list(arrays) == ["a", "b", "c.0"] and list(own) == ["b", "c.0"] and own["b"] is tree["b"]
        assert arrays["c.0"].shape == (7, 2) and arrays["c.0"].strides == (0, 0)
        shared = saving._Shared("path", b"header", [(arrays[n], own.get(n)) for n in arrays], (0, 1, 2), 0)
        (at, _, _, part), *found = shared._pieces
        assert at == 14 and part.tolist() == [1, 1]
        boxes = [((a, b), (0, 2)) for a, b in ((0, 2), (2, 4), (4, 7))]
        assert [(at, box) for at, _, box, _ in found] == [(at, box) for at in (22, 22 + 56) for box in boxes]
        assert all((part == x[a:b]).all() for (_, _, ((a, b), _), part) in found[:3])
        other = saving._Shared("path", b"header", [(arrays["a"], None)], (0, 1, 2), 1)
        assert other._pieces == [], "what all have the first one writes"


# -- several workers ---------------------------------------------------------------------------------------------------


TREE = {"a": np.arange(70_000, dtype=np.float32), "b": np.arange(5), "c": np.zeros((0, 3))}


def together(path, monkeypatch, size, change=lambda place, shared: None):
    """Workers as threads: what each raises. The first has all arrays; each hashes its share of 64 KB pieces."""
    monkeypatch.setattr(fmt, "_LEAF", 1 << 16)
    monkeypatch.setattr(saving.workers, "tell", lambda text, what, everyone: text)
    stored, arrays = structure.describe(TREE)
    names, header, checksum_at = fmt.prepare(arrays, stored, {})
    made = [
        saving._Shared(str(path), header, [(arrays[n], None) for n in names], range(size), place)
        for place in range(size)
    ]
    told: list[str] = []
    monkeypatch.setattr(saving.workers, "tell", lambda text, what, everyone: told.append(text) or text)
    finish = made[0].first(checksum_at)
    works = [finish, *(lambda s=shared: s.part(told[0]) for shared in made[1:])]
    for place, shared in enumerate(made):
        change(place, shared)
    begun = [saving.Saving(str(path), work, lambda: None) for work in works]
    found = []
    for one in begun:
        try:
            found.append(one.result())
        except (OSError, DistributedError) as error:
            found.append(error)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_several_workers_write_one_workers_bytes(tmp_path, monkeypatch, size: int) -> None:
    assert together(tmp_path / "together", monkeypatch, size) == [str(tmp_path / "together")] * size
    io.save(tmp_path / "alone", TREE)
    assert (tmp_path / "together").read_bytes() == (tmp_path / "alone").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["alone", "together"]


def test_a_worker_that_fails_or_is_silent_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    silent = threading.Event()

    def fails(place, shared):
        said = shared._say

        def say(file, word):  # that it has failed it says still; had it said more, another could have done its part
            if word == saving._WRITTEN:
                raise OSError("the disk is gone")
            said(file, word)

        if place == 1:
            shared._say = say

    found = together(path, monkeypatch, 3, fails)
    assert "the disk is gone" in str(found[1])
    assert "worker 1 could not write its part" in str(found[0])
    assert "worker 1 could not write" in str(found[2]) or "has given the file up" in str(found[2])

    def waits(place, shared):
        if place == 1:
            shared._say = lambda *args: silent.wait(1)

    monkeypatch.setattr(saving, "PATIENCE", 0.3)
    found = together(path, monkeypatch, 2, waits)
    silent.set()
    assert "workers 1 have not written their parts in 0.3 s" in str(found[0])
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
