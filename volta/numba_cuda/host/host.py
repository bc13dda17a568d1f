"""The very kernels of a plan, run on the host without a GPU: their index arithmetic, grids, barriers and bits.

The LLVM of a kernel is what it is for the GPU; only the target changes. Special registers, barriers, shuffles and the
operations of `ptx_ops` get host bodies, each thread of a block runs as a fiber (`host_runtime`), and every load, store
and atomic operation is checked: it must lie in one range of memory that the launch says it reads or writes, and that
may be written. What breaks that is recorded and does nothing. Memory that nobody wrote holds NaN (and -1 as integers),
shared memory at the start of every block.

A multiply-add is fused here as on the GPU, so results have the CPU's bits, or the kernel is wrong. Threads are fibers
in ascending, descending or shuffled order; in any of them, two accesses to a byte that no barrier orders are recorded
as a race. In device memory a read that races gives NaN instead: it is an error only if what was read is used, and then
the bits say so in one of two opposite orders.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import llvmlite.binding as llvm
import numpy as np

from volta.core.errors import DeviceError
from volta.core.locks import free_in_children
from volta.numba_cuda import conditional_nodes
from volta.numba_cuda.codegen.ptx import KernelSource, emit_module
from volta.numba_cuda.host import host_rewrite, host_runtime, host_tables
from volta.numba_cuda.host.host_runtime import READ, WRITE
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import SCRATCH, Launch, every
from volta.xla_like.plan import ExecutionPlan

Order = Literal["ascending", "descending", "shuffled"]

_ALIGN = 256

_launches = itertools.count()
_lock = threading.RLock()  # a module's state serves one block at a time
free_in_children(globals(), "_lock")


@attrs.frozen
class Violation:
    """What a thread did that it must not: ``text`` says it in words."""

    launch: int
    kernel: str
    block: int
    thread: int
    text: str

    def __str__(self) -> str:
        return f"launch {self.launch}, {self.kernel}, block {self.block}, thread {self.thread}: {self.text}"


@attrs.frozen
class Report:
    """A plan's results, and what its kernels did wrong (at most 64 entries a launch)."""

    outputs: list[np.ndarray]
    violations: list[Violation]


@attrs.frozen
class Range:
    """Memory that a launch may use; where races are looked for, with the address of its shadow."""

    name: str
    start: int
    nbytes: int
    rights: int
    shadow: int = 0


def why_not() -> str:
    """Why kernels for GPUs cannot run on this host; empty if they can."""
    triple = llvm.get_default_triple()
    if triple.split("-")[0] not in ("x86_64", "amd64") or "windows" in triple:
        return f"kernels for GPUs run on x86-64 processors under Linux and macOS only, not on {triple}"
    return (
        "" if llvm.get_host_cpu_features().get("fma") else "kernels for GPUs run on hosts with fused multiply-add only"
    )


def _new_machine(opt: int) -> llvm.TargetMachine:
    """A target machine for this host; every execution engine takes over its own."""
    why = why_not()
    if why:
        raise DeviceError(why)
    triple, features = llvm.get_default_triple(), llvm.get_host_cpu_features()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=opt, jit=True
    )


@functools.cache
def _runtime() -> bytes:
    """The functions that kernels call, as an object file that every module has a copy of."""
    machine = _new_machine(2)
    with _lock:
        parsed = llvm.parse_assembly(host_runtime.runtime_text(), context=llvm.create_context())
        parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
        parsed.verify()
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(1))
        for function in parsed.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        code: bytes = machine.emit_object(parsed)
    return code


