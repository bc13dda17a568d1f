"""The verifiers reject what breaks a rule: each mutant of a legal program, schedule or allocation is caught."""

from math import prod

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.xla_like.xla_support import plan_of, program_of, struct
from volta import lax
from volta.core.avals import ShapedArray
from volta.core.errors import VerificationError
from volta.core.ir import ClosedJaxpr, Literal, Var
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.memory import assign_memory, verify_allocation
from volta.xla_like.plan import Buffer, aligned, lifetimes
from volta.xla_like.verify import verify_graph, verify_schedule

F32 = np.dtype(np.float32)
PROGRAM = program_of(lambda x, y: vnp.sum(vnp.sin(x) * y, 0), struct(3, 4), struct(3, 4))


def changed(**fields) -> ClosedJaxpr:
    return ClosedJaxpr(PROGRAM.jaxpr.replace(**fields), PROGRAM.consts)


def with_eqn(i: int, **fields) -> ClosedJaxpr:
    eqns = list(PROGRAM.eqns)
    eqns[i] = eqns[i].replace(**fields)
    return changed(eqns=tuple(eqns))


def test_a_legal_program_passes() -> None:
    verify_graph(PROGRAM)


E = PROGRAM.eqns
GRAPH_MUTANTS = {
    "two equations swapped": (changed(eqns=(E[1], E[0], *E[2:])), "before it is defined"),
    "an equation lost": (changed(eqns=E[1:]), "before it is defined"),
    "a result that nothing computes": (changed(outvars=(Var(ShapedArray((4,), F32)),)), "never computed"),
    "a variable assigned twice": (with_eqn(1, outputs=E[0].outputs), "assigned twice"),
    "an argument assigned": (with_eqn(0, outputs=(PROGRAM.jaxpr.invars[0],)), "assigned twice"),
    "an argument bound twice": (changed(invars=(PROGRAM.jaxpr.invars[0],) * 2), "bound twice"),
    "a wrong shape": (with_eqn(0, outputs=(Var(ShapedArray((3, 5), F32)),)), "shape rule"),
    "a wrong dtype": (with_eqn(0, outputs=(Var(ShapedArray((3, 4), np.dtype(np.int32))),)), "shape rule"),
    "a wrong param": (with_eqn(2, params={"axes": (7,)}), "shape rule"),
    "constants without variables": (ClosedJaxpr(PROGRAM.jaxpr, (np.float32(1),)), "constvars"),
    "a literal that is no scalar": (
        with_eqn(0, inputs=(Literal(np.float32(1), ShapedArray((), F32)), *E[0].inputs[1:])),
        "shape rule",
    ),
}


@pytest.mark.parametrize("name", GRAPH_MUTANTS)
def test_graph_mutants_are_rejected(name) -> None:
    mutant, message = GRAPH_MUTANTS[name]
    with pytest.raises(VerificationError, match=message):
        verify_graph(mutant)


# -- schedules ---------------------------------------------------------------------------------------------------------


def two_steps(x, w):
    return vnp.sum(vnp.tanh(vnp.sort(x, 1) @ w), 0)


PLAN = plan_of(two_steps, struct(40, 50), struct(50, 60))


def call_changed(i: int, **fields):
    calls = list(PLAN.calls)
    calls[i] = attrs.evolve(calls[i], **fields)
    return attrs.evolve(PLAN, calls=tuple(calls))


def test_a_legal_schedule_passes() -> None:
    assert len(PLAN.calls) >= 3
    verify_schedule(PLAN)
    verify_allocation(PLAN.buffers, PLAN.calls, PLAN.arena_bytes)


SCHEDULE_MUTANTS = {
    "calls reversed": (attrs.evolve(PLAN, calls=PLAN.calls[::-1]), "before it is written"),
    "a call lost": (attrs.evolve(PLAN, calls=PLAN.calls[1:]), "before it is written"),
    "the last call lost": (attrs.evolve(PLAN, calls=PLAN.calls[:-1]), "never written"),
    "an input written": (call_changed(0, writes=PLAN.calls[0].reads), "writes input|does not declare"),
    "a buffer that does not exist": (call_changed(0, reads=(99,)), "does not exist"),
    "an access undeclared": (call_changed(0, reads=()), "does not declare"),
}


@pytest.mark.parametrize("name", SCHEDULE_MUTANTS)
def test_schedule_mutants_are_rejected(name) -> None:
    mutant, message = SCHEDULE_MUTANTS[name]
    with pytest.raises(VerificationError, match=message):
        verify_schedule(mutant)


# -- memory ------------------------------------------------------------------------------------------------------------


def nothing(reads, writes, inplace=()) -> KernelCall:
    return KernelCall(LibraryKernel("none", ""), (), (), tuple(reads), tuple(writes), inplace=tuple(inplace))


