"""Generated kernels compiled by Numba: a dispatcher to call and inspect, and the address that a launch table holds."""

from __future__ import annotations

import hashlib
import itertools
import linecache
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from volta.core.locks import free_in_children
from volta.core.recent import Recent
from volta.numba_source import numba_words
from volta.numba_source.kept import entry_of
from volta.numba_source.numba_words import NAMES
from volta.numba_source.texts import KernelText

_numbers = itertools.count()


def execute(text: str, name: str, names: dict[str, Any]) -> Any:
    """Run a text that defines functions; gives the one of a name.

    As long as that one is alive, tracebacks and debuggers find the lines under ``<volta name number>``.
    """
    file = f"<volta {name} {next(_numbers)}>"
    exec(compile(text, file, "exec"), names)
    found = names[name]
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(getattr(found, "py_func", found), linecache.cache.pop, file, None).atexit = False
    return found


@attrs.frozen(eq=False)
class CompiledKernel:
    """One kernel: ``dispatcher`` is its function for Numba, ``entry`` the C function that a launch table calls."""

    dispatcher: Any
    entry: Any

    @property
    def address(self) -> int:
        return int(self.entry.address)


_lock = threading.RLock()
free_in_children(globals(), "_lock")
_functions: Recent[Any, Any] = Recent(4096)  # by their text and what it names
_kernels: Recent[Any, CompiledKernel] = Recent(256)
"""Numba keeps machine code for as long as the process lives: what is dropped here is compiled again, not freed."""


def dispatcher_of(text: KernelText, names: Mapping[str, Any] = NAMES, kind: str = "njit") -> Any:
    """The kernel as a Numba dispatcher. The functions that it calls are shared with all kernels that call the same and
    are of one ``kind``: for the words whose ``names`` are given."""
    known: dict[str, Any] = {}
    for name, source in text.tables.items():
        exec(source, made := dict(names))
        known[name] = made[name]
    for name, source in text.functions.items():
        known[name] = _function(name, source, known, names, kind)
    return _new(text.name, text.function, _used(text.function, known), names)


def _used(source: str, known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in dict.fromkeys(re.findall(r"\w+", source)) if name in known}


def _function(name: str, source: str, known: Mapping[str, Any], names: Mapping[str, Any], kind: str) -> Any:
    used = _used(source, known)
    key = (kind, source, *(used[n] if callable(used[n]) else used[n].tobytes() for n in used))
    found = _functions.find(key)
    return _functions.keep(key, _new(name, source, used, names)) if found is None else found


def _new(name: str, source: str, used: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    """A dispatcher. Numba names machine code after its function, and joins what has one name: so that says it all."""
    found = execute(source, name, {**names, **used, "__name__": numba_words.__name__})
    parts = [x.py_func.__qualname__.encode() if callable(x) else x.tobytes() for x in used.values()]
    digest = hashlib.sha256(b"\0".join([source.encode(), *parts])).hexdigest()[:16]
    found.py_func.__qualname__ = f"{name}_{digest}"
    return found


def compiled_kernel(text: KernelText) -> CompiledKernel:
    """A kernel compiled for the launch table; the same text is compiled once in a process."""
    with _lock:
        found = _kernels.find(text.identity)
        if found is None:
            dispatcher = dispatcher_of(text)
            found = _kernels.keep(text.identity, CompiledKernel(dispatcher, entry_of(dispatcher.py_func, text)))
        return found


class Addresses(dict[str, int]):
    """The address of each kernel by name, good as long as this is held; ``others`` are kernels that have no text."""

    __slots__ = ("_kernels", "_others")

    def __init__(self, texts: Iterable[KernelText], others: Mapping[str, int]) -> None:
        found = {text.name: compiled_kernel(text) for text in texts}
        super().__init__({name: kernel.address for name, kernel in found.items()} | dict(others))
        self._kernels, self._others = found, others
