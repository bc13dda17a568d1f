"""Loops on a device end where a wait for them is interrupted; what was complete stays, what was not says so."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.interrupt_support import Interrupt
from volta import errors, lax
from volta.numba_cuda.device import flights
from volta.testing.bits import assert_bits_equal


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

    def __init__(self, after):
        self.left, self.now = after, 0.0

    def sleep(self, seconds):
        self.left -= 1
        if self.left == -1:
            raise Interrupt

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
    "large": lambda y: np.asarray(y),
}


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if x == "large" else ()) for x in USES])
def test_an_endless_loop_ends_where_a_wait_for_it_is_interrupted(name, interrupt):
    x = put(np.ones(1 << 19 if name == "large" else 5, np.float32))
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
    assert fake.turns < 10**5


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
