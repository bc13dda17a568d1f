"""Kernels for GPUs that came with a program: a device that they fit compiles none, any other refuses them by name."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.fake_driver import FakeDriver
from volta import nn
from volta.emit.cache import DiskCache
from volta.numba_cuda.codegen import modules, nvjitlink
from volta.numba_cuda.codegen.modules import CompileStats
from volta.numba_cuda.device import driver
from volta.testing.bits import bits

X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
SOURCES: dict[str, Any] = {}


def f(x: Any) -> Any:
    return vnp.sort(nn.softmax(x @ x.T), 1).sum(0)


Begin = Callable[..., CompileStats]


@pytest.fixture
def process(install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Begin]:
    """A function that begins anew, with an empty cache, on a device of some capability; returns what it counts."""

    def begin(capability: str = "8.9") -> CompileStats:
        made: FakeDriver = install(capability=capability)
        made.disk, made.sources = DiskCache(tmp_path / "cache"), SOURCES
        found = CompileStats()
        monkeypatch.setattr(modules, "stats", found)
        return found

    yield begin
    gc.collect()  # programs refer to themselves, and their kernels are found as long as they are there


def run(folder: Path) -> None:
    program = volta.load_program(folder / "f", machine_code=True)
    assert bits(program(volta.device_put(X, "cuda"))) == bits(volta.jit(f)(X))


def test_ptx_that_came_with_a_program_is_only_assembled(process: Begin, tmp_path: Path) -> None:
    process()
    program = volta.export(f, X).compiled_for("sm_89", "sm_90")
    program.save(tmp_path / "f")
    found = process()
    run(tmp_path)
    assert found.compiled == found.loaded == 0 and found.assembled == len(program.machine_code[0].units) > 2
    assert not list((tmp_path / "cache").glob("*.unit"))  # what a file brought stays out of the user's cache
    gc.collect()  # programs refer to themselves
    found = process()
    assert bits(volta.load_program(tmp_path / "f")(volta.device_put(X, "cuda"))) == bits(volta.jit(f)(X))
    assert found.compiled == len(program.machine_code[0].units) and found.assembled == 0


def test_machine_code_that_came_with_a_program_is_only_loaded(
    process: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Assembler:
        version = (13, 0)

        def assemble(self, text: str, capability: str) -> nvjitlink.Cubin:
            return nvjitlink.Cubin(b"\x7fELF" + text.encode() + b"\0", {}, "13.0")

    monkeypatch.setattr(nvjitlink, "library_for", lambda capability: Assembler())
    process()
    program = volta.export(f, X).compiled_for("sm_89:cubin")
    assert program.machine_code[0].made_by["nvjitlink"] == "13.0"
    program.save(tmp_path / "f")
    found = process()
    run(tmp_path)
    assert found.compiled == found.assembled == 0 and found.loaded == len(program.machine_code[0].units)


def test_a_device_of_another_capability_refuses_it(process: Begin, tmp_path: Path) -> None:
    process()
    volta.export(f, X).compiled_for("sm_89").save(tmp_path / "f")
    process("8.0")
    with pytest.raises(volta.errors.DeviceError, match=r"sm_89: made by capability 8.9, and for cuda:0 it is 8.0"):
        volta.load_program(tmp_path / "f", machine_code=True)


def test_a_program_for_cpu_and_gpu_is_used_where_either_fits(process: Begin, tmp_path: Path) -> None:
    process("8.0")
    volta.export(f, X).compiled_for("cpu", "sm_89").save(tmp_path / "f")
    assert bits(volta.load_program(tmp_path / "f", machine_code=True)(X)) == bits(volta.jit(f)(X))


def test_where_there_is_no_gpu_the_error_says_so(tmp_path: Path) -> None:
    program = volta.export(f, X).compiled_for("sm_75")
    assert all(b".target sm_75" in unit.objects[0] for unit in program.machine_code[0].units)
    if driver.why_none():
        program.save(tmp_path / "f")
        with pytest.raises(volta.errors.DeviceError, match=r"sm_75: no NVIDIA GPU can be used"):
            volta.load_program(tmp_path / "f", machine_code=True)
