"""Plans: the cache compares whole keys, budgets and levels are checked before anything runs, planned bytes are real."""

import gc

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import volta
import volta.numpy as vnp
from volta.core.contract import DEFINITIONS
from volta.core.errors import ContextError, MemoryBudgetError, UnsupportedOperationError
from volta.core.policy import DeterminismLevel
from volta.numba_cpu import target
from volta.numba_cpu.ordering_schedule import REGISTER_BITS
from volta.ops.primitive import REGISTRY
from volta.runtime import gateway
from volta.runtime.capabilities import BackendCapabilities, matrix_rows
from volta.runtime.memory import default_pool, size_class
from volta.runtime.plan_cache import PLAN_CACHE, PlanCache, program_key
from volta.testing import assert_bits_equal, fill
from volta.testing.strategies import programs

X = np.ones((64, 64), np.float32)


class Colliding(tuple):
    """A key whose hash says nothing."""

    def __hash__(self) -> int:
        return 1


def test_the_cache_compares_whole_keys() -> None:
    cache = PlanCache()
    cache.put(Colliding(("a", 1)), "first")
    cache.put(Colliding(("b", 1)), "second")
    assert cache.get(Colliding(("a", 1))) == "first" and cache.get(Colliding(("b", 1))) == "second"
    assert cache.get(Colliding(("c", 1))) is None and len(cache) == 2
    assert (cache.hits, cache.misses) == (2, 1)


def test_programs_compiled_under_colliding_hashes(monkeypatch) -> None:
    """Every program's key has the same hash, and still each gets its own plan."""
    real = gateway.program_key
    monkeypatch.setattr(gateway, "program_key", lambda *args: Colliding(real(*args)))
    for k in range(5):
        assert volta.jit(lambda x, k=k: x + float(k))(X)[0, 0] == 1 + k
    assert volta.jit(lambda x: x + 2.0)(X)[0, 0] == 3


def test_the_least_recently_used_plan_goes_first() -> None:
    cache = PlanCache(capacity=2)
    cache.put(("a",), 1)
    cache.put(("b",), 2)
    cache.get(("a",))
    cache.put(("c",), 3)
    assert cache.get(("b",)) is None and cache.get(("a",)) == 1


def key_of(f, *args, donated=(), **context):
    with volta.execution_context(**context) as now:
        return program_key(volta.make_jaxpr(f)(*args), donated, "main", now)


