"""A plan as it runs on a GPU: its launches, what memory and which transfers they need. Asking needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.numba_cuda import user
from volta.numba_cuda.codegen.ptx_tensor_map import MAP_WORDS
from volta.numba_cuda.device.blocks import rounded
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import SCRATCH, Launch, aligned, every
from volta.xla_like.plan import ExecutionPlan

_KEPT, _MANY, _KEPT_OF_MANY = 8, 64, 2
"""Tables of args a plan keeps, by the addresses in them: as memory is reused, most calls find theirs. Plans of many
launches keep fewer: to make a graph costs more than to copy a table."""

_FEW, _SHORT = 3, 1024
"""Plans of at most this many launches, whose kernels have at most this many blocks and so are over soon, give kernels
their args by value: that saves them a read, and a copy where addresses are new."""

_MOST_WORDS = 256


@attrs.frozen
class DevicePlan(ExecutionPlan):
    """An ExecutionPlan with the launches that run it on a GPU. ``by_value``: its kernels are given their args with the
    launch; otherwise they read them from a table in device memory."""

    launches: tuple[Launch, ...] = ()
    by_value: bool = False

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory that the launches share, behind the arena in the same allocation."""
        return max((x.scratch for x in self.launches), default=0)

    @property
    def device_arena_bytes(self) -> int:
        """The arena and the workspace together: one allocation of each call."""
        return aligned(self.arena_bytes) + self.workspace_bytes

    @property
    def table_bytes(self) -> int:
        """A table of the args of all launches; 0 where they need none."""
        return 0 if self.by_value else 8 * places_of(self.launches)[1]

    @property
    def kept_tables(self) -> int:
        """How many tables are kept, with other addresses in each."""
        return _KEPT if len(self.launches) <= _MANY else _KEPT_OF_MANY

    def bytes_by_class(self) -> dict[str, int]:
        """Bytes held while the plan runs, as the pool sets them aside; 'workspace' and 'args' are the backend's own."""
        out = {"input": 0, "const": 0, "output": 0, "temp": 0, "workspace": 0, "args": 0}
        for b in self.buffers:
            if b.kind in out and b.kind != "temp" and b.alias is None:
                out[b.kind] += rounded(b.nbytes)
        if self.device_arena_bytes:
            out["workspace"] = self.workspace_bytes
            out["temp"] = rounded(self.device_arena_bytes) - self.workspace_bytes
        if self.table_bytes:
            out["args"] = rounded(self.kept_tables * self.table_bytes)
        return out

    def partitions(self) -> dict[str, int]:
        """The peak by where the memory is: the device's, and of the host's what inputs that lie there take, and what
        waits there."""
        given = sum(b.nbytes for b in self.buffers if b.placement == "host_input")
        return {"host": given + self.host_arena_bytes, "device": self.peak_live_bytes}

    @property
    def transfers(self) -> dict[str, int]:
        """Bytes moved between host and device by a call whose inputs lie on the host, but for donated ones: those are
        state, which stays on the device. An input that is on the device already moves nothing, and neither does a
        result until it is read; what waits in the host's memory crosses both ways. 'args' is the table of addresses,
        copied when a call's addresses are new."""
        copied = sum(b.nbytes for b in self.buffers if b.placement == "host_input")
        moved = self.moved[1]
        return {"host_to_device": copied + moved, "device_to_host": moved, "args": self.table_bytes}

    def transfer_list(self) -> list[tuple[int, str, str, int]]:
        """Each array that may cross between host and device: (buffer, placement, when, bytes)."""
        when = {
            "host_input": "each call, unless it is on the device",
            "device_parameter": "the first call, unless it is on the device",
            "device_constant": "when compiled",
            "device_output": "when read",
            "host_temporary": "each call, and back",
        }
        return [(b.id, b.placement, when[b.placement], b.nbytes) for b in self.buffers if b.placement in when]

    def kernel_texts(self) -> dict[str, str]:
        """The readable text of each kernel, by the symbol it has on the GPU, in order of first use."""
        return {x.source.name: x.source.text for x in every(self.launches)}

    def as_text(self) -> str:
        """The plan's text, then its launches and its transfers."""
        lines = [super().as_text(), "on cuda"]
        lines += _listed(self.launches, "  ")
        for number, placement, when, nbytes in self.transfer_list():
            way = "device to host" if placement in ("device_output", "host_temporary") else "host to device"
            lines.append(f"  transfer b{number}: {way} {nbytes} bytes ({placement}; {when})")
        return "\n".join(lines)

    __str__ = as_text