class HostModule:
    """Kernels compiled for the host, with the state that they run in."""

    def __init__(self, sources: Iterable[KernelSource], capability: str = "9.0") -> None:
        machine = _new_machine(0)  # a kernel runs a few times: compiling it takes longer
        module = emit_module(sources, capability)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        text, self.globals = host_rewrite.rewrite(module)
        with _lock:
            parsed = llvm.parse_assembly(text, context=llvm.create_context())
            parsed.verify()
            builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
            builder.getModulePassManager().run(parsed, builder)  # what must be inlined is; more only costs time
            self._engine = llvm.create_mcjit_compiler(parsed, machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(_runtime()))
            self._engine.finalize_object()
        # Garbage collection ends a cycle's parts in any order, but LLVM must end an engine before its context.
        weakref.finalize(self, self._engine.close).atexit = False
        self._run = ctypes.CFUNCTYPE(ctypes.c_int64)(self._engine.get_function_address("volta.host.run_block"))
        state = self._engine.get_global_value_address("volta.host.state")
        self._words = (ctypes.c_int64 * len(host_runtime.STATE)).from_address(state)
        self._tables = host_tables.tables()
        self._shadows: dict[int, np.ndarray] = {}
        for name, table in self._tables.by_name().items():
            self._set(name, table.ctypes.data)

    def _set(self, name: str, value: int) -> None:
        self._words[host_runtime.STATE.index(name)] = value

    def _get(self, name: str) -> int:
        return self._words[host_runtime.STATE.index(name)]

    def run(
        self, name: str, args: int, grid: int, threads: int, ranges: Sequence[Range], order: Order = "ascending",
        dynamic: int = 0, races: bool = True,
    ) -> list[tuple[int, int, str]]:  # fmt: skip
        """Run a kernel over a grid, with so many bytes of dynamic shared memory.

        Returns (block, thread, text) of what it did wrong. Races are looked for in shared memory, and in ranges that
        have a shadow.
        """
        with _lock:
            return self._run_grid(name, args, grid, threads, ranges, order, dynamic, races)

    def _run_grid(
        self,
        name: str,
        args: int,
        grid: int,
        threads: int,
        ranges: Sequence[Range],
        order: Order,
        dynamic: int,
        races: bool,
    ) -> list[tuple[int, int, str]]:
        t = self._tables
        address = self._engine.get_global_value_address
        shared = [(address(g.name), g.nbytes or dynamic) for g in self.globals if g.shared and g.name in self._of(name)]
        own = [Range(g.name, address(g.name), g.nbytes, READ) for g in self.globals if not g.shared]
        for start, nbytes in shared:
            shadow = self._shadow_of(start, nbytes) + 1 if races else 0
            own.append(Range("shared memory", start, nbytes, READ | WRITE, shadow))
        own.append(Range("stack", t.stacks_memory.ctypes.data, t.stacks_memory.nbytes, READ | WRITE))
        own.append(Range("lanes", t.lanes.ctypes.data, t.lanes.nbytes, READ | WRITE))
        every = [*ranges, *own]
        table = np.array([(r.start, r.start + r.nbytes, r.rights, r.shadow) for r in every], np.int64)
        for key, value in {
            "ranges": table.ctypes.data, "range_count": len(every), "last": 0, "record_count": 0, "args": args,
            "launch": next(_launches) % 4095 + 1, "kernel": self._engine.get_function_address(name),
            "threads": threads, "blocks": grid,
        }.items():  # fmt: skip
            self._set(key, value)
        fibers, blocks = list(range(threads)), list(range(grid))
        if order == "descending":
            fibers, blocks = fibers[::-1], blocks[::-1]
        elif order == "shuffled":
            rng = random.Random(0)
            rng.shuffle(fibers)
            rng.shuffle(blocks)
        t.order[:threads] = fibers
        start_block = t.starter(threads, self._engine.get_function_address("volta.host.fiber"))
        wrong: list[tuple[int, int, str]] = []
        for block in blocks:
            self._set("block", block)
            start_block()
            for start, nbytes in shared:
                ctypes.memset(start, 0xFF, nbytes)
            if self._run():
                where = [int(i) for i in np.flatnonzero(t.done[:threads] == 0)]
                wrong.append((block, where[0], f"waits with {len(where)} threads at a barrier that others never reach"))
        t.check_stacks(threads, name)
        count = self._get("record_count")
        for row in t.records[: min(count, len(t.records))]:
            block, thread, start, nbytes, fault, other = (int(x) for x in row)
            wrong.append((block, thread, _describe(start, nbytes, fault, other, every)))
        return wrong

    def _shadow_of(self, start: int, nbytes: int) -> int:
        """The shadow of shared memory, of which launches may ask for more or less."""
        wanted = nbytes * host_runtime.SHADOW_BYTES
        found = self._shadows.get(start)
        if found is None or found.nbytes < wanted:
            found = self._shadows[start] = np.zeros(wanted, np.uint8)
        return found.ctypes.data

    def _of(self, kernel: str) -> set[str]:
        """Names of the shared memory that a kernel uses."""
        return {g.name for g in self.globals if kernel in g.users}


