"""The laws on random programs: compiling, batching, recomputing, threads and donation never change a bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta.numba_cpu import threads as pool
from volta.testing import FILLS, Program, assert_bits_equal, fill
from volta.testing.strategies import programs
from volta.xla_like.compile import CompileOptions

pytestmark = pytest.mark.turns(6)

few = settings(max_examples=max(6, settings().max_examples // 3), suppress_health_check=list(HealthCheck))
kinds = st.sampled_from(sorted(FILLS))

SWITCHES = [f.name for f in attrs.fields(CompileOptions) if isinstance(f.default, bool)]
VARIANTS = {f"without {name}": attrs.evolve(CompileOptions(), **{name: False}) for name in SWITCHES}
VARIANTS["plain"] = attrs.evolve(CompileOptions(), **dict.fromkeys(SWITCHES, False))


def operands(p: Program, kind: str = "normal", seed: int = 0, batch: tuple[int, ...] = ()) -> list:
    """Arrays for a program's inputs; integers stay small, as they are indices too."""
    return [
        fill(kind if "float" in dtype else "normal", (*batch, *shape), dtype, seed + i)
        for i, (shape, dtype) in enumerate(p.inputs)
    ]


@given(programs(), kinds, st.integers(0, 99))
@few
def test_compiling_changes_no_bit(p, kind, seed) -> None:
    xs = operands(p, kind, seed)
    want = p(*xs)
    assert_bits_equal(volta.jit(p)(*xs), want, "compiled")
    for name, options in VARIANTS.items():
        with volta.execution_context(options=options):
            assert_bits_equal(volta.jit(lambda *a: p(*a))(*xs), want, name)


@given(programs(), kinds, st.sampled_from([0.8, 0.4]))
@few
def test_a_memory_budget_changes_no_bit(p, kind, share) -> None:
    xs = operands(p, kind)

    def summed(*xs: Any) -> Any:
        return [vnp.sum(y * y) for y in p(*xs) if vnp.issubdtype(y.dtype, vnp.floating)]

    inexact = tuple(i for i, x in enumerate(xs) if x.dtype.kind == "f")
    total = lambda *xs: sum((y.astype("float32") for y in summed(*xs)), vnp.float32(0))  # noqa: E731
    for f in (p, volta.grad(total, inexact)) if inexact else (p,):
        try:
            want = volta.jit(f)(*xs)
        except volta.errors.NotDifferentiableError:
            continue
        plan = volta.plan_for(f, xs)[0].plan
        budget = plan.peak_live_bytes - int((1 - share) * plan.arena_bytes)
        try:
            got = volta.jit(f, memory_budget=budget)(*xs)
        except volta.errors.MemoryBudgetError:
            continue
        assert_bits_equal(got, want, f"within {budget} of {plan.peak_live_bytes} bytes")


@given(programs(), kinds)
@few
def test_donating_changes_no_bit(p, kind) -> None:
    xs = operands(p, kind)
    want = volta.jit(p)(*xs)
    for donated in [(0,), (0, 1, 2)]:
        given_away = [vnp.asarray(x) for x in xs]
        assert_bits_equal(volta.jit(lambda *a: p(*a), donate_argnums=donated)(*given_away), want)
        assert all(given_away[i].is_deleted() for i in donated)


@given(programs(max_steps=6), kinds)
@few
def test_batching_changes_no_bit(p, kind) -> None:
    xs = operands(p, kind, batch=(3,))
    alone = [p(*(x[i] for x in xs)) for i in range(3)]
    want = tuple(np.stack([np.asarray(one[k]) for one in alone]) for k in range(len(p.outputs)))
    assert_bits_equal(volta.vmap(p)(*xs), want, "vmap")
    assert_bits_equal(volta.jit(volta.vmap(p))(*xs), want, "jit of vmap")
    last = [np.ascontiguousarray(np.moveaxis(x, 0, -1)) for x in xs]
    assert_bits_equal(volta.vmap(p, in_axes=-1)(*last), want, "along the last axis")
    alone = [p(*(x[i] for x in xs[:1]), *(x[0] for x in xs[1:])) for i in range(3)]
    want = tuple(np.stack([np.asarray(one[k]) for one in alone]) for k in range(len(p.outputs)))
    assert_bits_equal(volta.vmap(p, in_axes=(0, None, None))(xs[0], *(x[0] for x in xs[1:])), want, "one mapped")


