"""Functions that Numba has compiled for users' kernels, kept on disk beside Volta's own kernels.

Their key is what they mean (`volta.emit.functions`), their types, and the versions of all that compiles them. A
function whose meaning cannot be told, or whose code holds an address of this process, is compiled anew in each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from numba.core import registry, serialize
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

from volta.emit import cache
from volta.emit.functions import digest_of
from volta.numba_cpu import unit


@attrs.frozen(eq=False)
class NativeFunction:
    """A function that Numba has compiled: its address, good as long as this is held, and the type that it returns."""

    address: int
    returns: str
    keep: Any = attrs.field(repr=False)


def native(dispatcher: Any, kinds: tuple[Any, ...], compile_it: Callable[[], Any]) -> NativeFunction:
    """A function for arguments of these Numba types, from disk if it is there; ``compile_it`` gives Numba's result."""
    key = _key(dispatcher, kinds)
    disk = cache.from_environment() if key else None
    if disk is not None and key is not None:
        stored = disk.load(unit.environment(), *key)
        if stored is not None and (found := _loaded(stored.objects[0])) is not None:
            return found
    result = compile_it()
    with global_compiler_lock:
        codegen, name = result.library.codegen, result.fndesc.llvm_func_name
        address = result.library.get_pointer_to_function(name)
        # What the code needs of Python: constants that it prints, classes of arguments of its exceptions.
        codegen.set_env(result.target_context.get_env_name(result.fndesc), result.environment)
        if disk is not None and key is not None and (data := _dumped(result)) is not None:
            disk.store(unit.environment(), cache.StoredUnit(dict([key]), (data,)))
    return NativeFunction(address, str(result.signature.return_type), result)


def _key(dispatcher: Any, kinds: tuple[Any, ...]) -> tuple[str, str] | None:
    """The function's name in the cache, and its text: all that decides its code beside the environment's toolchain."""
    digest = digest_of(dispatcher)
    if digest is None:
        return None
    versions = {"python": sys.version, "numpy": np.__version__}
    text = json.dumps({"function": digest, "types": [str(k) for k in kinds], **versions}, sort_keys=True)
    return f"volta_user_function_{hashlib.sha256(text.encode()).hexdigest()[:16]}", text


def _dumped(result: Any) -> bytes | None:
    if result.library.has_dynamic_globals:
        return None
    data, _, own, _, _, _, _, init, others = result._reduce()
    kept = {
        "library": data, "function": result.fndesc.llvm_func_name, "returns": str(result.signature.return_type),
        "init": init, "environments": {e.env_name: e for e in (own, *others)},
    }  # fmt: skip
    with contextlib.suppress(Exception):  # a class of the user's own that cannot be pickled, say
        return bytes(serialize.dumps(kept))
    return None


def _loaded(data: bytes) -> NativeFunction | None:
    """None where what the function refers to is not there: its module cannot be imported by its name."""
    try:
        kept = serialize.loads(data)
    except Exception:
        return None
    for prepare in kept["init"]:
        prepare()
    with global_compiler_lock:
        context = registry.cpu_target.target_context
        rtsys.initialize(context)
        library = context.codegen().unserialize_library(kept["library"])
        address = library.get_pointer_to_function(kept["function"])
        for name, environment in kept["environments"].items():
            library.codegen.set_env(name, environment)
    return NativeFunction(address, kept["returns"], (library, kept))
