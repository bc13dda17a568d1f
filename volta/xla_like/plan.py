"""The ExecutionPlan: buffers with offsets and placement, kernel calls in order, bytes by class. Pure data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from volta.core import contract
from volta.core.avals import ShapedArray
from volta.core.policy import DeterminismLevel
from volta.xla_like.kernels import KernelCall, Operation, kernel_name
from volta.xla_like.plan_html import html_plan
from volta.xla_like.views import Ints

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@attrs.frozen(slots=True)
class Buffer:
    """A piece of memory. ``kind``: input, const, output, temp or host. A temp has an ``offset`` in the arena; what a
    plan for a GPU keeps in the memory of the 'host' has one in the arena there. There are also 'unstored' ones, in no
    memory: a call passes their values on in registers (see `Joined`).

    ``placement`` says who holds it: 'host_input', 'device_parameter' (a donated input: state that lives on),
    'device_constant', 'device_temporary', 'gradient' (a temporary of the backward pass), 'accumulation_workspace'
    (partial sums), 'device_output', 'host_temporary' or, of no memory, 'registers'.
    ``alias`` of an output is the donated input whose memory it takes over; a temp on the way to it may lie there too.
    """

    id: int
    aval: ShapedArray
    kind: str
    placement: str
    offset: int | None = None
    alias: int | None = None
    label: str = ""

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def in_arena(self) -> bool:
        """Whether it is a temp with memory of its own."""
        return self.kind == "temp" and self.alias is None

    def at(self, offset: int) -> Buffer:
        """The buffer at an offset of the arena."""
        return Buffer(self.id, self.aval, self.kind, self.placement, offset, self.alias, self.label)


@attrs.frozen
class ExecutionPlan:
    """What a backend runs. ``outputs`` are buffer ids; an id may repeat, or be an input's. ``processors``: for how many
    multiprocessors of a GPU work is shared out (None: as many as its kind has). ``computed_again``: how many operations
    run a second time to keep to a budget, and their work as a share of all (see `volta.xla_like.rematerialize`);
    ``again_from``: the user's lines that most of these are from, and how many;
    ``host_arena_bytes``: what values take that wait in the host's memory (see `volta.xla_like.offload`)."""

    name: str
    buffers: tuple[Buffer, ...]
    calls: tuple[KernelCall, ...]
    inputs: Ints
    consts: Ints
    outputs: Ints
    out_avals: tuple[ShapedArray, ...]
    arena_bytes: int
    donated: Ints = ()
    level: DeterminismLevel = DeterminismLevel.STRICT
    processors: int | None = None
    computed_again: tuple[int, float] = (0, 0.0)
    again_from: tuple[tuple[str, int], ...] = ()
    host_arena_bytes: int = 0
    contract: str = contract.ID

    def all_calls(self) -> Iterator[KernelCall]:
        """Every call, those inside of loops and choices too, in order."""
        for call in self.calls:
            yield from call.nested()

    # -- addresses -----------------------------------------------------------------------------------------------------

    def address_slots(self) -> tuple[dict[int, tuple[int, int]], int]:
        """Where each buffer's address comes from when the plan is run, and how many addresses a run is given.

        A run is given the addresses of the inputs, then of the outputs that do not take over a donated input's memory,
        then of the arena if there is one, and of that in the host's memory. A buffer that is no constant lies
        ``(position among these, byte offset)``.
        """
        slots = {number: (i, 0) for i, number in enumerate(self.inputs)}
        count = len(self.inputs)
        for b in self.buffers:
            if b.kind == "output":
                slots[b.id] = (count, 0) if b.alias is None else slots[b.alias]
                count += b.alias is None
        for b in self.buffers:
            if b.alias is not None:
                slots[b.id] = slots[b.alias]
            elif b.kind == "temp":
                assert b.offset is not None
                slots[b.id] = (count, b.offset)
        count += self.arena_bytes > 0
        slots.update((b.id, (count, b.offset or 0)) for b in self.buffers if b.kind == "host")
        return slots, count + (self.host_arena_bytes > 0)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def bytes_by_class(self) -> dict[str, int]:
        """Bytes held while the plan runs, by class; 'temp' is the arena."""
        out = {"input": 0, "const": 0, "output": 0, "temp": self.arena_bytes}
        for b in self.buffers:
            if b.kind in out and b.kind != "temp" and b.alias is None:
                out[b.kind] += aligned(b.nbytes)
        return out

    @property
    def peak_live_bytes(self) -> int:
        """The most bytes that are live at once: inputs, constants, outputs and the arena."""
        return sum(self.bytes_by_class().values())

    def partitions(self) -> dict[str, int]:
        """The peak by where the memory is, host or device. A budget bounds the one that the plan runs in."""
        return {"host": self.peak_live_bytes, "device": 0}

    @property
    def transfers(self) -> dict[str, int]:
        """Bytes moved between host and device (none on the CPU, whose memory is the host's)."""
        return {"host_to_device": 0, "device_to_host": 0}

    @property
    def moved(self) -> tuple[int, int]:
        """How many values wait in the host's memory, and their bytes, which cross each way once."""
        sizes = [b.nbytes for b in self.buffers if b.kind == "host"]
        return len(sizes), sum(sizes)

    def live_temp_bytes(self, kind: str = "temp") -> list[int]:
        """Arena bytes in use at each call; of ``kind`` 'host', of the arena in the host's memory."""
        change = [0] * (len(self.calls) + 1)
        for begin, end, nbytes, _ in self._live_temps(kind):
            change[begin] += nbytes
            change[end] -= nbytes
        return list(itertools.accumulate(change[:-1]))

    def _live_temps(self, kind: str = "temp") -> Iterator[tuple[int, int, int, str]]:
        """What lies in the arena: from which call on, up to which one it does not, bytes and placement. What is
        computed in place of an operand counts from that call on, and its operand up to there."""
        first, last = lifetimes(self.buffers, self.calls)
        temps = [
            b for b in self.buffers if b.kind == kind and b.alias is None and b.nbytes and first[b.id] <= last[b.id]
        ]
        began = {(b.offset, first[b.id]): b.id for b in temps}
        for b in temps:
            replaced = began.get((b.offset, last[b.id]), b.id) != b.id
            yield first[b.id], last[b.id] + (not replaced), aligned(b.nbytes), b.placement

    def bytes_by_placement(self) -> dict[str, int]:
        """Bytes of inputs, constants and outputs by placement, and of temporaries where the arena is fullest."""
        out: dict[str, int] = {}
        for b in self.buffers:
            if b.kind not in ("temp", "unstored", "host") and b.alias is None:
                out[b.placement] = out.get(b.placement, 0) + aligned(b.nbytes)
        live = self.live_temp_bytes()
        fullest = live.index(max(live)) if live else 0
        for begin, end, n, placement in self._live_temps():
            if begin <= fullest < end:
                out[placement] = out.get(placement, 0) + n
        return out

    # -- text ----------------------------------------------------------------------------------------------------------

    def as_text(self) -> str:
        """The plan as stable text: calls in order, buffers with offsets, bytes by class."""
        by_class = " ".join(f"{k}={v}" for k, v in self.bytes_by_class().items())
        processors = f" processors={self.processors}" if self.processors is not None else ""
        lines = [
            f"plan {self.name} level={self.level.value} contract={self.contract}{processors}",
            f"bytes peak={self.peak_live_bytes} {by_class}",
        ]
        lines += self._said_of_budget()
        for b in self.buffers:
            where = f" @{b.offset}" if b.offset is not None else f" = b{b.alias}" if b.alias is not None else ""
            lines.append(f"  b{b.id}: {b.aval.strip_weak()} {b.placement}{where}{'  # ' + b.label if b.label else ''}")
        for i, call in enumerate(self.calls):
            reads = " ".join(f"b{r}" for r in call.reads)
            writes = " ".join(f"b{w}" for w in call.writes)
            lines.append(f"  {i}: {writes} = {call.describe()}({reads}) {call.details()}")
            lines += ["    " + line for plan in call.plans for line in ExecutionPlan.as_text(plan).splitlines()]
        lines.append("  return " + " ".join(f"b{o}" for o in self.outputs))
        return "\n".join(lines)

    __str__ = as_text

    def _said_of_budget(self) -> list[str]:
        """What the plan does to keep to a budget."""
        (operations, share), (values, nbytes) = self.computed_again, self.moved
        again = f"computed again, for the budget: {operations} operations, {100 * share:.1f}% more work"
        moved = f"moved to the host and back, for the budget: {values} values, {nbytes:,} bytes each way"
        return [again] * (operations > 0) + [moved] * (values > 0)

    def kernel_texts(self) -> dict[str, str]:
        """The readable text of each distinct kernel, by symbol, in order of first use. How operations become kernels is
        the backend's: see its plan."""
        kernels = (c.kernel for call in self.all_calls() for c in call.each())
        return {kernel_name(kernel): kernel.text() for kernel in kernels if not isinstance(kernel, Operation)}

    def memory_report(self) -> str:
        """Bytes by class, the largest buffers, and the arena's use over the schedule, as text."""
        total = self.peak_live_bytes
        lines = [f"peak live bytes {total:,} ({self.level.value}, {self.contract})"]
        lines += [f"  on the {where:<9}{n:>16,}" for where, n in self.partitions().items() if n]
        for name, n in self.bytes_by_class().items():
            lines.append(f"  {name:<8}{n:>16,}  {100 * n / total if total else 0:5.1f}%")
        lines += self._said_of_budget()
        lines.append("by placement, where the arena is fullest")
        for name, n in self.bytes_by_placement().items():
            lines.append(f"  {name:<24}{n:>16,}")
        if self.again_from:
            lines.append("computed again")
            lines += [f"  {count:<6}{line}" for line, count in self.again_from]
        waiting = sorted((b for b in self.buffers if b.kind == "host"), key=lambda b: (-b.nbytes, b.id))[:8]
        if waiting:
            lines.append("moved to the host and back")
            lines += [f"  b{b.id:<5}{b.nbytes:>14,}  {b.aval.strip_weak()!s:<24}{b.label}" for b in waiting]
        largest = sorted(
            (b for b in self.buffers if b.kind not in ("unstored", "host")), key=lambda b: (-b.nbytes, b.id)
        )[:8]
        lines.append("largest buffers")
        for b in largest:
            lines.append(f"  b{b.id:<5}{b.nbytes:>14,}  {b.aval.strip_weak()!s:<24}{b.placement}  {b.label}")
        planned = {"temp": ("arena", self.arena_bytes), "host": ("the host's memory", self.host_arena_bytes)}
        for kind, (what, nbytes) in planned.items():
            live = self.live_temp_bytes(kind)
            top = max(live, default=0)
            if top:
                lines.append(f"{what} over the schedule ({nbytes:,} bytes planned, {top:,} live at most)")
                lines.append("  " + "".join(" ▁▂▃▄▅▆▇█"[round(8 * n / top)] for n in live))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_plan(self)


def lifetimes(buffers: tuple[Buffer, ...], calls: tuple[KernelCall, ...]) -> tuple[list[int], list[int]]:
    """First and last call that touches each buffer (inputs live from -1, outputs to the end)."""
    n, end = len(buffers), len(calls)
    first, last = [end] * n, [-1] * n
    for i, call in enumerate(calls):
        for number in (*call.reads, *call.writes):
            if last[number] < 0:
                first[number] = i
            last[number] = i
    for b in buffers:
        if b.kind in ("input", "const"):
            first[b.id] = -1
        if b.kind == "output":
            last[b.id] = end
    return first, last
