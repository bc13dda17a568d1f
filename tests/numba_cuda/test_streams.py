"""Streams, and copies beside programs: on a GPU, or where none is over a stand-in for the driver."""

import numpy as np
import pytest

import volta
from tests.numba_cuda.test_runtime import normal, put, step
from volta import nn
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal


def test_streams_change_no_bit(gpu):
    f, w, x = volta.jit(step), put(normal(6, 4)), put(normal(3, 6))
    want = f(w, x)
    found = []
    for _ in range(3):
        with devices.stream():
            found.append(f(w, x))
    for out in found:
        assert_bits_equal(out, want)
    with devices.stream():
        with devices.stream() as inner:
            assert gpu.stream() is inner
            y = f(w, x)[0]
        z = y + 1  # made by one stream, used by another
    assert_bits_equal(np.asarray(z * 2), (np.asarray(want[0]) + 1) * 2)
    assert gpu.stream() is gpu.main


def test_memory_of_one_stream_is_not_reused_while_another_reads_it(gpu):
    f = volta.jit(lambda x: nn.softmax(x) + 1)
    x = put(normal(30, 40))
    want = np.asarray(f(x))
    y = put(normal(30, 40))
    with devices.stream():
        out = f(y)
    del y  # the side stream may not have read it yet
    for _ in range(3):
        put(np.full((30, 40), np.nan, np.float32)).block_until_ready()
    assert_bits_equal(np.asarray(out), want)


def test_a_donor_on_one_stream_waits_for_readers_on_others(gpu):
    f, g = volta.jit(lambda x: nn.softmax(x) + 1), volta.jit(lambda x: x * 0, donate_argnums=0)
    x = put(normal(30, 40))
    want = np.asarray(f(x))
    with devices.stream():
        out = f(x)
    g(x).block_until_ready()  # in place: the side stream may not have read it yet
    assert_bits_equal(np.asarray(out), want)
    with devices.stream():
        x = g(put(normal(30, 40)))
        with devices.stream():
            y = volta.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert_bits_equal(np.asarray(y), np.ones((30, 40), np.float32))


def test_large_copies_run_beside_other_work(gpu):
    host = normal(600, 600)  # more than a megabyte
    x = put(host)
    assert x.buffer().stream is gpu.copies
    y = x + 1
    assert x.buffer().stream is gpu.main  # it waited once; later calls need not
    assert_bits_equal(np.asarray(y), host + 1)
    assert_bits_equal(np.asarray(x), host)
    z = volta.jit(lambda x: x * 2, donate_argnums=0)(put(host))
    assert_bits_equal(np.asarray(z), host * 2)


@pytest.mark.parametrize("piece", [1 << 10, 1 << 20])
def test_copies_of_several_chunks(gpu, monkeypatch, piece):
    monkeypatch.setattr("volta.numba_cuda.device.staging.chunk_of", lambda nbytes: 400_003)
    monkeypatch.setattr("volta.numba_cuda.device.staging._PIECE", piece)
    host = normal(700, 611)
    assert_bits_equal(np.asarray(put(host)), host)


def test_reading_waits_for_what_was_launched_before_it_was_announced(gpu):
    f, g = volta.jit(lambda x: nn.softmax(x) + 1), volta.jit(lambda x: x * 0, donate_argnums=0)
    y = f(put(normal(30, 40)))
    want = np.asarray(f(put(normal(30, 40))))
    y.copy_to_host_async()
    z = f(y)
    assert_bits_equal(np.asarray(y), want)
    if hasattr(gpu.api, "fake"):
        assert not gpu.main.idle()  # nobody has waited for it
    y.copy_to_host_async()
    with devices.stream():
        again = f(y)  # another stream's
    assert_bits_equal(np.asarray(again), np.asarray(z))
    assert_bits_equal(np.asarray(y), want)
    y.copy_to_host_async()
    assert not np.asarray(g(y)).any()  # in place: it was another value that was announced
    with pytest.raises(volta.errors.DonatedBufferError):
        y.copy_to_host_async()
    assert volta.numpy.ones(3).copy_to_host_async() is None  # the host's are there
