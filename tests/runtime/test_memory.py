"""Host memory: alignment, reuse, limits, views that keep their memory alive."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thread_support import run_threads
from volta.core.errors import MemoryBudgetError
from volta.runtime import memory
from volta.runtime.memory import ALIGNMENT, Buffer, HostPool, as_numpy, size_class, wrap_numpy


@given(st.integers(0, 1 << 40))
def test_size_classes_hold_the_request_and_waste_at_most_an_eighth(nbytes):
    size = size_class(nbytes)
    assert size >= nbytes and size % ALIGNMENT == 0
    assert size - nbytes <= max(ALIGNMENT, nbytes / 8 + 1)
    assert size_class(size) == size


def test_a_dropped_block_is_reused_at_the_same_place():
    pool = HostPool()
    first = pool.allocate(100_000)
    address = first.address
    assert address % ALIGNMENT == 0 and first.nbytes == 100_000
    del first
    second = pool.allocate(100_001)  # same class, another exact size
    assert second.address == address
    stats = pool.stats()
    assert (stats.allocations, stats.reuses) == (1, 1)
    assert stats.live == stats.peak == size_class(100_001) and stats.pooled == 0


def test_live_buffers_never_overlap():
    pool = HostPool()
    rng = np.random.default_rng(0)
    live = []
    for _ in range(500):
        if live and rng.random() < 0.5:
            live.pop(rng.integers(len(live)))
        else:
            live.append(pool.allocate(int(rng.integers(0, 5000))))
        spans = sorted((b.address, b.address + size_class(b.nbytes)) for b in live)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert pool.stats().live == sum(size_class(b.nbytes) for b in live)
    live.clear()
    assert pool.stats().live == 0


def test_limit_names_what_was_asked_and_pooled_blocks_do_not_count_against_it():
    pool = HostPool(limit=1 << 20)
    a = pool.allocate(600_000)
    with pytest.raises(MemoryBudgetError, match=r"500,000 bytes.*limit is 1,048,576"):
        pool.allocate(500_000)
    del a
    b = pool.allocate(1_000_000)  # only fits once the pooled 600,000 are given back
    assert pool.stats().pooled == 0 and pool.stats().live == size_class(1_000_000)
    pool.limit = None
    c = pool.allocate(1 << 20)
    assert {b.nbytes, c.nbytes} == {1_000_000, 1 << 20}


def test_machine_without_memory_is_a_named_error():
    with pytest.raises(MemoryBudgetError, match="no more memory"):
        HostPool().allocate(1 << 60)


def test_negative_size_is_refused():
    with pytest.raises(ValueError, match="-1"):
        HostPool().allocate(-1)


def test_trim_and_pool_limit():
    pool = HostPool(pool_limit=10_000)
    x, y = pool.allocate(4096), pool.allocate(65536)
    del x, y
    assert pool.stats().pooled == 4096  # the large block went straight back to the system
    assert pool.trim() == 4096 and pool.stats().pooled == 0
    assert pool.trim() == 0


@pytest.mark.parametrize("sizes", [(100,), (100_000,), (40_000, 40_000, 40_000), (300_000,), ()], ids=str)
def test_dropping_memory_runs_no_python(sizes):
    """What a signal's handler raises within a destructor would be lost: none can run there."""
    pool = HostPool(pool_limit=100_000)  # of several blocks the first is pushed out, the large one goes at once
    for _ in range(2):
        held = [pool.allocate(nbytes) for nbytes in sizes] + [pool.allocate(1)]
        cycle = [held]
        cycle.append(cycle)
        ran = []
        sys.setprofile(lambda frame, event, arg, ran=ran: ran.append(frame.f_code) if event == "call" else None)
        try:
            del held, cycle
            gc.collect()
        finally:
            sys.setprofile(None)
        assert not [code for code in ran if code.co_filename == memory.__file__]
        assert pool.stats().live == 0 and pool.stats().pooled <= 100_000


