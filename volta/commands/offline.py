"""Compile functions to GPU kernels, as PTX and cubin files with a manifest, where there is no GPU and no driver.

    volta offline 'model.py:predict(f32[8,128], i32[8])' --capability 8.0 9.0 --out kernels
    volta offline --cubin 'a=model.py:step(f32[64])' 'package.module:loss(f32[3], bf16[])' model.py:FUNCTIONS

A target is a file or module, and a function in it with the shapes of its arguments; or the name of a
`volta.offline.Function` (or of a list of these), whose arguments may be any pytrees. PTX needs nothing but Volta;
cubins need NVIDIA's nvJitLink: pip install 'volta[offline]'.
"""

from __future__ import annotations

import argparse
import inspect
import os
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from volta import offline
from volta.api.arguments import ShapeDtypeStruct
from volta.core import dtypes
from volta.core.errors import VoltaError
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.codegen import ptx
from volta.runtime.context import execution_context

_TARGET = re.compile(r"(?:(?P<name>\w+)=)?(?P<where>[^()=]+):(?P<item>\w+)(?:\((?P<args>.*)\))?\Z")
_ARGUMENT = re.compile(r"\s*(\w+)\[([\d,\s]*)\]\s*(?:,|\Z)")
_DTYPES = {dtypes.short_name(d): d for d in dtypes.ALL}


class TargetError(VoltaError, ValueError):
    """A target of `volta offline` that cannot be read or found."""


class FilesError(VoltaError, OSError):
    """The files of `volta offline` cannot be written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="[NAME=]FILE_OR_MODULE:FUNCTION(SHAPE, …)")
    parser.add_argument(
        "--capability", nargs="+", default=list(offline.CAPABILITIES), metavar="X.Y",
        help=f"of {', '.join(ptx.CAPABILITIES)} (default: {' '.join(offline.CAPABILITIES)})",
    )  # fmt: skip
    levels = [x.value for x in DeterminismLevel]
    parser.add_argument("--level", choices=levels, default="strict", help="of determinism (default: strict)")
    parser.add_argument("--cubin", action="store_true", help="machine code as well, by NVIDIA's nvJitLink")
    parser.add_argument("--out", type=Path, default=Path("kernels"), help="folder for the files (default: kernels)")


def run(options: argparse.Namespace) -> int:
    # argparse takes what follows `--capability 9.0` for more capabilities; a target has a colon, they have none.
    targets = [*options.targets, *(x for x in options.capability if ":" in x)]
    capabilities = [x for x in options.capability if ":" not in x]
    unknown = [c for c in capabilities if c not in ptx.CAPABILITIES]
    if unknown or not capabilities:
        asked = ", ".join(unknown) or "is named behind --capability"
        raise TargetError(f"no compute capability {asked}; there are {', '.join(ptx.CAPABILITIES)}")
    if not targets:
        raise TargetError("nothing to compile: name FILE_OR_MODULE:FUNCTION(f32[2,3], …)")
    functions = [f for target in targets for f in functions_of(target)]
    _check_names(functions)
    _check_folder(options.out)  # before the work, which would be lost
    with execution_context(level=options.level):
        done = offline.compile_functions(functions, capabilities, cubin=options.cubin)
    try:
        path = offline.write_files(options.out, done)
    except OSError as error:
        raise FilesError(f"the files cannot be written: {error}") from None
    for f in done:
        print(f"{f.name}: {len(f.targets[0].launches)} launches of {len(f.targets[0].kernels)} kernels")
        for x in f.targets:
            if x.cubin is not None:
                most = max((r.registers for r in x.resources.values()), default=0)
                spilled = sum(r.spill_stores > 0 for r in x.resources.values())
                print(f"  {x.capability}: {len(x.cubin):,} bytes of code, at most {most} registers, {spilled} spill")
            else:
                print(f"  {x.capability}: {len(x.ptx):,} bytes of PTX")
    print(path)
    return 0


def _check_folder(folder: Path) -> None:
    """Raise FilesError where there is no such folder and none can be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise FilesError(f"the files cannot be written: {there} is no folder, or none to write in")


def _check_names(functions: list[offline.Function]) -> None:
    """Raise TargetError where two functions have one name, which is that of their files."""
    names = [f.name for f in functions]
    for name in names:
        if names.count(name) > 1:
            raise TargetError(
                f"two functions are named {name!r}: write NAME=FILE_OR_MODULE:FUNCTION(…), as in "
                f"other=model.py:{name}(f32[8]), or give the volta.offline.Function another name"
            )


def functions_of(target: str) -> list[offline.Function]:
    """The functions that a target names.

    Raises:
        TargetError: it is not written as a target is, or names nothing that can be compiled.
    """
    match = _TARGET.match(target)
    if not match:
        raise TargetError(f"{target!r} is no target; write FILE_OR_MODULE:FUNCTION(f32[2,3], …)")
    found = _load(match["where"]).get(match["item"])
    if match["args"] is not None:
        if not callable(found):
            raise TargetError(f"{match['where']} has no function {match['item']}")
        args = _arguments(match["args"])
        _check_arguments(match["item"], found, args)
        return [offline.Function(found, args, match["name"] or match["item"])]
    several = [found] if isinstance(found, offline.Function) else found
    if not isinstance(several, (list, tuple)) or not all(isinstance(f, offline.Function) for f in several):
        raise TargetError(f"{target!r} is no volta.offline.Function nor a list of these; a function needs shapes")
    if match["name"]:
        if isinstance(found, (list, tuple)):
            raise TargetError(f"{target!r} is a list: its functions have names of their own")
        return [attrs.evolve(several[0], name=match["name"])]
    return list(several)


def _check_arguments(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # functions of other languages need not say what they take
    try:
        signature.bind(*args)
    except TypeError as error:
        raise TargetError(f"{name}{signature} is given {len(args)} shapes: {error}") from None


def _load(where: str) -> dict[str, Any]:
    """The names that a file or module defines."""
    path = Path(where)
    if path.suffix == ".py":
        if not path.exists():
            raise TargetError(f"there is no file {where}")
        sys.path.insert(0, str(path.resolve().parent))
        return runpy.run_path(str(path))
    sys.path.insert(0, "")
    try:
        return vars(pkgutil.resolve_name(where))
    except (ImportError, AttributeError, ValueError) as error:
        raise TargetError(f"module {where} cannot be imported: {error}") from None


def _arguments(text: str) -> tuple[Any, ...]:
    """``f32[2,3], i32[]`` as shapes and dtypes."""
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _ARGUMENT.match(text, at)
        if not match or match[1] not in _DTYPES:
            raise TargetError(f"{text[at:]!r} is no list of shapes as f32[2,3], i32[]; dtypes: {', '.join(_DTYPES)}")
        shape = tuple(int(n) for n in match[2].split(",") if n.strip())
        found.append(ShapeDtypeStruct(shape, _DTYPES[match[1]]))
        at = match.end()
    return tuple(found)
