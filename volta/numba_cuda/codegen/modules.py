"""Kernels loaded on a device: compiled once, by several threads, kept on disk as machine code for later processes."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import llvmlite
import llvmlite.binding as llvm

from volta.core.locks import free_in_children
from volta.emit import cache, carried
from volta.emit.cache import from_environment as disk_cache
from volta.emit.jobs import in_threads
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device.driver import Device
from volta.numba_cuda.device.graph import ErrorLog, Module

_EMITTING = ("core", "ops", "emit", "xla_like", "numba_cuda")  # the layers whose source decides a kernel's machine code
_PTX_INPUT = 1  # CUjitInputType
_ELF = b"\x7fELF"  # how machine code begins; PTX is text
_TOGETHER = "wgmma.mma_async"

_FIRST = ("volta_attention_backward", "volta_attention_dkv", "volta_attention")
_LAST = ("volta_map_", "volta_row_", "volta_col_", "volta_combine_")
"""Names of kernels that take long to compile, the longest first, and of those that do not: so all end together."""


@attrs.define
class CompileStats:
    """Counts since the process began: kernels compiled, kernels that came from disk or as a program's machine code, and
    kernels whose PTX came with a program."""

    compiled: int = 0
    loaded: int = 0
    assembled: int = 0


stats = CompileStats()

_lock = threading.RLock()
free_in_children(globals(), "_lock")


@attrs.frozen(eq=False, weakref_slot=True)
class Unit:
    """Kernels that were loaded together: their texts and functions. The code is unloaded some time after the last
    reference is gone: by the next compilation, as a destructor may run anywhere."""

    module: Module
    texts: Mapping[str, str]
    functions: dict[str, int]

    def __del__(self) -> None:
        self.module.device.unused.append(self.module)


class Functions(dict[str, int]):
    """Loaded kernels by symbol, good as long as this is held."""

    __slots__ = ("_units",)

    def __init__(self, found: Mapping[str, Unit]) -> None:
        super().__init__((name, unit.functions[name]) for name, unit in found.items())
        self._units = tuple(dict.fromkeys(found.values()))


def capability_of(device: Device) -> str:
    """What kernels for a device are compiled for."""
    return ptx.best_for(*device.info.capability, device.info.shared, device.runtime.version)


def functions_of(device: Device, sources: Iterable[KernelSource]) -> Functions:
    """Loaded kernels by symbol; what neither the device nor the disk cache has is compiled.

    What is returned must be held as long as they may run.

    Raises:
        ValueError: one symbol stands for two kernels.
        DeviceError: the driver does not take the code; with what its assembler says.
    """
    wanted = {s.name: s for s in sources}
    with _lock:
        found: dict[str, Unit] = {}
        for s in wanted.values():
            unit = device.units.get(s.name)
            if unit is None:
                continue
            if unit.texts[s.name] != s.text:
                raise ValueError(f"two different kernels are both named {s.name}")
            found[s.name] = unit
        missing = [s for s in wanted.values() if s.name not in found]
        if missing:
            unload_unused(device)
            found.update(_load_or_compile(device, missing))
        for unit in found.values():
            if device.recent.find(unit) is None:
                device.recent.keep(unit, unit)
        return Functions({name: found[name] for name in wanted})


def unload_unused(device: Device) -> None:
    """Unload the code that nobody needs any more, after all work in which it may be."""
    if device.unused:
        device.main.synchronize()  # plans that end wait for other streams: see `Executable`
    while device.unused:
        device.unused.popleft().unload()


def made_by(capability: str) -> dict[str, str]:
    """Everything besides a kernel's text that decides its PTX."""
    version = ".".join(map(str, llvm.llvm_version_info))
    facts = {"backend": "cuda", "capability": capability, "emitter": cache.source_version(_EMITTING)}
    return facts | {"llvm": version, "llvmlite": llvmlite.__version__}


def environment(device: Device) -> str:
    """Everything besides a kernel's text that decides its machine code, as canonical JSON."""
    facts = {"capability": device.info.capability, "driver": device.runtime.version}
    return json.dumps(made_by(capability_of(device)) | facts, sort_keys=True)


def carried_for(device: Device) -> str:
    """Under what the kernels for a device that came with programs are found."""
    return json.dumps(made_by(capability_of(device)), sort_keys=True)


