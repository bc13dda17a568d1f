"""Interrupts and forks at random moments: a caught one leaves nothing behind.

Calls that read and donate, tracing and compiling, endless loops of one and of several threads, and forks while other
threads compile, run and donate. For each hundred interrupted calls one trace, for each five hundred a loop and a fork.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from campaign import Campaign

import volta
import volta.numpy as vnp
from volta import lax
from volta.core.interp import _state
from volta.runtime.memory import default_pool


class Stop(BaseException):
    """What the handler raises."""


def _raise(_: int, frame: Any) -> None:
    if frame.f_code is not _interrupted.__code__:  # on a busy machine the next signal comes where the last is caught
        raise Stop


def _interrupted(after: float, run: Callable[[], Any]) -> bool:
    """Run until a timer's handler raises, or to the end. What a destructor swallows, or what comes too early or too
    late, comes again 50 ms later."""
    ended = False
    while True:
        try:
            if not ended:
                signal.setitimer(signal.ITIMER_REAL, after, 0.05)
                run()
            signal.setitimer(signal.ITIMER_REAL, 0)
            return ended
        except Stop:
            ended = True


def calls(count: int, found: Counter[str]) -> None:
    """Plain and donating calls of small and large arrays: none lost by half, later ones in place, no memory held."""
    read = volta.jit(lambda x, y: (x * 2 + y, y))
    give = volta.jit(lambda x, y: (x + 1, y + 2), donate_argnums=(0, 1))
    sizes = (8, 3000)
    for size in sizes:
        read(*give(vnp.ones(size), vnp.ones(size)))
    gc.collect()
    live = default_pool().stats().live
    for n in range(count):
        size = sizes[n % 2]
        state = [(vnp.ones(size), vnp.ones(size))]

        def loop(state: list[Any] = state) -> None:
            while True:
                read(*state[-1])
                state[-1] = give(*state[-1])

        if not _interrupted(0.0002 + random.random() * 0.0008, loop):
            found["ended"] += 1
        x, y = state[-1]
        if x.is_deleted() != y.is_deleted():
            found["one of two is gone"] += 1
        if not x.is_deleted() and not (float(x[0]) == float(x[-1]) and float(y[0]) == 2 * float(x[0]) - 1):
            found["wrong"] += 1
        if n % 500 == 499:
            del x, y, loop
            state.clear()
            x, y = vnp.ones(size), vnp.ones(size)
            there = x.buffer().address
            if give(x, y)[0].buffer().address != there:
                found["a later donation copies"] += 1
            del x, y
            gc.collect()
            if default_pool().stats().live > live + 4096:
                found["memory held"] += 1


def traces(count: int, found: Counter[str]) -> None:
    """Tracing, transforming and compiling: the next program is right."""
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)

    def program(c: float) -> Any:
        def loss(x: Any) -> Any:
            y, _ = lax.scan(lambda a, b: (vnp.tanh(a * b + c), a), x[0], x)
            return vnp.sum(volta.vmap(lambda r: vnp.sin(r) * c)(x)) + vnp.sum(
                lax.cond(y[0] > 0, lambda q: q * 2, abs, y)
            )

        return volta.jit(volta.grad(loss))

    want = np.asarray(program(2.0)(x)).tobytes()
    for n in range(count):
        c = 1 + random.random()
        _interrupted(random.random() * 0.2, lambda c=c: program(c)(x))  # type: ignore[misc]
        if _state.trace is not None:
            found["a trace is left"] += 1
            _state.trace = None
        if n % 10 == 9 and np.asarray(program(2.0)(x)).tobytes() != want:
            found["wrong"] += 1


def loops(count: int, found: Counter[str]) -> None:
    """Endless loops of one thread and of several: they end within a second, arguments are intact."""
    f = volta.jit(lambda x: lax.while_loop(lambda c: c[0, 0] >= 0, lambda c: c * 0 + 1, x))
    kinds = [vnp.ones((2, 2)), vnp.ones((400, 400))]
    longest = 0.0
    for n in range(count):
        x, after = kinds[n % 2], 0.05 + random.random() * 0.3
        begun = time.monotonic()
        if not _interrupted(after, lambda x=x: f(x)):  # type: ignore[misc]
            found["ended"] += 1
        longest = max(longest, time.monotonic() - begun - after)
        if not bool((x == 1).all()):
            found["wrong"] += 1
    if longest > 1:
        found[f"ended after {longest:.1f} s"] += 1


def forks(count: int, found: Counter[str]) -> None:
    """Forks while other threads compile, run and donate: the child does all of it, with the right results."""
    stop = False
    double = volta.jit(lambda x: vnp.tanh(x @ x))
    give = volta.jit(lambda x: x + 1, donate_argnums=0)
    big = vnp.ones((300, 300))
    want = np.asarray(double(big)).tobytes()

    def busy(n: int) -> None:
        while not stop:
            n += 1
            volta.jit(lambda x: vnp.exp(x * n) + n)(vnp.ones(5))  # noqa: B023 - called at once
            double(big)
            give(give(vnp.ones(2000)))

    others = [threading.Thread(target=busy, args=(1000 * i,)) for i in range(3)]
    for x in others:
        x.start()
    for n in range(count):
        time.sleep(random.random() * 0.02)
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            right = np.asarray(double(big)).tobytes() == want and float(give(vnp.ones(9))[0]) == 2
            right = right and float(volta.jit(lambda x: x * (n + 0.5))(vnp.ones(3))[0]) == n + 0.5  # noqa: B023 - called at once
            os._exit(0 if right else 7)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            found["hung" if status == -signal.SIGALRM else "wrong"] += 1
    stop = True
    for x in others:
        x.join()


def main() -> None:
    campaign = Campaign(27000)
    random.seed(campaign.seed)
    os.environ["VOLTA_CACHE"] = "0"
    signal.signal(signal.SIGALRM, _raise)

    def swallowed(_: Any) -> None:
        campaign.found["swallowed by destructors"] += 1

    sys.unraisablehook = swallowed
    for part, share in ((calls, 1.0), (traces, 0.01), (loops, 0.002), (forks, 0.002)):
        count = max(2, int(campaign.tries * share))
        part(count, campaign.found)
        campaign.counts[part.__name__] = count
    campaign.finish()


if __name__ == "__main__":
    main()
