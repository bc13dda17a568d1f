"""Compilation units: many kernels, one trip through LLVM.

A plan's kernels are emitted together into one LLVM module, optimised by a short pipeline, turned into one object file
and loaded.  Names are content hashes, so a kernel that was compiled before, in this process or in an earlier one, is
found again by name; its whole text is compared, and a clash is an error.
"""

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
from llvmlite import ir

from volta.emit import cache
from volta.numba_cpu import target

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_EMITTING = ("core", "ops", "emit", "xla_like", "numba_cpu")  # the layers whose source decides a kernel's IR


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


_PART = 400

_lock = threading.RLock()
_addresses: dict[str, int] = {}
_texts: dict[str, str] = {}
_sources: dict[str, KernelSource] = {}
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


@functools.cache
def environment() -> str:
    """Everything besides a kernel's text that decides its machine code, as canonical JSON."""
    return json.dumps({"emitter": emitter_version(), **target.toolchain()}, sort_keys=True)


def compile_kernels(sources: Iterable[KernelSource]) -> dict[str, int]:
    """Compile kernels, as one unit; returns the address of each by name.

    What this process already has comes from memory, what an earlier process compiled from disk; only the rest is
    compiled.  Raises ``ValueError`` where one name stands for two texts.
    """
    wanted: dict[str, KernelSource] = {}
    for source in sources:
        if wanted.setdefault(source.name, source) != source:
            raise ValueError(f"two different kernels are both named {source.name}")
    with _lock:
        missing = []
        for source in wanted.values():
            if source.name not in _addresses:
                missing.append(source)
            elif _texts[source.name] != source.text:
                raise ValueError(f"a different kernel named {source.name} was compiled before")
        _count(memory_hits=len(wanted) - len(missing))
        if missing:
            start = time.perf_counter()
            _load_or_compile(missing)
            _count(seconds=time.perf_counter() - start)
        return {name: _addresses[name] for name in wanted}


def _load_or_compile(missing: Sequence[KernelSource]) -> None:
    disk = cache.from_environment()
    remaining = []
    for source in missing:
        if disk is not None and source.name not in _addresses:
            stored = disk.load(environment(), source.name, source.text)
            if stored is not None:
                _register(stored)
                _count(units_loaded=1)
        if source.name in _addresses and _texts[source.name] == source.text:
            _count(loaded=1)
        else:
            remaining.append(source)
    if remaining:
        unit = _compile(remaining)
        _register(unit)
        _count(compiled=len(remaining), units_compiled=1)
        if disk is not None:
            disk.store(environment(), unit)
    for source in missing:
        _sources[source.name] = source


def _register(unit: cache.StoredUnit) -> None:
    for name, address in target.load_objects(unit.objects, unit.kernels).items():
        if name not in _addresses:  # a unit on disk may repeat a kernel that another unit brought
            _addresses[name] = address
            _texts[name] = unit.kernels[name]


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
            yield str(module)
            module = _new_module()
    if module.functions:
        yield str(module)


def _compile(sources: Sequence[KernelSource]) -> cache.StoredUnit:
    """Emit and compile kernels: several threads compile the parts, while this one is still emitting."""
    if threading.main_thread().is_alive():
        with ThreadPoolExecutor(min(len(sources), target.available_processors()), "volta-compile") as pool:
            jobs = [pool.submit(target.compile_object, part) for part in _emit_parts(sources)]
            objects = tuple(job.result() for job in jobs)
    else:  # the interpreter is on its way out (a plan runs in an atexit handler) and starts no more threads
        objects = tuple(map(target.compile_object, _emit_parts(sources)))
    return cache.StoredUnit({source.name: source.text for source in sources}, objects)


def compile_module(text: str, exports: Sequence[str]) -> dict[str, int]:
    """Compile LLVM IR text (Volta's own runtime loops, not kernels); returns the address of each exported function.

    It comes from memory or disk where it can, and is not counted in `stats`, which speaks of kernels.
    """
    with _lock:
        texts = dict.fromkeys(exports, text)
        if any(_texts.get(name) != text for name in exports):
            disk = cache.from_environment()
            stored = disk.load(environment(), exports[0], text) if disk is not None else None
            if stored is None or set(stored.kernels) != set(exports):
                stored = cache.StoredUnit(texts, (target.compile_object(text),))
                if disk is not None:
                    disk.store(environment(), stored)
            _register(stored)
        return {name: _addresses[name] for name in exports}


def kernel_text(name: str) -> str:
    """The canonical text of a kernel that this process has compiled or loaded; ``KeyError`` if it has not."""
    return _texts[name]


def _emit_alone(name: str) -> str:
    module = _new_module()
    _emit_into(module, _sources[name])
    return str(module)


def llvm_ir(name: str) -> str:
    """The optimised LLVM IR of a kernel that `compile_kernels` was asked for; ``KeyError`` for others."""
    return target.optimised_ir(_emit_alone(name))


def asm(name: str) -> str:
    """The assembly text of a kernel that `compile_kernels` was asked for; ``KeyError`` for others."""
    return target.assembly(_emit_alone(name))


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