def _describe(start: int, nbytes: int, fault: int, other: int, ranges: Sequence[Range]) -> str:
    verb = {READ: "reads", WRITE: "writes"}.get(fault & 3, "updates")
    if fault & host_runtime.RACE:
        who = f"thread {other}" if other < host_tables.MOST_THREADS else "other threads"
        where = _nearest(start, nbytes, ranges)
        return f"{verb} {nbytes} bytes at {start:#x}, a race with {who}: no barrier between; {where}"
    if fault & host_runtime.MISALIGNED:
        return (
            f"{verb} {nbytes} bytes at {start:#x}, which is not aligned as declared; {_nearest(start, nbytes, ranges)}"
        )
    return f"{verb} {nbytes} bytes at {start:#x}: {_nearest(start, nbytes, ranges)}"


def _nearest(start: int, nbytes: int, ranges: Sequence[Range]) -> str:
    for r in ranges:
        if r.start <= start and start + nbytes <= r.start + r.nbytes:
            return f"in {r.name}, byte {start - r.start}" + ("" if r.rights & WRITE else ", which is only read")
    near = min(ranges, key=lambda r: min(abs(start - r.start), abs(start - r.start - r.nbytes)))
    return f"byte {start - near.start} of {near.name}, which has {near.nbytes}"


class Kernels(Protocol):
    """What runs kernels on the host."""

    def of(self, sources: Iterable[KernelSource]) -> Mapping[str, Any]:
        """What runs each kernel, by name, as a `HostModule` does."""


class HostKernels:
    """Kernels compiled for the host so far, by name; one that changed needs a new one of these."""

    def __init__(self) -> None:
        self._modules: dict[str, HostModule] = {}

    def of(self, sources: Iterable[KernelSource]) -> dict[str, HostModule]:
        """The module of each kernel, by name."""
        wanted = {s.name: s for s in sources}
        missing = [s for s in wanted.values() if s.name not in self._modules]
        if missing:
            module = HostModule(missing)
            self._modules.update({s.name: module for s in missing})
        return {name: self._modules[name] for name in wanted}


def _memory(nbytes: int) -> np.ndarray:
    """Aligned memory that holds NaN."""
    raw = np.full(nbytes + _ALIGN, 0xFF, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + nbytes]


