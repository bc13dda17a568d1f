"""Generated kernels as Python runs them: the rows of a launch table, walked without a compiler.

For ``pdb``: a breakpoint or a step stops inside of a kernel's text, and what a kernel raises (the debugger's own end,
too) arrives where the compiled function was called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from volta.numba_source.compiling import execute
from volta.numba_source.python_words import NAMES
from volta.numba_source.texts import KernelText

_WALKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_WORDS = ctypes.POINTER(ctypes.c_int64)
_NATIVE = ctypes.CFUNCTYPE(None, _WORDS, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

Function = Callable[[Any, int, int, int], None]


class Stepped(dict[str, int]):
    """The kernels of one plan by name: each has a number, as others have addresses.

    ``walker`` is the address of the one kernel that native code runs: it walks the plan's own ``table`` in Python.
    """

    def __init__(self, texts: Iterable[KernelText], others: Mapping[str, int]) -> None:
        """``others`` are native kernels, which have no text: their addresses by name."""
        self._functions: list[Function] = []
        self._others = others
        for name, address in others.items():
            self._functions.append(_NATIVE(address))
            self[name] = len(self._functions)
        for text in texts:
            source = "\n".join([*text.tables.values(), *text.functions.values(), text.function])
            self._functions.append(execute(source, text.name, {**NAMES, "run_kernel": self._run}))
            self[text.name] = len(self._functions)
        self.table: np.ndarray = np.zeros((0, 4), np.int64)
        self._failure: BaseException | None = None
        self._walker = _WALKER(self._enter)
        self.walker: int = ctypes.cast(self._walker, ctypes.c_void_p).value or 0

    def _run(self, number: int, args: Any, first: int, begin: int, end: int, scratch: int) -> None:
        """What a text calls ``run_kernel``."""
        block = ctypes.cast(ctypes.addressof(args.contents) + 8 * first, _WORDS)
        self._functions[number - 1](block, begin, end, scratch)

    def _enter(self, args: int, begin: int, end: int, scratch: int) -> None:
        try:
            with np.errstate(all="ignore"):
                self._walk(scratch)
        except BaseException as error:  # what native code called must not raise
            self._failure = error

    def _walk(self, scratch: int) -> None:
        row = 0
        while row < len(self.table):
            number, args, tasks, _ = map(int, self.table[row])
            block = ctypes.cast(args, _WORDS)
            row += 1
            if number:
                self.launch(self._functions[number - 1], block, tasks, scratch)
            elif ctypes.c_int32.from_address(block[0]).value != block[1]:  # a jump: its address, number and row
                row = block[2]

    def launch(self, kernel: Function, args: Any, tasks: int, scratch: int) -> None:
        """One launch of the table: a place for breakpoints, from where a step leads into the kernel's text."""
        kernel(args, 0, tasks, scratch)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The native call of the plan, which raises what one of the kernels raised."""

        def run(*args: Any) -> Any:
            found = call(*args)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return found

        return run
