"""Functions compiled for GPUs where there is none: PTX and cubin for named compute capabilities, to files.

    from volta import offline

    done = offline.compile_functions([offline.Function(predict, (params, x))], ["8.0", "9.0"], cubin=True)
    offline.write_files("kernels", done)

The command `volta offline` does the same. PTX needs neither a GPU nor a driver nor any of NVIDIA's packages; cubins
need nvJitLink (``pip install 'volta[offline]'``). The same function gives the same PTX, byte for byte, in any process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import llvmlite
import llvmlite.binding as llvm

from volta.api.arguments import name_of
from volta.api.tracing import make_jaxpr
from volta.core import contract, dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.offline import CAPABILITIES, Compiled, compile_plan
from volta.runtime import gateway
from volta.version import __version__
from volta.xla_like.plan import ExecutionPlan

MANIFEST = "manifest.json"


@attrs.frozen
class Function:
    """A function to compile, for arguments of these shapes: pytrees of arrays or ShapeDtypeStruct.

    ``donated`` are positions among the leaves of the arguments whose memory results may take over.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str = attrs.field(default=attrs.Factory(lambda self: name_of(self.function), takes_self=True))
    donated: tuple[int, ...] = ()


@attrs.frozen
class CompiledFunction:
    """A function's plan on a GPU, and its kernels for each compute capability."""

    name: str
    plan: ExecutionPlan
    constants: tuple[Any, ...] = attrs.field(repr=False)
    targets: tuple[Compiled, ...]


def plan_on_cuda(program: ClosedJaxpr, name: str = "main", donated: Sequence[int] = ()) -> tuple[ExecutionPlan, Any]:
    """The plan that a program has on a GPU at the context's determinism level, and its constants."""
    plan, program = gateway.plan_on_cuda(program, name, donated)
    return plan, program.consts


def compile_functions(
    functions: Iterable[Function], capabilities: Sequence[str] = CAPABILITIES, *, cubin: bool = False
) -> list[CompiledFunction]:
    """Compile functions to PTX (and ``cubin``) for compute capabilities, without a GPU.

    Raises:
        UnsupportedOperationError: a function has an operation without a CUDA kernel.
        DeviceError: there is no nvJitLink for a cubin.
        ValueError: an unknown capability, or two functions of one name.
    """
    done: dict[str, CompiledFunction] = {}
    for f in functions:
        if f.name in done:
            raise ValueError(f"two functions are named {f.name!r}: give one of them another name")
        plan, constants = plan_on_cuda(make_jaxpr(f.function)(*f.args), f.name, f.donated)
        targets = tuple(compile_plan(plan, capabilities, cubin=cubin))
        done[f.name] = CompiledFunction(f.name, plan, tuple(constants), targets)
    return list(done.values())


def manifest(functions: Iterable[CompiledFunction]) -> dict[str, Any]:
    """What the files of functions hold, as plain data."""
    return {
        "volta": __version__,
        "contract": contract.ID,
        "toolchain": {"llvmlite": llvmlite.__version__, "llvm": ".".join(map(str, llvm.llvm_version_info))},
        "functions": [_entry(f) for f in functions],
    }


def _entry(f: CompiledFunction) -> dict[str, Any]:
    plan = f.plan
    return {
        "name": f.name,
        "level": plan.level.value,
        "inputs": [_shape(plan.buffers[i].aval) for i in plan.inputs],
        "constants": [_shape(plan.buffers[i].aval) for i in plan.consts],
        "outputs": [_shape(a) for a in plan.out_avals],
        "bytes": plan.bytes_by_class(),
        "targets": [_target(f.name, x) for x in f.targets],
    }


def _shape(aval: ShapedArray) -> str:
    return f"{dtypes.short_name(aval.dtype)}[{','.join(map(str, aval.shape))}]"


def _target(name: str, x: Compiled) -> dict[str, Any]:
    processor, version = ptx.CAPABILITIES[x.capability]
    found: dict[str, Any] = {"ptx": _file(name, x, "ptx", x.ptx.encode())}
    found["ptx"]["version"] = f"{version // 10}.{version % 10}"
    if x.cubin is not None:
        found["cubin"] = _file(name, x, "cubin", x.cubin) | {"nvjitlink": x.assembler}
    found["kernels"] = {k: attrs.asdict(x.resources[k]) if k in x.resources else {} for k in x.kernels}
    return {"capability": x.capability, "processor": processor, **found} | {
        "launches": [attrs.asdict(launch) for launch in x.launches]
    }


def _file(name: str, x: Compiled, kind: str, data: bytes) -> dict[str, Any]:
    return {"file": file_name(name, x, kind), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def file_name(name: str, x: Compiled, kind: str) -> str:
    """The name of a file: ``predict.sm_90.ptx``."""
    return f"{name}.{ptx.CAPABILITIES[x.capability][0]}.{kind}"


def write_files(folder: str | Path, functions: Sequence[CompiledFunction]) -> Path:
    """Write PTX, cubins where there are any, and the manifest, whose path is returned."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for f in functions:
        for x in f.targets:
            (folder / file_name(f.name, x, "ptx")).write_bytes(x.ptx.encode())
            if x.cubin is not None:
                (folder / file_name(f.name, x, "cubin")).write_bytes(x.cubin)
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest(functions), indent=1) + "\n")
    return path


__all__ = [
    "CAPABILITIES", "Compiled", "CompiledFunction", "Function", "compile_functions", "manifest", "plan_on_cuda",
    "write_files",
]  # fmt: skip
