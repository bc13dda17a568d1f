"""The machine that kernels are compiled for: everything Volta asks of Numba's code generator is asked here.

Kernels arrive as LLVM IR that is already vectorised, so Volta does not go through Numba's Python front end (the first
``@njit`` of a process costs 0.3 s, each further one 35 ms).  It uses the layer underneath: Numba's ``JITCPUCodegen``,
which owns the target machine and the execution engine, with a pass pipeline cut to what such IR needs.
"""

import functools
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.codegen import JITCPUCodegen

PIPELINE = "function-simplification-O1"
"""Name of the pass pipeline (part of the cache key): see `optimise`."""

_config: Any = numba.config  # its settings are set at run time, so they have no declared types
_configured = False
_configure_lock = threading.Lock()


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


@functools.cache
def machine() -> Machine:
    """The machine of this process."""
    triple, cpu_name, features = new_codegen("volta.probe").magic_tuple()
    return Machine(triple, cpu_name, features)


@functools.cache
def is_x86() -> bool:
    """Whether this is an x86-64 machine (the other one supported is aarch64)."""
    return machine().triple.split("-")[0] in ("x86_64", "amd64")


@functools.cache
def vector_bits() -> int:
    """The width of the widest vector registers that kernels should use: 512, 256 or 128."""
    here = machine()
    if is_x86() and not here.has("prefer-256-bit") and all(here.has(f) for f in ("avx512f", "avx512vl", "avx512dq")):
        return 512
    return 256 if is_x86() and here.has("avx2") else 128


def toolchain() -> dict[str, str]:
    """The versions and machine facts that decide which machine code comes out of a kernel's IR."""
    here = machine()
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


def parse(text: str, codegen: JITCPUCodegen) -> llvm.ModuleRef:
    """Parse and verify LLVM IR text for `codegen`'s machine."""
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.triple = machine().triple
    module.data_layout = str(codegen.target_data)
    module.verify()
    return module


def optimise(module: llvm.ModuleRef, codegen: JITCPUCodegen) -> None:
    """Run the scalar clean-up passes over every function of `module`, in place.

    The pipeline is LLVM's function simplification at O1: SROA and mem2reg, common subexpressions, instruction
    combining, control-flow simplification, loop-invariant code motion.  The loop and SLP vectorisers, unrolling and
    inlining are left out: kernels are emitted in vectors, and these passes were most of the compile time.  Nothing
    here reassociates or contracts floating-point arithmetic.
    """
    options = llvm.create_pipeline_tuning_options(1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(codegen._tm, options)
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def emit_object(module: llvm.ModuleRef, codegen: JITCPUCodegen) -> bytes:
    """Machine code of an optimised module, as a relocatable object file."""
    return codegen._tm.emit_object(module)


def emit_assembly(module: llvm.ModuleRef, codegen: JITCPUCodegen) -> str:
    """Assembly text of an optimised module."""
    return codegen._tm.emit_assembly(module)


def load_object(object_code: bytes, names: Iterable[str], codegen: JITCPUCodegen) -> dict[str, int]:
    """Make an object file executable in `codegen`'s engine; returns the address of each named function."""
    engine = codegen._engine._ee
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return {name: engine.get_function_address(name) for name in names}


def export_symbols(addresses: Mapping[str, int]) -> None:
    """Let units that are loaded later call these functions by name."""
    for name, address in addresses.items():
        llvm.add_symbol(name, address)
