"""Compilation units: many kernels, one trip through LLVM.

A plan's kernels are emitted together into one LLVM module, optimised by a short pipeline, turned into one object file
and loaded.  Names are content hashes, so a kernel that was compiled before, in this process or in an earlier one, is
found again by name; its whole text is compared, and a clash is an error.

Machine code lives as long as the plans that run it, and that of the units used last a while longer.
"""

import functools
import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
from llvmlite import ir

from volta.core.locks import free_in_children
from volta.core.recent import Recent
from volta.emit import cache, carried
from volta.emit.jobs import in_threads
from volta.emit.module_text import text_of
from volta.numba_cpu import target

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_EMITTING = ("core", "ops", "emit", "xla_like", "numba_cpu", "numba")  # the folders whose source decides a kernel's IR


def _check_symbol(_instance: object, _attribute: object, value: str) -> None:
    if not _SYMBOL.match(value):
        raise ValueError(f"a kernel's name must be a plain symbol (letters, digits, underscores), got {value!r}")


@attrs.frozen
class KernelSource:
    """One kernel to compile.

    `name` is a symbol derived from a hash of the content, `text` the canonical description (with the emitters' version
    it is the cache key), and ``build(module, name)`` adds the LLVM function, of the kernel ABI, to a module.
    """

    name: str = attrs.field(validator=_check_symbol)
    text: str
    build: Callable[[ir.Module, str], object] = attrs.field(eq=False, repr=False)


@attrs.frozen
class CompileStats:
    """Counts since the process began: kernels compiled, loaded from disk and found in memory; units; seconds spent."""

    compiled: int = 0
    loaded: int = 0
    memory_hits: int = 0
    units_compiled: int = 0
    units_loaded: int = 0
    seconds: float = 0.0


@attrs.frozen(eq=False, weakref_slot=True)
class Unit:
    """Kernels that were loaded together: their machine code, their texts and, where somebody asked for them, their
    sources. It is alive as long as somebody holds it: see `compile_kernels`."""

    code: target.MachineCode
    texts: Mapping[str, str]
    sources: dict[str, KernelSource] = attrs.field(factory=dict)

    def address(self, name: str) -> int:
        return self.code.addresses[name]


class Addresses(dict[str, int]):
    """The address of each kernel by name, good as long as this is held."""

    __slots__ = ("_units",)

    def __init__(self, found: Mapping[str, Unit]) -> None:
        super().__init__((name, unit.address(name)) for name, unit in found.items())
        self._units = tuple(dict.fromkeys(found.values()))


_PART = 400

_lock = threading.RLock()
free_in_children(globals(), "_lock")
_units: weakref.WeakValueDictionary[str, Unit] = weakref.WeakValueDictionary()  # by the name of a kernel
_recent: Recent[Unit, Unit] = Recent(256)  # units to keep although no plan may need them
_forever: list[Unit] = []  # Volta's own runtime loops
_stats = CompileStats()


def _count(**increments: float) -> None:
    global _stats
    _stats = attrs.evolve(_stats, **{name: getattr(_stats, name) + more for name, more in increments.items()})


def stats() -> CompileStats:
    """What has been compiled and loaded so far; subtract two of these to count what a call did."""
    with _lock:
        return _stats


@functools.cache
def emitter_version() -> str:
    """A hash of the source of the layers that emit kernels: it changes whenever an emitter can have changed."""
    return cache.source_version(_EMITTING)


def environment() -> str:
    """Everything besides a kernel's text that decides its machine code, as canonical JSON."""
    return _environment(target.machine())


@functools.cache
def _environment(machine: target.Machine) -> str:
    return json.dumps({"emitter": emitter_version(), **target.toolchain(machine)}, sort_keys=True)


def compile_kernels(sources: Iterable[KernelSource]) -> Addresses:
    """Compile kernels, as one unit; what is returned must be held as long as they may run.

    What this process already has comes from memory, what an earlier process compiled from disk; only the rest is
    compiled.  Raises ``ValueError`` where one name stands for two texts.
    """
    wanted: dict[str, KernelSource] = {}
    for source in sources:
        if wanted.setdefault(source.name, source) != source:
            raise ValueError(f"two different kernels are both named {source.name}")
    with _lock:
        found: dict[str, Unit] = {}
        for source in wanted.values():
            unit = _units.get(source.name)
            if unit is None:
                continue
            if unit.texts[source.name] != source.text:
                raise ValueError(f"a different kernel named {source.name} was compiled before")
            unit.sources.setdefault(source.name, source)  # it may have come from disk beside what was asked for then
            found[source.name] = unit
        _count(memory_hits=len(found))
        missing = [source for source in wanted.values() if source.name not in found]
        if missing:
            start = time.perf_counter()
            target.free_unused()
            found.update(_load_or_compile(missing))
            _count(seconds=time.perf_counter() - start)
        for unit in found.values():
            if _recent.find(unit) is None:
                _recent.keep(unit, unit)
        return Addresses({name: found[name] for name in wanted})


