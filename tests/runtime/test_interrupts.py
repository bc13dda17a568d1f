"""A call that is interrupted has changed nothing, or has run: whatever the step at which the interrupt comes."""

import gc
import signal
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.interrupt_support import Interrupt, at_every_step, folder
from volta.runtime import memory
from volta.runtime.memory import HostPool, default_pool

RUNTIME = folder("runtime")
PACKAGE = Path(volta.__file__).parent
SIZES = [pytest.param(8, id="small"), pytest.param(5000, id="large")]


def ones(size: int, count: int = 1) -> list[Any]:
    return [vnp.ones(size) for _ in range(count)]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests left behind is not of this pool, whenever it goes."""
    monkeypatch.setattr(memory, "_default_pool", HostPool())


def live() -> int:
    while gc.collect():  # what one collection lets go of may hold more
        pass
    return default_pool().stats().live


def test_a_collection_of_garbage_takes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks of weak references run wherever the collector does: an interrupt in one would be dropped."""

    class Node:
        itself: Any

    def callback(_: Any) -> None:
        called.append(len(called))

    def act(_: Any) -> None:
        for _ in range(3):
            node = Node()
            node.itself = node
            kept.append(weakref.ref(node, callback))
            del node

    called: list[int] = []
    kept: list[Any] = []
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        at_every_step(lambda: None, act, lambda _: None, __file__)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert called and not dropped


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.turns(6)
def test_a_call_that_is_interrupted_anywhere_holds_nothing(size: int) -> None:
    f = volta.jit(lambda x, y: (x + y, x * 2, x))
    x, y = ones(size, 2)
    assert (f(x, y)[0] == 2).all()
    before = live()

    def check(given: Any) -> None:
        assert live() == before
        assert (f(x, y)[0] == 2).all()

    assert at_every_step(lambda: None, lambda _: f(x, y), check, RUNTIME) > 50


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_donated_arrays_are_there_or_gone_all_of_them(size: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RECOUNT", 1 << 60)  # each try goes the same way: counting anew now and then is longer
    f = volta.jit(lambda x, y, z: (x + z, y * 3), donate_argnums=(0, 1))
    z = vnp.ones(size)
    f(*ones(size, 2), z)
    before, gone = 0, []

    def prepare() -> Any:
        default_pool().trim()  # what an earlier try left there would make the way of the next one shorter
        given = ones(size, 2)
        if shared:  # a view of NumPy's reads it: the call works on copies
            given.append(np.asarray(given[0]))
        return given

    def check(given: Any) -> None:
        x, y, *views = given
        assert x.is_deleted() == y.is_deleted()
        gone.append(x.is_deleted())
        if not gone[-1]:
            assert (x == 1).all() and (y == 1).all()
        assert all((view == 1).all() for view in views)
        views.clear()
        given.clear()
        del x, y
        nonlocal before
        before = before or live()
        assert live() == before

    assert at_every_step(prepare, lambda given: f(*given[:2], z), check, RUNTIME) > 50
    assert gone == sorted(gone) and {*gone} == {False, True}  # there before the one step that takes them, gone after it
    x, y = ones(size, 2)
    address = x.buffer().address
    assert f(x, y, z)[0].buffer().address == address  # and later donations are not copied


def test_what_an_interrupt_let_go_of_is_no_longer_counted() -> None:
    pool = HostPool()
    size = pool.allocate(20000).owner.size  # type: ignore[attr-defined]

    def check(given: Any) -> None:
        stats = pool.stats()
        assert stats.live == 0 and stats.pooled in (0, size)  # a block that was lost is gone
        pool.allocate(20000)

    assert at_every_step(lambda: None, lambda _: pool.allocate(20000), check, folder("runtime", "memory.py")) > 20


def test_memory_that_fails_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever memory ends: at the results, at a copy of what others read, or in the native call."""
    f = volta.jit(lambda x: vnp.sort(x.reshape(100, -1), 1).ravel() + 1, donate_argnums=0)
    f(vnp.ones(100000))
    pool = default_pool()
    for shared in (False, True):
        refused = 0
        for room in range(6):
            x = vnp.ones(100000)
            view = np.asarray(x) if shared else None
            left, allocate = [room], type(pool).allocate

            def scarce(self: Any, nbytes: int, left: Any = left, allocate: Any = allocate) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise volta.errors.MemoryBudgetError("no more")
                return allocate(self, nbytes)

            monkeypatch.setattr(type(pool), "allocate", scarce)
            try:
                f(x)
            except volta.errors.MemoryBudgetError:
                refused += 1
                monkeypatch.undo()
                assert (x == 1).all()
            else:
                monkeypatch.undo()
                assert x.is_deleted()
            assert view is None or (view == 1).all()
        assert refused >= 1 + shared


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_interrupts_at_random_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the campaign (scripts/campaigns/interrupts.py)."""

    def raise_it(_: int, frame: Any) -> None:
        if Path(frame.f_code.co_filename).is_relative_to(PACKAGE) or frame.f_code.co_filename == __file__:
            raise Interrupt
        signal.setitimer(signal.ITIMER_REAL, 0.0001)  # hypothesis' hook in the garbage collector would swallow it

    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    d = volta.jit(lambda x: x + 1, donate_argnums=0)
    y = d(vnp.ones(2000))

    def until_interrupted() -> None:  # a function, as Python 3.13 lets what the jump of a loop meets out of a try
        nonlocal y
        while not swallowed:
            y = d(y)

    before, after = live(), signal.signal(signal.SIGALRM, raise_it)
    try:
        for n in range(60):
            y = vnp.ones(2000) if y.is_deleted() else y
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + n % 7 * 0.0001)
                until_interrupted()
            except Interrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, after)
    y = vnp.ones(2000)
    address = y.buffer().address
    y = d(y)
    assert y.buffer().address == address and live() <= before
    assert not swallowed
