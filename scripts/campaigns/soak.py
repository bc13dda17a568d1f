"""A process that lives long: new constants and shapes without end, forks, interrupts, threads, a full cache on disk.

    python scripts/campaigns/soak.py --minutes 60

Memory has to be flat after the warm-up, and so have file descriptors, threads and units of machine code; what was right
in the beginning has to have the same bits ever after. Prints one line of figures, and ends with an error where anything
else was found.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import volta
import volta.numpy as vnp
from volta.numba_cpu import unit
from volta.numpy import indexing
from volta.runtime import array, eager
from volta.runtime.plan_cache import PLAN_CACHE

CACHE_BYTES = 1 << 22
WARM_UP = 0.4
"""The share of the time after which every cache has been full once."""

MOST_GROWTH = 0.03
"""How much more memory the last samples may have than the first after the warm-up: what the allocator breaks up."""


FLAT = {"memory": MOST_GROWTH, "threads": 0.0, "file descriptors": 0.0}
"""What may not grow, and by how much it may seem to."""


def resident() -> float:
    """Megabytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Soak:
    """The programs, what they gave in the beginning, and what was found."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.x = np.random.default_rng(seed).normal(size=(12, 9)).astype("f4")
        self.number = 0
        self.interrupted = False
        self.standing = self._standing()
        self.right = {name: self._bits(f()) for name, f in self.standing.items()}

    def _bits(self, out: Any) -> bytes:
        return b"".join(np.asarray(leaf).tobytes() for leaf in volta.tree.leaves(out))

    def _standing(self) -> dict[str, Callable[[], Any]]:
        """Programs of which the bits are known."""
        x = self.x
        donating = volta.jit(lambda a: vnp.tanh(a) * 1.7, donate_argnums=0)
        return {
            "fused": lambda: volta.jit(lambda x: vnp.sum(vnp.exp(x) * 0.37, 1) / 9.3)(x),
            "product": lambda: volta.jit(lambda x: vnp.tanh(x @ x.T) @ x)(x),
            "sorted": lambda: volta.jit(lambda x: vnp.sort(x, 0) ** 1.3)(abs(x)),
            "gradient": lambda: volta.grad(lambda x: vnp.sum(volta.nn.softmax(x * 0.9) ** 2))(x),
            "loop": lambda: volta.lax.scan(lambda c, r: (c * 0.99 + r, c.sum()), vnp.zeros(9), x),
            "by operation": lambda: vnp.cumsum(vnp.asarray(x) * 0.3 + 1, 0)[1:-1],
            "donated": lambda: donating(vnp.asarray(x) + 0),
        }

    # -- what is done again and again ----------------------------------------------------------------------------------

    def constants(self) -> None:
        c = 1 + self.number / 7919
        volta.jit(lambda x: vnp.sum(vnp.tanh(x) * c + c, 0))(self.x)
        if self.number % 8 == 0:
            volta.jit(lambda x: vnp.abs(x) ** c)(self.x)  # the constant is part of the machine code

    def gradients(self) -> None:
        c = 1 + self.number / 7919
        volta.jit(volta.grad(lambda x: vnp.sum(vnp.sin(x * c) * x)))(self.x)
        volta.jit(volta.vmap(lambda r: r * c))(self.x)

    def shapes(self) -> None:
        shape = self.number % 97 + 1, self.number % 89 + 1
        if not hasattr(self, "shaped"):
            self.shaped: Any = volta.jit(lambda x: vnp.sum(vnp.tanh(x) * 2, 0))
        self.shaped(np.ones(shape, "f4"))
        (vnp.ones(shape) + 1)[0]

    def closures(self) -> None:
        table = vnp.asarray(self.x * self.number)
        volta.jit(lambda x: x * table)(self.x)

    def loops(self) -> None:
        n, c = self.number % 40 + 1, 1 - self.number / 7919
        volta.jit(lambda x: volta.lax.fori_loop(0, n, lambda i, v: v * c, x))(self.x)

    def files(self) -> None:
        path = self.folder / "model"
        volta.io.save(path, {"x": self.x, "n": self.number})
        if self._bits(volta.io.load(path)["x"]) != self.x.tobytes():
            self.faults.append("a file gave other numbers")

    def threads(self) -> None:
        work = [self.constants, self.shapes, self.closures, self.check]
        started = [threading.Thread(target=f) for f in work]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    def fork(self) -> None:
        """A child compiles something new, and has the bits that are known."""
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                signal.alarm(60)
                self.constants()
                self.check()
                os._exit(1 if self.faults else 0)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        if status:
            self.faults.append(f"a child ended with status {status}")

    def interrupt(self) -> None:
        """Ctrl-C anywhere: what comes afterwards is right."""
        self.interrupted = False
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(0.0005, 0.06))
            while not self.interrupted:  # Python drops an interrupt that arrives in a destructor
                self.number += 1
                self.constants()
                self.standing["donated"]()

    def alarm(self, *_: Any) -> None:
        self.interrupted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        name = self.random.choice(list(self.standing))
        self.counts["comparisons"] += 1
        if self._bits(self.standing[name]()) != self.right[name]:
            self.faults.append(f"{name} has other bits than in the beginning")

    def round(self) -> None:
        plain = (self.constants, self.gradients, self.shapes, self.closures, self.loops)
        for work in [*plain * 4, self.files, self.threads, self.fork, self.interrupt, self.check, self.check]:
            self.number += 1
            self.counts[work.__name__] += 1
            work()

    # -- what must not grow --------------------------------------------------------------------------------------------

    def sample(self) -> dict[str, float]:
        gc.collect()
        return {
            "memory": resident(),
            "file descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "units": len({id(u) for u in list(unit._units.values())}),
            "cache": sum(f.stat().st_size for f in self.folder.glob("cache/**/*") if f.is_file()),
        }


def tighten(entries: int) -> None:
    """Let caches keep so few entries that a short soak fills them."""
    PLAN_CACHE.capacity = 2 * entries
    for kept in (unit._recent, eager._executables, eager._scalars, array._interned, indexing._plans):
        kept.generation = entries


def run(minutes: float, seed: int, folder: str) -> int:
    os.environ |= {"VOLTA_CACHE_DIR": str(Path(folder) / "cache"), "VOLTA_CACHE_BYTES": str(CACHE_BYTES)}
    soak = Soak(seed, folder)
    signal.signal(signal.SIGALRM, soak.alarm)
    start, samples = time.monotonic(), []
    while (spent := time.monotonic() - start) < 60 * minutes:
        soak.round()
        samples.append((spent, soak.sample()))
        if len(samples) % 50 == 0:
            print(f"{spent:7.0f} s", {k: round(v) for k, v in samples[-1][1].items()}, file=sys.stderr, flush=True)
    print("\n".join(report(soak, samples, minutes)))
    return 1 if soak.faults else 0


def report(soak: Soak, samples: list[tuple[float, dict[str, float]]], minutes: float) -> Iterator[str]:
    """The line of figures, and what was found."""
    warm = [s for spent, s in samples if spent >= WARM_UP * 60 * minutes]
    part = max(1, len(warm) // 6)

    def middle(chosen: list[dict[str, float]], what: str) -> float:
        return statistics.median(s[what] for s in chosen)

    first, last = warm[:part], warm[-part:]
    # What is forgotten by generations goes up and down: their peaks say whether it grows.
    half = len(warm) // 2
    peaks = [max((s["units"] for s in samples), default=0.0) for samples in (warm[:half], warm[half:])]
    flat = [(what, more, middle(first, what), middle(last, what)) for what, more in FLAT.items()]
    for what, more, before, after in (*flat, ("units at most", 0.05, *peaks)):
        if after > before * (1 + more):
            soak.faults.append(f"{what} grew from {before:.0f} to {after:.0f} after the warm-up")
    largest = max(s["cache"] for _, s in samples)
    if largest > CACHE_BYTES * 17 / 16:
        soak.faults.append(f"the cache on disk had {largest:.0f} bytes, more than its bound")
    counts = ", ".join(f"{n} {name}" for name, n in soak.counts.items())
    figures = ", ".join(f"{what} {middle(first, what):.0f} -> {middle(last, what):.0f}" for what in first[0])
    yield f"soak of {minutes:g} minutes: {soak.number} programs; {counts}; after the warm-up: {figures}"
    yield from dict.fromkeys(soak.faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entries", type=int, help="keep so few entries in caches that a short soak fills them")
    options = parser.parse_args()
    if options.entries:
        tighten(options.entries)
    with tempfile.TemporaryDirectory() as folder:
        return run(options.minutes, options.seed, folder)


if __name__ == "__main__":
    sys.exit(main())