def _load_or_compile(missing: Sequence[KernelSource]) -> dict[str, Unit]:
    disk = cache.from_environment()
    found: dict[str, Unit] = {}
    for source in missing:
        if source.name not in found:
            stored = carried.find(environment(), source.name, source.text)
            if stored is None and disk is not None:
                stored = disk.load(environment(), source.name, source.text)
            if stored is not None:
                unit = _loaded(stored)
                found.update((s.name, unit) for s in missing if stored.kernels.get(s.name) == s.text)
                _count(units_loaded=1)
    remaining = [source for source in missing if source.name not in found]
    _count(loaded=len(found))
    if remaining:
        stored = compile_unit(remaining)
        found.update(dict.fromkeys((source.name for source in remaining), _loaded(stored)))
        _count(compiled=len(remaining), units_compiled=1)
        if disk is not None:
            disk.store(environment(), stored)
    for source in missing:
        found[source.name].sources[source.name] = source
    return found


def _loaded(stored: cache.StoredUnit) -> Unit:
    unit = Unit(target.MachineCode(stored.objects, stored.kernels), stored.kernels)
    for name in stored.kernels:
        _units.setdefault(name, unit)  # a unit on disk may repeat a kernel of another unit
    return unit


def _new_module() -> ir.Module:
    module = ir.Module("volta.unit")
    module.triple = target.machine().triple
    return module


def _emit_into(module: ir.Module, source: KernelSource) -> None:
    source.build(module, source.name)
    function = module.globals.get(source.name)
    if not isinstance(function, ir.Function) or function.is_declaration:
        raise ValueError(f"the builder of kernel {source.name} defined no function of that name")


def _emit_parts(sources: Iterable[KernelSource]) -> Iterator[str]:
    """The unit's IR in parts of a few hundred instructions: small enough to share out, large enough to be worth it.

    The cuts depend on the kernels alone, so that the same plan gives the same object files on any machine.
    """
    module = _new_module()
    for source in sources:
        _emit_into(module, source)
        if sum(len(block.instructions) for function in module.functions for block in function.blocks) > _PART:
            yield text_of(module)
            module = _new_module()
    if module.functions:
        yield text_of(module)


def compile_unit(sources: Sequence[KernelSource]) -> cache.StoredUnit:
    """Emit and compile kernels: several threads compile the parts, while this one is still emitting."""
    parts = ((part, target.machine()) for part in _emit_parts(sources))
    most = min(len(sources), target.available_processors())
    objects = tuple(in_threads(target.compile_object, parts, most))
    return cache.StoredUnit({source.name: source.text for source in sources}, objects)


def compile_module(text: str, exports: Sequence[str]) -> dict[str, int]:
    """Compile LLVM IR text (Volta's own runtime loops, not kernels); returns the address of each exported function.

    It comes from memory or disk where it can, and is not counted in `stats`, which speaks of kernels.
    """
    with _lock:
        texts = dict.fromkeys(exports, text)
        unit = _units.get(exports[0])
        if unit is None or unit.texts != texts:
            disk = cache.from_environment()
            stored = carried.find(environment(), exports[0], text)
            if stored is None and disk is not None:
                stored = disk.load(environment(), exports[0], text)
            if stored is None or set(stored.kernels) != set(exports):
                stored = module_unit(text, exports)
                if disk is not None:
                    disk.store(environment(), stored)
            unit = _loaded(stored)
            _forever.append(unit)
        return {name: unit.address(name) for name in exports}


def module_unit(text: str, exports: Sequence[str]) -> cache.StoredUnit:
    """LLVM IR text, compiled, as `compile_module` keeps it."""
    return cache.StoredUnit(dict.fromkeys(exports, text), (target.compile_object(text, target.machine()),))


def kernel_text(name: str) -> str:
    """The canonical text of a kernel that this process has at hand; ``KeyError`` for others."""
    return _units[name].texts[name]


def _emit_alone(name: str) -> str:
    module = _new_module()
    _emit_into(module, _units[name].sources[name])
    return text_of(module)


def llvm_ir(name: str) -> str:
    """The optimised LLVM IR of a kernel that `compile_kernels` was asked for; ``KeyError`` for others."""
    return target.optimised_ir(_emit_alone(name))


def asm(name: str) -> str:
    """The assembly text of a kernel that `compile_kernels` was asked for; ``KeyError`` for others."""
    return target.assembly(_emit_alone(name))
