"""From a program to a verified ExecutionPlan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.collector import uncollected
from volta.core.ir import ClosedJaxpr
from volta.core.policy import DeterminismLevel
from volta.xla_like import control_calls, user
from volta.xla_like.attention_calls import join_cotangents
from volta.xla_like.complex_pairs import has_complex, to_pairs
from volta.xla_like.exact import exact_products
from volta.xla_like.fusion import fuse
from volta.xla_like.groups import Group
from volta.xla_like.kernels import KernelCall, LoopKernel
from volta.xla_like.keys import has_keys, without_keys
from volta.xla_like.loops import loop_calls
from volta.xla_like.lowering import lower_to_nodes
from volta.xla_like.memory import assign_host_memory, assign_memory, verify_allocation, without_memory
from volta.xla_like.nodes import Lowered, Ref, Val
from volta.xla_like.opaque import Context, opaque_calls
from volta.xla_like.passes import Evaluate, Kept, inline_calls, optimize
from volta.xla_like.placing import places
from volta.xla_like.plan import Buffer, ExecutionPlan
from volta.xla_like.precisions import round_operands
from volta.xla_like.recompute import Copies, recompute
from volta.xla_like.rematerialize import ROUNDS, STEPS, rematerialize
from volta.xla_like.schedule import schedule
from volta.xla_like.scheduled import Scheduled
from volta.xla_like.scheduler import Scheduler, Unscheduled
from volta.xla_like.segments import cut_scans
from volta.xla_like.verify import verify_graph, verify_schedule


@attrs.frozen
class CompileOptions:
    """What may change a plan but, in strict mode, never a bit: tests turn these off and compare.

    ``epilogues``: what reads a product runs with it. ``placing``: parts of a concatenation are computed in their place.
    ``processors``: for how many multiprocessors of a GPU work is shared out (None: as many as its kind has).
    """

    fusion: bool = True
    passes: bool = True
    recompute: bool = True
    epilogues: bool = True
    placing: bool = True
    reuse_memory: bool = True
    processors: int | None = None


@uncollected
def build_plan(
    program: ClosedJaxpr,
    *,
    name: str = "main",
    donated: Sequence[int] = (),
    level: DeterminismLevel = DeterminismLevel.STRICT,
    options: CompileOptions = CompileOptions(),  # noqa: B008 - frozen
    scheduler: Scheduler = Unscheduled(),  # noqa: B008 - frozen
    evaluate: Evaluate | None = None,
    excess: Callable[[ExecutionPlan], int] | None = None,
) -> tuple[ExecutionPlan, ClosedJaxpr]:
    """Compile a program to a plan; returns it with the optimised program that it implements.

    ``donated`` are positions of inputs whose memory outputs may take over; ``scheduler`` is the backend's; ``evaluate``
    runs scalar programs of constants, so that they are folded (None: they are left to run time). ``excess`` says by how
    many bytes a plan passes the budget: values are then computed again until none does, or nothing more can be spared.

    Raises:
        VerificationError: when a pass, the schedule or the planner broke a rule (a bug of Volta's).
        UnsupportedOperationError: for an operation that the plan has no kernel for at this level.
    """
    verify_graph(program)
    out_avals = tuple(program.out_avals)
    if has_keys(program):
        program = without_keys(program)
        verify_graph(program)
    build = _Build(level, options, scheduler, evaluate)
    if has_complex(program):
        program = to_pairs(program, build.kept)
        verify_graph(program)
    if build.rounds:
        program = round_operands(inline_calls(program, build.kept))
        verify_graph(program)
    scheduled = build.scheduled(build.optimized(program), name, tuple(donated), out_avals)
    if excess is not None and options.recompute:
        scheduled = build.within(scheduled, excess, tuple(donated), out_avals)
    return _verified(scheduled.plan), scheduled.program


def _verified(plan: ExecutionPlan) -> ExecutionPlan:
    """A plan that somebody will run; those that only tell how one within a budget may be are not looked at."""
    verify_schedule(plan)
    verify_allocation(plan.buffers, plan.calls, plan.arena_bytes)
    return plan


@attrs.frozen
class _Build:
    """How a program, and the programs that its loops and choices run, become plans."""

    level: DeterminismLevel
    options: CompileOptions
    scheduler: Scheduler
    evaluate: Evaluate | None

    @property
    def kept(self) -> Kept | None:
        """Which equations that mean a program stay one."""
        return self.scheduler.keeps if self.options.fusion else None

    @property
    def rounds(self) -> bool:
        """Whether precisions of tensor cores round operands."""
        return self.scheduler.tensor_cores and self.level is not DeterminismLevel.STRICT

    def optimized(self, program: ClosedJaxpr) -> ClosedJaxpr:
        program = exact_products(inline_calls(program, self.kept))
        return optimize(program, only_inline=not self.options.passes, evaluate=self.evaluate, kept=self.kept)

    def prepared(self, program: ClosedJaxpr) -> ClosedJaxpr:
        """A program that an equation carries, after the passes."""
        if self.rounds:
            program = round_operands(inline_calls(program, self.kept))
        return self.optimized(program)

    def plan(
        self, program: ClosedJaxpr, name: str, donated: tuple[int, ...], out_avals: tuple[ShapedArray, ...],
        carried: int | None = None,
    ) -> ExecutionPlan:  # fmt: skip
        """``carried`` (None: not the plan of a loop or a choice): how many results take over memory of inputs."""
        return _verified(self.scheduled(program, name, donated, out_avals, carried).plan)

    def scheduled(
        self, program: ClosedJaxpr, name: str, donated: tuple[int, ...], out_avals: tuple[ShapedArray, ...],
        carried: int | None = None, tight: bool = False,
    ) -> Scheduled:  # fmt: skip
        """``tight``: the plan is to keep to a budget."""
        lowered = lower_to_nodes(program.jaxpr, self.prepared, carried is not None, self.scheduler.bare)
        fuser, groups = fuse(lowered, self.options.fusion)
        copies = Copies()
        if self.options.fusion and self.options.recompute:
            copies = recompute(fuser, groups, lowered, tight)
        pairs = zip(lowered.inputs[-carried:], lowered.outputs[-carried:], strict=True) if carried else ()
        groups = schedule(groups, lowered.outputs, tuple(pairs))
        plan, buffer_of, call_of = _assemble(lowered, groups, name, donated, self, out_avals, carried or 0)
        return Scheduled(program, plan, lowered, buffer_of, call_of, copies)

    def within(
        self, scheduled: Scheduled, excess: Callable[[ExecutionPlan], int], donated: tuple[int, ...],
        out_avals: tuple[ShapedArray, ...],
    ) -> Scheduled:  # fmt: skip
        """The plan that passes the budget least, at best not at all; see `rematerialize`."""
        best, least = self._within(scheduled, excess, donated, out_avals)
        if least > 0 and (cut := cut_scans(scheduled.program)) is not None:
            verify_graph(cut, checked=scheduled.program)
            in_segments = self.scheduled(cut, scheduled.plan.name, donated, out_avals, tight=True)
            other, its = self._within(in_segments, excess, donated, out_avals)
            best = other if its < least else best
        if best is scheduled:
            return best
        more = best.more_than(scheduled)
        again = max(0, more.operations), max(0.0, more.work / max(scheduled.work, 1))
        plan = attrs.evolve(best.plan, computed_again=again, again_from=tuple(more.lines.most_common(8)))
        return attrs.evolve(best, plan=plan)

    def _within(
        self, scheduled: Scheduled, excess: Callable[[ExecutionPlan], int], donated: tuple[int, ...],
        out_avals: tuple[ShapedArray, ...],
    ) -> tuple[Scheduled, int]:  # fmt: skip
        """The best plan with values of the program computed again, and by how much it passes the budget."""
        plain = excess(scheduled.plan)
        best, least = scheduled, plain
        for step in STEPS:
            found, over = scheduled, plain
            for _ in range(ROUNDS if least > 0 else 0):
                arena = found.plan.arena_bytes
                program = rematerialize(found, max(arena - over, int(arena * step)), self.scheduler.moves)
                if program is None:
                    break
                verify_graph(program, checked=found.program)
                found = self.scheduled(program, scheduled.plan.name, donated, out_avals, tight=True)
                before, over = over, excess(found.plan)
                if over < least:
                    best, least = found, over
                if over <= 0 or over >= before:
                    break
        return best, least

    def nested(self, program: ClosedJaxpr, carried: int) -> ExecutionPlan:
        """The plan of a program that a call runs; see `NestedPlan`."""
        return self.plan(self.prepared(program), "nested", (), tuple(program.out_avals), carried)


class _Buffers:
    def __init__(self) -> None:
        self.list: list[Buffer] = []
        self.ids: dict[Val, int] = {}

    def add(self, aval: ShapedArray, kind: str, placement: str, label: str = "", val: Val | None = None) -> int:
        number = len(self.list)
        self.list.append(Buffer(number, aval, kind, placement, label=label))
        if val is not None:
            self.ids[val] = number
        return number

    def of(self, val: Val) -> int:
        return self.ids[val]


def _assemble(
    lowered: Lowered, groups: list[Group], name: str, donated: tuple[int, ...], build: _Build,
    out_avals: tuple[ShapedArray, ...], carried: int,
) -> tuple[ExecutionPlan, dict[Val, int], dict[int, int]]:  # fmt: skip
    """The plan, the buffer of each stored value, and the number of the call that each node runs in first."""
    level, options = build.level, build.options
    buffers = _Buffers()
    for i, val in enumerate(lowered.inputs):
        placement = "device_parameter" if i in donated else "host_input"
        buffers.add(ShapedArray(val.shape, val.dtype), "input", placement, val.label, val)
    for val in lowered.consts:
        buffers.add(ShapedArray(val.shape, val.dtype), "const", "device_constant", val.label, val)
    for i, val in enumerate(dict.fromkeys(lowered.outputs)):
        if val not in buffers.ids:
            buffers.add(ShapedArray(val.shape, val.dtype), "output", "device_output", f"out{i}", val)

    stored = _stored(groups, lowered)
    inside = places(groups, lowered) if options.fusion and options.placing else {}
    calls: list[KernelCall] = []
    for group in groups:
        for node in group.nodes:
            for val in node.outputs:
                place = inside.get(val)
                if place is not None and place.whole in buffers.ids:
                    buffers.ids[val] = buffers.ids[place.whole]
                elif val in stored and val not in buffers.ids:
                    label = "" if node.source is None else str(node.source)
                    backward = node.source is not None and node.source.gradient
                    placement = "gradient" if backward else "device_temporary"
                    whole = val if place is None else place.whole
                    kind = "temp"
                    if val.on_host:
                        kind, placement = "host", "host_temporary"
                    buffers.ids[val] = buffers.add(ShapedArray(whole.shape, whole.dtype), kind, placement, label, whole)

        def workspace(aval: ShapedArray) -> int:
            return buffers.add(aval, "temp", "accumulation_workspace")

        if group.fusible:
            kept = [v for n in group.nodes for v in n.outputs if v in stored]
            if kept:
                calls += loop_calls(group, kept, buffers.of, workspace, inside)
        else:
            context = Context(buffers.of, workspace, level, build.scheduler.tensor_cores, inside)
            node = group.nodes[0]
            if node.kind in control_calls.KINDS:
                calls += control_calls.control_calls(node, context, build.nested)
            elif node.kind in user.KINDS:
                calls += user.user_calls(node, context)
            else:
                calls += opaque_calls(node, context)

    if options.fusion:
        calls = join_cotangents(calls)
        if options.epilogues:
            calls = build.scheduler.joined(calls, buffers.list)
        buffers.list = without_memory(calls, buffers.list)
    calls = [_with_workspace(c, build.scheduler.workspace(c), buffers) for c in calls]
    outputs = [buffers.ids[v] for v in lowered.outputs]
    if carried:
        inputs = [buffers.ids[v] for v in lowered.inputs]
        calls = control_calls.keep_in_place(buffers.list, calls, outputs, inputs[len(inputs) - carried :])
    donated_ids = tuple(donated)
    if options.reuse_memory:
        returned = {buffers.ids[v] for v in lowered.outputs}  # a result that is an input keeps its memory
        if any(user.is_user(c) for call in calls for c in call.nested()):
            returned.update(donated_ids)  # a kernel of the user's own may raise: nothing has been overwritten then
        free = tuple(d for d in donated_ids if d not in returned)
        moments = build.scheduler.moments(calls, buffers.list)
        placed, arena = assign_memory(tuple(buffers.list), tuple(calls), free, moments)
    else:
        placed, arena = assign_memory(tuple(buffers.list), tuple(attrs.evolve(c, inplace=()) for c in calls), ())
    placed, host_arena = assign_host_memory(placed, tuple(calls))
    plan = ExecutionPlan(
        name=name,
        buffers=placed,
        calls=tuple(calls),
        inputs=tuple(buffers.ids[v] for v in lowered.inputs),
        consts=tuple(buffers.ids[v] for v in lowered.consts),
        outputs=tuple(outputs),
        out_avals=out_avals,
        arena_bytes=arena,
        donated=donated_ids,
        level=level,
        processors=options.processors,
        host_arena_bytes=host_arena,
    )
    writer = {number: i for i, call in enumerate(calls) for number in call.writes}
    call_of: dict[int, int] = {}
    for group in groups:
        own = [writer[b] for n in group.nodes for v in n.outputs if (b := buffers.ids.get(v)) in writer]
        for node in group.nodes if own else ():
            call_of.setdefault(node.index, max(own))  # copies of it, in the groups of readers, come later
    plan = attrs.evolve(plan, calls=tuple(_elided(c, plan.buffers) for c in plan.calls))
    return plan, buffers.ids, call_of


def _with_workspace(call: KernelCall, nbytes: int, buffers: _Buffers) -> KernelCall:
    if not nbytes:
        return call
    number = buffers.add(ShapedArray((nbytes,), dtypes.uint8), "temp", "accumulation_workspace")
    return attrs.evolve(call, workspace=number, writes=(*call.writes, number))


def _elided(call: KernelCall, buffers: tuple[Buffer, ...]) -> KernelCall:
    """A copy from memory onto itself keeps its place in the schedule, but nothing runs.

    An update of a few elements of an array that nobody else needs (a cache, an optimizer's table) costs those elements.
    """
    if not call.inplace or not isinstance(call.kernel, LoopKernel) or len(call.kernel.body) != 1:
        return call
    read, written = (buffers[a.buffer] for a in call.accesses if a.buffer is not None)
    return attrs.evolve(call, elided=True) if _home(read) == _home(written) else call


def _home(b: Buffer) -> tuple[int | None, int | None]:
    """Whose memory a buffer lies in (None: the arena), and where."""
    return (None if b.in_arena else b.id if b.alias is None else b.alias), b.offset


def _stored(groups: list[Group], lowered: Lowered) -> dict[Val, None]:
    """Values that need memory: results, and what another group reads."""
    stored = dict.fromkeys(lowered.outputs)
    for group in groups:
        for node in group.nodes:
            for x in node.operands:
                if isinstance(x, Ref) and x.val not in group.levels:
                    stored[x.val] = None
            if not group.fusible:
                stored.update(dict.fromkeys(node.outputs))
    return stored
