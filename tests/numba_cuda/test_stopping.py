"""Loops on a device end where a wait for them is interrupted; what was complete stays, what was not says so."""

import threading
import time

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.interrupt_support import Interrupt, at_every_step, folder
from tests.numba_cuda import fake_streams
from volta import errors, lax
from volta.numba_cuda.device import flights
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)


def put(x):
    return volta.device_put(x, "cuda")


@volta.jit
def endless(x):
    return lax.while_loop(lambda c: c[0] >= 0, lambda c: c * 0 + 1, x)


@volta.jit
def counted(x):
    return lax.fori_loop(0, 50, lambda i, c: c + 1, x)


double = volta.jit(lambda x: x * 2)


class Interrupts:
    """In place of the clock that a wait sleeps by: it raises what a handler would, once, after so many naps."""

    def __init__(self, after, kind=Interrupt):
        self.left, self.kind, self.now, self.again = after, kind, 0.0, 0

    def sleep(self, seconds):
        self.left -= 1
        if -1 >= self.left >= -1 - self.again:
            raise self.kind

    def perf_counter(self):
        self.now += 0.01
        return self.now


@pytest.fixture
def interrupt(monkeypatch, fake):
    def after(naps):
        monkeypatch.setattr(flights, "time", found := Interrupts(naps))
        return found

    return after


USES = {
    "waits": lambda y: y.block_until_ready(),
    "reads": np.asarray,
    "prints": str,
    "fetches": lambda y: volta.device_put(y, "cpu"),
    "reads in chunks": np.asarray,
}


@pytest.mark.parametrize("name", USES)
def test_an_endless_loop_ends_where_a_wait_for_it_is_interrupted(name, interrupt, monkeypatch):
    monkeypatch.setattr("volta.numba_cuda.device.staging.LARGE", 16 if name == "reads in chunks" else 1 << 20)
    x = put(np.ones(5, np.float32))
    before = double(x)
    lost = endless(x)
    behind = double(lost)
    beside = put(np.full(3, 7, np.float32))
    interrupt(3)
    with pytest.raises(Interrupt):
        USES[name](behind)
    for y in (lost, behind):
        assert str(y) == "<cut short>" and "<cut short>" in repr(y)
        for use in (np.asarray, vnp.sum, double, endless, lambda y: x + y, lambda y: y.block_until_ready()):
            with pytest.raises(errors.CutShortError, match=r"(?s)f32.*interrupt.*ended the loop.*Call again"):
                use(y)
    assert_bits_equal(np.asarray(before), np.full(x.shape, 2, np.float32))
    assert_bits_equal(np.asarray(beside), np.full(3, 7, np.float32))
    assert_bits_equal(np.asarray(counted(x)), np.full(x.shape, 51, np.float32))


def test_what_was_complete_is_there_although_nobody_had_waited_for_it(interrupt, fake):
    x = put(np.ones(5, np.float32))
    done = counted(x)
    fake.drain_all()  # the device is done with it, and the host does not know
    lost = endless(x)
    interrupt(3)
    with pytest.raises(Interrupt):
        lost.block_until_ready()
    assert_bits_equal(np.asarray(done), np.full(5, 51, np.float32))


def test_a_scan_of_many_turns_ends_in_the_middle(interrupt, fake):
    f = volta.jit(
        lambda x: lax.scan(lambda c, _: (lax.fori_loop(0, 3, lambda i, c: c + 1, c), None), x, None, 10**7)[0]
    )
    x = put(np.ones(5, np.float32))
    y = f(x)
    interrupt(5)
    with pytest.raises(Interrupt):
        np.asarray(y)
    assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))
    assert fake.iterations < 10**5


def test_a_loop_that_is_not_interrupted_is_right_and_nothing_is_kept_of_it(interrupt, gpu):
    interrupt(10**6)
    x = put(np.ones(5, np.float32))
    for _ in range(3):
        assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))
        assert not gpu.main.flying()


