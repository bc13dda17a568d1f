"""Guard pages (`tests.guarded_memory`): a byte too far ends the process, and pytest names the test."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta
from tests.guarded_memory import PAGE, SIDES, Layout, Region, broken, layout, spread
from volta import lax

ROOT = Path(__file__).resolve().parent.parent

CHILD = """
import ctypes
import numpy as np
import pytest
import volta
import volta.numpy as vnp
from volta.numba_cpu import codegen, launch
from volta.emit.bodies import BodyEmitter
from volta.runtime.memory import default_pool
from volta.xla_like import loops

def read(address):
    ctypes.string_at(address, 1)

@pytest.mark.parametrize("nbytes", [1, 12, 100, 4096, 5000])
def test_beside_an_array(nbytes):
    buffer = default_pool().allocate(nbytes)
    read(buffer.address), read(buffer.address + nbytes - 1)
    read(buffer.address + BESIDE(nbytes))

def test_a_kernel_whose_lanes_go_too_far(monkeypatch):
    monkeypatch.setattr(codegen.KernelEmitter, "maskable", lambda self, which, stores: True)
    monkeypatch.setattr(BodyEmitter, "_whole", lambda self, x: None)
    table, index = vnp.ones((6, 3, 29)), vnp.full((29,), 5)
    for step in (1, -1):
        x = table[:, :, ::step]
        f = lambda x, i: vnp.sum(x[i, :, vnp.arange(29)[::step]], axis=1) + 0.125
        np.asarray(volta.jit(f)(x, index))

def test_a_temporary_beside_another(monkeypatch):
    place = loops.Access
    def off(buffer, offset, *rest):
        return place(buffer, offset + BESIDE(36 * 4) // 4 * 4, *rest)
    x = vnp.ones((6, 6))
    f = lambda x: vnp.sum(vnp.sort(vnp.sin(x), axis=0) @ x, axis=0)
    np.asarray(volta.jit(f)(x))
    monkeypatch.setattr(loops, "Access", off)
    np.asarray(volta.jit(lambda x: f(x) + 1.0)(x))

def test_scratch_memory(monkeypatch):
    bytes_of = launch.LaunchTable.build
    def less(self, *args, scratch_bytes=0, **kwargs):
        return bytes_of(self, *args, scratch_bytes=scratch_bytes // 4, **kwargs)
    monkeypatch.setattr(launch.LaunchTable, "build", less)
    x = vnp.ones((4, 3000))
    np.asarray(volta.jit(lambda x: vnp.exp(x) / vnp.sum(vnp.exp(x), axis=1, keepdims=True))(x))

def test_written_beside_an_array_in_its_page():
    buffer = default_pool().allocate(100)
    ctypes.memset(buffer.address + WRITTEN(100), 7, 1)
    del buffer

def test_what_is_right_passes():
    x = vnp.ones((37, 19))
    for f in (vnp.sin, lambda x: x @ x.T, lambda x: vnp.sort(x, axis=0)[3], lambda x: volta.nn.softmax(x, axis=1)):
        np.asarray(f(x)), np.asarray(volta.jit(volta.grad(lambda x: vnp.sum(f(x))))(x))
"""
BESIDE = {"over": "lambda n: n", "under": "lambda n: -1"}
WRITTEN = {"over": "lambda n: -1", "under": "lambda n: n"}


def run(tmp_path, side, *options) -> str:
    (tmp_path / "test_child.py").write_text(f"BESIDE, WRITTEN = {BESIDE[side]}, {WRITTEN[side]}\n{CHILD}")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rA", "-q", *options]
    path = os.pathsep.join([str(ROOT), *sys.path])
    env = {**os.environ, "VOLTA_TEST_GUARD": side, "VOLTA_CACHE": "0", "PYTHONPATH": path}
    done = subprocess.run([*command, "test_child.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_each_kind_of_buffer_is_guarded_and_the_test_is_named(tmp_path, side) -> None:
    said = run(tmp_path, side, "-n", "1", "--max-worker-restart", "20")
    faults = [f"test_beside_an_array[{n}]" for n in (1, 12, 100, 4096, 5000)]
    faults += ["test_a_temporary_beside_another"]
    if side == "over":
        faults += ["test_a_kernel_whose_lanes_go_too_far", "test_scratch_memory"]
    for name in faults:
        assert f"crashed while running 'test_child.py::{name}'" in said, said
    assert "PASSED test_child.py::test_what_is_right_passes" in said
    assert "FAILED test_child.py::test_written_beside_an_array_in_its_page" in said
    assert f"memory {'before' if side == 'over' else 'behind'} a buffer of 100 bytes was written" in said


@pytest.mark.turns(6)
def test_a_fault_names_the_test(tmp_path) -> None:
    said = run(tmp_path, "over", "-k", "right or lanes or beside_an_array and 12", "-p", "no:xdist")
    assert "Fatal Python error" in said and "in test_beside_an_array" in said


def test_layouts_leave_a_page_between_any_two_buffers() -> None:
    for side in SIDES:
        inner = layout(side, [3, 4096, 0])
        outer = layout(side, [64, inner, 5000])
        assert len(outer.starts) == 3 and len(outer.pieces) == 5
        ends = [p.first_page + p.pages for p in outer.pieces]
        starts = [p.first_page for p in outer.pieces]
        assert starts[0] == PAGE and all(b - a >= PAGE for a, b in zip(ends, [*starts[1:], outer.nbytes], strict=True))
        assert [p.start - q.start for p, q in zip(outer.pieces[1:4], inner.pieces, strict=True)] == 3 * [
            outer.starts[1]
        ]
        for p in outer.pieces:
            edge = p.start + p.nbytes == p.first_page + p.pages if side == "over" else p.start == p.first_page
            assert edge and p.start % min(p.nbytes & -p.nbytes, 64) == 0


def test_a_region_notes_what_was_written_around_its_buffers(monkeypatch) -> None:
    found = layout("over", [100, 8])
    assert isinstance(found, Layout)
    region = Region(found)
    ctypes.memset(region.address + found.starts[1] - 1, 0, 1)
    count = len(broken)
    del region
    assert broken[count:] == ["memory before a buffer of 8 bytes was written"]
    del broken[count:]


def test_a_loop_in_one_native_function_keeps_its_places() -> None:
    """They are in its code: its arena is one piece."""
    scanned = volta.jit(lambda x: lax.scan(lambda c, p: (c + 1, p * 2), 0, x))
    plan = scanned.lower(np.ones((2, 8, 32), np.float32)).compile().plan
    (loop,) = [call for call in plan.calls if call.plans]
    assert any(plan.launches[-1]) and loop.plans[0].arena_bytes
    apart, where = spread(plan, "over")
    assert where is not None and apart.calls[-1].plans == loop.plans and len(where.pieces) == 3
