"""A forked child begins with nothing that the parent's other threads had in hand."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.turns(6)

FORK_IN_THE_MIDDLE = """
import os, signal, threading, time
import volta, volta.numpy as vnp
from volta.numba_cpu import unit
from volta import lax

inside, forked = threading.Event(), threading.Event()

def build(module, name):  # emitting a kernel takes long
    inside.set()
    forked.wait()
    raise RuntimeError("enough")

def compile_for_long():
    try:
        unit.compile_kernels([unit.KernelSource("volta_slow", "slow", build)])
    except RuntimeError as error:
        assert str(error) == "enough"

double = volta.jit(lambda x: x * 2, donate_argnums=0)
two = volta.jit(lambda x: (x + 1, x + 2))  # small arrays, in one piece of memory
endless = volta.jit(lambda x: lax.while_loop(lambda c: c[0] >= 0, lambda c: (c[0] * 0, c[1] + 1), (x, 0)))
x, _ = two(double(vnp.ones(8)))
double(two(vnp.ones(8))[0])
threading.Thread(target=endless, args=(1.0,), daemon=True).start()  # another thread is in the middle of a call
time.sleep(0.5)
thread = threading.Thread(target=compile_for_long)
thread.start()
inside.wait()
pid = os.fork()
if not pid:
    signal.alarm(30)  # a child that waits for a thread of its parent waits for ever
    there = x.address
    assert double(x).address == there, "the child copied what it donates: nobody else reads it"
    assert float(volta.jit(lambda x: vnp.sum(x * 0.625))(vnp.ones(8))) == 5
    os._exit(0)
status = os.waitpid(pid, 0)[1]
forked.set()
thread.join()
assert status == 0, status
there = x.address
assert double(x).address != there  # in the parent the call is still under way
print("right")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.turns(6)
def test_a_child_waits_for_no_thread_of_its_parent_and_copies_nothing_for_one() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK_IN_THE_MIDDLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