def test_donated_arrays_of_a_loop_that_is_cut_short_are_gone(interrupt):
    f = volta.jit(lambda x: lax.while_loop(lambda c: c[0] >= 0, lambda c: c * 0 + 1, x), donate_argnums=0)
    more = volta.jit(lambda x: x + 1, donate_argnums=0)
    more(put(np.ones(5, np.float32)))
    x, y = put(np.ones(5, np.float32)), put(np.ones(5, np.float32))
    lost = more(f(x))
    y = more(y)  # behind the loop, but from nothing that is lost
    interrupt(3)
    with pytest.raises(Interrupt):
        lost.block_until_ready()
    assert_bits_equal(np.asarray(y), np.full(5, 2, np.float32))
    with pytest.raises(errors.DonatedBufferError):
        x + 1
    with pytest.raises(errors.CutShortError):
        lost + 1


def test_of_loops_that_end_one_after_the_other_none_is_lost(interrupt, fake, monkeypatch):
    """A training: its steps have loops, and many are under way when it is interrupted."""
    monkeypatch.setattr(flights, "_GRACES", 0.1)
    x = y = put(np.ones(5, np.float32))
    for _ in range(30):
        y = counted(y)
    interrupt(3)
    with pytest.raises(Interrupt):
        y.block_until_ready()
    assert fake.objects[devices.gpu("cuda:0").main.handle].queue  # and the rest goes on
    assert_bits_equal(np.asarray(y), np.full(5, 1501, np.float32))
    assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))


def test_who_interrupts_twice_waits_for_no_loop(interrupt, fake):
    found = interrupt(3)
    y = endless(put(np.ones(5, np.float32)))
    found.again = 1  # while it is seen whether the loop ends by itself
    with pytest.raises(Interrupt):
        y.block_until_ready()
    assert found.left == -2
    with pytest.raises(errors.CutShortError):
        y.block_until_ready()


def test_streams_that_wait_for_a_loop_that_is_cut_short_are_cut_short_with_it(interrupt):
    x = put(np.ones(5, np.float32))
    counted(double(x)).block_until_ready()
    endless.lower(x).compile()
    with devices.stream():
        first = endless(x)
    second = double(first)  # on the main stream, which waits for the other
    with devices.stream(), devices.stream():
        third = counted(second)
        beside = double(x)
    interrupt(3)
    with pytest.raises(Interrupt):
        second.block_until_ready()
    for y in (first, second, third):
        with pytest.raises(errors.CutShortError):
            np.asarray(y)
    assert_bits_equal(np.asarray(beside), np.full(5, 2, np.float32))
    with devices.stream():
        assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))


def test_a_stream_that_waits_for_nothing_of_it_goes_on(interrupt):
    x = put(np.ones(5, np.float32))
    with devices.stream():
        counted(x).block_until_ready()
        beside = counted(x)
        with devices.stream():
            counted(x).block_until_ready()
            lost = endless(x)
    interrupt(3)
    with pytest.raises(Interrupt):
        lost.block_until_ready()
    assert_bits_equal(np.asarray(beside), np.full(5, 51, np.float32))


def test_a_launch_behind_loops_waits_before_the_queue_is_full(interrupt, fake, monkeypatch):
    monkeypatch.setattr(flights, "_MOST", 10)
    x = y = put(np.ones(5, np.float32))
    double(x), endless(x).delete()
    interrupt(3)
    with pytest.raises(Interrupt):
        for _ in range(100):
            y = double(y)
    assert len(fake.objects[devices.gpu("cuda:0").main.handle].queue) < 30
    assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))


def test_what_the_driver_would_wait_with_waits_where_signals_are_heard(interrupt, gpu):
    x = put(np.ones(5, np.float32))
    for act in (gpu.pool.trim, gpu.pinned.trim, lambda: volta.jit(lambda x: x * 3 + 5)(x)):
        gpu.pinned.take(100, "host").give_back()
        gpu.pool.take(1 << 28, gpu.main).give_back()
        y = endless(x)
        interrupt(3)
        with pytest.raises(Interrupt):
            act()
        with pytest.raises(errors.CutShortError):
            np.asarray(y)
        assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))