@st.composite
def lives(draw):
    """Buffers and calls at random: temps written once and read later, some in place; inputs, some donated; outputs."""
    buffers, calls, ready = [], [], []

    def add(kind, n):
        buffers.append(Buffer(len(buffers), ShapedArray((n,), F32), kind, "device_temporary"))
        return len(buffers) - 1

    sizes = st.sampled_from([1, 15, 16, 17, 64, 100, 1000])
    inputs = [add("input", draw(sizes)) for _ in range(draw(st.integers(1, 3)))]
    ready += inputs
    for _ in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(ready), min_size=1, max_size=3, unique=True))
        writes, inplace = [], []
        for _ in range(draw(st.integers(1, 2))):
            same = draw(st.sampled_from(reads))
            n = buffers[same].aval.size if draw(st.booleans()) else draw(sizes)
            new = add(draw(st.sampled_from(["temp", "temp", "temp", "output"])), n)
            writes.append(new)
            if buffers[same].nbytes == buffers[new].nbytes and draw(st.booleans()):
                inplace.append((same, new))
        calls.append(nothing(reads, writes, inplace))
        ready += writes
    donated = tuple(i for i in inputs if draw(st.booleans()))
    return tuple(buffers), tuple(calls), donated


def check_by_hand(buffers, calls, arena) -> None:
    """Run the calls on a map from bytes to owners: nobody's data may be overwritten while it is still to be read."""
    first, last = lifetimes(buffers, calls)
    owner: dict = {}

    def places(b):
        if b.in_arena:
            return [("arena", k) for k in range(b.offset, b.offset + b.nbytes)]
        root = b.alias if b.alias is not None else b.id
        return [(root, k) for k in range(b.nbytes)]

    for b in buffers:
        if b.kind == "input":
            owner.update(dict.fromkeys(places(b), b.id))
    for i, call in enumerate(calls):
        for r in call.reads:
            assert all(owner[p] == r for p in places(buffers[r])), f"b{r} was overwritten before call {i}"
        for w in call.writes:
            for p in places(buffers[w]):
                before = owner.get(p)
                if before in call.reads and before != w:
                    assert (before, w) in call.inplace, f"call {i} overwrites what it reads"
                owner[p] = w
    for b in buffers:
        if b.kind == "output":
            assert all(owner[p] == b.id for p in places(b)), f"result b{b.id} was overwritten"


@given(lives())
def test_planned_memory_never_overlaps(case) -> None:
    buffers, calls, donated = case
    placed, arena = assign_memory(buffers, calls, donated)
    verify_allocation(placed, calls, arena)
    check_by_hand(placed, calls, arena)
    assert arena <= sum(aligned(b.nbytes) for b in buffers if b.kind == "temp")


@given(lives(), st.data())
def test_wrong_memory_is_rejected(case, data) -> None:
    """Move one temp onto another that lives at the same time, in no in-place pair: the verifier notices."""
    buffers, calls, donated = case
    placed, arena = assign_memory(buffers, calls, donated)
    first, last = lifetimes(placed, calls)
    temps = [b for b in placed if b.in_arena]
    clashes = [(a, b) for a in temps for b in temps if a.id < b.id
               and first[b.id] < last[a.id] and first[a.id] < last[b.id]]  # fmt: skip
    if clashes:
        a, b = data.draw(st.sampled_from(clashes))
        moved = list(placed)
        moved[b.id] = attrs.evolve(b, offset=a.offset)
        with pytest.raises(VerificationError):
            verify_allocation(tuple(moved), calls, max(arena, a.offset + b.nbytes))


def simple():
    buffers = [Buffer(0, ShapedArray((16,), F32), "input", ""), Buffer(1, ShapedArray((16,), F32), "temp", ""),
               Buffer(2, ShapedArray((16,), F32), "output", "")]  # fmt: skip
    return buffers, (nothing([0], [1]), nothing([0, 1], [2]))


def test_lifetimes() -> None:
    buffers, calls = simple()
    assert lifetimes(tuple(buffers), (*calls, nothing([1], []))) == ([-1, 0, 1], [1, 2, 3])


def test_allocation_mutants_are_rejected() -> None:
    buffers, calls = simple()
    placed, arena = assign_memory(tuple(buffers), calls, ())
    verify_allocation(placed, calls, arena)

    def mutant(i, **fields):
        out = list(placed)
        out[i] = attrs.evolve(out[i], **fields)
        return tuple(out)

    for bad, message in [
        (mutant(1, offset=None), "outside the arena"), (mutant(1, offset=-64), "outside the arena"),
        (mutant(1, offset=64), "outside the arena"), (mutant(1, offset=1), "outside the arena"),
        (mutant(2, alias=1), "no input of its size"), (mutant(2, alias=0), "before its last use"),
    ]:  # fmt: skip
        with pytest.raises(VerificationError, match=message):
            verify_allocation(bad, calls, arena)


