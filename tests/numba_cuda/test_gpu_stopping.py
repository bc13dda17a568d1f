"""On a GPU: signals end loops that would never end, and processes that wait for one. Each case is a process of its own.

Without a GPU some of them run over the stand-in for the driver.
"""

import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from tests.numba_cuda.test_gpu import WHY

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")]

STAND_IN = """
import os, signal, threading
import pytest
from tests.numba_cuda.fake_driver import FakeDriver
FakeDriver().install(pytest.MonkeyPatch())
plain = signal.signal
def deferring(number, handler):
    # On a GPU the interpreter's steps are Volta's. Here they are mostly the stand-in's, where an error would be lost.
    def handle(number, frame):
        at = frame
        while at is not None and "fake" not in at.f_code.co_filename: at = at.f_back
        if at is None: handler(number, frame)
        else: threading.Timer(1e-4, os.kill, (os.getpid(), number)).start()
    plain(number, handle)
signal.signal = deferring
"""

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import volta, volta.numpy as vnp
from volta import errors, lax
from volta.runtime import devices
signal.signal(signal.SIGINT, signal.default_int_handler)
put = lambda x: volta.device_put(x, "cuda")
endless = volta.jit(lambda x: lax.while_loop(lambda c: c[0] >= 0, lambda c: c * 0 + 1, x))
counted = volta.jit(lambda n, x: lax.fori_loop(0, n, lambda i, c: c + 1, x))
long = volta.jit(lambda x: lax.scan(lambda c, _: (vnp.cos(c), vnp.sum(c)), x, None, 10**8)[0])
double = volta.jit(lambda x: x * 2)
more = volta.jit(lambda x: x + 1, donate_argnums=0)
x = put(np.ones(SIZE, np.float32))
for f in (double, more, lambda x: counted(np.int32(3), x)): f(put(np.ones(SIZE, np.float32))).block_until_ready()
for f in (endless, long): f.lower(x).compile()
sent = [0.0]
def send(seconds=1.0, number=signal.SIGINT):
    def now():
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), number)
    threading.Timer(seconds, now).start()
def interrupted(use, *args):
    try: use(*args)
    except KeyboardInterrupt: print(f"{1e3 * (time.perf_counter() - sent[0]):.1f} ms", file=sys.stderr)
    else: print("not interrupted")
def lost(use, *args):
    try: use(*args)
    except errors.CutShortError: pass
    else: print("read what is not there")
def intact(n=100):
    assert (np.asarray(x) == 1).all()
    assert (np.asarray(counted(np.int32(n), x)) == n + 1).all()
    assert (np.asarray(double(x)) == 2).all()
"""


def python(code: str, over: str) -> Any:
    first = "SIZE = 1000" if over == "gpu" else STAND_IN + "SIZE = 10"
    command = [sys.executable, "-W", "ignore", "-c", f"{first}\n{PRELUDE}\n{code}\nprint('done')\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    print(done.stdout, done.stderr)
    return done


INTERRUPTS = {
    "waiting": """
for _ in range(3):
    y = endless(x)
    z = double(y)
    send()
    interrupted(z.block_until_ready)
    for use in (np.asarray, vnp.sum, double, endless, lambda y: y.block_until_ready()):
        lost(use, y), lost(use, z)
    intact()
""",
    "reading": """
for read in (np.asarray, str, lambda y: volta.device_put(y, "cpu"), lambda y: float(y[0])):
    y = endless(x)
    send()
    interrupted(read, y)
    lost(np.asarray, y)
    intact()
""",
    "reading much": """
big = put(np.ones(10**7, np.float32))
send()
interrupted(np.asarray, endless(big))
assert (np.asarray(big) == 1).all()
intact()
""",
    "in a scan of minutes": """
y = long(x)
send()
interrupted(np.asarray, y)
lost(np.asarray, y)
intact(10_000)
""",
    "with donated arrays": """
y, z = put(np.ones(SIZE, np.float32)), put(np.ones(SIZE, np.float32))
w = more(endless(x))
z = more(z)
send()
interrupted(w.block_until_ready)
lost(more, w)
assert (np.asarray(z) == 2).all()
intact()
""",
    "with work behind it": """
