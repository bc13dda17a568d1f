"""Programs for C: a shared library and its header, without Python and without allocation."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from volta.core import contract, dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import ArgumentError, DeviceError, UnsupportedOperationError
from volta.core.ir import ClosedJaxpr
from volta.core.replacing import replacing
from volta.core.source import at_user_line
from volta.runtime import gateway
from volta.version import __version__
from volta.xla_like.keys import without_keys

_TYPES = {
    dtypes.bool_: "uint8_t", dtypes.float16: "uint16_t", dtypes.bfloat16: "uint16_t", dtypes.float32: "float",
    dtypes.float64: "double", dtypes.complex64: "float", dtypes.complex128: "double",
    **{d: f"{d.name}_t" for d in dtypes.INTEGERS},
}  # fmt: skip
_MEANING = {
    dtypes.bool_: "0 or 1", dtypes.float16: "bits of half floats", dtypes.bfloat16: "bits of bfloat16",
    dtypes.complex64: "real and imaginary parts", dtypes.complex128: "real and imaginary parts",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "alignas alignof bool constexpr false nullptr static_assert thread_local true typeof workspace".split()
)

HEADER = """\
/* {name}: a program of Volta {version}, bit contract {contract}.
 *
 * Compiled for {target}. It keeps no state and allocates nothing: any number of threads may call it at once, each with
 * a workspace of its own, of {macro}_WORKSPACE_BYTES bytes at a multiple of 64. Arrays are contiguous in row-major
 * order and aligned to their elements; results lie apart from arguments and from each other. Returns 0.
 */
#ifndef VOLTA_{macro}_H
#define VOLTA_{macro}_H

#include <stdint.h>

#define {macro}_WORKSPACE_BYTES {workspace}

#ifdef __cplusplus
extern "C" {{
#endif

int32_t {name}(
{parameters}
    void *workspace);

#ifdef __cplusplus
}}
#endif

#endif
"""


@attrs.frozen
class LibraryFiles:
    """Where a program's C library is; a call of it needs ``workspace_bytes``."""

    header: Path
    library: Path
    workspace_bytes: int


def write_library(
    program: ClosedJaxpr, name: str, inputs: Sequence[str], outputs: Sequence[str], folder: str | Path, cc: str
) -> LibraryFiles:
    """Write ``name.h`` and ``libname.so``; ``inputs`` and ``outputs`` say how leaves are written in Python. Random keys
    are their words in C."""
    program = without_keys(program)
    if not _WORD.match(name) or name in _RESERVED:
        raise ArgumentError(at_user_line(f"save_library: {name!r} is no name of a function in C; pass name="))
    linker = shutil.which(cc)
    if linker is None:
        raise DeviceError(at_user_line(f"save_library: there is no C compiler {cc!r} to link with; pass cc="))
    if any(0 in a.shape for a in (*program.in_avals, *program.out_avals)):
        raise UnsupportedOperationError(at_user_line("save_library: an array without elements has no address in C"))
    library = gateway.c_library(program, name)
    with tempfile.TemporaryDirectory() as scratch:
        code, linked = Path(scratch, "code.o"), Path(scratch, "linked.so")
        code.write_bytes(library.code)
        done = subprocess.run([linker, "-shared", "-o", linked, code], capture_output=True, text=True)
        if done.returncode:
            raise DeviceError(at_user_line(f"save_library: {cc} could not link the library:\n{done.stderr[-2000:]}"))
        data = linked.read_bytes()
    header = HEADER.format(
        name=name, macro=name.upper(), version=__version__, contract=contract.ID, target=library.target,
        workspace=library.workspace_bytes, parameters="\n".join(_parameters(program, inputs, outputs)),
    )  # fmt: skip
    files = LibraryFiles(Path(folder, f"{name}.h"), Path(folder, f"lib{name}.so"), library.workspace_bytes)
    for path, content in ((files.header, header.encode()), (files.library, data)):
        with replacing(str(path)) as file:
            file.write(content)
    return files


def _parameters(program: ClosedJaxpr, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    names = _identifiers([*inputs, *outputs])
    lines = []
    for i, (aval, name) in enumerate(zip([*program.in_avals, *program.out_avals], names, strict=True)):
        const = "const " if i < len(inputs) else ""
        meaning = f", {_MEANING[aval.dtype]}" if aval.dtype in _MEANING else ""
        lines.append(f"    {const}{_TYPES[aval.dtype]} *{name}, /* {_shape(aval)}{meaning} */")
    return lines


def _shape(aval: ShapedArray) -> str:
    return f"{dtypes.short_name(aval.dtype)}[{', '.join(map(str, aval.shape))}]"


def _identifiers(paths: Sequence[str]) -> list[str]:
    """Paths of leaves as names in C, each another."""
    found: list[str] = []
    for path in paths:
        word = re.sub(r"[^A-Za-z0-9]+", "_", path).strip("_") or "x"
        word = word if _WORD.match(word) and word not in _RESERVED else f"x_{word}"
        while word in found:
            word += "_"
        found.append(word)
    return found
