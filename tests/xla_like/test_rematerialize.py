"""Plans that keep to a memory budget by computing values again: they keep to it, and no bit moves."""

from typing import Any

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.xla_like.optimal_schedule import least_work
from volta import lax, nn
from volta.core import pytrees
from volta.core.policy import DeterminismLevel
from volta.numba_cpu.schedule import Schedule
from volta.runtime.context import use_backend
from volta.testing.bits import bits
from volta.testing.transformer import Transformer
from volta.xla_like import compile as compiling
from volta.xla_like.compile import CompileOptions, _Build, build_plan
from volta.xla_like.plan import aligned, lifetimes
from volta.xla_like.scheduled import Scheduled

pytestmark = pytest.mark.turns(6)

LAYERS, WIDTH = 12, 64


def chain(ws: Any, x: Any) -> Any:
    for w in ws:
        x = vnp.tanh(x @ w)
    return vnp.sum(x * x)


def chained() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    ws = [vnp.asarray(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8) for _ in range(LAYERS)]
    return ws, vnp.asarray(rng.normal(size=(256, WIDTH)).astype(np.float32))


def plan_of(f: Any, args: Any, budget: int | None = None) -> Any:
    return volta.plan_for(f, args, [budget])[0].plan


def within(f: Any, args: Any, share: float) -> Any:
    """The plan of ``f`` whose temporaries have this share of the bytes that they take, after its bits were compared."""
    free = plan_of(f, args)
    budget = free.peak_live_bytes - int(free.arena_bytes * (1 - share))
    jitted = volta.jit(lambda *xs: f(*xs), memory_budget=budget)
    compiled = jitted.lower(*args).compile()
    assert compiled.plan.peak_live_bytes <= budget < free.peak_live_bytes
    assert compiled.plan.computed_again[0] > 0 == free.computed_again[0]
    assert bits(jitted(*args)) == bits(volta.jit(f)(*args))
    return compiled.plan


def test_a_chain_of_layers_keeps_to_budgets() -> None:
    f, args = volta.value_and_grad(chain), chained()
    plans = [within(f, args, share) for share in (0.75, 0.5, 0.3)]
    work = [plan.computed_again[1] for plan in plans]
    assert 0 < work[0] < work[1] < work[2] < 1.5  # a forward pass more is a third
    assert "computed again, for the budget: " in plans[0].as_text() and "more work" in plans[0].memory_report()
    line = plans[2].memory_report().split("\ncomputed again\n")[1].splitlines()[0].split(maxsplit=1)
    assert int(line[0]) > 10 and line[1].startswith("test_rematerialize.py:") and line[1].endswith(" (chain)")


