"""A call on a device that is interrupted has changed nothing, or has run; and no memory is lost, at whatever step."""

import gc
import sys

import numpy as np
import pytest

import volta
from tests.interrupt_support import at_every_step, folder
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

DEVICE = folder("numba_cuda", "device"), folder("numba_cuda", "args.py"), folder("runtime")


def put(value):
    return volta.device_put(np.full(5, value, np.float32), "cuda")


def live():
    """Bytes in use, and nothing is counted that an interrupt let go of."""
    gc.collect()
    pool = devices.gpu("cuda:0").pool
    pool.trim()
    return pool.stats().live


def test_a_call_that_is_interrupted_anywhere_holds_nothing(fake):
    f = volta.jit(lambda x, y: (x + y, x * 2, x))
    x, y = put(1), put(2)
    assert_bits_equal(f(x, y)[0], np.full(5, 3, np.float32))
    before = live()

    def check(given):
        assert live() == before
        assert_bits_equal(f(x, y)[0], np.full(5, 3, np.float32))

    assert at_every_step(lambda: None, lambda _: f(x, y), check, *DEVICE) > 50


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_donated_arrays_are_there_or_gone_all_of_them(fake, shared):
    f = volta.jit(lambda x, y, z: (x + z, y * 3), donate_argnums=(0, 1))
    z = put(1)
    f(put(1), put(2), z)
    held, gone = live(), []

    def prepare():
        x, y = put(1), put(2)
        return [x, y, x.share()] if shared else [x, y]

    def check(given):
        x, y, *others = given
        assert x.is_deleted() == y.is_deleted()
        gone.append(x.is_deleted())
        if not gone[-1]:
            assert_bits_equal(x, np.full(5, 1, np.float32))
            assert_bits_equal(y, np.full(5, 2, np.float32))
        given.clear()
        others.clear()
        del x, y
        assert live() == held

    assert at_every_step(prepare, lambda given: f(*given[:2], z), check, *DEVICE) > 50
    assert gone == sorted(gone) and {*gone} == {False, True}  # there before the one step that takes them, gone after it


@pytest.mark.slow
def test_a_copy_that_is_interrupted_anywhere_holds_nothing(fake, monkeypatch):
    monkeypatch.setattr("volta.numba_cuda.device.staging.LARGE", 8)
    monkeypatch.setattr("volta.numba_cuda.device.staging.chunk_of", lambda nbytes: 8)
    want, pinned = np.arange(3).astype(np.float32), devices.gpu("cuda:0").pinned
    np.asarray(volta.device_put(want, "cuda"))
    before = live()

    def check(given):
        assert live() == before
        pinned.trim()
        assert pinned.stats().live == 0
        assert_bits_equal(np.asarray(volta.device_put(want, "cuda")), want)

    assert at_every_step(lambda: None, lambda _: np.asarray(volta.device_put(want, "cuda")), check, *DEVICE) > 100


def test_dropping_what_a_device_holds_runs_no_python(fake):
    """What a signal's handler raises within a destructor would be lost: none can run there."""
    f = volta.jit(lambda x: (x + 1, x * 2))
    x = put(1)
    f(x)
    before, ran = live(), []
    with devices.stream("cuda:0"):
        held = [f(x), put(3)]  # beside what another stream made: events, and memory that two streams use
        held += [f(held[1]), held[1].share()]
    held.append(held)
    sys.setprofile(lambda frame, event, arg: ran.append(frame.f_code) if event == "call" else None)
    try:
        del held
        gc.collect()
    finally:
        sys.setprofile(None)
    assert not [code for code in ran if code.co_filename.startswith(folder())]
    assert live() == before
