"""What commands are given: functions by file or module, name and shapes; and folders for what they write."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from volta import offline
from volta.api.arguments import ShapeDtypeStruct
from volta.core import dtypes
from volta.core.errors import VoltaError
from volta.core.sizes import symbolic_shape

_TARGET = re.compile(r"(?:(?P<name>\w+)=)?(?P<where>[^()=]+):(?P<item>\w+)(?:\((?P<args>.*)\))?\Z")
_ARGUMENT = re.compile(r"\s*(\w+)\[([\w,\s*+-]*)\]\s*(?:,|\Z)")
_DTYPES = {dtypes.short_name(d): d for d in dtypes.ALL}


class TargetError(VoltaError, ValueError):
    """A target of a command that cannot be read or found."""


class FilesError(VoltaError, OSError):
    """A command's files cannot be written."""


def check_folder(folder: Path) -> None:
    """Raise FilesError where there is no such folder and none can be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise FilesError(f"the files cannot be written: {there} is no folder, or none to write in")


def check_names(names: Sequence[str]) -> None:
    """Raise TargetError where two functions have one name, which is that of their files."""
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
    """``f32[2,3], i32[]`` as shapes and dtypes; sizes may be symbols: ``f32[b,3]``."""
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _ARGUMENT.match(text, at)
        if not match or match[1] not in _DTYPES:
            raise TargetError(f"{text[at:]!r} is no list of shapes as f32[2,3], i32[]; dtypes: {', '.join(_DTYPES)}")
        shape = symbolic_shape(match[2].strip().removesuffix(","))
        found.append(ShapeDtypeStruct(shape, _DTYPES[match[1]]))
        at = match.end()
    return tuple(found)
