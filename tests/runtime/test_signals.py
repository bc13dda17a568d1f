"""Plans that run for long: signal handlers run in the middle, and what they raise ends the plan."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.numba_cpu import threads, watch

pytestmark = [pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer"), pytest.mark.turns(6)]

COUNTING = """
import signal, sys, threading, time, os
import volta, volta.numpy as vnp
from volta import lax
endless = volta.jit(lambda x: lax.while_loop(lambda c: c[0] >= 0, lambda c: (c[0] * 0, c[1] + 1), (x, 0)))
wide = volta.jit(lambda x: lax.while_loop(lambda c: c[0, 0] >= 0, lambda c: vnp.tanh(c @ c) * 0 + 1, x))
big = vnp.ones((300, 300))
"""


class Stop(Exception):
    """What a handler raises."""


@pytest.fixture(autouse=True)
def restore() -> Any:
    count, handler = threads.get_num_threads(), signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    threads.set_num_threads(count)


def endless(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0, 0] >= 0, lambda c: c * 0 + 1, x)


def raise_stop(*_: Any) -> None:
    raise Stop


# small: one thread; large: several, which meet between launches
@pytest.mark.parametrize(("size", "count"), [(2, 1), (400, 1), (400, 3)])
def test_an_endless_loop_ends_with_what_a_handler_raises(size: int, count: int) -> None:
    threads.set_num_threads(count)
    f, g = volta.jit(endless), volta.jit(lambda x: x + 1)
    x = vnp.ones((size, size))
    g(x)
    f.lower(x).compile()
    ended = watch.stopped()
    signal.signal(signal.SIGALRM, raise_stop)
    for _ in range(2):  # and again: nothing is left of the first
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stop):
            f(x)
        assert (x == 1).all() and (g(x) == 2).all()
    assert watch.stopped() > ended


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_handler_that_raises_nothing_lets_the_plan_go_on(count: int) -> None:
    threads.set_num_threads(count)
    iterations, size = (1_000_000, 2) if count == 1 else (1000, 400)
    f = volta.jit(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 1.0000001, x))
    x = vnp.ones((size, size))
    f(x, 0), vnp.ones(3).sum()
    heard: list[float] = []
    inside: list[str] = []

    def hear(*_: Any) -> None:
        heard.append(float(vnp.ones(3).sum()))  # calls of its own
        try:
            f(x, 0)
        except RuntimeError as error:  # the program runs: this is in the middle of it
            inside.append(str(error))

    signal.signal(signal.SIGALRM, hear)
    while not inside:  # however fast the machine is, some number of iterations takes long enough
        iterations *= 2
        want = f(x, iterations)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        assert f(x, iterations).tobytes() == want.tobytes()
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert {*heard} == {3.0} and "while it runs" in inside[0]


def test_a_handler_that_calls_the_same_program_is_told_so() -> None:
    f = volta.jit(endless)
    x = vnp.ones((2, 2))
    f.lower(x).compile()
    signal.signal(signal.SIGALRM, lambda *_: f(x))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(RuntimeError, match="called by a signal handler while it runs"):
        f(x)


def test_donated_arrays_are_gone_once_the_plan_has_begun() -> None:
    f = volta.jit(endless, donate_argnums=0)
    x = vnp.ones((2, 2))
    f.lower(x).compile()
    signal.signal(signal.SIGALRM, raise_stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(Stop):
        f(x)
    assert x.is_deleted()
    with pytest.raises(volta.errors.DonatedBufferError):
        x + 1


@pytest.mark.turns(6)
def test_who_waits_for_a_program_that_another_thread_runs_hears_signals_too() -> None:
    done = python("""
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=endless, args=(1.0,), daemon=True).start()
time.sleep(1)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: endless(1.0)
except KeyboardInterrupt: print("interrupted")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def python(code: str) -> Any:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNTING + code], capture_output=True, text=True, timeout=120
    )


SIGNALS = {
    "an interrupt": ("SIGINT", "try: {call}\nexcept KeyboardInterrupt: print('interrupted')", "interrupted\n", 0),
    "termination": ("SIGTERM", "{call}", "", -signal.SIGTERM),
    "termination with a handler": (
        "SIGTERM", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n{call}", "", 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", ["endless(1.0)", pytest.param("wide(big)", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if i else ()) for i, x in enumerate(SIGNALS)])
@pytest.mark.turns(6)
def test_the_process_hears_signals(name: str, call: str) -> None:
    sent, code, said, status = SIGNALS[name]
    send = f"threading.Timer(1, lambda: os.kill(os.getpid(), signal.{sent})).start()\n"
    done = python(send + "signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code.format(call=call))
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")


ENDINGS = {
    "in a parallel loop": "threading.Thread(target=wide, args=(big,), daemon=True).start()\n",
    "in a loop of one thread": "threading.Thread(target=endless, args=(1.0,), daemon=True).start()\n",
    "compiling": """
def compiling(n):
    while True:
        n += 1
        volta.jit(lambda x: vnp.tanh(x * n) + vnp.exp(x) * n)(big[0])
for i in range(3): threading.Thread(target=compiling, args=(i * 1000,), daemon=True).start()
""",
}


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if i else ()) for i, x in enumerate(ENDINGS)])
@pytest.mark.turns(6)
def test_the_interpreter_ends_while_daemon_threads_are_busy(name: str) -> None:
    for _ in range(1 if name == "in a parallel loop" else 4):
        done = python(ENDINGS[name] + "time.sleep(0.4)\nprint('leaving')\n")
        assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
        # SystemExit may reach a compiling thread in a callback of llvmlite's, which reports it and drops it
        assert not done.stderr or (name == "compiling" and "SystemExit" in done.stderr)


FORKS = """
os.environ["VOLTA_CACHE"] = "0"
stop = False
def compiling(n):
    while not stop:
        n += 1
        volta.jit(lambda x: vnp.exp(x * n) + vnp.sin(x) * n)(big[0])
others = [threading.Thread(target=compiling, args=(i * 1000,)) for i in range(2)]
for x in others: x.start()
time.sleep(0.3)
for i in range({count}):
    pid = os.fork()
    if not pid:
        signal.alarm(40)  # a child that waits for a thread of its parent waits for ever
        os._exit(int(not (volta.jit(lambda x: x * 2.25 + i)(vnp.ones(7)) == 2.25 + i).all()))
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for x in others: x.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.turns(6)
def test_children_compile_that_are_forked_while_other_threads_do(count: int) -> None:
    done = python(FORKS.replace("{count}", str(count)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_child_that_a_handler_forks_does_not_go_on_without_its_workers() -> None:
    done = python("""
volta.numba_cpu.threads.set_num_threads(3)
wide.lower(big).compile()  # or the timer strikes while it is compiled, on a busy machine
def handler(*_):
    if not os.fork():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # a child that goes on does not go on for ever
        return
    print("parent", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try: wide(big)
except KeyboardInterrupt: pass
except RuntimeError as error: print("child:", "forked by a signal handler" in str(error), flush=True); os._exit(5)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "child: True\nparent 5\n", "")