def _listed(launches: Sequence[Launch], margin: str) -> list[str]:
    lines = []
    for i, x in enumerate(launches):
        shared = f" shared={x.shared}" if x.shared else ""
        lines.append(f"{margin}launch {i}: {x.label} grid={x.grid} threads={x.threads}{shared} {x.source.name}")
        lines += _listed(x.inside, margin + "  ")
    return lines


Launching = Callable[[ExecutionPlan, str], Sequence[Launch]]
"""``launching(plan, capability)``: what runs a plan on a GPU."""


def device_plan(plan: ExecutionPlan, capability: str = "9.0", launching: Launching = launches_of) -> DevicePlan:
    """The plan with its launches on a GPU of a compute capability.

    Raises:
        UnsupportedOperationError: a call has no CUDA kernel.
    """
    fields = {f.name: getattr(plan, f.name) for f in attrs.fields(ExecutionPlan)}
    user.check(plan, capability)
    launches = list(launching(plan, capability))
    # A function of the user's gets the address of the args, so they would be copied to a thread's own memory.
    few = len(launches) <= _FEW and not any(x.mapped or x.inside or x.source.linked is not None for x in launches)
    by_value = few and all(x.calls == 1 and x.grid <= _SHORT and len(x.words) <= _MOST_WORDS for x in launches)
    if by_value:
        launches = [attrs.evolve(x, source=x.source.by_value(len(x.words))) for x in launches]
    return DevicePlan(**fields, launches=tuple(launches), by_value=by_value)


def places_of(launches: Sequence[Launch]) -> tuple[list[int], int]:
    """The word of a table where the args of `every` launch begin, and the words of the table; tensor maps must lie at
    multiples of their size, in each of a row of tables."""
    places, end, mapped = [], 0, False
    for x in every(launches):
        places.append(_up(end) if x.mapped else end)
        end = places[-1] + len(x.words)
        mapped |= x.mapped
    return places, _up(end) if mapped else end


def _up(words: int) -> int:
    return -(-words // MAP_WORDS) * MAP_WORDS


@attrs.frozen
class Patch:
    """A word of the table that holds ``addresses[position] + distance``."""

    word: int
    position: int
    distance: int


@attrs.frozen
class Table:
    """The args of all launches as words, the byte offset of each launch's, and what changes from call to call."""

    words: list[int]
    offsets: list[int]
    patches: list[Patch]


def table_of(plan: DevicePlan, const_addresses: list[int]) -> Table:
    """A plan's table. A call is given the addresses of `ExecutionPlan.address_slots`; the workspace lies behind the
    arena. What waits in the host's memory comes back to the arena, so where that is, this is."""
    slots, count = plan.address_slots()
    arena = count - (plan.arena_bytes > 0) - (plan.host_arena_bytes > 0)
    fixed = dict(zip(plan.consts, const_addresses, strict=True))
    places, total = places_of(plan.launches)
    table = Table([0] * total, [8 * start for start in places], [])
    for start, launch in zip(places, every(plan.launches), strict=True):
        table.words[start : start + len(launch.words)] = launch.words
        for word, buffer, distance in launch.addresses:
            if buffer in fixed:
                table.words[start + word] = fixed[buffer] + distance
                continue
            position, base = (arena, aligned(plan.arena_bytes)) if buffer == SCRATCH else slots[buffer]
            table.patches.append(Patch(start + word, position, base + distance))
    return table
