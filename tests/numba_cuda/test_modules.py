"""Kernels of a device are compiled once, and a later process finds them on disk."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.fake_driver import FakeDriver
from volta import nn
from volta.emit.cache import DiskCache
from volta.numba_cuda.codegen import modules, ptx, ptx_wgmma, threads
from volta.numba_cuda.codegen.modules import CompileStats
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device import launcher
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import every
from volta.offline import plan_on_cuda
from volta.runtime import devices, gateway
from volta.testing import assert_bits_equal
from volta.testing.transformer import Transformer

SOURCES: dict[str, KernelSource] = {}


@pytest.fixture
def process(install, tmp_path, monkeypatch):
    """A function that begins anew, as another process would, with the same folder on disk; returns what it counts."""

    def begin(**options):
        made: FakeDriver = install(**options)
        made.disk, made.sources = DiskCache(tmp_path), SOURCES
        found = CompileStats()
        monkeypatch.setattr(modules, "stats", found)
        return found

    return begin


def run():
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
    f = volta.jit(lambda x: vnp.sort(nn.softmax(x @ x.T), 1).sum(0))
    assert_bits_equal(f(volta.device_put(x, "cuda")), f(x))


def test_a_second_process_finds_kernels_on_disk(process):
    first = process()
    run()
    assert first.compiled > 3 and first.loaded == 0
    second = process()
    run()
    assert (second.compiled, second.loaded) == (0, first.compiled)


def test_within_a_process_nothing_is_compiled_twice(process):
    found = process()
    run()
    before = found.compiled
    gateway.PLAN_CACHE.clear()
    run()
    assert (found.compiled, found.loaded) == (before, 0)


def test_another_driver_or_device_compiles_anew(process):
    first = process()
    run()
    for options in ({"version": 12080}, {"capability": "8.9"}):
        found = process(**options)
        run()
        assert (found.compiled, found.loaded) == (first.compiled, 0)


def test_a_damaged_file_is_rebuilt(process, tmp_path):
    first = process()
    run()
    for path in tmp_path.glob("*.unit"):
        path.write_bytes(path.read_bytes()[:-3])
    second = process()
    run()
    assert (second.compiled, second.loaded) == (first.compiled, 0)
    third = process()
    run()
    assert (third.compiled, third.loaded) == (0, first.compiled)


def test_one_symbol_for_two_kernels_is_refused(process):
    process()
    device = devices.gpu("cuda:0")
    kernel = KernelSource("twice", "a", lambda module, name: None)
    modules.functions_of(device, [kernel])
    with pytest.raises(ValueError, match="both named twice"):
        modules.functions_of(device, [KernelSource("twice", "b", kernel.build)])


def test_what_the_assembler_says_is_in_the_error(process, monkeypatch):
    process()
    monkeypatch.setattr(modules.ptx, "emit_text", lambda sources, capability: "nonsense")
    with pytest.raises(volta.errors.DeviceError, match="syntax error"):
        modules.functions_of(devices.gpu("cuda:0"), [KernelSource("broken", "", lambda module, name: None)])


def _multiplies(module, name):
    _, b = threads.new_entry(module, name, 128)
    tile = threads.dynamic_shared(module, b)
    ptx_wgmma.multiply_group_first(b, tile, tile, 64)
    b.ret_void()


WGMMA = KernelSource("multiplies", "multiplies", _multiplies)


def test_products_of_four_warps_are_no_part_of_a_link(process, monkeypatch):
    """Linked, their threads get no registers besides, and each product is awaited: PTX itself is loaded, and kept."""
    texts, add = {"linked": [], "loaded": []}, FakeDriver.cuLinkAddData

    def linked(self, state, kind, image, size, *rest):
        texts["linked"].append(ctypes.string_at(image, size).decode())
        return add(self, state, kind, image, size, *rest)

    class Noted(modules.Module):
        def __init__(self, device, image):
            texts["loaded"].append(image.decode(errors="replace"))
            super().__init__(device, image)

    monkeypatch.setattr(FakeDriver, "cuLinkAddData", linked)
    monkeypatch.setattr(modules, "Module", Noted)
    assert modules._TOGETHER in ptx.compile_ptx([WGMMA], "9.0a")
    monkeypatch.setattr(modules, "_TOGETHER", "wgmma")  # the fake driver's texts are names alone
    x = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    counts = []
    for _ in range(2):
        counts.append(process(capability="9.0"))
        with volta.execution_context(level="device"):
            f = volta.jit(lambda x: vnp.tanh(vnp.sort(vnp.matmul(x, x, precision="bf16"), 1)))
            f(volta.device_put(x, "cuda")).block_until_ready()
    assert texts["linked"] and not any("wgmma" in x for x in texts["linked"])
    assert len({x for x in texts["loaded"] if "wgmma" in x}) == 1
    assert counts[0].compiled > 1 and (counts[1].compiled, counts[1].loaded) == (0, counts[0].compiled)


def test_a_launcher_keeps_its_code_alive():
    """Two threads that come first both compile it; the cache keeps only the other's."""
    launcher._methods.cache_clear()
    entered = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda context: 7)
    words = np.zeros(launcher.HEADER, np.int64)
    words[1] = ctypes.cast(entered, ctypes.c_void_p).value
    launch = launcher.launcher(words, None)
    code = weakref.ref(launcher._methods()["launch"].code)
    launcher._methods.cache_clear()
    gc.collect()
    assert code() is not None and launch(None) == 7
    del launch
    gc.collect()
    assert code() is None


@pytest.mark.turns(2)
def test_code_of_programs_that_are_gone_is_unloaded(fake, monkeypatch):
    """New constants without end: as much is loaded as there are programs to run it."""
    device = devices.gpu("cuda:0")
    monkeypatch.setattr(device.recent, "generation", 2)
    monkeypatch.setattr(gateway.PLAN_CACHE, "capacity", 2)
    x = volta.device_put(np.linspace(0.5, 1, 8, dtype=np.float32), "cuda")
    loaded = []
    for n in range(12):
        f = volta.jit(lambda x, c=1.5 + n / 7: x**c)
        f(x)
        del f
        gc.collect()
        modules.unload_unused(device)
        loaded.append(sum(isinstance(made, set) for made in fake.objects.values()))
    assert loaded[-1] == len(device.units) <= 6 and max(loaded) <= 6, loaded


def test_what_takes_longest_begins_first():
    """So that nothing is waited for at the end: of a training step no long kernel comes after a short one."""
    model = Transformer(layers=1)
    shapes = volta.eval_shape(model.init, volta.random.key(0)), *volta.eval_shape(model.draw, volta.random.key(1))
    plan, _ = plan_on_cuda(volta.jit(volta.value_and_grad(model.loss)).trace(*shapes).jaxpr)
    sources = {x.source.name: x.source for x in every(launches_of(plan, "9.0a"))}.values()
    ordered = sorted(sources, key=lambda s: modules._turn(s.name))
    sizes = [len(ptx.emit_text([s], "9.0a")) for s in ordered]
    assert sizes[0] == max(sizes)
    long = [size > max(sizes) / 6 for size in sizes]
    assert 4 < sum(long) < len(long) - 4 and long == sorted(long, reverse=True)
    maps = [s.name for s in ordered if s.name.startswith("volta_map_")]
    assert "_transposed" in maps[0] and len(maps) > 1
