"""Work shared out to threads, as many as can be had, and work that no signal handler may come into.

Signal handlers run in the main thread, between any two steps of its Python code. What waits and hands over here is
therefore written in C: a lock that is taken by Python code, as in llvmlite or in ``threading.Condition`` and what is
built on it, could be left held for ever. The threads are no ``threading.Thread`` for the same reason.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOOK = 0.5
"""Seconds after which whoever waits looks whether a signal handler forked: a child has no other threads."""


class Job(Generic[R]):
    """A call that is made once: by the thread that a pool has for it, or by whoever asks for the result first."""

    def __init__(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> None:
        self._call = functools.partial(function, *args, **kwargs)
        self._begun, self._running = threading.Lock(), threading.Lock()
        self._running.acquire()  # until there is a result
        self._found: R
        self._error: BaseException | None = None

    def share(self, pool: ThreadPoolExecutor) -> None:
        """Let a pool's threads make the call. That the system has none left is no error."""
        with contextlib.suppress(RuntimeError):
            pool.submit(self)

    def __call__(self) -> None:
        if self._begun.acquire(blocking=False):
            try:
                self._found = self._call()
            except BaseException as error:  # for whoever asks for the result
                traceback.clear_frames(error.__traceback__)  # what they hold is let go of in this thread
                self._error = error
            finally:
                self._running.release()

    def result(self) -> R:
        """What the call returns or raises."""
        self()
        return self.awaited()

    def awaited(self) -> R:
        """What the call returns or raises, once another thread has made it. Signal handlers run meanwhile."""
        process = os.getpid()
        while not self._running.acquire(timeout=_LOOK):
            if os.getpid() != process:
                return self._call()
        self._running.release()
        if self._error is not None:
            raise self._error
        return self._found


def _work(waiting: deque[Job[Any]], busy: list[None]) -> None:
    """A thread's life: make calls until none is waiting."""
    with contextlib.suppress(IndexError):
        while True:
            waiting.popleft()()
    busy.pop()


def ends_by_itself(frame: FrameType) -> bool:
    """Whether a thread that is in a frame is one of those here, which end when their work is done."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code is _work.__code__


def _start(waiting: deque[Job[Any]], busy: list[None]) -> bool:
    """Start a thread; an answer of False says that the system has none left."""
    busy.append(None)
    try:
        start_new_thread(_work, (waiting, busy))
    except RuntimeError:
        busy.pop()
        return False
    return True


def in_threads(function: Callable[..., R], calls: Iterable[tuple[Any, ...]], most: int) -> Iterator[R]:
    """The results of calls, in order, made by up to ``most`` threads beside this one, which is still asking for calls.

    An interpreter on its way out starts no more threads: this one makes all calls then. What interrupts this thread is
    heard at once: calls that were begun end unheard, and no more are begun.
    """
    if most < 2 or not threading.main_thread().is_alive():
        for call in calls:
            yield function(*call)
        return
    waiting, busy, jobs = deque[Job[R]](), list[None](), list[Job[R]]()
    try:
        for call in calls:
            jobs.append(Job(function, *call))
            waiting.append(jobs[-1])
            if len(busy) < most:
                _start(waiting, busy)
        for job in jobs:
            yield job.result()
    finally:
        waiting.clear()


def shielded(function: Callable[P, R]) -> Callable[P, R]:
    """Let no signal handler come into a function: the main thread has another one make the call, and waits.

    A handler that raises ends the wait at once; the call goes on to its end, and what it returns is dropped. So it must
    take no lock that its caller may hold. Where the system has no threads left, the main thread makes the call.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        main = threading.main_thread()
        if threading.get_ident() != main.ident or not main.is_alive():
            return function(*args, **kwargs)
        job = Job(function, *args, **kwargs)
        return job.awaited() if _start(deque([job]), []) else job.result()

    return call
