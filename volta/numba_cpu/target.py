"""The machine that kernels are compiled for: everything Volta asks of Numba's code generator is asked here.

Kernels arrive as LLVM IR that is already vectorised, so Volta does not go through Numba's Python front end (the first
``@njit`` of a process costs 0.3 s, each further one 35 ms).  It uses the layer underneath: Numba's ``JITCPUCodegen``,
which owns the target machine and the execution engine, with a pass pipeline cut to what such IR needs.
"""

import ctypes
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import attrs
import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite.binding import ffi
from numba.core.codegen import JITCPUCodegen

from volta.core.locks import free_in_children
from volta.emit.jobs import shielded
from volta.emit.llvm_lanes import unlocked

PIPELINE = "sroa,instcombine,simplifycfg"
"""Name of the pass pipeline: see `_optimise`."""

_config: Any = numba.config  # its settings are set at run time, so they have no declared types
_configured = False
_configure_lock = threading.RLock()
free_in_children(globals(), "_configure_lock")


def configure() -> None:
    """Point Numba at this machine's full vector width; done once, before the first compilation.

    LLVM's defaults for many AVX-512 machines prefer 256-bit registers.  A user's own ``NUMBA_CPU_NAME`` or
    ``NUMBA_CPU_FEATURES`` is left alone.
    """
    global _configured
    with _configure_lock:
        if _configured:
            return
        _configured = True
        if _config.CPU_NAME is not None or _config.CPU_FEATURES is not None:
            return
        features = llvm.get_host_cpu_features()
        if features.get("avx512f") and _config.ENABLE_AVX:
            _config.CPU_NAME = llvm.get_host_cpu_name()
            _config.CPU_FEATURES = features.flatten() + ",-prefer-256-bit"


@attrs.frozen
class Machine:
    """What kernels are compiled for: LLVM's triple, processor name and feature string."""

    triple: str
    cpu_name: str
    features: str

    def has(self, feature: str) -> bool:
        """Whether LLVM may use a feature, such as ``"avx512f"`` or ``"fma"``."""
        state = False
        for item in self.features.split(","):  # the last word on a feature counts, as in LLVM
            if item[1:] == feature:
                state = item[0] == "+"
        return state

    @functools.cached_property
    def vector_bits(self) -> int:
        """The width of the widest vector registers that kernels should use: 512, 256 or 128."""
        if not is_x86():
            return 128
        if not self.has("prefer-256-bit") and all(self.has(f) for f in ("avx512f", "avx512vl", "avx512dq")):
            return 512
        return 256 if self.has("avx2") else 128


@functools.cache
@shielded
def host() -> Machine:
    """The machine of this process."""
    triple, cpu_name, features = new_codegen("volta.probe").magic_tuple()
    return Machine(triple, cpu_name, features)


_made_for: ContextVar[Machine | None] = ContextVar("made_for", default=None)


def machine() -> Machine:
    """The machine that kernels are being made for: this process's own, but within `made_for`."""
    return _made_for.get() or host()


@contextmanager
def made_for(other: Machine) -> Iterator[None]:
    """Inside the block this thread emits and compiles for another machine of the same architecture, to be run there."""
    before = _made_for.set(other)
    try:
        yield
    finally:
        _made_for.reset(before)


_V2 = "+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
LEVELS = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl,-prefer-256-bit",
}
"""Processors that kernels may be made for elsewhere: the levels of x86-64, each with the features that it promises."""


def named(name: str) -> Machine:
    """A machine like this one with a processor of a level."""
    return Machine(host().triple, name, LEVELS[name])


@functools.cache
def is_x86() -> bool:
    """Whether this is an x86-64 machine (the other one supported is aarch64)."""
    return host().triple.split("-")[0] in ("x86_64", "amd64")


def vector_bits() -> int:
    """The width of the widest vector registers that kernels should use: 512, 256 or 128."""
    return machine().vector_bits


@functools.cache
def has_byte_products() -> bool:
    """Whether one instruction adds up the products of four unsigned and four signed bytes, in each lane."""
    return is_x86() and all(machine().has(f) for f in ("avx512vnni", "avx512vl"))


def available_processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def toolchain(here: Machine) -> dict[str, str]:
    """The versions and machine facts that decide which machine code comes out of a kernel's IR."""
    return {
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "triple": here.triple,
        "cpu": here.cpu_name,
        "features": here.features,
        "pipeline": PIPELINE,
        "opt": str(int(_config.OPT)),
    }


def new_codegen(name: str) -> JITCPUCodegen:
    """A fresh code generator with an execution engine of its own (0.5 ms), so that units never share symbols."""
    configure()
    return JITCPUCodegen(name)


def _parse(text: str, codegen: JITCPUCodegen) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.triple = host().triple
    module.data_layout = str(codegen.target_data)
    module.verify()
    return module