y = endless(x)
large = [put(np.full(n, 7, np.float32)) for n in (1, 25_000, 2_000_000)]
for _ in range(100): z = double(y)
with devices.stream(): beside = double(x)
send()
interrupted(z.block_until_ready)
assert all((np.asarray(a) == 7).all() for a in large) and (np.asarray(beside) == 2).all()
intact()
""",
    "with more work than a stream takes": """
y = endless(x)
def much():
    global y
    for _ in range(5000): y = double(y)
send()
interrupted(much)
lost(np.asarray, y)
intact()
""",
    "compiling": """
y = endless(x)
send()
interrupted(volta.jit(lambda x: vnp.tanh(x) + 3), x)
lost(np.asarray, y)
intact()
""",
    "allocating": """
y = endless(x)
send()
def much():
    kept = []
    with devices.memory_limit(3 << 30):  # beyond it, what is not used is given back to the driver
        for n in range(1, 40): kept[-1:] = [devices.empty(n << 26, devices.gpu("cuda:0").main)]
    y.block_until_ready()
interrupted(much)
intact()
""",
    "beside another thread's loop": """
found, ready, n, few = [], threading.Event(), put(np.int32(400_000)), put(np.int32(3))
def other():
    with devices.stream():  # which has waited for the main one's work before the endless loop is there
        counted(few, x * 1).block_until_ready()
        y = counted(n, x)
        ready.set()
        found.append((np.asarray(y) == 400_001).all())
t = threading.Thread(target=other)
t.start()
ready.wait()
y = endless(x)
send(0.3)
interrupted(y.block_until_ready)
intact()
t.join()
assert found == [True]
""",
    "in the middle of many short loops": """
count, y = put(np.int32(1000)), x
send(0.5)
def train():
    global y
    while True: y = counted(count, y)
interrupted(train)
steps = (np.asarray(y)[0] - 1) / 1000  # nothing is lost
assert steps == int(steps) and (np.asarray(y) == 1000 * steps + 1).all()
intact()
""",
    "between two streams": """
with devices.stream(): y = endless(x)
z = double(y)  # on the main stream, which waits for the other
send()
interrupted(z.block_until_ready)
lost(np.asarray, y), lost(np.asarray, z)
intact()
""",
}


TOO_MUCH = (
    "reading much", "in a scan of minutes", "beside another thread's loop", "in the middle of many short loops",
)  # fmt: skip
"""What the stand-in takes too long for."""


def cases(names: Iterable[str]) -> list[Any]:
    on_gpu = [pytest.param(n, "gpu", marks=needs_gpu) for n in names]
    return on_gpu + [pytest.param(n, "stand-in", marks=pytest.mark.slow) for n in names if n not in TOO_MUCH]


@pytest.mark.parametrize(("name", "over"), cases(INTERRUPTS))
def test_an_interrupt_ends_a_loop_and_leaves_the_rest(name: str, over: str) -> None:
    done = python(INTERRUPTS[name], over)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


ENDINGS = {
    "termination": ("send(number=signal.SIGTERM)\nendless(x).block_until_ready()", "", -signal.SIGTERM),
    "termination with a handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "send(number=signal.SIGTERM)\nendless(x).block_until_ready()", "", 3,
    ),
    "an interrupt that nobody catches": ("send()\nendless(x).block_until_ready()", "", 130),
    "the end": ("y = endless(x)", "done\n", 0),
    "the end beside a thread": (
        "threading.Thread(target=lambda: np.asarray(endless(x)), daemon=True).start()\ntime.sleep(.5)", "done\n", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "over"), cases(ENDINGS))
def test_a_process_ends_whatever_its_loops(name: str, over: str) -> None:
    code, said, status = ENDINGS[name]
    done = python(code, over)
    if status == 130:  # Python ends itself by the signal
        assert done.returncode in (130, -signal.SIGINT) and "KeyboardInterrupt" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (status, said), done.stderr
    again = python("intact()", over)
    assert (again.returncode, again.stdout) == (0, "done\n"), again.stderr