@pytest.mark.parametrize("offset", [1, 8, 32, 63, 65, 96])
def test_a_temp_at_an_odd_place_is_rejected(offset) -> None:
    buffers, calls = simple()
    placed, arena = assign_memory(tuple(buffers), calls, ())
    moved = (placed[0], attrs.evolve(placed[1], offset=offset), *placed[2:])
    with pytest.raises(VerificationError, match=f"lies at {offset}, which is no multiple of 64"):
        verify_allocation(moved, calls, arena + 4096)


def test_memory_is_reused() -> None:
    """A chain of kernels needs two buffers at most, however long it is."""

    def chain(x):
        for _ in range(6):
            x = vnp.sort(vnp.sort(x, 0), 1)
        return x

    plan = plan_of(chain, struct(64, 64))
    assert plan.arena_bytes <= 3 * 64 * 64 * 4 < len(plan.calls) * 64 * 64 * 4


def test_a_donated_input_is_taken_over() -> None:
    plan = plan_of(lambda x: vnp.tanh(x) + 1, struct(64, 64), donated=(0,))
    assert plan.buffers[plan.outputs[0]].alias == plan.inputs[0]
    assert plan.bytes_by_class() == {"input": 16384, "const": 0, "output": 0, "temp": 0}
    plan = plan_of(lambda x: vnp.tanh(x.T) + 1, struct(64, 64), donated=(0,))
    assert plan.buffers[plan.outputs[0]].alias is None, "another order: not in place"
    plan = plan_of(lambda x: (vnp.tanh(x), x), struct(64, 64), donated=(0,))
    assert plan.outputs[1] == plan.inputs[0] and plan.buffers[plan.outputs[0]].alias is None, "it is a result itself"
    stolen = [attrs.evolve(b, alias=plan.inputs[0]) if b.id == plan.outputs[0] else b for b in plan.buffers]
    with pytest.raises(VerificationError, match="overwrites"):
        verify_schedule(attrs.evolve(plan, buffers=tuple(stolen)))


def _updated(x, k):
    """Rows, then columns, of one array: each update reads what the one before has made."""
    x = lax.dynamic_update_slice_in_dim(x, 2 * lax.dynamic_slice_in_dim(x, k, 3, 0), k, 0)
    x = lax.dynamic_update_slice_in_dim(x, 1 + lax.dynamic_slice_in_dim(x, k, 3, 1), k, 1)
    return lax.dynamic_update_slice_in_dim(x, 0 * lax.dynamic_slice_in_dim(x, k, 1, 0), k, 0)


def test_what_is_updated_more_than_once_stays_in_its_place() -> None:
    """Of what a loop carries, and of what is donated: no update copies the array, there or back."""
    looped = plan_of(lambda x: volta.lax.fori_loop(0, 60, lambda k, x: _updated(x, k), x), struct(64, 64))
    (loop,) = (call for call in looped.calls if call.plans)
    for plan in (loop.plans[0], plan_of(_updated, struct(64, 64), struct(dtype=np.int32), donated=(0,))):
        size = 64 * 64 * 4
        copies = [call for call in plan.calls if prod(call.sizes) == 64 * 64 and not call.elided]
        assert not copies and plan.arena_bytes < size
        (number,) = {b.alias for b in plan.buffers if b.alias is not None and b.nbytes == size}
        assert plan.buffers[number].kind == "input"
        assert len([b for b in plan.buffers if b.alias == number and b.kind == "temp"]) == 2

        # Whoever still reads the array as it was is caught.
        late = (*plan.calls, nothing([number], []))
        with pytest.raises(VerificationError, match=f"in the memory of b{number} before its last use"):
            verify_allocation(plan.buffers, late, plan.arena_bytes)


def test_a_joined_call_may_write_and_use_up_what_lies_in_a_donated_input() -> None:
    """Its parts run one after the other, so the result comes after the temporary, whatever their numbers are."""
    aval = ShapedArray((64,), np.dtype(np.float32))
    buffers = (
        Buffer(0, aval, "input", "device_parameter"),
        Buffer(1, aval, "output", "device_output", alias=0),
        Buffer(2, aval, "temp", "device_temporary", alias=0),
    )
    joined = nothing([0], [2, 1], ((0, 2), (2, 1)))
    verify_allocation(buffers, (joined,), 0)
    for left_out in joined.inplace:
        kept = tuple(pair for pair in joined.inplace if pair != left_out)
        with pytest.raises(VerificationError, match="in the memory of b0 before its last use"):
            verify_allocation(buffers, (attrs.evolve(joined, inplace=kept),), 0)
