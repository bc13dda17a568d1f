"""The launch table and the call path from Python."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numba_cpu.kernels import add_kernel, follow_kernel, scratch_kernel, spin_kernel
from tests.thread_support import run_threads
from volta.numba_cpu import launch, unit
from volta.numba_cpu.launch import LaunchTable


@pytest.fixture(scope="module")
def kernels():
    """Addresses: add, follow, scratch, spin."""
    sources = [add_kernel(), follow_kernel(), scratch_kernel(), spin_kernel()]
    addresses = unit.compile_kernels(sources)
    return [addresses[source.name] for source in sources]


def test_launches_run_in_order_and_patches_land(kernels):
    add, follow, *_ = kernels
    table = LaunchTable()
    first = table.append(add, [0, 5], n_tasks=4)
    second = table.append(follow, [0, 0, 4], n_tasks=4)
    table.patch(first, 0, 0)
    table.patch(second, 0, 0)
    table.patch(second, 1, 1, offset=16)
    run = table.build(2)
    for n in range(3):
        x, out = np.arange(4) * n, np.zeros(6, int)
        expected = (x + 5)[::-1] + 1
        assert run.call(x.ctypes.data, out.ctypes.data) is None
        assert out.tolist() == [0, 0, *expected]
    assert (run.calls, run.n_launches, run.n_inputs) == (3, 2, 2)


def test_an_empty_table_and_a_launch_without_tasks(kernels):
    LaunchTable().build(0).call()
    LaunchTable().build(0, parallel=True).call()
    table = LaunchTable()
    table.append(kernels[0], [0, 1], n_tasks=0)  # would crash if it ran
    table.build(0).call()
    table.build(0, parallel=True).call()


@given(st.data())
def test_random_tables_equal_a_plain_loop(data):
    add = unit.compile_kernels([add_kernel()])[add_kernel().name]
    size = 8
    arrays = [np.zeros(size, np.int64) for _ in range(3)]
    expected = [a.copy() for a in arrays]
    launches = []
    for _ in range(data.draw(st.integers(0, 12))):
        which, value = data.draw(st.integers(0, 2)), data.draw(st.integers(-9, 9))
        start = data.draw(st.integers(0, size - 1))
        n_tasks, pieces = data.draw(st.integers(0, size - start)), data.draw(st.integers(1, 9))
        launches.append((which, value, start, n_tasks, pieces))
    table = LaunchTable()
    for which, value, start, n_tasks, pieces in launches:
        row = table.append(add, [0, 0], n_tasks, pieces)
        table.patch(row, 0, which, offset=8 * start)
        table.set_arg(row, 1, value)
        expected[which][start : start + n_tasks] += value
    executable = table.build(3, parallel=data.draw(st.booleans()), keep_gil=data.draw(st.booleans()))
    executable.call(*(a.ctypes.data for a in arrays))
    assert all((a == e).all() for a, e in zip(arrays, expected, strict=True))


def test_wrong_arguments_are_type_errors_and_leave_the_plan_usable(kernels):
    table = LaunchTable()
    table.append(kernels[0], [0, 1], n_tasks=1)
    table.patch(0, 0, 0)
    run = table.build(1)
    x = np.zeros(1, int)
    for wrong in ((), (1, 2), ("a",), (None,), (1.5,)):
        with pytest.raises(TypeError):
            run.call(*wrong)
    with pytest.raises(OverflowError):
        run.call(1 << 64)
    with pytest.raises(TypeError):
        run.call(address=3)
    run.call(x.ctypes.data)
    assert x[0] == 1 and run.calls == 1


def test_bad_tables_are_refused(kernels):
    table = LaunchTable()
    with pytest.raises(ValueError, match="-1 tasks"):
        table.append(kernels[0], [], n_tasks=-1)
    table.append(kernels[0], [1, 2])
    for launch_number, slot in ((1, 0), (0, 2), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="no args slot"):
            table.set_arg(launch_number, slot, 0)
        with pytest.raises(IndexError, match="no args slot"):
            table.patch(launch_number, slot, 0)
    with pytest.raises(ValueError, match="cannot be -1"):
        table.patch(0, 0, -1)
    table.patch(0, 0, 1)
    with pytest.raises(ValueError, match="beyond the 1 given"):
        table.build(1)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("words", [1, 8, 1 << 20])
def test_scratch_is_aligned_and_as_large_as_asked(kernels, words, parallel):
    table = LaunchTable()
    table.append(kernels[2], [0, words], n_tasks=64)
    table.patch(0, 0, 0)
    out = np.zeros(64, np.int64)
    table.build(1, scratch_bytes=8 * words, parallel=parallel).call(out.ctypes.data)
    assert (out != 0).all() and (out % 64 == 0).all()


def test_scratch_too_large_for_the_machine_is_a_memory_error(kernels):
    table = LaunchTable()
    table.append(kernels[2], [0, 1])
    with pytest.raises(MemoryError):
        table.build(0, scratch_bytes=1 << 60).call()


def test_one_executable_serves_several_threads_one_after_the_other(kernels):
    add, _, _, spin = kernels
    table = LaunchTable()
    table.append(spin, [20_000])
    table.append(add, [0, 1], n_tasks=16)
    table.patch(1, 0, 0)
    run = table.build(1)
    arrays = [np.zeros(16, np.int64) for _ in range(4)]

    def work(n):
        for _ in range(200):
            run.call(arrays[n].ctypes.data)

    run_threads(work, 4)
    assert all((x == 200).all() for x in arrays) and run.calls == 800


def test_the_gil_is_free_while_a_plan_runs(kernels):
    table = LaunchTable()
    table.append(kernels[3], [300_000_000])  # about 0.1 s
    run = table.build(0)
    worker = threading.Thread(target=run.call)
    worker.start()
    steps = 0
    while worker.is_alive():
        steps += 1
    assert steps > 1000


def test_the_callable_alone_keeps_everything_alive(kernels):
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    table = LaunchTable()
    table.append(kernels[0], [0, 1], n_tasks=1)
    table.patch(0, 0, 0)
    call = table.build(1, keep=owner).call
    del table, owner
    gc.collect()
    assert gone() is not None
    junk = [np.full(1000, -1) for _ in range(100)]
    x = np.zeros(1, int)
    call(x.ctypes.data)
    assert x[0] == 1 and junk
    del call
    gc.collect()
    assert gone() is None


def test_a_callable_keeps_the_method_that_the_cache_lost(kernels):
    """Two threads that come first both make one; the cache keeps only the other's."""
    table = LaunchTable()
    table.append(kernels[0], [0, 1], n_tasks=1)
    table.patch(0, 0, 0)
    launch._method.cache_clear()
    run = table.build(1)
    method = weakref.ref(launch._method())
    launch._method.cache_clear()
    gc.collect()
    assert method() is not None
    x = np.zeros(1, int)
    run.call(x.ctypes.data)
    assert x[0] == 1
    del run
    gc.collect()
    assert method() is None


