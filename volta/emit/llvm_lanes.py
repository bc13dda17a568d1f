"""Threads that are in LLVM, and what a fork and the end of the process mean for them.

llvmlite guards every call into LLVM with one lock. The long calls are made without it here, which LLVM allows where
module, context and target machine belong to one thread. LLVM has locks of its own that nobody can see: a child forked
while another thread is in LLVM could wait for one of them for ever, and an interpreter that ends then takes LLVM away
from under that thread. So both wait until no thread is in LLVM, and keep others out meanwhile.

llvmlite's lock is taken in Python: an interrupt there would leave it held for ever. So whatever asks LLVM for something
is `volta.emit.jobs.shielded`: no signal handler comes in.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from llvmlite.binding import ffi

from volta.core.locks import free_in_children

_numbers = itertools.count()
_lock = threading.RLock()  # held while the lanes change


class _Lane:
    """Whoever is in LLVM without llvmlite's lock holds the lane of its thread."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.lock = threading.RLock()


class _Own(threading.local):
    """What a thread has: its lane, and what it holds while it forks."""

    lane: _Lane | None = None
    held: Iterator[None] | None = None


_own = _Own()
_lanes: weakref.WeakSet[_Lane] = weakref.WeakSet()


def unlocked(function: str, *args: Any) -> Any:
    """Call a function of llvmlite's library without its lock."""
    native = getattr(ffi.lib, function)._cfn
    lane = _own.lane
    if lane is None:
        with _lock:
            lane = _own.lane = _Lane()
            _lanes.add(lane)
    with lane.lock:
        return native(*args)


def _all_locks() -> Iterator[Any]:
    """In the order in which they are taken; the lanes are those of the moment at which they are reached."""
    yield _lock
    yield from [x.lock for x in sorted(_lanes, key=lambda x: x.number)]
    yield ffi.lib._lock._lock  # nobody else holds it for long


def _hold(locks: Iterator[Any]) -> Iterator[None]:
    """Hold all locks from the first ``next`` on until the generator is closed; what interrupts it leaves none held."""
    lock = next(locks, None)
    if lock is None:
        yield
        return
    with lock:
        yield from _hold(locks)


def nobody_in_llvm() -> Iterator[None]:
    """A generator: from its first ``next`` on until it is closed, no other thread is in LLVM."""
    return _hold(_all_locks())


def _before_fork() -> None:
    _own.held = nobody_in_llvm()
    next(_own.held)


def _after_fork() -> None:
    held, _own.held = _own.held, None
    if held is not None:
        held.close()  # type: ignore[attr-defined]


_at_exit: list[Iterator[None]] = []


def _keep_out() -> None:
    """For the rest of the process only this thread compiles: daemon threads would still be in LLVM when it goes."""
    _at_exit.append(nobody_in_llvm())
    next(_at_exit[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
atexit.register(_keep_out)
free_in_children(globals(), "_lock")