def test_keys_tell_programs_apart() -> None:
    x = np.float32(1)
    keys = [
        key_of(lambda x: x + 1.0, x),
        key_of(lambda x: x + 0.0, x), key_of(lambda x: x + -0.0, x), key_of(lambda x: x + np.nan, x),
        key_of(lambda x: x + 1.0, np.float64(1)), key_of(lambda x: x + 1.0, X), key_of(lambda x: x * 1.0, x),
        key_of(lambda x: vnp.sum(x, 0), X), key_of(lambda x: vnp.sum(x, 1), X),
        key_of(lambda x: x + 1.0, x, donated=(0,)),
        key_of(lambda x: x + 1.0, x, level="relaxed"), key_of(lambda x: x + 1.0, x, memory_budget=10**9),
        key_of(lambda x, y: x - y, x, x), key_of(lambda x, y: y - x, x, x), key_of(lambda x, y: (x, x - y), x, x),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key_of(lambda v: v + 1.0, x) == keys[0]


def test_equal_programs_are_compiled_once() -> None:
    PLAN_CACHE.clear()
    first = volta.jit(lambda x: vnp.cos(x) * 3.25).lower(X).compile()
    second = volta.jit(lambda x: vnp.cos(x) * 3.25).lower(X).compile()
    assert first.executable is second.executable
    assert volta.jit(lambda x: vnp.cos(x) * 3.5).lower(X).compile().executable is not first.executable


def test_a_plan_has_the_name_that_it_was_compiled_under() -> None:
    def one(x):
        return vnp.cos(x) * 3.75

    def two(x):
        return vnp.cos(x) * 3.75

    plans = [volta.jit(f).lower(X).compile().executable.plan for f in (one, two, one)]
    assert [plan.name for plan in plans] == ["one", "two", "one"]
    program = volta.make_jaxpr(one)(X)
    keys = [program_key(program, (), name, volta.runtime.context.current_context()) for name in ("one", "two")]
    assert keys[0] != keys[1]


def test_a_plan_over_budget_says_what_takes_the_bytes() -> None:
    with pytest.raises(MemoryBudgetError, match=r"needs [\d,]+ bytes at its peak; the budget is 1,000") as raised:
        with volta.execution_context(memory_budget=1000):
            volta.jit(lambda x: vnp.sort(x) @ x)(X)
    message = str(raised.value)
    assert "largest buffers" in message and "checkpoint" in message and "test_plans.py" in message
    with volta.execution_context(memory_budget=10**6):
        volta.jit(lambda x: vnp.sort(x) @ x)(X)


def test_what_the_backend_cannot_do_is_refused_before_anything_runs(monkeypatch) -> None:
    weaker = tuple((k, v) for k, v in gateway.cpu_capabilities().kernels if k != "sort")
    half = tuple((k, DeterminismLevel.DEVICE if k == "sort" else v) for k, v in gateway.cpu_capabilities().kernels)
    for kernels in (weaker, half):
        lacking = BackendCapabilities("cpu", kernels)
        monkeypatch.setattr(gateway, "BACKENDS", {"cpu": (gateway.cpu_backend(), lacking)})
        PLAN_CACHE.clear()
        with pytest.raises(UnsupportedOperationError, match="'sort'.*'cpu'.*'strict'"):
            volta.jit(lambda x: vnp.sort(x * 3))(X)
        volta.jit(lambda x: x * 3)(X)
    with volta.execution_context(level="device"):
        volta.jit(lambda x: vnp.sort(x * 3))(X)


def test_the_capability_matrix_has_every_operation() -> None:
    rows = matrix_rows((gateway.cpu_capabilities(),))
    assert {r[0] for r in rows} == set(REGISTRY)
    assert all(r[2] == "strict" for r in rows)
    lacking = BackendCapabilities("none", ())
    assert any("no kernel" in r[2] for r in matrix_rows((lacking,)))


def test_an_unknown_level() -> None:
    with pytest.raises(ValueError, match="sloppy"):
        with volta.execution_context(level="sloppy"):
            pass


def test_the_context_is_printed_with_the_plan() -> None:
    for level in DeterminismLevel:
        with volta.execution_context(level=level):
            text = volta.jit(lambda x: x + 1).lower(X).compile().as_text()
        assert f"level={level.value}" in text and DEFINITIONS.contract_id() in text
    changed = attrs.evolve(DEFINITIONS, dot_chunk=128)
    assert changed.contract_id() != DEFINITIONS.contract_id()


def test_contexts_nest_and_end() -> None:
    outer = volta.current_context()
    with volta.execution_context(memory_budget=5), volta.execution_context(level="device") as inner:
        assert inner.memory_budget == 5 and inner.level is DeterminismLevel.DEVICE
    assert volta.current_context() == outer


@pytest.mark.parametrize("level", ["fast", "STRICT", 3])
def test_a_level_that_is_none_is_refused_with_the_levels(level) -> None:
    with pytest.raises(ContextError, match="there are 'strict', 'device', 'relaxed'") as caught:
        with volta.execution_context(level=level):  # the user's line
            pass
    assert isinstance(caught.value, ValueError) and "# the user's line" in str(caught.value)


@pytest.mark.parametrize("budget", ["1 apple", -1, 1.5, True])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget) -> None:
    with pytest.raises(ContextError, match="memory_budget must be a number of bytes"):
        with volta.execution_context(memory_budget=budget):
            pass
    with volta.execution_context(memory_budget=np.int64(10**9)) as inner:
        assert type(inner.memory_budget) is int
    with volta.execution_context(memory_budget=0) as inner:
        assert inner.memory_budget == 0


# -- planned bytes are measured bytes ----------------------------------------------------------------------------------


def measured(f, *xs) -> tuple[int, int]:
    """Bytes that a call takes from the pool at its peak, and the bytes that its plan says it does."""
    compiled = volta.jit(f).lower(*xs).compile()
    arrays = [vnp.asarray(x) for x in xs]
    compiled(*arrays)
    gc.collect()
    pool = default_pool()
    pool.reset_peak()
    before = pool.stats().live
    out = compiled(*arrays)
    peak = pool.stats().peak - before
    del out
    by_class = compiled.plan.bytes_by_class()
    return peak, by_class["output"] + by_class["temp"]


def in_pool(nbytes: int) -> int:
    return size_class(nbytes) if nbytes else 0


