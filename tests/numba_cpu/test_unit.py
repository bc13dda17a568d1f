"""Compilation units: what is compiled when, names and keys, and that no bit depends on the compiler's taste."""

import os
import subprocess
import sys
import weakref

import attrs
import numpy as np
import pytest

from tests.numba_cpu.kernels import F64, add_kernel, element, kernel, scale_kernel
from tests.thread_support import run_threads, running
from volta.numba_cpu import launch, target, unit
from volta.numba_cpu.unit import KernelSource, compile_kernels

pytestmark = pytest.mark.turns(6)


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOLTA_CACHE_DIR", str(tmp_path))
    return tmp_path


def counted(function):
    """The counts that `function` adds to `unit.stats()`, without the seconds."""
    before = attrs.asdict(unit.stats())
    function()
    after = attrs.asdict(unit.stats())
    return {name: after[name] - before[name] for name in after if name != "seconds" and after[name] != before[name]}


def test_counts(fresh_cache):
    sources = [scale_kernel(1.0 + n / 64) for n in range(5)]
    assert counted(lambda: compile_kernels(sources[:3])) == {"compiled": 3, "units_compiled": 1}
    assert counted(lambda: compile_kernels(sources[:3])) == {"memory_hits": 3}
    assert counted(lambda: compile_kernels(sources)) == {"memory_hits": 3, "compiled": 2, "units_compiled": 1}
    assert counted(lambda: compile_kernels([])) == {}
    assert counted(lambda: compile_kernels([sources[0], sources[0]])) == {"memory_hits": 1}


def test_addresses_are_those_of_the_kernels():
    sources = [scale_kernel(2.0), scale_kernel(3.0), add_kernel()]
    addresses = compile_kernels(sources)
    assert sorted(addresses) == sorted(s.name for s in sources) and len(set(addresses.values())) == 3
    x, out = np.array([1.5, 2.5]), np.zeros(2)
    for source, factor in zip(sources, (2.0, 3.0), strict=False):
        table = launch.LaunchTable()
        table.append(addresses[source.name], [x.ctypes.data, out.ctypes.data], n_tasks=2)
        table.build(0).call()
        assert out.tolist() == (x * factor).tolist()


def test_one_name_never_stands_for_two_kernels():
    one = scale_kernel(5.0)
    other = attrs.evolve(one, text="another text")
    with pytest.raises(ValueError, match="two different kernels"):
        compile_kernels([one, other])
    compile_kernels([one])
    with pytest.raises(ValueError, match="a different kernel named"):
        compile_kernels([other])


@pytest.mark.parametrize("name", ["", "1a", "a-b", 'a"b', "a b", "a\n"])
def test_names_must_be_symbols(name):
    with pytest.raises(ValueError, match="plain symbol"):
        KernelSource(name, "text", lambda module, name: None)


def test_a_builder_that_defines_nothing_is_named():
    with pytest.raises(ValueError, match="kernel t_empty defined no function"):
        compile_kernels([KernelSource("t_empty", "nothing", lambda module, name: None)])


def test_a_failing_builder_leaves_nothing_behind():
    good = scale_kernel(7.0)

    def fail(module, name):
        raise RuntimeError("no such emitter")

    with pytest.raises(RuntimeError, match="no such emitter"):
        compile_kernels([good, KernelSource("t_fails", "fails", fail)])
    assert counted(lambda: compile_kernels([good])).get("memory_hits") is None


def test_texts_ir_and_assembly_can_be_read():
    source = scale_kernel(11.0)
    compile_kernels([source])
    assert unit.kernel_text(source.name) == source.text
    assert f"define void @{source.name}" in unit.llvm_ir(source.name)
    assert source.name + ":" in unit.asm(source.name)
    for show in (unit.kernel_text, unit.llvm_ir, unit.asm):
        with pytest.raises(KeyError):
            show("t_unknown")


def _multiply_add():
    """args[1][i] = x*x + x with separate roundings, in the shape that a contracting compiler would fuse."""

    def emit(b, arg, task, scratch):
        x = b.load(element(b, arg(0), task), typ=F64)
        b.store(b.fadd(b.fmul(x, x), x), element(b, arg(1), task))

    return kernel("x*x+x, unfused", emit)