@given(programs(max_steps=5), kinds)
@few
def test_batching_twice_changes_no_bit(p, kind) -> None:
    xs = operands(p, kind, batch=(2, 3))
    want = [[p(*(x[i, j] for x in xs)) for j in range(3)] for i in range(2)]
    stacked = tuple(
        np.stack([np.stack([np.asarray(want[i][j][k]) for j in range(3)]) for i in range(2)])
        for k in range(len(p.outputs))
    )
    assert_bits_equal(volta.jit(volta.vmap(volta.vmap(p)))(*xs), stacked)
    crossed = [np.swapaxes(x, 0, 1) for x in xs]
    assert_bits_equal(volta.vmap(volta.vmap(p, in_axes=0), in_axes=1)(*crossed), stacked)


@given(programs(max_steps=6, smooth=True), kinds)
@few
def test_gradients_keep_the_laws(p, kind) -> None:
    """Compiled, recomputed, donated or batched: the gradient has the bits of the eager one."""
    xs = operands(p, kind, batch=(2,))
    one = [x[1] for x in xs]
    gradient = volta.value_and_grad(p.loss)
    want = gradient(*one)
    assert_bits_equal(volta.jit(gradient)(*one), want, "jit")
    assert_bits_equal(volta.jit(volta.value_and_grad(volta.checkpoint(p.loss)))(*one), want, "checkpoint")
    assert_bits_equal(volta.value_and_grad(volta.checkpoint(p.loss))(*one), want, "eager checkpoint")
    with volta.execution_context(options=VARIANTS["plain"]):
        assert_bits_equal(volta.jit(lambda *a: gradient(*a))(*one), want, "without passes")
    mapped = volta.jit(volta.vmap(gradient))(*xs)
    assert_bits_equal(volta.tree.map(lambda x: x[1], mapped), want, "vmap")


@pytest.fixture
def threads():
    before = volta.get_num_threads()
    yield volta.set_num_threads
    volta.set_num_threads(before)


PARALLEL = {
    "map": lambda x: vnp.tanh(x) * 2 + x,
    "row": lambda x: volta.nn.softmax(x, -1),
    "column": lambda x: vnp.sum(vnp.exp(x), 0),
    "blocks": lambda x: vnp.sum(vnp.reshape(x, (-1,))),
    "several": lambda x: (vnp.max(x, 1), vnp.argmin(x, 0), vnp.sum(x * x), vnp.prod(x, 1)),
    "dot": lambda x: x.T @ x,
    "chain": lambda x: vnp.tanh(x @ x.T) @ x,
    "scan": lambda x: vnp.cumsum(x, 1),
    "sort": lambda x: vnp.sort(x, 1),
    "scatter": lambda x: vnp.zeros((77, x.shape[1])).at[vnp.arange(x.shape[0]) % 77].add(x),
    "gradient": lambda x: volta.grad(lambda v: vnp.sum(volta.nn.log_softmax(v @ v.T) ** 2))(x[:200]),
}


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.turns(6)
def test_threads_change_no_bit(name, threads) -> None:
    f = volta.jit(PARALLEL[name])
    x = fill("cancel", (301, 257), np.float32, seed=3)
    threads(1)
    want = f(x)
    before = pool.parallel_runs()
    for n in (2, 3, 5):
        threads(n)
        for _ in range(3):
            assert_bits_equal(f(x), want, f"{n} threads")
    assert pool.parallel_runs() > before, "the work was not shared: the test says nothing"


def test_callers_in_several_threads_get_the_same_bits() -> None:
    """Eager and compiled work from four Python threads at once, compiling included."""
    x = fill("cancel", (120, 130), np.float32, seed=4)

    def work(number: int) -> list:
        f = volta.jit(lambda v: volta.nn.softmax(v @ v.T) @ v + number % 2)
        return [f(x), vnp.sum(vnp.tanh(vnp.asarray(x)), 0), volta.grad(lambda v: f(v).sum())(x)]

    want = [work(0), work(1)]
    with ThreadPoolExecutor(4) as callers:
        for number, found in enumerate(callers.map(work, range(24))):
            assert_bits_equal(found, want[number % 2])


@pytest.mark.slow
@given(programs(max_steps=20, lengths=(1, 7, 64, 65, 129, 400)), kinds, st.integers(0, 99))
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_long_programs(p, kind, seed) -> None:
    test_compiling_changes_no_bit.hypothesis.inner_test(p, kind, seed)
    test_batching_changes_no_bit.hypothesis.inner_test(p, kind)