def test_what_runs_more_is_what_all_equations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted from those that two programs do not share; and the plan that runs is verified, once."""
    pairs, verified = [], []
    more_than, verify = Scheduled.more_than, compiling.verify_allocation
    monkeypatch.setattr(Scheduled, "more_than", lambda a, b: pairs.append((a, b)) or more_than(a, b))
    monkeypatch.setattr(compiling, "verify_allocation", lambda *xs: verified.append(xs) or verify(*xs))
    program, scheduler = volta.jit(volta.value_and_grad(chain)).trace(*chained()).jaxpr, Schedule(vector_bits=512)
    arena = build_plan(program, scheduler=scheduler)[0].arena_bytes
    plan, _ = build_plan(program, scheduler=scheduler, excess=lambda plan: plan.arena_bytes - arena // 2)
    ((best, plain),) = pairs
    assert 0 < plan.computed_again[1] == (best.work - plain.work) / plain.work
    count = [len(x.program.eqns) + x.copies.count for x in (best, plain)]
    assert plan.computed_again[0] == count[0] - count[1] > 0
    assert [xs[0] for xs in verified][1:] == [plan.buffers]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.8, 0.5, 0.3])
def test_a_transformer_keeps_to_budgets(share: float) -> None:
    model = attrs.evolve(Transformer(), layers=4)
    params = model.init(volta.random.key(0))
    within(volta.value_and_grad(model.loss), (params, *model.draw(volta.random.key(1))), share)


def test_what_is_dropped_is_known_by_what_is_read() -> None:
    """Readers that come with a later kernel (gelu's derivative, which is in no memory) wait for the second time too."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = x + nn.gelu(x @ w) @ w.T
        return vnp.sum(x * x)

    within(volta.grad(loss, (0, 1)), chained(), 0.5)


def test_loops_and_calls_of_python_run_once() -> None:
    ws, x = chained()

    def f(x: Any) -> Any:
        big = lax.fori_loop(0, 3, lambda i, y: vnp.tanh(y @ ws[0]), x)
        small = vnp.sum(vnp.sin(vnp.concatenate([x, x, x])) @ ws[1])
        return big * small

    free = plan_of(f, (x,))
    plan = plan_of(f, (x,), free.peak_live_bytes - 1)
    assert str(plan).count("while") == str(free).count("while")


def test_a_budget_that_nothing_keeps_to_is_refused_with_the_least_that_is_needed() -> None:
    args = chained()
    forecast = volta.plan_for(volta.grad(chain), args, [1000])[0]
    assert not forecast.fits and forecast.again > 0
    with pytest.raises(volta.errors.MemoryBudgetError, match=f"needs {forecast.peak:,} bytes at its peak"):
        volta.jit(volta.grad(lambda *xs: chain(*xs)), memory_budget=1000)(*args)


def test_the_option_turns_it_off() -> None:
    args = chained()
    free = plan_of(volta.grad(chain), args)
    with volta.execution_context(options=CompileOptions(recompute=False)):
        assert plan_of(volta.grad(chain), args, free.peak_live_bytes // 2).computed_again == (0, 0.0)


def test_budgets_are_read_as_people_write_them() -> None:
    f = volta.jit(lambda x: x + 1, memory_budget="1.5 KiB")
    assert f(vnp.ones(8)).shape == (8,)
    with pytest.raises(volta.errors.MemoryBudgetError, match="the budget is 1,536"):
        f(vnp.ones(1000))
    for wrong in ("8", "8 bytes", "-1 GB", -1, 1.5, True):
        with pytest.raises(volta.errors.ContextError, match="jit: memory_budget must be a number of bytes"):
            volta.jit(lambda x: x, memory_budget=wrong)


def test_forecasts_are_a_table() -> None:
    shapes = {f"batch {n}": pytrees.map(lambda x: x, (chained()[0], volta.ShapeDtypeStruct((n, WIDTH), "float32")))
              for n in (64, 256)}  # fmt: skip
    found = volta.plan_for(volta.grad(chain), shapes, [None, "700 kB"])
    assert [x.profile for x in found] == ["batch 64", "batch 64", "batch 256", "batch 256"]
    lines = str(found).splitlines()
    assert lines[0].split() == ["profile", "budget", "peak", "fits", "kernels", "again", "more", "work"]
    assert len(lines) == 5 and "700,000" in lines[2] and "<td>700,000</td>" in found._repr_html_()


def test_a_forecast_for_a_gpu_counts_what_its_launches_need() -> None:
    """Scratch memory and the tables of args too; no GPU is asked."""
    shapes = chained()[0], volta.ShapeDtypeStruct((2048, WIDTH), "float32")
    with use_backend("cuda"):
        (free,) = volta.plan_for(volta.grad(chain), shapes)
        taken = free.plan.bytes_by_class()
        (kept,) = volta.plan_for(volta.grad(chain), shapes, [free.peak // 2])
    assert taken["workspace"] > 0 < taken["args"] and sum(taken.values()) == free.peak
    assert kept.fits and kept.again > 0 and kept.plan.bytes_by_class()["workspace"] > 0


def uneven(ws: Any, x: Any) -> Any:
    """Wide and narrow layers, one of which is read again at the end."""
    wide = vnp.tanh(x @ vnp.concatenate([ws[0], ws[1], ws[2]], axis=1))
    narrow = vnp.tanh(wide @ vnp.concatenate([ws[3], ws[4], ws[5]]))
    return vnp.sum(vnp.tanh(narrow @ ws[6]) * vnp.sin(x) + narrow)


def three(ws: Any, x: Any) -> Any:
    return chain(ws[:3], x)


def four(ws: Any, x: Any) -> Any:
    return chain(ws[:4], x)


@pytest.mark.parametrize("f", [three, *(pytest.param(f, marks=pytest.mark.slow) for f in (four, uneven))])
def test_no_order_of_the_calls_costs_less(f: Any) -> None:
    """Beside the best of all orders in which the plain plan's calls keep to a budget, found by trying everything. The
    plan may cost less: it computes a part of a call again where that is enough."""
    schedule = Schedule(vector_bits=512)
    program = volta.jit(volta.value_and_grad(f)).trace(*chained()).jaxpr
    build = _Build(DeterminismLevel.STRICT, CompileOptions(), schedule, None)
    free = build.scheduled(build.optimized(program), "f", (), tuple(program.out_avals))
    compared = 0
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
        budget = int(free.plan.arena_bytes * share)
        plan, _ = build_plan(program, scheduler=schedule, excess=lambda plan, b=budget: plan.arena_bytes - b)
        least = least_work(free, budget)
        if least is not None:
            compared += 1
            assert plan.arena_bytes <= budget
            assert plan.computed_again[1] <= 1.02 * least / free.work, f"{share} of the temporaries"
    assert compared >= 2


def drawn(seed: int) -> Any:
    """A function of a few layers, each of which reads what one of the last two gave and maybe an older one."""
    rng = np.random.default_rng(seed)
    steps = [tuple(rng.integers((4, 10, 10))) for _ in range(rng.integers(2, 5))]

    def f(ws: Any, x: Any) -> Any:
        known = [x]
        for kind, a, b in steps:
            u, v = known[-1 - a % min(2, len(known))], known[-1 - b % len(known)]
            layers = (
                lambda u=u, a=a: vnp.tanh(u @ ws[a]), lambda u=u, v=v, a=a: u @ ws[a] + v,
                lambda u=u, v=v: vnp.sin(u) * v, lambda u=u, b=b: nn.softmax(u @ ws[b]),
            )  # fmt: skip
            known.append(layers[kind]())
        return vnp.sum(known[-1] * known[-2])

    return f


@pytest.mark.parametrize("seeds", [range(9, 10), pytest.param(range(60), marks=pytest.mark.slow)])
def test_drawn_functions_keep_to_what_an_order_of_the_calls_keeps_to(seeds: range) -> None:
    """In sum for no more work than the best orders cost."""
    schedule = Schedule(vector_bits=512)
    work: list[tuple[float, float]] = []
    for seed in seeds:
        program = volta.jit(volta.value_and_grad(drawn(seed))).trace(*chained()).jaxpr
        build = _Build(DeterminismLevel.STRICT, CompileOptions(), schedule, None)
        free = build.scheduled(build.optimized(program), "f", (), tuple(program.out_avals))
        if len(free.plan.calls) > 21:  # too many to try all orders
            continue
        for share in (0.9, 0.8, 0.7):
            budget = int(free.plan.arena_bytes * share)
            least = least_work(free, budget)
            if least is None:
                break
            plan, _ = build_plan(program, scheduler=schedule, excess=lambda plan, b=budget: plan.arena_bytes - b)
            assert plan.arena_bytes <= budget, f"seed {seed}, {share} of the temporaries"
            work.append((plan.computed_again[1], least / free.work))
    assert work and sum(ours for ours, _ in work) <= sum(best for _, best in work)


@pytest.mark.parametrize(
    "layers, share, most", [(12, 0.37, 0.25), pytest.param(40, 0.25, 0.32, marks=pytest.mark.slow)]
)
def test_many_equal_layers_cost_what_checkpoints_would(layers: int, share: float, most: float) -> None:
    """A third is a forward pass: what n layers in 2 √n of the memory take by checkpoints. A quarter of 40 layers is
    less than that."""
    shapes = [volta.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * layers
    args = (shapes, volta.ShapeDtypeStruct((256, WIDTH), "float32"))
    f = volta.value_and_grad(chain)
    free = plan_of(f, args)
    found = plan_of(f, args, free.peak_live_bytes - int(free.arena_bytes * (1 - share)))
    assert found.arena_bytes <= share * free.arena_bytes
    assert found.computed_again[1] <= most


def test_what_is_live_is_what_no_other_value_has_replaced() -> None:
    """The bytes in use at each call, beside counting them offset by offset."""
    plan = plan_of(volta.value_and_grad(chain), chained())
    first, last = lifetimes(plan.buffers, plan.calls)
    temps = [b for b in plan.buffers if b.kind == "temp"]
    for i, n in enumerate(plan.live_temp_bytes()):
        blocks = {b.offset: aligned(b.nbytes) for b in temps if first[b.id] <= i <= last[b.id]}
        assert n == sum(blocks.values())
    assert any(c.inplace for c in plan.calls)
