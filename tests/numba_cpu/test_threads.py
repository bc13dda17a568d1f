"""The worker pool: every partition gives the same result, and nothing hangs."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.numba_cpu.kernels import add_kernel, follow_kernel, last_kernel, spin_kernel
from tests.sampling import sampled
from tests.thread_support import run_threads, running
from volta.numba_cpu import threads, unit
from volta.numba_cpu.launch import LaunchTable

pytestmark = pytest.mark.turns(6)

HERE = os.path.dirname(__file__)


@pytest.fixture(autouse=True)
def restore_threads():
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


@pytest.fixture(scope="module")
def kernels():
    """Addresses: add, follow, spin, last."""
    sources = [add_kernel(), follow_kernel(), spin_kernel(), last_kernel()]
    addresses = unit.compile_kernels(sources)
    return [addresses[source.name] for source in sources]


def ping_pong(kernels, n, rounds, parallel=True):
    """A plan in which every launch reads, across all threads, what the one before wrote: x -> reversed(x) + 1."""
    follow = kernels[1]
    table = LaunchTable()
    for i in range(rounds):
        row = table.append(follow, [0, 0, n], n_tasks=n)
        table.patch(row, 0, i % 2)
        table.patch(row, 1, 1 - i % 2)
    return table.build(2, parallel=parallel).call


@sampled("count", (1, 2, 3, 5, 16), quick=(2, 3))
@pytest.mark.turns(6)
def test_barriers_order_the_launches(kernels, count):
    threads.set_num_threads(count)
    n, rounds = 1000, 41
    call = ping_pong(kernels, n, rounds)
    for _ in range(20):
        a, b = np.arange(n), np.zeros(n, int)
        call(a.ctypes.data, b.ctypes.data)
        assert (b == np.arange(n)[::-1] + rounds).all()


@pytest.mark.parametrize("n_tasks", [0, 1, 2, 3, 7, 8, 9])
def test_every_task_runs_exactly_once(kernels, n_tasks):
    for count in (1, 2, 3, 8):
        threads.set_num_threads(count)
        x = np.zeros(10, np.int64)
        table = LaunchTable()
        table.append(kernels[0], [x.ctypes.data, 1], n_tasks=n_tasks)
        table.build(0, parallel=True).call()
        assert x.tolist() == [1] * n_tasks + [0] * (10 - n_tasks)


@pytest.mark.parametrize("slow", [4, 6, 14, 19])
def test_threads_that_have_done_their_share_take_from_the_slow(kernels, slow):
    """A task that waits for all others ends, though some of them are in its thread's share, behind its piece."""
    threads.set_num_threads(2)
    tasks = 20
    for _ in range(5):
        order, ended = np.full(tasks, -1), np.zeros(1, np.int64)
        table = LaunchTable()
        table.append(kernels[3], [order.ctypes.data, slow, tasks - 1, 1 << 31, ended.ctypes.data], tasks, pieces=tasks)
        table.build(0, parallel=True).call()
        assert order[slow] == tasks - 1
        assert sorted(order) == list(range(tasks))


def test_single_task_launches_between_parallel_ones(kernels):
    threads.set_num_threads(3)
    add = kernels[0]
    x = np.zeros(9, np.int64)
    table = LaunchTable()
    for _ in range(50):
        for tasks in (9, 1, 1, 1, 9):
            table.append(add, [x.ctypes.data, 1], n_tasks=tasks)
    table.build(0, parallel=True).call()
    assert x.tolist() == [250] + [100] * 8


def counted_down(kernels, table, x, flag, pieces):
    """A loop that adds 1 to each element of x, and takes 1 from the flag until it is 0."""
    start = table.jump_unless(1)
    table.set_arg(start, 0, flag.ctypes.data + 4)
    table.append(kernels[0], [x.ctypes.data, 1], len(x), pieces)
    table.append(kernels[0], [flag.ctypes.data, -1])
    again = table.jump_unless(0)
    table.set_arg(again, 0, flag.ctypes.data)
    table.set_target(again, start + 1)
    table.set_target(start, len(table))
    table.walk_alone(start, len(table))


