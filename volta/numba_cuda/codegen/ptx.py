"""From LLVM IR to PTX, by the NVPTX target of Numba's LLVM; no GPU and no driver are needed.

Numba's CUDA package would compile through NVVM, which contracts products and sums unless told otherwise and needs the
toolkit's library. LLVM's own NVPTX target contracts nothing that is not marked, writes the rounding of every operation
(``.rn``), which binds the assembler as well, and is the LLVM that compiles the CPU's kernels.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence

import attrs
import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.binding import ffi

from volta.emit.jobs import shielded
from volta.emit.llvm_lanes import unlocked
from volta.emit.module_text import text_of
from volta.numba_cuda.codegen.threads import by_value_entry, merge_entry

TRIPLE = "nvptx64-nvidia-cuda"

CAPABILITIES = {
    "7.0": ("sm_70", 63), "7.5": ("sm_75", 63), "8.0": ("sm_80", 70), "8.6": ("sm_86", 71), "8.9": ("sm_89", 78),
    "9.0": ("sm_90", 78), "9.0a": ("sm_90a", 83),
}  # fmt: skip
"""Compute capabilities, each with its target and the version of PTX that is written for it.

9.0a is 9.0 with Hopper's own instructions: such kernels run on GPUs of just this capability.
"""

_SINCE = {"9.0a": 12030}
"""Versions of CUDA that read the PTX of a capability, as drivers count them, where the oldest of them do not."""

_SHARED = {"7.0": 96, "7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227}
"""KiB of shared memory that a block of threads may have."""

_FORBIDDEN = (
    (re.compile(r"\.approx\b"), "an approximate operation"),
    (re.compile(r"\.ftz\b"), "an operation that flushes subnormals"),
    (re.compile(r"\b(?:mad|fma)\.(?!rn\b|lo\b|hi\b|wide\b|rn\.)[a-z.]*f\d\d"), "a multiply-add of unstated rounding"),
    (re.compile(r"\b(?:add|sub|mul)\.f(?:16|32|64)\b"), "an operation that the assembler may contract"),
    (re.compile(r"\bdiv\.(?!rn\.)[a-z.]*f(?:32|64)\b"), "a division that is not correctly rounded"),
    (re.compile(r"\bsqrt\.(?!rn\.)[a-z.]*f(?:32|64)\b"), "a square root that is not correctly rounded"),
    (re.compile(r"\b(?:atom|red)\.[a-z.]*\.(?:f16|bf16|f32|f64)"), "an atomic operation on floats"),
)


@attrs.frozen
class KernelSource:
    """A kernel to compile: its symbol, its canonical text, and what adds it to a module.

    Where it is linked with PTX, its text tells of that too, and ``linked`` gives it, for kernels that are compiled. It
    may be all there is of the kernel: ``build`` is None then.
    """

    name: str
    text: str
    build: Callable[[ir.Module, str], object] | None = attrs.field(eq=False, repr=False)
    linked: Callable[[], Sequence[str]] | None = attrs.field(default=None, eq=False, repr=False)

    def add_to(self, module: ir.Module, name: str) -> None:
        """Add the kernel to a module, under a name."""
        if self.build is not None:
            self.build(module, name)

    def linked_texts(self) -> Sequence[str]:
        """The PTX that it is linked with."""
        return () if self.linked is None else self.linked()

    def for_many(self) -> KernelSource:
        """The same kernel for merged launches: its blocks find their call's args in a table."""

        def build(module: ir.Module, name: str) -> None:
            self.add_to(module, name)
            merge_entry(module, name)

        return KernelSource(f"{self.name}_many", self.text, build, self.linked)

    def by_value(self, words: int) -> KernelSource:
        """The same kernel, given its args themselves and not their address: launched with no memory of their own."""

        def build(module: ir.Module, name: str) -> None:
            self.add_to(module, name)
            by_value_entry(module, name, words)

        return KernelSource(f"{self.name}_v{words}", self.text, build, self.linked)


def _target_machine(capability: str) -> llvm.TargetMachine:
    if capability not in CAPABILITIES:
        raise ValueError(f"no compute capability {capability!r}; there is {', '.join(CAPABILITIES)}")
    _initialize()
    name, version = CAPABILITIES[capability]
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=name, features=f"+ptx{version}", opt=3)


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
@shielded
def _data_layout(capability: str) -> str:
    return str(_target_machine(capability).target_data)


def level_of(capability: str) -> tuple[int, int]:
    """A capability as numbers: '8.9' is (8, 9)."""
    major, minor = capability.rstrip("a").split(".")
    return int(major), int(minor)


def shared_of(capability: str) -> int:
    """Bytes of shared memory that a block of threads may have on a device of a capability."""
    return _SHARED[capability.rstrip("a")] << 10


def best_for(major: int, minor: int, shared: int | None = None, driver: int | None = None) -> str:
    """The newest capability that a device can run, if it has so many bytes of shared memory for a block of threads and
    a driver that knows this version of CUDA.

    Raises ``ValueError`` if the device is too old.
    """
    own = f"{major}.{minor}a"
    if own in CAPABILITIES and (driver is None or driver >= _SINCE[own]):
        return own
    plain = [c for c in CAPABILITIES if c[-1] != "a" and level_of(c) <= (major, minor)]
    known = [c for c in plain if shared is None or shared_of(c) <= shared]
    if not known:
        raise ValueError(f"compute capability {major}.{minor} is older than {next(iter(CAPABILITIES))}")
    return known[-1]


def emit_module(sources: Iterable[KernelSource], capability: str) -> ir.Module:
    """The kernels as one LLVM module."""
    module = ir.Module(f"volta.cuda {capability}")  # operations that need a capability read it off the name
    module.triple = TRIPLE
    module.data_layout = _data_layout(capability)
    for source in sources:
        source.add_to(module, source.name)
    return module


def emit_text(sources: Iterable[KernelSource], capability: str) -> str:
    """The kernels as the text of one LLVM module."""
    return text_of(emit_module(sources, capability))


def compile_ptx(sources: Iterable[KernelSource], capability: str = "9.0") -> str:
    """The kernels as PTX text for a compute capability."""
    return assemble(emit_text(sources, capability), capability)


def workers(count: int) -> int:
    """How many threads to share so much work: one for each processor that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, allowed))


@shielded
def assemble(text: str, capability: str) -> str:
    """LLVM IR text as PTX text.

    May be called by several threads at once: the two long calls are made without llvmlite's lock.
    """
    machine = _target_machine(capability)
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes = builder.getModulePassManager()
    unlocked("LLVMPY_RunNewModulePassManager", passes, module, builder)
    with ffi.OutputString() as error:
        memory = unlocked("LLVMPY_TargetMachineEmitToMemory", machine, module, 0, error)
        if not memory:
            raise RuntimeError(f"LLVM could not generate PTX: {error}")
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory)
        return ctypes.string_at(start, size).decode()
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


def violations(ptx: str) -> list[str]:
    """What breaks the rules of strict kernels in a PTX text: one line for each instruction."""
    found = []
    for number, line in enumerate(ptx.splitlines(), 1):
        code = line.split("//")[0]
        found += [f"line {number}: {why}: {code.strip()}" for pattern, why in _FORBIDDEN if pattern.search(code)]
    return found