def test_texts_of_what_came_from_disk_beside_another_kernel(fresh_cache, monkeypatch):
    first, second = sources = [scale_kernel(5.0 + (n + 1) / 4096) for n in range(2)]
    compile_kernels(sources)
    monkeypatch.setattr(unit, "_units", weakref.WeakValueDictionary())  # as in another process
    held = compile_kernels([first])
    assert counted(lambda: compile_kernels([second])) == {"memory_hits": 1}
    for source in sources:
        assert source.name in unit.llvm_ir(source.name) and source.name in unit.asm(source.name)
    assert held


def test_multiply_and_add_are_not_contracted():
    source = _multiply_add()
    (address,) = compile_kernels([source]).values()
    x = np.random.default_rng(0).standard_normal(10_000)
    out = np.empty_like(x)
    table = launch.LaunchTable()
    table.append(address, [x.ctypes.data, out.ctypes.data], n_tasks=x.size)
    table.build(0).call()
    assert (out == x * x + x).all()
    exact = [float(np.longdouble(v) * np.longdouble(v) + np.longdouble(v)) for v in x]
    assert (np.array(exact) != out).any(), "the data cannot tell a fused result from an unfused one"
    if target.is_x86():
        assert "vfmadd" not in unit.asm(source.name)


@pytest.mark.turns(6)
def test_ir_text_and_object_code_are_the_same_in_every_process():
    code = (
        f"import sys, hashlib; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from kernels import *; from volta.numba_cpu import unit\n"
        "parts = unit.compile_unit([scale_kernel(n / 3) for n in range(9)] + [add_kernel()]).objects\n"
        "for data in [*parts, unit.environment().encode()]: print(hashlib.sha256(data).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0]) > 100


def test_threads_compile_each_kernel_once(fresh_cache):
    sources = [scale_kernel(100.0 + n) for n in range(4)]
    results = []

    def work(_):
        results.append(compile_kernels(sources))

    counts = counted(lambda: run_threads(work, 4))
    assert counts == {"compiled": 4, "units_compiled": 1, "memory_hits": 12}
    assert all(result == results[0] for result in results) and len(results) == 4


def test_large_units_are_cut_into_parts_by_content_alone(monkeypatch):
    sources = [scale_kernel(200.0 + n) for n in range(9)]
    monkeypatch.setattr(unit, "_PART", 30)
    parts = list(unit._emit_parts(sources))
    assert 1 < len(parts) < 9
    assert sum(part.count("define ") for part in parts) == 9
    monkeypatch.setenv("VOLTA_CACHE", "0")
    addresses = compile_kernels(sources)
    x, out = np.array([3.0]), np.zeros(1)
    for n, source in enumerate(sources):
        table = launch.LaunchTable()
        table.append(addresses[source.name], [x.ctypes.data, out.ctypes.data])
        table.build(0).call()
        assert out[0] == 3.0 * (200.0 + n)


@pytest.mark.turns(6)
def test_kernels_compile_at_interpreter_exit():
    code = (
        f"import sys, atexit; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from kernels import scale_kernel; from volta.numba_cpu import unit\n"
        "atexit.register(lambda: print(len(unit.compile_kernels([scale_kernel(2.0), scale_kernel(4.0)]))))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "2\n", "")


@pytest.mark.turns(6)
def test_vector_width_and_the_users_own_choice_of_processor():
    assert target.vector_bits() in (128, 256, 512)
    code = "from volta.numba_cpu import target; import numba; print(target.vector_bits(), numba.config.CPU_NAME)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CPU_NAME": "generic"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["128", "generic"]


@pytest.mark.slow
def test_compiling_beside_numbas_own_compiler(monkeypatch):
    """The long calls into LLVM are made without llvmlite's lock; Numba compiles in another thread meanwhile."""
    numba = pytest.importorskip("numba")
    monkeypatch.setenv("VOLTA_CACHE", "0")
    monkeypatch.setattr(unit, "_PART", 30)
    numba_results = []

    def compile_with_numba():
        for n in range(20):
            numba_results.append(numba.njit(lambda x, n=n: x * n + 1)(3) == 3 * n + 1)

    def compile_with_volta(seed):
        for n in range(10):
            sources = [scale_kernel(float(seed * 10_000 + 100 * n + i)) for i in range(12)]
            assert len(set(compile_kernels(sources).values())) == 12

    before = unit.stats().compiled
    with running(compile_with_numba, lambda: compile_with_volta(1), lambda: compile_with_volta(2)):
        pass
    assert all(numba_results) and len(numba_results) == 20
    assert unit.stats().compiled == before + 240