def run_plan(
    plan: ExecutionPlan,
    inputs: Sequence[np.ndarray],
    consts: Sequence[np.ndarray] = (),
    *,
    order: Order = "ascending",
    kernels: Kernels | None = None,
    launches: Sequence[Launch] | None = None,
    races: bool = True,
    capability: str = "9.0",
) -> Report:
    """Run a plan's CUDA launches for a capability on the host (or others instead, to see that what is wrong is caught).

    ``races``: look for them, which takes 32 bytes for each byte that is written, and time.
    """
    launches = launches_of(plan, capability) if launches is None else launches
    modules = (kernels or HostKernels()).of(x.source for x in every(launches) if not x.inside)
    memory, rights = _place(plan, inputs, consts)
    arena, waiting = _memory(plan.arena_bytes), _memory(plan.host_arena_bytes)
    for b in plan.buffers:
        if b.in_arena:
            assert b.offset is not None
            memory[b.id], rights[b.id] = arena[b.offset : b.offset + b.nbytes], READ | WRITE
        if b.kind == "host":
            memory[b.id], rights[b.id] = waiting[b.offset or 0 :][: b.nbytes], READ | WRITE
    memory[SCRATCH] = _memory(max((x.scratch for x in launches), default=0))
    rights[SCRATCH] = READ | WRITE
    shadows = _Shadows(
        [arena, waiting, memory[SCRATCH], *(memory[i] for i in rights if rights[i] & WRITE)] if races else []
    )
    violations: list[Violation] = []
    numbers = {id(x): i for i, x in enumerate(every(launches))}

    def run(launch: Launch) -> None:
        words = np.array(launch.words, np.int64)
        for word, buffer, distance in launch.addresses:
            words[word] = memory[buffer].ctypes.data + distance
        if launch.inside:
            while conditional_nodes.holds(words):
                for x in launch.inside:
                    run(x)
                if not launch.repeats:
                    return
            return
        ranges = [Range("args", words.ctypes.data, words.nbytes, READ)]
        if launch.scratch:
            start = memory[SCRATCH].ctypes.data
            ranges.append(Range("scratch memory", start, launch.scratch, READ | WRITE, shadows.of(start)))
        for spans, most in ((launch.writes, READ | WRITE), (launch.reads, READ)):
            for i, low, high, *_ in spans:
                if i >= 0 and low < high:
                    start = memory[i].ctypes.data + low
                    ranges.append(Range(f"b{i}", start, high - low, rights[i] & most, shadows.of(start)))
        name = launch.source.name
        found = modules[name].run(
            name, words.ctypes.data, launch.grid, launch.threads, ranges, order, launch.shared, races
        )
        violations.extend(Violation(numbers[id(launch)], name, block, thread, text) for block, thread, text in found)

    for launch in launches:
        run(launch)
    outputs = [
        memory[out].view(aval.dtype).reshape(aval.shape).copy()
        for out, aval in zip(plan.outputs, plan.out_avals, strict=True)
    ]
    return Report(outputs, violations)


class _Shadows:
    """Shadows of memory that kernels write, for all launches of a run."""

    def __init__(self, written: Iterable[np.ndarray]) -> None:
        self._found: dict[int, tuple[int, np.ndarray]] = {}
        for x in written:
            if x.nbytes and x.ctypes.data not in self._found:
                self._found[x.ctypes.data] = x.nbytes, np.zeros(x.nbytes * host_runtime.SHADOW_BYTES, np.uint8)

    def of(self, address: int) -> int:
        """The shadow of an address; 0 for memory that has none."""
        for start, (nbytes, shadow) in self._found.items():
            if start <= address < start + nbytes:
                return shadow.ctypes.data + (address - start) * host_runtime.SHADOW_BYTES
        return 0


def _place(
    plan: ExecutionPlan, inputs: Sequence[np.ndarray], consts: Sequence[np.ndarray]
) -> tuple[dict[int, np.ndarray], dict[int, int]]:
    """Memory, and what may be done with it, for all buffers but the temporary ones."""
    memory: dict[int, np.ndarray] = {}
    rights: dict[int, int] = {}
    for number, value in zip((*plan.inputs, *plan.consts), (*inputs, *consts), strict=True):
        buffer = plan.buffers[number]
        if np.iscomplexobj(value):  # plans know both parts, along a last axis
            value = np.stack([value.real, value.imag], -1)
        value = np.asarray(value, buffer.aval.dtype, order="C")
        if value.shape != tuple(buffer.aval.shape):
            raise ValueError(f"b{number} has shape {tuple(buffer.aval.shape)}, not {value.shape}")
        memory[number] = _memory(value.nbytes)
        memory[number][:] = value.reshape(-1).view(np.uint8)
        rights[number] = READ
    for buffer in plan.buffers:
        if buffer.kind == "output" or buffer.alias is not None:
            if buffer.alias is None:
                memory[buffer.id] = _memory(buffer.nbytes)
            else:
                memory[buffer.id] = memory[buffer.alias][: buffer.nbytes]
                rights[buffer.alias] = READ | WRITE
            rights[buffer.id] = READ | WRITE
    return memory, rights


__all__ = ["HostKernels", "HostModule", "Range", "Report", "Violation", "run_plan"]