@pytest.mark.parametrize("before", [0, 1, 9])
@pytest.mark.parametrize("behind", [0, 1, 9])
def test_a_loop_of_small_launches_is_the_callers(kernels, before, behind):
    """Threads meet behind it, and not in its iterations: as often for 500 as for one."""
    threads.set_num_threads(3)
    meetings = []
    for iterations, pieces in ((1, 0), (500, 0), (500, 8)):
        x, flag = np.zeros(9, np.int64), np.array([iterations | 1 << 32])
        table = LaunchTable()
        table.append(kernels[0], [x.ctypes.data, 1], before)
        counted_down(kernels, table, x, flag, pieces)
        table.append(kernels[0], [x.ctypes.data, 1], behind)
        phase = threads._word(threads.native(), "PHASE")
        start = phase.value
        table.build(0, parallel=True).call()
        meetings.append(phase.value - start)
        assert x.tolist() == [iterations + (before > i) + (behind > i) for i in range(9)]
    assert meetings[0] == meetings[1] <= 6 and meetings[2] > 1000


def test_small_plans_never_touch_the_workers(kernels):
    threads.set_num_threads(2)
    runs = threads.parallel_runs()
    call = ping_pong(kernels, 10, 3, parallel=False)
    a, b = np.zeros(10, int), np.zeros(10, int)
    call(a.ctypes.data, b.ctypes.data)
    assert threads.parallel_runs() == runs
    threads.set_num_threads(1)
    ping_pong(kernels, 10, 3)(a.ctypes.data, b.ctypes.data)
    assert threads.parallel_runs() == runs


def test_workers_wake_after_they_parked(kernels):
    threads.set_num_threads(2)
    call = ping_pong(kernels, 100, 3)
    for pause in (0.0, 0.0001, 0.001, 0.02) * 5:
        a, b = np.zeros(100, int), np.zeros(100, int)
        call(a.ctypes.data, b.ctypes.data)
        assert (b == 3).all()
        time.sleep(pause)


def test_parked_workers_use_no_processor_time(kernels):
    threads.set_num_threads(2)
    a, b = np.zeros(100, int), np.zeros(100, int)
    ping_pong(kernels, 100, 3)(a.ctypes.data, b.ctypes.data)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


def test_several_python_threads_at_once(kernels):
    threads.set_num_threads(2)
    wrong = []

    def work(seed):
        call = ping_pong(kernels, 200, 9)
        for _ in range(300):
            a, b = np.full(200, seed), np.zeros(200, int)
            call(a.ctypes.data, b.ctypes.data)
            if not (b == seed + 9).all():
                wrong.append(seed)

    run_threads(work, 4)
    assert not wrong


def test_the_count_may_change_while_plans_run(kernels):
    stop = threading.Event()
    wrong = []

    def work():
        call = ping_pong(kernels, 500, 11)
        while not stop.is_set():
            a, b = np.zeros(500, int), np.zeros(500, int)
            call(a.ctypes.data, b.ctypes.data)
            if not (b == 11).all():
                wrong.append(1)

    with running(work):
        try:
            for n in (1, 4, 2, 6, 1, 3) * 10:
                threads.set_num_threads(n)
                time.sleep(0.002)
        finally:
            stop.set()
    assert not wrong and threads.get_num_threads() == 3


@pytest.mark.parametrize("n", [0, -1, 257, 1.5, "2", None, True])
def test_bad_counts_are_refused(n):
    with pytest.raises(ValueError, match="from 1 to 256"):
        threads.set_num_threads(n)


def _python(code, **environment):
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            f"import sys; sys.path.insert(0, {HERE!r})\n" + code,
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.turns(6)
def test_the_environment_sets_the_count(monkeypatch):
    show = "from volta.numba_cpu import threads; print(threads.get_num_threads())"
    assert _python(show, VOLTA_NUM_THREADS="7").stdout == "7\n"
    for bad in ("0", "many", "-3", "1000"):
        monkeypatch.setenv("VOLTA_NUM_THREADS", bad)
        with pytest.raises(ValueError, match="VOLTA_NUM_THREADS must be a whole number from 1 to 256"):
            threads._initial_threads()  # what a process asks when it imports the module
    monkeypatch.setenv("VOLTA_NUM_THREADS", "")
    if hasattr(os, "sched_getaffinity"):
        assert threads._initial_threads() == min(256, len(os.sched_getaffinity(0)))


