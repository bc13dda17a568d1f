"""Kernels that Numba has compiled, kept on disk beside those of LLVM: Numba's own form, under Volta's key and seal.

The key is the kernel's own text, the source of the layers that make Python of it, and the versions of what compiles
that. What is loaded runs as this user, so it lies where only this user can write, and is signed (`volta.emit.cache`).
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import numba
import numpy as np
from numba.core import serialize
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys

from volta.emit import cache
from volta.emit.jobs import shielded
from volta.numba_cpu import target
from volta.numba_source.numba_words import ENTRY, KERNEL
from volta.numba_source.texts import KernelText

_WRITING = ("core", "ops", "emit", "xla_like", "numba_cpu", "numba_source")
"""The layers whose source decides what a text means."""


@functools.cache
def _environment() -> str:
    versions = {"python": sys.version, "numpy": np.__version__, "numba": numba.__version__}
    made_by = {"emitter": cache.source_version(_WRITING), **target.toolchain(target.host()), **versions}
    return json.dumps(made_by, sort_keys=True)


class _Kept:
    """Where Numba's `CFunc` looks before it compiles, and leaves what it has compiled."""

    def __init__(self, name: str, text: str) -> None:
        self.disk, self.name, self.text = cache.from_environment(), f"{name}_njit", text

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What was compiled before, or None. (The names are Numba's.)"""
        stored = None if self.disk is None else self.disk.load(_environment(), self.name, self.text)
        if stored is None:
            return None
        rtsys.initialize(context)  # what the code calls for its arrays
        return CompileResult._rebuild(context, *serialize.loads(stored.objects[0]))

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled; code that holds addresses of this process is good in no other."""
        if self.disk is not None and not result.library.has_dynamic_globals:
            data = bytes(serialize.dumps(result._reduce()))
            self.disk.store(_environment(), cache.StoredUnit({self.name: self.text}, (data,)))


@shielded
def entry_of(function: Any, text: KernelText) -> Any:
    """The C function of a kernel, for a launch table: from disk, or compiled."""
    target.configure()
    entry: Any = CFunc(function, (KERNEL.args, KERNEL.return_type), locals={}, options=ENTRY)
    entry._cache = _Kept(text.name, text.identity)
    entry.compile()
    return entry