class _Other(BaseException):
    """Another handler's."""


@pytest.mark.slow
def test_interrupts_at_steps_of_a_wait(fake, monkeypatch):
    """The result is right, or says that it is not there; and the next loop is right."""
    monkeypatch.setattr(fake_streams, "_TURNS", 1)
    monkeypatch.setattr(flights, "_GRACE", 0.01)
    x, few, found = put(np.ones(2, np.float32)), put(np.int32(3)), set()
    f = volta.jit(lambda n, x: lax.fori_loop(0, n, lambda i, c: c + 1, x))
    f(few, x).block_until_ready()

    def wait(y, clock):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flights, "time", clock)
            np.asarray(y)

    def check(y):
        try:
            wait(y, Interrupts(10**6))
            assert_bits_equal(np.asarray(y), np.full(2, 4, np.float32))
            found.add("right")
        except errors.CutShortError:
            found.add("lost")
        assert_bits_equal(np.asarray(f(few, x)), np.full(2, 4, np.float32))

    device = folder("numba_cuda", "device")
    assert at_every_step(lambda: f(few, x), lambda y: wait(y, Interrupts(10**6)), check, device, stride=11) > 100
    assert "right" in found

    def check_lost(y):  # what an interrupt kept from being ended, the next one ends
        with pytest.raises((Interrupt, errors.CutShortError)):
            wait(y, Interrupts(1))
        check(y)

    def interrupted(y):
        with pytest.raises(_Other) as found:
            wait(y, Interrupts(1, _Other))
        if isinstance(found.value.__context__, Interrupt):  # the other handler's came second
            raise Interrupt

    assert (
        at_every_step(
            lambda: endless(x), interrupted, check_lost, folder("numba_cuda", "device", "flights.py"), stride=11
        )
        > 100
    )
    assert found == {"right", "lost"}


def test_an_array_on_a_device_is_no_buffer_whose_errors_numpy_would_drop(interrupt):
    """NumPy asks for a buffer first where there are some (Python 3.12), and then asks again."""
    y = endless(put(np.ones(5, np.float32)))
    with pytest.raises(BufferError, match=r"array on cuda:0 is no buffer.*memoryview\(numpy.asarray\(x\)\)"):
        y.__buffer__(0)
    interrupt(3)
    with pytest.raises(Interrupt):
        np.asarray(y)


class _OfMain(Interrupts):
    """Only the main thread hears signals."""

    def sleep(self, seconds):
        if threading.current_thread() is threading.main_thread():
            super().sleep(seconds)
        else:
            time.sleep(1e-4)


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_other_threads_in_the_same_stream_read_what_is_right_or_an_error(fake, monkeypatch, rounds):
    x, over, found = put(np.ones(5, np.float32)), threading.Event(), []

    def others():
        while not over.is_set():
            y, z = counted(x), double(x)
            try:
                found.append(np.asarray(counted(y)).tolist() == [101] * 5)
            except errors.CutShortError:
                found.append(None)
            found.append(np.asarray(z).tolist() == [2] * 5)

    counted(double(x)).block_until_ready()
    endless.lower(x).compile()
    threads = [threading.Thread(target=others) for _ in range(2)]
    monkeypatch.setattr(flights, "time", _OfMain(10**9))
    for thread in threads:
        thread.start()
    try:
        for _ in range(rounds):
            y = endless(x)
            monkeypatch.setattr(flights, "time", _OfMain(2))
            with pytest.raises(Interrupt):
                double(y).block_until_ready()
            with pytest.raises(errors.CutShortError):
                np.asarray(y)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert True in found and False not in found
    assert_bits_equal(np.asarray(counted(x)), np.full(5, 51, np.float32))
