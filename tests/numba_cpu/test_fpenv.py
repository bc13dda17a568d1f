"""Kernels run in the standard floating-point environment, whatever another library left behind."""

import ctypes

import numpy as np
import pytest

from tests.numba_cpu.kernels import scale_kernel
from volta.numba_cpu import fpenv, launch, threads, unit

TINY = 2.0**-1070  # a subnormal; its half has the bits below
HALVED = 8


@pytest.fixture
def flushing():
    """This thread flushes subnormals to zero, as fast-math start-up code leaves it."""
    before = fpenv.get_control()
    fpenv.set_control(before | fpenv.control_bits().flush_to_zero)
    yield
    fpenv.set_control(before)


def _halve(x, parallel=False, keep_gil=False):
    """x * 0.5 in a kernel, every element a task."""
    address = unit.compile_kernels([scale_kernel(0.5)])
    table = launch.LaunchTable()
    table.append(next(iter(address.values())), [0, 0], n_tasks=x.size)
    table.patch(0, 0, 0)
    table.patch(0, 1, 1)
    out = np.full_like(x, -1)
    table.build(2, parallel=parallel, keep_gil=keep_gil).call(x.ctypes.data, out.ctypes.data)
    return out


def test_the_process_starts_standard():
    assert fpenv.is_standard()
    assert _halve(np.array([5e-324, 3.0])).tolist() == [0.0, 1.5]


@pytest.mark.parametrize(("parallel", "keep_gil"), [(False, False), (False, True), (True, False)])
def test_flush_to_zero_is_put_aside_and_restored(flushing, parallel, keep_gil):
    tiny = np.full(1000, TINY)
    foreign = fpenv.get_control()
    assert not fpenv.is_standard()
    before = fpenv.corrections()
    halved = _halve(tiny, parallel, keep_gil)
    mask = fpenv.control_bits().mask  # the sticky exception flags come and go
    assert fpenv.get_control() & mask == foreign & mask
    assert fpenv.corrections() >= before + 1
    assert set(halved.view(np.uint64)) == {HALVED}


def test_without_the_guard_the_same_kernel_would_flush(flushing):
    """The test above can fail: called bare, the kernel flushes."""
    (address,) = unit.compile_kernels([scale_kernel(0.5)]).values()
    x, out = np.array([TINY]), np.array([1.0])
    args = np.array([x.ctypes.data, out.ctypes.data])
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(address)
    kernel(args.ctypes.data, 0, 1, 0)
    assert out[0] == 0.0


def test_rounding_mode_is_put_aside():
    if fpenv.control_bits().standard != 0x1F80:
        pytest.skip("sets the rounding mode of x86")
    before = fpenv.get_control()
    expected = (np.array([0.1, 0.3, 0.7]) * 0.3).tolist()
    (address,) = unit.compile_kernels([scale_kernel(0.3)]).values()
    assert address
    table = launch.LaunchTable()
    table.append(address, [0, 0], n_tasks=3)
    table.patch(0, 0, 0)
    table.patch(0, 1, 1)
    run = table.build(2).call
    x, out = np.array([0.1, 0.3, 0.7]), np.zeros(3)
    fpenv.set_control(before | 0x6000)  # toward zero
    try:
        run(x.ctypes.data, out.ctypes.data)
    finally:
        fpenv.set_control(before)
    assert out.tolist() == expected


def test_run_plan_guards_too(flushing):
    (address,) = unit.compile_kernels([scale_kernel(0.5)]).values()
    x, out = np.array([TINY]), np.array([1.0])
    args = np.array([x.ctypes.data, out.ctypes.data])
    table = np.array([[address, args.ctypes.data, 1, 0]])
    launch.run_plan(table.ctypes.data, 1)
    assert out.view(np.uint64)[0] == HALVED


def test_workers_are_standard_even_when_started_by_a_flushing_thread(flushing):
    before = threads.get_num_threads()
    threads.set_num_threads(before + 1)  # the next parallel plan starts one more worker, from this thread
    try:
        halved = _halve(np.full(5000, TINY), parallel=True)
    finally:
        threads.set_num_threads(before)
    assert set(halved.view(np.uint64)) == {HALVED}