@pytest.mark.parametrize(
    "f",
    [lambda x: x + 1, lambda x: vnp.sort(vnp.sort(x, 0), 1) @ x, lambda x: vnp.sum(vnp.tanh(x @ x)),
     volta.grad(lambda x: vnp.sum(vnp.tanh(x @ x) ** 2))],
)  # fmt: skip
def test_the_planned_peak_is_the_measured_peak(f) -> None:
    compiled = volta.jit(f).lower(X).compile()
    plan = compiled.plan
    outputs = [b.nbytes for b in plan.buffers if b.kind == "output"]
    peak, planned = measured(f, X)
    assert peak == in_pool(plan.arena_bytes) + sum(in_pool(-(-n // 64) * 64) for n in outputs)
    assert planned <= peak <= 1.125 * planned + 64
    by_class = plan.bytes_by_class()
    assert compiled.peak_live_bytes == planned + by_class["input"] + by_class["const"] + by_class["scratch"]


def test_what_threads_need_for_themselves_is_counted() -> None:
    """A sort of rows has two arrays of keys and positions, and counts of digits where these are long; a long row's are
    shared. A product has a tile and what it packs, a scan nothing."""
    x, rows = volta.ShapeDtypeStruct((100_000,), np.float32), volta.ShapeDtypeStruct((8, 20_000), np.float32)
    square = volta.ShapeDtypeStruct((300, 300), np.float32)

    def scratch(f, *args):
        plan = volta.jit(f).lower(*args).compile().plan
        assert plan.peak_live_bytes == sum(plan.bytes_by_class().values()) == sum(plan.bytes_by_placement().values())
        return plan.bytes_by_class()["scratch"]

    threads = volta.get_num_threads()
    assert scratch(lambda x: vnp.argsort(x, 1), rows) == threads * (16 * 20_000 + 8 * 256)
    assert scratch(lambda x: vnp.argsort(x[:, :20], 1), rows) == threads * (16 * 20 + 64)
    if target.vector_bits() >= REGISTER_BITS:  # of numbers alone, keys
        assert scratch(lambda x: vnp.sort(x, 1), rows) == threads * 4 * 20_000
    assert scratch(vnp.sort, x) == scratch(vnp.argsort, x) == 0
    assert scratch(vnp.cumsum, x) == 0
    assert 0 < scratch(lambda x: x @ x, square) < threads * 300_000
    with volta.execution_context(memory_budget=2_000_000), pytest.raises(MemoryBudgetError, match="scratch"):
        volta.jit(lambda x: vnp.sort(x) + 1).lower(volta.ShapeDtypeStruct((100_000,), np.float64)).compile()


def test_the_threads_that_take_part_are_counted() -> None:
    compiled = volta.jit(vnp.sort).lower(volta.ShapeDtypeStruct((100_001,), np.float32)).compile()
    before = volta.get_num_threads()
    try:
        volta.set_num_threads(1)
        one = compiled.plan.bytes_by_class()["scratch"]
        volta.set_num_threads(3)
        assert compiled.plan.bytes_by_class()["scratch"] == 3 * one
    finally:
        volta.set_num_threads(before)


@given(programs(max_steps=10))
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@pytest.mark.turns(2)
def test_a_call_never_takes_more_than_was_planned(p) -> None:
    xs = [fill("normal", shape, dtype, seed=i) for i, (shape, dtype) in enumerate(p.inputs)]
    peak, planned = measured(p, *xs)
    assert peak <= 1.125 * planned + 128


def test_nothing_leaks() -> None:
    f = volta.jit(lambda x: (vnp.sort(x) @ x, vnp.sum(x)))
    x = vnp.asarray(X)
    f(x)
    gc.collect()
    before = default_pool().stats().live
    for _ in range(10):
        f(x)
        volta.grad(lambda v: vnp.sum(v * v))(x)
    gc.collect()
    assert default_pool().stats().live == before


def test_reports_are_readable() -> None:
    compiled = volta.jit(lambda x: vnp.sort(x * 2) @ x).lower(X).compile()
    report = compiled.memory_report()
    assert "peak live bytes" in report and "largest buffers" in report and "arena" in report
    assert "<table>" in compiled.plan._repr_html_()
    symbols = list(compiled.kernel_texts())
    assert any("define" in compiled.llvm_ir(s) for s in symbols) and all(compiled.asm(s) for s in symbols)
    assert compiled.plan.transfers == {"host_to_device": 0, "device_to_host": 0}
    assert_bits_equal(compiled(X), volta.jit(lambda x: vnp.sort(x * 2) @ x)(X))
