"""Interrupts at every step: an exception, as a signal's handler raises it, before each instruction of some code."""

import dis
import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import volta


class Interrupt(BaseException):
    """What the handler raises."""


def folder(*names: str) -> str:
    """A folder of Volta's source, or a file of it."""
    return str(Path(volta.__file__).parent.joinpath(*names))


_HANDLING = {dis.opmap[x] for x in ("PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE") if x in dis.opmap}
"""The interpreter's own steps around an ``except`` block: a signal never comes there, and its books would be wrong."""


@functools.cache
def _spared(code: CodeType) -> frozenset[int]:
    """Where no signal comes although an instruction begins: between a ``with`` and its block, on either side.

    There the interpreter hears none, so a lock that has been taken is given back.
    """
    found: set[int] = set()
    steps = [x for x in dis.get_instructions(code) if x.opname != "CACHE"]
    for i, step in enumerate(steps):
        if step.opname in ("BEFORE_WITH", "SETUP_WITH"):
            found.add(steps[i + 1].offset)
        nones = [x.opname == "LOAD_CONST" and x.argval is None for x in steps[i : i + 3]]
        call = next((x for x in steps[i + 3 :] if x.opname != "PRECALL"), None)
        if nones == [True] * 3 and call is not None and call.opname == "CALL" and call.arg == 2:  # of __exit__
            first = steps[i - 1] if steps[i - 1].opname == "SWAP" else step  # of a `return` within the block
            found.update(range(first.offset, call.offset + 1))
    return frozenset(found)


class _At:
    """Raises at one instruction of some code."""

    def __init__(self, number: int, where: tuple[str, ...]) -> None:
        self.left, self.where = number, where

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        names = {x.f_code.co_name for x in (frame, frame.f_back) if x is not None}
        if not frame.f_code.co_filename.startswith(self.where) or "__del__" in names:
            return None  # what a destructor raises, Python reports and drops
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lineno is not None:
            code, at = frame.f_code, frame.f_lasti
            if code.co_code[at] not in _HANDLING and at not in _spared(code):
                self.left -= 1
                if self.left < 0:
                    raise Interrupt
        return self


def at_every_step(
    prepare: Callable[[], Any], act: Callable[[Any], Any], check: Callable[[Any], None], *where: str, first: int = 0,
    stride: int = 1,
) -> int:  # fmt: skip
    """Run ``act(prepare())`` again and again, interrupted ``stride`` instructions later each time, and ``check``.

    ``where`` are the folders and files of which each instruction counts; returns how many there were. The error, and
    with it the frames that it came through, is gone when ``check`` is called. No garbage is collected meanwhile: that
    runs callbacks of weak references, other tests' among them, at steps that change from run to run, and what is raised
    in one Python reports and drops, so that the run would seem to have come to its end.
    """
    before, number, collects = sys.gettrace(), first, gc.isenabled()
    while True:
        given, interrupted = prepare(), False
        # Python 3.12 tells of instructions only if a frame asked for it before the trace function was set.
        sys._getframe().f_trace_opcodes = True
        gc.disable()
        sys.settrace(_At(number, where))
        try:
            act(given)
        except Interrupt:
            interrupted = True
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
        if not interrupted:
            return number
        check(given)
        number += stride
