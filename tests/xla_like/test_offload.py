"""Values that wait in the host's memory: chosen where that costs least, beside what the link carries."""

from typing import Any

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core.errors import VerificationError
from volta.numba_cpu.schedule import Schedule
from volta.numba_cuda.schedule import Schedule as OnGpu
from volta.xla_like import offload
from volta.xla_like.compile import build_plan
from volta.xla_like.memory import verify_allocation
from volta.xla_like.offload import BESIDE, LEAST, Link
from volta.xla_like.plan import ExecutionPlan, aligned, lifetimes

WIDTH = 64


def layers(ws: Any, x: Any) -> Any:
    for w in ws:
        x = vnp.tanh(x @ w)
    return vnp.sum(x * x)


def waits(ws: Any, x: Any) -> Any:
    """A loop's result, which is not computed again, waits while more is live than before and after."""
    y = lax.fori_loop(0, 3, lambda i, y: vnp.tanh(y @ ws[0]), x)
    wide = vnp.tanh(vnp.concatenate([x @ w for w in ws], axis=1) * vnp.max(y))
    wide = vnp.tanh(vnp.concatenate([wide @ vnp.concatenate([w] * len(ws)) for w in ws], axis=1)) + wide
    return y * vnp.max(wide @ vnp.concatenate(ws))


def shapes(count: int, width: int = WIDTH, rows: int = 256) -> tuple[Any, ...]:
    w = volta.ShapeDtypeStruct((width, width), "float32")
    return [w] * count, volta.ShapeDtypeStruct((rows, width), "float32")


def within(f: Any, args: Any, share: float, scheduler: Any) -> tuple[ExecutionPlan, ExecutionPlan, int]:
    """The plain plan, the one that is to have this share of its temporaries, and how many bytes these are."""
    program = volta.jit(f).trace(*args).jaxpr
    free, _ = build_plan(program, scheduler=scheduler)
    budget = int(free.arena_bytes * share)
    return free, build_plan(program, scheduler=scheduler, excess=lambda plan: plan.arena_bytes - budget)[0], budget


def test_large_products_are_moved_rather_than_computed_again() -> None:
    """4096 operations an element take longer than its way over the link beside other products."""
    args = shapes(12, 4096, 8192)
    _, there, budget = within(volta.value_and_grad(layers), args, 0.2, OnGpu())
    _, here, _ = within(volta.value_and_grad(layers), args, 0.2, Schedule(vector_bits=512))
    assert there.arena_bytes <= budget and there.moved[0] > 4
    assert there.computed_again[1] < 0.01 < 0.4 < here.computed_again[1]
    assert here.moved == (0, 0) and here.host_arena_bytes == 0  # the memory that it runs in is the host's


def test_cheap_values_are_computed_again_rather_than_moved() -> None:
    free, plan, budget = within(
        volta.grad(lambda x: vnp.sum(vnp.sin(vnp.sin(x * x) @ x))), shapes(1, 2048, 2048)[1:], 0.8, OnGpu()
    )
    assert plan.arena_bytes <= budget < free.arena_bytes and plan.moved == (0, 0) and plan.computed_again[0] > 0


def test_what_is_not_computed_again_is_moved() -> None:
    free, plan, budget = within(waits, shapes(6), 0.95, OnGpu())
    assert plan.arena_bytes <= budget < free.arena_bytes
    assert plan.moved == (1, 4 * 256 * WIDTH) and plan.host_arena_bytes == 4 * 256 * WIDTH
    assert sum(c.describe() == "while" for c in plan.calls) == sum(c.describe() == "while" for c in free.calls)
    _, here, _ = within(waits, shapes(6), 0.95, Schedule(vector_bits=512))
    assert here.arena_bytes > budget or here.moved == (0, 0)


def test_reports_say_what_is_moved() -> None:
    free, plan, _ = within(waits, shapes(6), 0.95, OnGpu())
    line = "moved to the host and back, for the budget: 1 values, 65,536 bytes each way"
    assert line in plan.as_text() and line in plan.memory_report() and "moved" not in free.memory_report()
    assert "the host's memory over the schedule (65,536 bytes planned, 65,536 live at most)" in plan.memory_report()
    assert "host_temporary @0" in plan.as_text()
    assert plan.bytes_by_placement().keys() == free.bytes_by_placement().keys()
    assert "move to host" in plan._repr_html_()
    waiting = plan.memory_report().split("moved to the host and back\n")[1].splitlines()[0]
    assert "65,536  f32[256,64]" in waiting and "(waits)" in waiting


