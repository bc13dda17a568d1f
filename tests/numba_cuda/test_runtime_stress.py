"""Random sequences of what programs do with arrays on a GPU: in any order of streams, every value is what it should be.

The stand-in for the driver runs a stream's work only when somebody waits for it, and streams in turn, so memory that is
reused too early, or read too late, holds something else by then.
"""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
from tests.thread_support import run_threads
from volta.runtime import devices

SIZES = (3, 700, 4096)

double = volta.jit(lambda x: x * 2 + 1)
less = volta.jit(lambda a, b: a - b)
more = volta.jit(lambda x: x + 1, donate_argnums=0)
several = volta.jit(lambda a, b: (a + b, a, a + b, b - 3))

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            "put put double less more more several read drop drop delete enter enter leave wait trim large".split()
        ),
        st.integers(0, 100),
        st.integers(0, 100),
    ),
    min_size=30,
    max_size=80,
)


class World:
    """Arrays on the device, each with what it should hold."""

    def __init__(self) -> None:
        self.arrays: list[tuple[volta.Array, np.ndarray]] = []
        self.streams = contextlib.ExitStack()
        self.depth = self.count = 0

    def pick(self, n: int, size: int | None = None) -> tuple[volta.Array, np.ndarray] | None:
        fitting = [x for x in self.arrays if size is None or x[1].size == size]
        return fitting[n % len(fitting)] if fitting else None

    def add(self, array: volta.Array, value: np.ndarray) -> None:
        self.arrays.append((array, value.astype(np.float32)))

    def put(self, n: int, m: int) -> None:
        self.count += 1
        value = np.full(SIZES[n % len(SIZES)], self.count, np.float32)
        self.add(volta.device_put(value, "cuda"), value)

    def large(self, n: int, m: int) -> None:
        if n % 10 == 0:  # more than a megabyte: copied in a stream of its own
            self.count += 1
            value = np.full(270_000, self.count, np.float32)
            self.add(volta.device_put(value, "cuda"), value)

    def double(self, n: int, m: int) -> None:
        if x := self.pick(n):
            self.add(double(x[0]), x[1] * 2 + 1)

    def less(self, n: int, m: int) -> None:
        if x := self.pick(n):
            y = self.pick(m, x[1].size)
            self.add(less(x[0], y[0]), x[1] - y[1])

    def several(self, n: int, m: int) -> None:
        if x := self.pick(n):
            y = self.pick(m, x[1].size)
            values = (x[1] + y[1], x[1], x[1] + y[1], y[1] - 3)
            for array, value in zip(several(x[0], y[0]), values, strict=True):
                self.add(array, value)

    def more(self, n: int, m: int) -> None:
        if x := self.pick(n):
            self.arrays = [a for a in self.arrays if a[0] is not x[0]]
            self.add(more(x[0]), x[1] + 1)
            assert x[0].is_deleted()

    def read(self, n: int, m: int) -> None:
        if x := self.pick(n):
            assert np.array_equal(np.asarray(x[0]), x[1])

    def drop(self, n: int, m: int) -> None:
        if x := self.pick(n):
            self.arrays = [a for a in self.arrays if a[0] is not x[0]]

    def delete(self, n: int, m: int) -> None:
        if x := self.pick(n):
            self.drop(n, m)
            x[0].delete()

    def enter(self, n: int, m: int) -> None:
        if self.depth < 4:
            self.streams.enter_context(devices.stream())
            self.depth += 1

    def leave(self, n: int, m: int) -> None:
        self.streams.pop_all().close()
        self.depth = 0

    def trim(self, n: int, m: int) -> None:
        devices.pool().trim()

    def wait(self, n: int, m: int) -> None:
        devices.gpu("cuda:0").main.synchronize()

    def run(self, steps) -> None:
        try:
            for what, n, m in steps:
                getattr(self, what)(n, m)
        finally:
            self.leave(0, 0)
        for array, value in self.arrays:
            assert np.array_equal(np.asarray(array), value)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    yield
    for f in (double, less, more, several):
        f.clear_cache()


@pytest.mark.turns(6)
def test_any_order_of_operations_gives_the_values(gpu):
    for f in (double, less, more, several):
        f.clear_cache()

    @settings(max_examples=25)
    @given(STEPS)
    def check(steps):
        before = gpu.pool.stats().live
        world = World()
        world.run(steps)
        world.arrays.clear()
        assert gpu.pool.stats().live - before <= 1 << 16  # no array's: at most args tables of new streams

    check()


@pytest.mark.parametrize("seed", range(2))
def test_threads_with_streams_of_their_own(gpu, seed):
    """Four threads share programs and arrays, each on its stream."""
    for f in (double, less, more, several):
        f.clear_cache()
    names = ["put", "double", "less", "more", "several", "read", "drop", "trim"]
    shared = World()
    for n in range(6):
        shared.put(n, 0)

    def work(number):
        rng = np.random.default_rng((seed, number))
        with devices.stream():
            world = World()
            world.count = 1000 * number
            for _ in range(40 if hasattr(gpu.api, "fake") else 1000):
                x, value = shared.arrays[rng.integers(len(shared.arrays))]
                if rng.random() < 0.2:
                    world.add(double(x), value * 2 + 1)
                getattr(world, names[rng.integers(len(names))])(int(rng.integers(100)), int(rng.integers(100)))
                del world.arrays[:-30]
            for array, value in world.arrays:
                assert np.array_equal(np.asarray(array), value)

    run_threads(work, 4)
    for array, value in shared.arrays:
        assert np.array_equal(np.asarray(array), value)