def _optimise(module: llvm.ModuleRef, generator: llvm.TargetMachine) -> None:
    """Run the clean-up passes over every function of `module`, in place.

    Registers for stack slots, instruction combining, simpler control flow: kernels arrive as loops over vectors with
    their invariants in front, and the code generator itself still merges common subexpressions, hoists invariants,
    reduces strength and schedules.  LLVM's O1 and O2 took three and four times as long and gave kernels of the same
    speed.  Nothing here reassociates or contracts floating-point arithmetic.

    What they leave is verified (0.5% of the time): the code generator would end the process at invalid code, or make
    something of it.
    """
    builder = llvm.create_pass_builder(generator, llvm.create_pipeline_tuning_options(1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            unlocked("LLVMPY_RunNewFunctionPassManager", passes, function, builder)
    try:
        module.verify()
        return
    except RuntimeError as error:
        message = str(error)
    # Not raised in the handler: the error that it follows would hold the module, maybe for longer than its context is.
    raise RuntimeError(f"LLVM's passes left invalid code: {message}")


@shielded
def compile_object(text: str, other: Machine | None = None) -> bytes:
    """LLVM IR text to machine code, as a relocatable object file, for this machine or another one like it.

    May be called by several threads at once: the two long calls are made without llvmlite's lock.
    """
    codegen = new_codegen("volta.compile")
    codegen._check_llvm_bugs()
    generator = codegen._tm if other in (None, host()) else _generator(other)
    module = _parse(text, codegen)
    _optimise(module, generator)
    return _emitted(module, generator)


def _generator(other: Machine) -> llvm.TargetMachine:
    """What Numba's code generator has for this machine, for another one."""
    return llvm.Target.from_triple(other.triple).create_target_machine(
        other.cpu_name, other.features, opt=int(_config.OPT), reloc="static" if is_x86() else "default",
        codemodel="jitdefault", jit=True,
    )  # fmt: skip


@shielded
def compile_shared(texts: Sequence[str], exports: Sequence[str]) -> tuple[bytes, set[str]]:
    """LLVM IR texts to one object file for a shared library, which defines the named functions and hides all others.

    Returns it with the names of the functions that it needs from elsewhere.
    """
    here, context = machine(), llvm.create_context()
    generator = llvm.Target.from_triple(here.triple).create_target_machine(
        here.cpu_name, here.features, opt=3, reloc="pic", codemodel="default"
    )
    module, *others = (llvm.parse_assembly(text, context=context) for text in texts)
    for other in others:
        module.link_in(other)
    module.triple, module.data_layout = here.triple, str(generator.target_data)
    module.verify()
    needed = set()
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "external" if function.name in exports else "internal"
        elif not function.name.startswith("llvm."):
            needed.add(function.name)
    _optimise(module, generator)
    return _emitted(module, generator), needed


def _emitted(module: llvm.ModuleRef, generator: llvm.TargetMachine) -> bytes:
    with ffi.OutputString() as error:
        memory = unlocked("LLVMPY_TargetMachineEmitToMemory", generator, module, 1, error)
        if not memory:
            raise RuntimeError(f"LLVM could not generate code: {error}")
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


@shielded
def optimised_ir(text: str) -> str:
    """LLVM IR text after the passes that kernels go through."""
    codegen = new_codegen("volta.inspect")
    module = _parse(text, codegen)
    _optimise(module, codegen._tm)
    return str(module)


@shielded
def assembly(text: str) -> str:
    """The assembly text that LLVM IR text becomes."""
    codegen = new_codegen("volta.inspect")
    module = _parse(text, codegen)
    _optimise(module, codegen._tm)
    return codegen._tm.emit_assembly(module)


_unused: deque[JITCPUCodegen] = deque()
"""What owns machine code that nobody needs any more."""


class MachineCode:
    """Object files made executable; ``addresses`` are those of the named functions.

    The code is freed after the last reference is gone, by the next `free_unused`: a destructor may run anywhere, within
    LLVM or on the interpreter's way out, when threads may still be in the code.
    """

    __slots__ = ("__del__", "__weakref__", "_owner", "addresses")
    __del__: Callable[[], None]

    @shielded
    def __init__(self, objects: Iterable[bytes], names: Iterable[str]) -> None:
        self._owner = new_codegen("volta.unit")  # its engine owns the code
        self.__del__ = partial(_unused.append, self._owner)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._owner))
        engine = self._owner._engine._ee
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self.addresses = {name: engine.get_function_address(name) for name in names}


def free_unused() -> int:
    """Free the machine code that nobody needs any more; returns of how many units."""
    return _free() if _unused else 0


@shielded
def _free() -> int:
    count = 0
    while _unused:
        owner = _unused.popleft()
        owner._engine._ee.close()
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(owner))
        count += 1
    return count