def _load_or_compile(device: Device, missing: Sequence[KernelSource]) -> dict[str, Unit]:
    disk, key = disk_cache(), environment(device)
    found: dict[str, Unit] = {}
    texts: dict[str, str] = {}
    for s in missing:
        if s.name in found:
            continue
        stored = carried.find(carried_for(device), s.name, s.text)
        if stored is not None and not stored.objects[0].startswith(_ELF):
            texts[s.name] = stored.objects[0].decode()
            continue
        if stored is None and disk is not None:
            stored = disk.load(key, s.name, s.text)
        if stored is not None:
            unit = _loaded(device, stored)
            found.update((x.name, unit) for x in missing if stored.kernels.get(x.name) == x.text)
    remaining = [s for s in missing if s.name not in found]
    stats.loaded += len(found)
    stats.assembled += len(texts)
    stats.compiled += len(remaining) - len(texts)
    for stored, module in _compile(device, remaining, texts):
        found.update(dict.fromkeys(stored.kernels, _loaded(device, stored, module)))
        if disk is not None and not {*stored.kernels} & {*texts}:
            disk.store(key, stored)
    return found


def _loaded(device: Device, stored: cache.StoredUnit, module: Module | None = None) -> Unit:
    (code,) = stored.objects
    module = module or Module(device, code)
    unit = Unit(module, stored.kernels, {name: module.function(name) for name in stored.kernels})
    for name in stored.kernels:
        device.units.setdefault(name, unit)  # a unit on disk may repeat a kernel of another unit
    return unit


def _turn(name: str) -> int:
    """When a kernel's compilation begins: a number that orders them."""
    last = name.startswith(_LAST) and "_transposed" not in name  # tiles of theirs are written out
    return next((i for i, first in enumerate(_FIRST) if name.startswith(first)), len(_FIRST) + last)


def _compile(
    device: Device, sources: Sequence[KernelSource], ready: Mapping[str, str]
) -> Iterator[tuple[cache.StoredUnit, Module | None]]:
    """Kernels as machine code, each a module of its own: several threads compile, while this one is still emitting.
    Of some the PTX is ``ready``.

    Those whose groups of warps multiply together stay PTX, and come loaded: the driver's linker takes a text for one of
    several, and then no more registers are given to a kernel's threads than it begins with, and each of its products
    (``wgmma``) is awaited before the next. (The driver itself keeps what it makes of PTX.)
    """
    capability = capability_of(device)
    ordered = sorted(sources, key=lambda s: _turn(s.name))

    def compiled(s: KernelSource, text: str, linked: Sequence[str]) -> tuple[cache.StoredUnit, Module | None]:
        own = (text,) if s.name in ready else () if s.build is None else (ptx.assemble(text, capability),)
        if own and not linked and _TOGETHER in text:
            code = own[0].encode() + b"\0"
            return cache.StoredUnit({s.name: s.text}, (code,)), Module(device, code)
        return cache.StoredUnit({s.name: s.text}, (link(device, *own, *linked),)), None

    calls = ((s, ready.get(s.name) or ptx.emit_text([s], capability), s.linked_texts()) for s in ordered)
    yield from in_threads(compiled, calls, ptx.workers(len(ordered)) if len(ordered) > 1 else 1)


def link(device: Device, *texts: str) -> bytes:
    """PTX texts, linked, as machine code for the device, by the driver's own assembler. Threads may do so at once.

    Raises:
        DeviceError: with what the assembler says.
    """
    device.enter()
    api, log, state = device.api, ErrorLog(), ctypes.c_void_p()
    log.check(device, api.cuLinkCreate(*log.options, ctypes.byref(state)))
    try:
        for text in texts:
            data = text.encode() + b"\0"
            status = api.cuLinkAddData(state, _PTX_INPUT, data, len(data), b"volta.ptx", 0, None, None)
            log.check(device, status)
        code, size = ctypes.c_void_p(), ctypes.c_size_t()
        log.check(device, api.cuLinkComplete(state, ctypes.byref(code), ctypes.byref(size)))
        return ctypes.string_at(code.value or 0, size.value)
    finally:
        api.cuLinkDestroy(state)
