"""A process that lives long: what it makes for programs that are gone is given back, machine code too."""

from __future__ import annotations

import collections
import functools
import gc
import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.numba_cpu import launch, target, unit
from volta.numpy import indexing
from volta.runtime import array, eager, plan_cache
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

KEPT = 5
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def forgetful(monkeypatch):
    """Caches of a few entries, so that a few dozen programs are as many as thousands."""
    monkeypatch.setenv("VOLTA_CACHE", "0")
    monkeypatch.setattr(plan_cache.PLAN_CACHE, "capacity", KEPT)
    for kept in (eager._executables, eager._scalars, unit._recent, array._interned, indexing._plans):
        monkeypatch.setattr(kept, "generation", KEPT)
    monkeypatch.setattr(launch, "_plans", set())  # as in a process where no other test left some
    monkeypatch.setattr(launch, "_most_plans", 64)
    plan_cache.PLAN_CACHE.clear()
    yield
    gc.collect()
    target.free_unused()


def constants(n):
    c = 1 + n / 1024
    f = volta.jit(lambda x: vnp.tanh(x) ** (c + 0.1))
    return f(X)


def closures(n):
    c = vnp.asarray(np.full((4, 6), n, np.float32))
    return volta.jit(lambda x: vnp.tanh(x) * c)(X)


def by_operation(n):
    x = vnp.ones((n + 1, 3))
    return (x + 1)[n] * vnp.sum(x, 0)


def gradients(n):
    c = 1 + n / 1024
    return volta.grad(lambda x: vnp.sum(vnp.tanh(x) ** (c + 0.1)))(X)


@pytest.fixture
def shapes():
    f = volta.jit(lambda x: vnp.sum(vnp.tanh(x) * 2, axis=0))
    for kept in (f._entries, f._flat, f._calls._traced):
        kept.generation = KEPT
    return lambda n: f(np.ones((n // 9 + 1, n % 9 + 1), np.float32))


def objects() -> collections.Counter[str]:
    """What is alive, besides what caches hold that are bounded by themselves."""
    for module in [m for name, m in sys.modules.items() if name.startswith("volta.")]:
        for cache in list(vars(module).values()):
            if isinstance(cache, functools._lru_cache_wrapper) and cache.cache_parameters()["maxsize"] is not None:
                cache.cache_clear()
    gc.collect()
    target.free_unused()
    return collections.Counter(type(x).__name__ for x in gc.get_objects())


@pytest.mark.parametrize(
    "name",
    [
        "closures",
        "by_operation",
        "shapes",
        pytest.param("constants", marks=pytest.mark.slow),
        pytest.param("gradients", marks=pytest.mark.slow),
    ],
)
def test_programs_that_are_gone_leave_nothing_behind(name, forgetful, request):
    run = globals()[name] if name != "shapes" else request.getfixturevalue(name)
    for n in range(20):
        run(n)
    before, units = objects(), len(unit._units)
    plain = ("tuple", "list", "dict", "set", "cell")  # of whatever the interpreter itself remembers
    grown = []
    for first in (20, 80, 140):
        for n in range(first, first + 60):
            run(n)
        now = objects()
        grown.append({kind: count for kind, count in (now - before).items() if count >= 60 and kind not in plain})
        assert len(unit._units) <= units + KEPT
        if not grown[-1]:  # something is remembered once; what is left behind is left each time
            return
        before = now
    raise AssertionError(grown)


def test_machine_code_is_freed_with_the_last_plan_that_runs_it(forgetful):
    f = volta.jit(lambda x: vnp.sin(x) ** 1.7)
    first = f(X)
    (symbol,) = (s for s in f.lower(X).compile().kernel_texts())
    held = unit._units[symbol]
    unit._recent.clear()
    gc.collect()
    assert unit._units[symbol] is held  # the plan runs it
    del held
    plan_cache.PLAN_CACHE.clear()
    f.clear_cache()
    gc.collect()
    assert symbol not in unit._units
    assert target.free_unused() >= 1
    assert_bits_equal(f(X), first)


def test_what_runs_is_not_freed(forgetful):
    """A plan whose caches are gone runs on, whatever is compiled and freed meanwhile."""
    compiled = volta.jit(lambda x: vnp.cos(x) ** 1.3).lower(X).compile()
    first = compiled(X)
    for n in range(3 * KEPT):
        constants(n)
        assert_bits_equal(compiled(X), first)


def test_a_function_keeps_as_many_kinds_of_arguments_as_it_says(shapes, forgetful):
    f = volta.jit(lambda x: x + 1)
    f._entries.generation = f._flat.generation = KEPT
    often = vnp.ones((3, 3))
    compiled = f(often)
    for n in range(5 * KEPT):
        f(vnp.ones(n))
        if n % (KEPT - 1) == 0:
            misses = plan_cache.PLAN_CACHE.misses
            assert_bits_equal(f(often), compiled)
            assert plan_cache.PLAN_CACHE.misses == misses  # still there
    assert f.cache_size() <= 2 * KEPT
