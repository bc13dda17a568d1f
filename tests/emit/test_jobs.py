"""Work shared out to threads: as many as there are, and none where the system has none left."""

import threading
from typing import Any

import pytest

import volta
import volta.numpy as vnp
from volta.emit import jobs
from volta.emit.jobs import Job, in_threads


@pytest.fixture(params=[0, 1, 100])
def left(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many threads the system has left to give."""
    starts, count = [0], int(request.param)
    start = jobs.start_new_thread

    def scarce(function: Any, args: Any) -> int:
        starts[0] += 1
        if starts[0] > count:
            raise RuntimeError("can't start new thread")
        return start(function, args)

    monkeypatch.setattr(jobs, "start_new_thread", scarce)
    return count


def test_results_come_in_order_whoever_made_them(left: int) -> None:
    made: list[int] = []

    def work(n: int) -> tuple[int, int]:
        made.append(n)
        return n, threading.get_ident()

    found = list(in_threads(work, ((n,) for n in range(50)), 4))
    assert [n for n, _ in found] == list(range(50)) and sorted(made) == list(range(50))  # each once
    assert left or {thread for _, thread in found} == {threading.get_ident()}


def test_programs_compile(left: int) -> None:
    y = volta.jit(lambda x: vnp.sin(x) * (1.2345 + left) + vnp.cumsum(x))(vnp.zeros(3))
    assert (y == 0).all()


def test_what_a_call_raises_comes_to_who_asks() -> None:
    def fail() -> None:
        raise ValueError("no")

    job = Job(fail)
    job()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            job.result()