@pytest.mark.turns(6)
def test_the_runtime_loops_assemble_for_aarch64_too():
    code = """
import llvmlite.binding as llvm
from volta.numba_cpu import fpenv, launch, threads_ir, watch
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(cpu="neoverse-n1")
for text in (
    fpenv.text(x86=False),
    threads_ir.text(256, x86=False),
    watch.text(x86=False),
    launch.text(),
):
    module = llvm.parse_assembly(text)
    module.triple = "aarch64-unknown-linux-gnu"
    module.verify()
    print(len(machine.emit_object(module)) > 1000)
"""
    result = _python(code)
    assert (result.stdout, result.stderr) == ("True\n" * 4, "")


_PLAN = """
import os, threading, time
import numpy as np
from tests.numba_cpu.kernels import *
from volta.numba_cpu import threads, unit
from volta.numba_cpu.launch import LaunchTable
threads.set_num_threads(3)
source = follow_kernel()
address = unit.compile_kernels([source])[source.name]
table = LaunchTable()
for i in range(9):
    row = table.append(address, [0, 0, 300], n_tasks=300)
    table.patch(row, 0, i % 2)
    table.patch(row, 1, 1 - i % 2)
call = table.build(2, parallel=True).call
def check():
    a, b = np.zeros(300, int), np.zeros(300, int)
    call(a.ctypes.data, b.ctypes.data)
    assert (b == 9).all()
check()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.turns(6)
def test_a_forked_child_starts_workers_of_its_own():
    result = _python(
        _PLAN
        + """
stop = False
def busy():
    while not stop: check()
others = [threading.Thread(target=busy) for _ in range(2)]
for other in others: other.start()
for _ in range(20):  # fork while other threads are in the middle of plans
    pid = os.fork()
    if not pid:
        assert threads.workers_started() == 0
        check(); check()
        os._exit(0 if threads.workers_started() == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for other in others: other.join()
check()
print("done")
"""
    )
    assert (result.stdout, result.stderr) == ("done\n", "")


_SLOW = """
from volta.numba_cpu import target, threads, unit
text = '''
declare i32 @PyThread_acquire_lock(ptr, i32)
declare i32 @usleep(i32)
define i32 @volta_test_slowly(ptr %lock, i32 %wait) {
  %got = call i32 @PyThread_acquire_lock(ptr %lock, i32 %wait)
  %ignored = call i32 @usleep(i32 30000)
  ret i32 %got
}
'''
symbols, slowly = threads.python_symbols, unit.compile_module(text, ["volta_test_slowly"])["volta_test_slowly"]
threads.python_symbols = lambda names: {**symbols(names), "PyThread_acquire_lock": slowly}
threads.native()
threads.python_symbols = symbols
"""


@pytest.mark.turns(6)
def test_stopping_the_workers_returns_when_they_have_gone():
    result = _python(  # workers that take long to wake
        _SLOW
        + _PLAN
        + """
for round in range(3):
    check()
    time.sleep(0.05)  # they park
    threads._call("volta_pool_stop")
    assert threads._word(threads.native(), "REMAINING").value == 0, "a worker has not left"
    assert threads.workers_started() == 0
print("gone")
"""
    )
    assert (result.stdout, result.stderr) == ("gone\n", "")


@pytest.mark.turns(6)
def test_exit_while_a_daemon_thread_is_in_a_plan():
    result = _python(
        _PLAN
        + """
def busy():
    while True: check()
for _ in range(3): threading.Thread(target=busy, daemon=True).start()
time.sleep(0.05)
print("leaving")
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_keyboard_interrupt_leaves_the_pool_usable():
    result = _python(
        _PLAN
        + f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for _ in range(10):
    timer = threading.Timer(0.01, lambda: os.kill(os.getpid(), {int(signal.SIGINT)}))
    try:
        timer.start()
        while True: check()
    except KeyboardInterrupt:
        pass
    timer.join()
    check()
print("usable")
"""
    )
    assert (result.stdout, result.stderr) == ("usable\n", "")