def test_run_plan_walks_a_table_by_address(kernels):
    x = np.zeros(4, np.int64)
    args = np.array([x.ctypes.data, 3])
    table = np.array([[kernels[0], args.ctypes.data, 4, 1]] * 2)
    launch.run_plan(table.ctypes.data, 2)
    assert x.tolist() == [6] * 4
    launch.run_plan(table.ctypes.data, 0)
    assert x.tolist() == [6] * 4


@pytest.mark.turns(6)
def test_a_plan_called_at_interpreter_exit():
    code = (
        f"import sys, atexit; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import numpy as np; from kernels import add_kernel; from volta.numba_cpu import launch, unit, threads\n"
        "threads.set_num_threads(3)\n"
        "x = np.zeros(8, int); table = launch.LaunchTable()\n"
        "atexit.register(lambda: (call(x.ctypes.data), print(x.tolist())))\n"
        "(a,) = unit.compile_kernels([add_kernel()]).values()\n"
        "table.append(a, [0, 1], 8); table.patch(0, 0, 0); call = table.build(1, parallel=True).call\n"
        "call(x.ctypes.data)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{[2] * 8}\n", "")


@pytest.mark.skipif("VOLTA_TEST_GUARD" in os.environ, reason="guarded memory goes back by steps of Python")
def test_no_python_runs_where_a_plan_goes(monkeypatch) -> None:
    """An interrupt that Python hears there it reports and drops."""
    monkeypatch.setattr(launch, "_plans", set())  # as in a process where no other test has left plans
    monkeypatch.setattr(launch, "_most_plans", 64)
    words = np.zeros(16, np.int64)
    plans = [launch._Plan(words, words, words, launch._aligned(16)) for _ in range(300)]
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        plans.pop()
    finally:
        sys.setprofile(None)
    assert not entered
    plans.clear()
    launch._Plan(words, words, words, launch._aligned(16))
    assert len(launch._plans) < 800  # what is gone is not noted for ever
