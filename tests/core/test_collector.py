"""Python's collector of garbage waits while programs are compiled, and is afterwards what it was before."""

import gc
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import volta
import volta.numpy as vnp
from volta.core import collector
from volta.core.collector import uncollected
from volta.core.ir import ClosedJaxpr
from volta.xla_like.compile import build_plan


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was, thresholds = gc.isenabled(), gc.get_threshold()
    gc.enable()
    gc.set_threshold(700, 10, 10)  # what Python begins with; the tests' own are larger
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if was else gc.disable)()


@contextmanager
def collections() -> Iterator[list[int]]:
    """The generations that are collected meanwhile."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


@uncollected
def enabled(depth: int = 0) -> list[bool]:
    return [gc.isenabled(), *(enabled(depth - 1) if depth else [])]


@uncollected
def failing() -> None:
    raise ZeroDivisionError


def test_it_waits_and_goes_on() -> None:
    assert enabled(2) == [False] * 3
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        failing()
    assert gc.isenabled() and collector._waits_for is None


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    enabled()
    with pytest.raises(ZeroDivisionError):
        failing()
    assert not gc.isenabled()


def test_several_threads() -> None:
    """Of two that overlap either may end first."""
    inside, goes = threading.Event(), threading.Event()

    @uncollected
    def waiting() -> None:
        inside.set()
        goes.wait()

    thread = threading.Thread(target=waiting)
    thread.start()
    inside.wait()
    enabled()
    goes.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("here", [True, False], ids=["the thread itself", "another"])
def test_a_child_collects(here: bool) -> None:
    """It lacks the thread that would go on with collecting, unless that is the one that forks."""
    inside, goes = threading.Event(), threading.Event()

    def child() -> int:
        with warnings.catch_warnings(action="ignore"):  # JAX, where another test has imported it, warns of any fork
            process = os.fork()
        if process == 0:
            os._exit(2 * gc.isenabled() + (enabled() == [False]))
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    @uncollected
    def forking() -> int:
        inside.set()
        goes.wait()
        return child() if here else 0

    if here:
        goes.set()
        assert forking() == 1
    else:
        thread = threading.Thread(target=forking)
        thread.start()
        inside.wait()
        assert child() == 3
        goes.set()
        thread.join()
    assert gc.isenabled()


def long_program() -> ClosedJaxpr:
    """Its equations alone are more objects than it takes for a collection, whatever is left over from before."""

    def f(x: volta.Array) -> volta.Array:
        for i in range(300):
            x = vnp.sin(x) + i
        return x

    return volta.jit(f).trace(volta.ShapeDtypeStruct((3,), vnp.float32)).jaxpr


def test_compiling_is_not_interrupted_by_collections() -> None:
    program = long_program()
    gc.collect()
    with collections() as found:
        build_plan(program)
        planned = list(found)
    assert len(planned) <= 1  # when all is done
    f = volta.jit(lambda x: vnp.sum(vnp.tanh(x) * vnp.exp(x[0]), axis=1) / 3)
    stages = f.lower(volta.ShapeDtypeStruct((5, 7), vnp.float32))
    with collections() as found:
        stages.compile()
    assert len(found) <= 2
    assert gc.isenabled()
