"""Calls that run plans: a loop, as often as a flag says; a choice, one of several.

What a loop carries stays in one place: each iteration's plan takes over the memory of its inputs, and where a value is
still read after its successor is there, the successor waits beside it and is copied when the iteration ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr
from volta.xla_like.kernels import Access, KernelCall, Operation
from volta.xla_like.loops import unique
from volta.xla_like.nodes import Node, Operand, Ref, Val
from volta.xla_like.opaque import Context, copy_call, written
from volta.xla_like.plan import Buffer, ExecutionPlan, lifetimes
from volta.xla_like.views import Ints, View, row_major

NestedPlan = Callable[[ClosedJaxpr, int], ExecutionPlan]
"""The plan of a program whose last so many inputs are carried: the last results take over their memory, in order."""

KINDS = ("while", "switch")


@attrs.frozen
class Control(Operation):
    """A call that runs plans, with its buffers by what they are for: the int32 that it goes by, what its plans read and
    write, and where their temporaries lie (None: they have none).

    The call's accesses are the flag, then for each plan the addresses that a run of it is given.
    """

    flag: int
    reads: Ints
    writes: Ints
    arena: int | None

    def details(self) -> str:
        reads, writes = (",".join(f"b{b}" for b in buffers) for buffers in (self.reads, self.writes))
        arena = "" if self.arena is None else f" arena=b{self.arena}"
        return f"flag=b{self.flag} reads={reads or None} {self.what}={writes or None}{arena}"

    @property
    def what(self) -> str:
        """What the buffers are that are written."""
        raise NotImplementedError


@attrs.frozen
class While(Control):
    """Its plan runs while the flag is not 0; it writes the flag, and takes over the memory of what it carries.

    ``turns``: how often that is, where it is known.
    """

    turns: int | None = None

    @property
    def name(self) -> str:
        return "while"

    @property
    def what(self) -> str:
        return "carried"


@attrs.frozen
class Switch(Control):
    """That one of its plans runs whose number the flag is."""

    @property
    def name(self) -> str:
        return "switch"

    @property
    def what(self) -> str:
        return "results"


def control_calls(node: Node, ctx: Context, nested: NestedPlan) -> list[KernelCall]:
    """The calls of a node that runs programs."""
    calls = (_while if node.kind == "while" else _switch)(node, ctx, nested)
    label = "" if node.source is None else str(node.source)
    return [attrs.evolve(c, label=label) for c in calls]


def _while(node: Node, ctx: Context, nested: NestedPlan) -> list[KernelCall]:
    flag, *operands = node.operands
    consts, first = operands[: node.params["consts"]], operands[node.params["consts"] :]
    carried = [ctx.buffer_of(val) for val in node.outputs]
    tested = ctx.new_temp(ShapedArray((), dtypes.int32))
    calls = written(flag, tested, (), dtypes.int32, ctx)
    for x, val, buffer in zip(first, node.outputs, carried, strict=False):
        calls += written(x, buffer, val.shape, val.dtype, ctx)
    plan, read = nested(node.params["program"], len(carried)), _buffers(consts, ctx, tested)
    addresses, arena = _addresses(plan, [*read, *carried], [tested, *carried], ctx)
    reads = unique([tested, *read, *carried[: len(first)]])  # what has no first value is written first
    writes = tuple(dict.fromkeys([*carried, tested, *arena]))
    loop = While(tested, tuple(read), tuple(carried), arena[0] if arena else None, node.params["turns"])
    accesses = tuple(Access(b, 0, ()) for b in (tested, *addresses))
    return [*calls, KernelCall(loop, (), accesses, reads, writes, plans=(plan,))]


def _switch(node: Node, ctx: Context, nested: NestedPlan) -> list[KernelCall]:
    index, *operands = node.operands
    results = [ctx.buffer_of(val) for val in node.outputs]
    chosen = ctx.new_temp(ShapedArray((), dtypes.int32))
    calls = written(index, chosen, (), dtypes.int32, ctx)
    plans = [nested(program, 0) for program in node.params["programs"]]
    most = max(plan.arena_bytes for plan in plans)
    arena = [ctx.new_temp(ShapedArray((most,), dtypes.uint8))] if most else []  # one of them runs
    places: list[int] = []
    read = _buffers(operands, ctx, chosen)
    for plan in plans:
        addresses, _ = _addresses(plan, read, results, ctx, arena)
        places += addresses
    reads = unique([chosen, *read])
    choice = Switch(chosen, tuple(read), tuple(results), arena[0] if arena else None)
    accesses = tuple(Access(b, 0, ()) for b in (chosen, *places))
    call = KernelCall(choice, (), accesses, reads, (*results, *arena), plans=tuple(plans))
    return [*calls, call]


Around = Callable[[int], tuple[int, int]]
"""Where a buffer of a nested plan lies: a buffer of the plan around it, and how many bytes into that."""


def bound(call: KernelCall) -> list[tuple[ExecutionPlan, Around]]:
    """Each plan that a call runs, with where its buffers lie."""
    found, at = [], 1
    for plan in call.plans:
        _, count = plan.address_slots()
        found.append((plan, _around(plan, call.accesses[at : at + count])))
        at += count
    return found


def _around(plan: ExecutionPlan, addresses: Sequence[Access]) -> Around:
    slots, _ = plan.address_slots()

    def around(buffer: int) -> tuple[int, int]:
        position, base = slots[buffer]
        outer = addresses[position]
        assert outer.buffer is not None
        return outer.buffer, outer.offset + base

    return around


def _buffers(operands: Sequence[Operand], ctx: Context, any_other: int) -> list[int]:
    """Where operands lie; what has no elements has no memory, and may lie anywhere."""
    return [ctx.buffer_of(x.val) if x.val.size else any_other for x in operands if isinstance(x, Ref)]


def _addresses(
    plan: ExecutionPlan, inputs: Sequence[int], results: Sequence[int], ctx: Context, arena: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """The buffers whose addresses a run of the plan is given, and those among them that are new: its arena."""
    own = [b.id for b in plan.buffers if b.kind == "output" and b.alias is None]
    outputs = [results[plan.outputs.index(number)] for number in own]
    if arena is None:
        arena = [ctx.new_temp(ShapedArray((plan.arena_bytes,), dtypes.uint8))] if plan.arena_bytes else []
    return [*inputs, *outputs, *(arena if plan.arena_bytes else [])], [*arena]


def keep_in_place(
    buffers: list[Buffer], calls: list[KernelCall], outputs: list[int], carried: Sequence[int]
) -> list[KernelCall]:
    """Let the last results take over the memory of the carried inputs, in order; returns the calls with the copies that
    this needs. Changes ``buffers`` and ``outputs``."""
    first, last = lifetimes(tuple(buffers), tuple(calls))
    pairs = {(i, *pair) for i, call in enumerate(calls) for pair in call.inplace}
    copies: list[KernelCall] = []
    for k, number in enumerate(carried, len(outputs) - len(carried)):
        result = outputs[k]
        if not buffers[result].nbytes:
            buffers[result] = attrs.evolve(buffers[result], alias=number)
            continue
        begin = first[result]
        if last[number] < begin or (last[number] == begin and (begin, number, result) in pairs):
            buffers[result] = attrs.evolve(buffers[result], alias=number)
            continue
        outputs[k] = len(buffers)
        buffers.append(attrs.evolve(buffers[result], id=outputs[k], alias=number))
        buffers[result] = attrs.evolve(buffers[result], kind="temp", placement="device_temporary", label="")
        val = Val(buffers[result].aval.shape, buffers[result].aval.dtype)
        ids = {val: result}
        copy = Context(ids.__getitem__, lambda aval: 0)
        copies += copy_call(
            Ref(val, View.of(val.shape)), val.shape, outputs[k], val.dtype, row_major(val.shape), 0, copy
        )
    return [*calls, *copies]