def test_blocks_that_wait_are_bounded_before_anybody_looks():
    pool = HostPool(pool_limit=1 << 20)
    held = [pool.allocate(100_000) for _ in range(50)]
    held += [pool.allocate(100) for _ in range(50)]
    blocks = [weakref.ref(buffer.owner.memory) for buffer in held]
    del held[:]  # no allocation follows
    assert 1 << 19 <= sum(ref().nbytes for ref in blocks if ref() is not None) <= (1 << 20) + 50 * ALIGNMENT
    assert pool.stats().live == 0


def test_a_peak_begins_at_what_is_there():
    pool = HostPool()
    lost, kept = pool.allocate(100_000), pool.allocate(1000)
    lost.__del__ = lambda: None  # an interrupt came before the block had a way back
    del lost
    pool.reset_peak()
    assert pool.stats().peak == pool.stats().live == size_class(kept.nbytes)


def test_peak_and_reset():
    pool = HostPool()
    a, b = pool.allocate(1024), pool.allocate(1024)
    del a
    assert pool.stats().peak == 2048 and pool.stats().live == 1024
    pool.reset_peak()
    assert pool.stats().peak == 1024
    del b


def test_numpy_view_keeps_the_buffer_alive_and_is_read_only_unless_asked():
    pool = HostPool()
    buffer = pool.allocate(64)
    view = as_numpy(buffer, (4, 4), None, np.float32, writable=True)
    view[:] = np.arange(16).reshape(4, 4)
    frozen = as_numpy(buffer, (4, 4), (4, 16), np.float32)
    del buffer
    gc.collect()
    assert pool.stats().live == 64
    assert np.array_equal(frozen, view.T) and not frozen.flags.writeable and frozen.ctypes.data == view.ctypes.data
    tail = view[2:]
    del view, frozen
    assert pool.stats().live == 64 and tail[0, 0] == 8
    del tail
    assert pool.stats().live == 0


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_numpy_views_of_every_dtype_and_rank(dtype, shape):
    buffer = HostPool().allocate(1024)
    view = as_numpy(buffer, shape, None, dtype, writable=True)
    assert view.dtype == np.dtype(dtype) and view.shape == shape and view.flags.c_contiguous
    view[...] = 1
    assert (view == np.ones(shape, dtype)).all()


def test_negative_strides_and_offsets():
    buffer = wrap_numpy(np.arange(10, dtype=np.int32))
    assert as_numpy(buffer, (10,), (-4,), np.int32, offset=36).tolist() == list(range(9, -1, -1))
    assert as_numpy(buffer, (3,), (0,), np.int32, offset=8).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "strides", "offset"), [((11,), None, 0), ((10,), None, 4), ((2,), (-4,), 0), ((2, 2), (36, 4), 0)]
)
def test_views_outside_the_buffer_are_refused(shape, strides, offset):
    buffer = wrap_numpy(np.arange(10, dtype=np.int32))
    with pytest.raises(ValueError, match="outside its buffer"):
        as_numpy(buffer, shape, strides, np.int32, offset=offset)


def test_foreign_memory_stays_alive_with_its_buffer():
    array = np.arange(5.0)
    buffer = wrap_numpy(array)
    assert buffer.owner is array and buffer.address == array.ctypes.data and buffer.nbytes == 40
    with pytest.raises(ValueError, match="C-contiguous"):
        wrap_numpy(np.zeros((4, 4))[:, 1])
    assert "nbytes=40" in repr(Buffer(64, 40, None))


def test_threads_share_a_pool():
    pool = HostPool()

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(2000):
            buffer = pool.allocate(int(rng.integers(1, 512)))
            as_numpy(buffer, (1,), None, np.uint8, writable=True)[0] = seed

    run_threads(work, 4)
    gc.collect()
    assert pool.stats().live == 0
    assert pool.stats().allocations <= 2 * 4 * 8  # at most one block a class and thread in use, and one sorted in


@pytest.mark.turns(6)
def test_buffers_alive_at_interpreter_shutdown_do_no_harm():
    code = (
        "from volta.runtime import memory; import builtins\n"
        "builtins.kept = memory.default_pool().allocate(1000)\n"
        "cycle = [memory.HostPool().allocate(5)]; cycle.append(cycle)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
