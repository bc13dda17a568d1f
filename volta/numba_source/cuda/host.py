"""Generated kernels for GPUs, run on the host: the very texts, thread after thread, by Python or compiled by Numba.

`TextKernels` takes the place of `volta.numba_cuda.host.host.HostKernels` in ``run_plan``. Where Python runs them, every
access is checked: it must lie in a range that the launch says it reads or writes, and no two threads of a launch may
meet in memory unless both read. Arrays of a thread's own hold NaN (and -1) until they are written.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba import types

from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.host.host import Order, Range
from volta.numba_cuda.host.host_runtime import READ, WRITE
from volta.numba_source import numba_words, python_words
from volta.numba_source.compiling import dispatcher_of, execute
from volta.numba_source.cuda.launches import TextSource
from volta.numba_source.words import MEMORY, ON_GRIDS

_WORDS = ctypes.POINTER(ctypes.c_int64)
_place = np.zeros(2, np.int64)
"""The thread that runs, and how many there are."""

Wrong = tuple[int, int, str]
"""A block, a thread of it, and what it did that it must not."""


class _Refused(Exception):
    """What a thread did; the thread ends there."""


def _own(shape: int, dtype: Any) -> np.ndarray:
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1).astype(dtype)


class _Memory:
    """What threads of a launch may touch, and have touched."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = ranges
        self._writers: dict[int, int] = {}
        self._readers: dict[int, int] = {}

    def touch(self, address: int, nbytes: int, right: int) -> None:
        """The thread that runs reads or writes an element. Raises `_Refused`."""
        thread, verb = int(_place[0]), "reads" if right == READ else "writes"
        if not any(
            r.start <= address and address + nbytes <= r.start + r.nbytes and r.rights & right for r in self._ranges
        ):
            raise _Refused(f"{verb} {nbytes} bytes at {address:#x}, which the launch does not say")
        writer, reader = self._writers.get(address, thread), self._readers.get(address, thread)
        if writer != thread or (right == WRITE and reader != thread):
            raise _Refused(
                f"{verb} {nbytes} bytes at {address:#x} as thread {writer if writer != thread else reader} does"
            )
        (self._readers if right == READ else self._writers)[address] = thread


class _Stepped:
    """A kernel that Python runs."""

    def __init__(self, source: TextSource) -> None:
        self._memory = _Memory(())
        cuda = SimpleNamespace(
            grid=lambda _: int(_place[0]), gridsize=lambda _: int(_place[1]), local=SimpleNamespace(array=_own)
        )
        names = {k: v for k, v in python_words.NAMES.items() if k in ON_GRIDS} | {"cuda": cuda, "cuda_jit": _as_it_is}
        for kind in MEMORY:
            for way, right in (("load", READ), ("store", WRITE)):
                names[f"{way}_{kind}"] = self._checked(
                    names[f"{way}_{kind}"], np.dtype(python_words.TYPES[kind]), right
                )
        text = source.kernel()
        whole = "\n".join([*text.tables.values(), *text.functions.values(), text.function])
        self._function = execute(whole, text.name, names)

    def _checked(self, word: Callable[..., Any], dtype: np.dtype, right: int) -> Callable[..., Any]:
        def checked(address: int, distance: int, *x: Any) -> Any:
            self._memory.touch(int(address) + int(distance), dtype.itemsize, right)
            return word(address, distance, *x)

        return checked

    def run(
        self, name: str, args: int, grid: int, threads: int, ranges: Sequence[Range], order: Order = "ascending",
        dynamic: int = 0, races: bool = True,
    ) -> list[Wrong]:  # fmt: skip
        """What `HostModule.run` does."""
        self._memory = _Memory(ranges)
        wrong: list[Wrong] = []
        block = ctypes.cast(args, _WORDS)
        with np.errstate(all="ignore"):
            for thread in _in_order(grid * threads, order):
                try:
                    self._function(block)
                except _Refused as error:
                    wrong.append((*divmod(thread, threads), str(error)))
        return wrong


class _Compiled:
    """A kernel that Numba has compiled."""

    def __init__(self, source: TextSource) -> None:
        dispatcher = dispatcher_of(source.kernel(), _NAMES, "a grid on the host")
        signature = types.void(types.CPointer(types.int64))
        self._entry = numba.cfunc(signature, **numba_words.ENTRY)(dispatcher.py_func)

    def run(
        self, name: str, args: int, grid: int, threads: int, ranges: Sequence[Range], order: Order = "ascending",
        dynamic: int = 0, races: bool = True,
    ) -> list[Wrong]:  # fmt: skip
        """The same, unchecked."""
        block = ctypes.cast(args, _WORDS)
        for _ in _in_order(grid * threads, order):
            self._entry.ctypes(block)
        return []


def _in_order(threads: int, order: Order) -> Iterable[int]:
    """The threads of a grid, one after the other."""
    numbers = list(range(threads))
    if order == "descending":
        numbers.reverse()
    elif order == "shuffled":
        random.Random(0).shuffle(numbers)
    _place[1] = threads
    for thread in numbers:
        _place[0] = thread
        yield thread


def _as_it_is(function: Any = None, device: bool = False) -> Any:
    return function or _as_it_is


def _by_njit(function: Any = None, device: bool = False) -> Any:
    return _by_njit if function is None else numba_words.njit(function)


def _grid() -> ModuleType:
    """Numba's ``cuda``, as far as texts use it, for functions that Numba compiles for the host."""
    cuda, local = ModuleType("cuda"), ModuleType("local")
    load, address = numba_words.NAMES["load_i64"], _place.ctypes.data
    cuda.grid = numba_words.njit(lambda _: load(address, 0))  # type: ignore[attr-defined]
    cuda.gridsize = numba_words.njit(lambda _: load(address, 8))  # type: ignore[attr-defined]
    cuda.local, local.array = local, np.empty  # type: ignore[attr-defined]
    return cuda


_NAMES: dict[str, Any] = {
    **{k: v for k, v in numba_words.NAMES.items() if k in ON_GRIDS}, "cuda": _grid(), "cuda_jit": _by_njit
}  # fmt: skip


class TextKernels:
    """Kernels for the host so far, by name; ``compiled`` by Numba, or as Python runs them."""

    def __init__(self, compiled: bool = False) -> None:
        self._make: Callable[[TextSource], Any] = _Compiled if compiled else _Stepped
        self._kernels: dict[str, Any] = {}

    def of(self, sources: Iterable[KernelSource]) -> dict[str, Any]:
        """What runs each kernel, by name."""
        found = {}
        for s in sources:
            assert isinstance(s, TextSource)
            if s.name not in self._kernels:
                self._kernels[s.name] = self._make(s)
            found[s.name] = self._kernels[s.name]
        return found
