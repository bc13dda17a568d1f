"""Work shared out to threads, as many as can be had."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Job(Generic[R]):
    """A call that is made once: by the thread that a pool has for it, or by whoever asks for the result first."""

    def __init__(self, function: Callable[..., R], *args: Any) -> None:
        self._function, self._args = function, args
        self._begun = threading.Lock()
        self._future: Future[R] = Future()

    def share(self, pool: ThreadPoolExecutor) -> None:
        """Let a pool's threads make the call. That the system has none left is no error."""
        with contextlib.suppress(RuntimeError):
            pool.submit(self)

    def __call__(self) -> None:
        if self._begun.acquire(blocking=False):
            try:
                self._future.set_result(self._function(*self._args))
            except BaseException as error:  # for whoever asks for the result
                self._future.set_exception(error)

    def result(self) -> R:
        """What the call returns or raises."""
        self()
        return self._future.result()


def in_threads(function: Callable[..., R], calls: Iterable[tuple[Any, ...]], most: int, name: str) -> Iterator[R]:
    """The results of calls, in order, made by up to ``most`` threads beside this one, which is still asking for calls.

    An interpreter on its way out starts no more threads: this one makes all calls then.
    """
    if most < 2 or not threading.main_thread().is_alive():
        for call in calls:
            yield function(*call)
        return
    with ThreadPoolExecutor(most, name) as pool:
        jobs = []
        for call in calls:
            jobs.append(Job(function, *call))
            jobs[-1].share(pool)
        for job in jobs:
            yield job.result()
