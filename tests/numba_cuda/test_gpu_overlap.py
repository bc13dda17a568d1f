"""On a GPU: work on several streams runs at once, and copies run beside programs. What comes second is there while a
program of about half a second that was launched before it still runs; `benchmarks/gpu.py runtime` has the times."""

import numpy as np
import pytest

import volta
from volta.runtime import devices

pytestmark = pytest.mark.gpu


@volta.jit
def long_program(a):
    for _ in range(20):
        a = a @ a
    return a


def launched(a):
    """A long program on the current stream, and the event that is passed when it is done."""
    result = long_program(a)
    return result, result.buffer().stream.mark()


@pytest.fixture
def square():
    a = volta.device_put(np.full((8192, 8192), 1 / 8192, np.float32), "cuda")
    long_program(a).block_until_ready()  # compiled
    return a


def test_programs_on_two_streams_run_at_once(square):
    small = volta.jit(lambda x: x @ x.T)
    with devices.stream():
        x = volta.device_put(np.ones((16, 1000), np.float32), "cuda")
        small(x).block_until_ready()
        with devices.stream():
            _, done = launched(square)
        y = small(x)
        y.block_until_ready()
        assert not done.passed()
    done.wait()
    assert done.passed()
    np.testing.assert_array_equal(y, np.full((16, 16), 1000, np.float32))


def test_a_copy_runs_beside_a_program(square):
    host = volta.device_put(np.arange(20_000_000, dtype=np.float32))
    result, done = launched(square)
    copied = volta.device_put(host, "cuda")
    copied.block_until_ready()
    assert not done.passed()
    result.block_until_ready()
    assert done.passed()
    np.testing.assert_array_equal(copied, host)
