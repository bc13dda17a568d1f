"""Threads in tests: started together, joined, and their failures raised in the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(*works: Callable[[], Any]) -> Iterator[None]:
    """A thread for each of `works` beside the block, which joins them at its end and raises what one of them raised."""
    failures: list[BaseException | None] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:  # handed to the test: none may get lost in its thread
            failures[number] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    for failure in failures:
        if failure is not None:
            raise failure


def run_threads(work: Callable[[int], Any], count: int) -> None:
    """Run ``work(0)``, …, ``work(count - 1)``, each in a thread of its own, and wait for them all."""
    with running(*(lambda n=n: work(n) for n in range(count))):  # type: ignore[misc]
        pass