def test_a_value_is_away_between_its_moves() -> None:
    """Nobody reads it then, and its memory is somebody else's."""
    _, plan, _ = within(volta.value_and_grad(layers), shapes(12, 4096, 8192), 0.2, OnGpu())
    first, last = lifetimes(plan.buffers, plan.calls)
    out = {c.writes[0]: (c.reads[0], i) for i, c in enumerate(plan.calls) if c.describe() == "move to host"}
    back = {c.reads[0]: (c.writes[0], i) for i, c in enumerate(plan.calls) if c.describe() == "move to device"}
    assert out.keys() == back.keys() and len(out) == plan.moved[0]
    for waiting, (source, left) in out.items():
        target, begun = back[waiting]
        assert last[source] == left and first[target] == begun and left + 1 < begun
        assert (first[waiting], last[waiting]) == (left, begun)
    assert plan.host_arena_bytes < plan.moved[1] + 1 and plan.host_arena_bytes == max(plan.live_temp_bytes("host"))


def test_a_plan_whose_waiting_values_overlap_is_refused() -> None:
    _, plan, _ = within(volta.value_and_grad(layers), shapes(12, 4096, 8192), 0.2, OnGpu())
    verify_allocation(plan.buffers, plan.calls, plan.arena_bytes)
    wrong = tuple(attrs.evolve(b, offset=0) if b.kind == "host" else b for b in plan.buffers)
    with pytest.raises(VerificationError, match="wait together and overlap in the host's memory"):
        verify_allocation(wrong, plan.calls, plan.arena_bytes)


def test_copies_run_beside_calls_as_long_as_the_link_has_room() -> None:
    """The link carries one value of the size beside each two calls, each way."""
    size = 1 << 20
    link = Link([BESIDE * size / 2] * 16)
    hidden, exposed = link.stays(1, 14, size)
    assert (hidden.left, hidden.back) == (3, 12) and hidden.work < exposed.work
    assert (exposed.left, exposed.back) == (1, 14)
    link.carry(1, 14, size)
    later, _ = link.stays(1, 14, size)
    assert (later.left, later.back) == (5, 10)
    link.carry(1, 14, size)
    (only,) = link.stays(2, 13, size)  # six calls carry what has been promised; of the five others both ways need four
    assert only.work == exposed.work
    assert list(link.stays(0, 15, LEAST - 1)) == []


def test_the_link_carries_no_more_than_it_has_room_for() -> None:
    rng = np.random.default_rng(0)
    works = rng.integers(0, 4, 40) * BESIDE * 1e5
    link, taken = Link(works), 0
    for _ in range(200):
        early, first = sorted(rng.integers(0, 40, 2))
        size = int(rng.integers(LEAST, 1 << 20))
        stays = list(link.stays(early, first, size)) if first - early > 1 else []
        if len(stays) == 2:
            assert early < stays[0].left < stays[0].back < first
            link.carry(early, first, size)
            taken += size
    assert 0 < taken <= sum(works) / BESIDE
    for room in (link._out, link._back):
        assert room.min() >= -1e-6 and np.isclose(room.sum() + taken, sum(works) / BESIDE)


def test_nothing_is_moved_without_a_budget() -> None:
    program = volta.jit(volta.value_and_grad(layers)).trace(*shapes(3)).jaxpr
    plan, _ = build_plan(program, scheduler=OnGpu())
    assert plan.moved == (0, 0) and not any(
        c.kernel.name == "move" for c in plan.calls if isinstance(c.kernel, offload.Move)
    )
    assert aligned(plan.host_arena_bytes) == 0


def test_what_reads_nothing_of_its_operands_leaves_no_sooner_than_the_program_has_it(monkeypatch) -> None:
    """A padding that cuts all of its operand away needs no call but its own: a plan may have it first, and a program
    not before what it names. Such a value was once sent to the host in front of the equation that computes it."""
    monkeypatch.setattr(offload, "LEAST", 0)
    monkeypatch.setattr(offload, "BESIDE", 1e-9)
    monkeypatch.setattr(offload, "HIDDEN", 0)

    def loss(x: Any) -> Any:
        ys = [vnp.exp(x) for _ in range(5)] + [lax.pad(x, 0.0, [(-1, 1, 0)])]
        return sum(vnp.sum(vnp.tanh(y)) for y in ys)

    free, plan, _ = within(volta.value_and_grad(loss), [volta.ShapeDtypeStruct((1,), "float32")], 0.9, OnGpu())
    assert plan.moved == (0, 0) and len(plan.calls) >= len(free.calls)
