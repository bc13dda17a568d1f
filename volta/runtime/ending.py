"""The end of the interpreter: daemon threads that are in Volta leave it, with SystemExit.

The interpreter ends a thread where it next asks for the interpreter's lock, by unwinding its stack. In code of C++
(pytrees are flattened there, and LLVM is written in it) that takes the whole process down.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from types import FrameType

from volta.emit.jobs import ends_by_itself

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_PATIENCE, _AGAIN = 2.0, 0.1
"""Seconds that the end waits for threads to leave, and after which one is told once more."""


def _inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _end_others() -> None:
    me, told = threading.get_ident(), dict[int, float]()
    end = time.monotonic() + _PATIENCE
    while (now := time.monotonic()) < end:
        inside = {x: frame for x, frame in sys._current_frames().items() if x != me and _inside(frame)}
        if not inside:
            return
        for thread, frame in inside.items():
            if not ends_by_itself(frame) and told.get(thread, 0) + _AGAIN < now:
                told[thread] = now
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        time.sleep(0.001)


def watch() -> None:
    """Have the threads ended when the interpreter ends."""
    atexit.register(_end_others)
