"""How planning grows with a program, counted in calls of functions: seconds differ from run to run."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import volta
from volta.numba_cpu.schedule import Schedule
from volta.testing.transformer import Transformer
from volta.xla_like.compile import build_plan
from volta.xla_like.passes import PASSES, optimize
from volta.xla_like.plan import ExecutionPlan


def calls_of(f: Callable[[], Any]) -> int:
    """How many functions are called, those in C too, and generators each time they go on."""
    count = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(before)
    return count


def step(layers: int) -> Any:
    model = Transformer(layers=layers)
    params = volta.eval_shape(model.init, volta.random.key(0))
    batch = volta.eval_shape(model.draw, volta.random.key(1))
    return volta.jit(volta.value_and_grad(model.loss)).trace(params, *batch).jaxpr


def planned(layers: int, share: float = 1.0) -> Callable[[], ExecutionPlan]:
    program, scheduler = step(layers), Schedule(vector_bits=512)
    plan, _ = build_plan(program, scheduler=scheduler)
    if share == 1.0:
        return lambda: build_plan(program, scheduler=scheduler)[0]
    limit = int(plan.arena_bytes * share)
    return lambda: build_plan(program, scheduler=scheduler, excess=lambda plan: plan.arena_bytes - limit)[0]


@pytest.mark.parametrize("layers", [3, pytest.param(24, marks=pytest.mark.slow)])
def test_an_equation_takes_few_calls(layers: int) -> None:
    """Ten thousand equations are to be planned within a second, and a call takes 100 ns and more."""
    equations = len(step(layers).eqns)
    assert calls_of(planned(layers)) < 330 * equations


@pytest.mark.parametrize(
    "layers, share", [(3, 0.5), *(pytest.param(24, x, marks=pytest.mark.slow) for x in (0.5, 0.3))]
)
def test_within_a_budget_it_is_planned_once_more(layers: int, share: float) -> None:
    """What is computed again is chosen once, and the model it is chosen by says what the plan will take."""
    equations = len(step(layers).eqns)
    assert calls_of(planned(layers, share)) < 720 * equations


def test_passes_that_find_nothing_give_back_the_program() -> None:
    """So nothing is made anew, and nothing is there to be verified again."""
    program = step(1)
    for _ in range(3):
        program = optimize(program)
    assert all(a_pass(program) is program for a_pass in PASSES)
