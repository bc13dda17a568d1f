"""No signal handler comes into llvmlite's lock, nor into what waits for another thread: nothing is held for ever."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import llvmlite
import pytest
from llvmlite.binding import ffi

from tests.interrupt_support import Interrupt, at_every_step, folder
from volta.emit import jobs
from volta.emit.jobs import in_threads, shielded
from volta.numba_cpu import target

pytestmark = pytest.mark.turns(6)

LLVMLITE = str(Path(llvmlite.__file__).parent)
TEXT = "define i64 @volta_test_shielded(i64 %x) {\n %y = add i64 %x, 1\n ret i64 %y\n}\n"

with_timers = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")


def lock_is_free() -> bool:
    """Whether another thread can have llvmlite's lock."""
    found = list[bool]()

    def take() -> None:
        found.append(ffi.lib._lock._lock.acquire(timeout=5))
        if found[0]:
            ffi.lib._lock._lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return found[0]


def compile_and_load(_: object = None) -> None:
    code = target.compile_object(TEXT)
    del _
    assert target.MachineCode([code], ["volta_test_shielded"]).addresses["volta_test_shielded"]
    target.free_unused()


@pytest.mark.turns(6)
def test_an_interrupt_anywhere_leaves_llvmlites_lock_free() -> None:
    """An exception before each instruction of Volta's and llvmlite's that the main thread runs."""
    compile_and_load()

    def check(_: object) -> None:
        assert lock_is_free()

    where = folder("numba_cpu", "target.py"), folder("emit", "jobs.py"), LLVMLITE
    assert at_every_step(lambda: None, compile_and_load, check, *where) > 100


@with_timers
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.turns(6)
def test_signals_without_end_while_compiling() -> None:
    """Each is heard, and after each everything can be compiled."""
    heard = list[int]()

    def handler(*_: Any) -> None:
        heard.append(1)
        raise Interrupt  # Python drops it if it comes in the destructor of machine code

    compile_and_load()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for n in range(300):
            with contextlib.suppress(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.00005 + n % 50 * 0.00006)
                while len(heard) <= n:
                    compile_and_load()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(heard) == 300 and lock_is_free()
    compile_and_load()


def test_the_main_thread_makes_no_such_call_itself_and_others_do() -> None:
    where = shielded(threading.get_ident)
    assert where() != threading.get_ident()
    inner = shielded(lambda: (where(), threading.get_ident()))
    assert len({*inner()}) == 1  # one thread is enough


def test_where_no_threads_are_left_the_main_thread_makes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(jobs, "start_new_thread", none_left)
    assert shielded(threading.get_ident)() == threading.get_ident()


def test_what_a_call_raises_is_raised_and_lets_go_of_what_the_call_held() -> None:
    class Held:
        pass

    def fail() -> None:
        held = Held()
        raise ValueError(f"no {type(held).__name__}")

    with pytest.raises(ValueError, match="no Held") as raised:
        shielded(fail)()
    assert "in fail" in "".join(traceback.format_exception(raised.value))
    assert not any(isinstance(x, Held) for x in gc.get_objects())


@with_timers
def test_an_interrupt_is_heard_while_the_call_goes_on() -> None:
    go, ended = threading.Event(), threading.Event()

    @shielded
    def slow() -> None:
        go.wait()
        ended.set()

    def handler(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for call in (slow, lambda: list(in_threads(slow, [()] * 5, 2))):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupt):
                call()
            assert not ended.is_set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        go.set()
    assert ended.wait(60)


def test_calls_that_were_not_begun_are_not_made_after_an_interrupt() -> None:
    made, go = list[int](), threading.Event()

    def work(n: int) -> None:
        made.append(n)
        go.wait()

    def calls() -> Any:
        for n in range(5):
            yield (n,)
        while len(made) < 2:
            time.sleep(0.001)
        raise Interrupt

    with pytest.raises(Interrupt):
        list(in_threads(work, calls(), 2))
    go.set()
    time.sleep(0.05)
    assert sorted(made) == [0, 1]


FORKING = """
import os, signal, threading, time
from volta.emit import jobs
pid = os.getpid()
@jobs.shielded
def work():
    if os.getpid() == pid: time.sleep(0.5)
    return 7
def handler(*_):
    signal.alarm(30)  # a child that waits for a thread of its parent waits for ever
    child.append(os.fork())
child = []
signal.signal(signal.SIGUSR1, handler)
threading.Timer(0.2, lambda: os.kill(pid, signal.SIGUSR1)).start()
found = work(){more}
if os.getpid() != pid: os._exit(found)
print(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]), found)
"""

LEAVING = """
import os, signal, threading, time
import volta
from volta.numba_cpu import target
signal.signal(signal.SIGINT, signal.default_int_handler)
text = "".join(
    f"define i64 @f{i}(i64 %x) {{\\n %y = add i64 %x, 1\\n %z = mul i64 %y, %x\\n ret i64 %z\\n}}\\n"
    for i in range(600)
)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True: target.compile_object(text)
except KeyboardInterrupt: print("interrupted")
"""


def python(code: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_a_handler_forks_makes_the_call_itself() -> None:
    done = python(FORKING.replace("{more}", ""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 7\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals")
def test_the_interpreter_ends_after_an_interrupt_while_llvm_goes_on() -> None:
    done = python(LEAVING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
