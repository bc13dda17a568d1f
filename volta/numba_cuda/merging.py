"""Launches that do not depend on each other and run the same kernel become one launch.

A launch costs about a microsecond however little it does, and an optimizer's step is a few launches for each parameter.
Two launches conflict where one writes memory that the other touches; conflicting launches keep their order, whatever
else moves. So the bits stay, and `verify_order` checks it for every plan.

What does not conflict may also run at one time: each launch names those that it has to wait for, which become the
edges of the graph. So a product that fills half the GPU does not keep the other half waiting.

A merged launch has the blocks of all its calls. Its args block begins with a table by which a block finds its call
(`threads.merge_entry` reads it), then come the calls' own args blocks, one after the other.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from volta.core.errors import VerificationError
from volta.numba_cuda.codegen.threads import TABLE_WORDS
from volta.numba_cuda.launches import SCRATCH, Launch, Range, Regions
from volta.numba_cuda.products.epilogues import moves_up
from volta.xla_like.kernels import KernelCall, LoopKernel
from volta.xla_like.plan import Buffer, ExecutionPlan

LARGE = 2048
"""Launches of at least this many blocks fill a GPU: they gain nothing from company, and keep their order, so that what
one writes is still in the cache for the next."""

_COARSE = 256
"""Entries, or a little more, of the table from blocks to calls."""


_SMALL, _NEAR = 1 << 16, 8
"""Bytes up to which a value's memory is set aside a little longer, so that the loops that make such values are one
launch; and how many calls may stand between two."""


def alike_beside(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """The calls, loops over small values moved up behind the same loop over others, where nothing between forbids it:
    what uses one value often stands before the loop that makes the next."""
    out: list[KernelCall] = []
    for call in calls:
        place = len(out)
        for i in range(place - 2, max(-1, place - 2 - _NEAR), -1):
            if _alike(call, out[i], buffers):
                place = i + 1 if moves_up(call, out[i + 1 :]) else place
                break
        out.insert(place, call)
    return out


def moments(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[int]:
    """Numbers of calls, that of the one before where the same loop runs on small values that neither wrote."""
    out: list[int] = []
    reads: set[int] = set()
    writes: set[int] = set()
    for i, call in enumerate(calls):
        beside = i > 0 and _alike(call, calls[i - 1], buffers)
        if beside and not (writes.intersection((*call.reads, *call.writes)) or reads.intersection(call.writes)):
            out.append(out[-1])
        else:
            out.append(i)
            reads, writes = set(), set()
        reads.update(call.reads)
        writes.update(call.writes)
    return out


def _alike(call: KernelCall, other: KernelCall, buffers: Sequence[Buffer]) -> bool:
    """Whether a call is another's loop, over small values."""
    small = isinstance(call.kernel, LoopKernel) and all(buffers[b].nbytes <= _SMALL for b in call.writes)
    return small and call.kernel == other.kernel


def merge(plan: ExecutionPlan, launches: Sequence[Launch], regions: Regions) -> list[Launch]:
    """The launches of a plan, merged and in order, their scratch memory laid out."""
    memory = Memory(plan, regions)
    before = predecessors(launches, memory)
    groups = schedule(launches, before, regions)
    verify_order(launches, groups, memory)
    placed = place_scratch([merged([launches[i] for i in group]) for group in groups], regions)
    return [attrs.evolve(x, after=after) for x, after in zip(placed, needed(predecessors(placed, memory)), strict=True)]


def needed(before: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Predecessors without those that others of them imply."""
    reached: list[int] = []  # as bits
    out = []
    for earlier in before:
        known, kept = 0, []
        for p in sorted(earlier, reverse=True):
            if not known >> p & 1:
                kept.append(p)
            known |= reached[p] | 1 << p
        reached.append(known)
        out.append(tuple(reversed(kept)))
    return out


_FIELDS = 4
"""Of a span: see `Memory.spans`."""


class Memory:
    """All memory that a plan touches as one line of numbers, buffer after buffer."""

    def __init__(self, plan: ExecutionPlan, regions: Regions) -> None:
        slots, count = plan.address_slots()
        self.starts = {b: (position << 44) + offset for b, (position, offset) in slots.items()}
        for b in (*plan.consts, *range(-max(1, len(regions.sizes)), 0)):
            self.starts[b] = count << 44
            count += 1

    def spans(self, ranges: Sequence[Range]) -> np.ndarray:
        """First number, number behind the last, period and width of each range that is not empty."""
        found = [r.moved(r.buffer, self.starts[r.buffer])[1:] for r in ranges if r.low < r.high]
        return np.array(found, np.int64).reshape(-1, _FIELDS)


class Apart(Memory):
    """Buffers of which no two share memory, each a line of its own."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        buffers = dict.fromkeys(r.buffer for x in launches for r in (*x.reads, *x.writes))
        self.starts = {b: i << 44 for i, b in enumerate(buffers)}


def predecessors(launches: Sequence[Launch], memory: Memory) -> list[list[int]]:
    """Of each launch, the earlier ones that it must come after; those that follow from these are left out."""
    spans, owners, written = np.empty((0, _FIELDS), np.int64), np.empty(0, np.int64), np.empty(0, bool)
    out = []
    for i, launch in enumerate(launches):
        reads, writes = memory.spans(launch.reads), memory.spans(launch.writes)
        found = _meeting(spans, writes) | (_meeting(spans, reads) & written)
        out.append(sorted(set(owners[found].tolist())))
        hidden = np.zeros(len(spans), bool)  # whoever meets them meets this launch's writes, which come after them
        for write in writes:
            hidden |= (write[0] <= spans[:, 0]) & (spans[:, 1] <= write[1]) & _among(spans, write)
        spans = np.concatenate([spans[~hidden], reads, writes])
        owners = np.concatenate([owners[~hidden], np.full(len(reads) + len(writes), i)])
        written = np.concatenate([written[~hidden], np.arange(len(reads) + len(writes)) >= len(reads)])
    return out


def _meeting(spans: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which spans overlap any of the others."""
    one, other = spans[:, None], others[None]
    meeting = (one[..., 0] < other[..., 1]) & (other[..., 0] < one[..., 1])
    found: np.ndarray = np.any(meeting & ~_apart(one, other), axis=1)
    return found


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether spans of the same period have other parts of it."""
    period = np.maximum(one[..., 2], 1)
    behind, before = (other[..., 0] - one[..., 0]) % period, (one[..., 0] - other[..., 0]) % period
    found: np.ndarray = (one[..., 2] == other[..., 2]) & (behind >= one[..., 3]) & (before >= other[..., 3])
    return found & (one[..., 2] > 0)


def _among(spans: np.ndarray, write: np.ndarray) -> np.ndarray:
    """Whether spans have no part of a period that a write leaves out."""
    low, _, period, width = write.tolist()
    if not period:
        return np.ones(len(spans), bool)
    found: np.ndarray = (spans[:, 2] == period) & ((spans[:, 0] - low) % period + spans[:, 3] <= width)
    return found


def schedule(launches: Sequence[Launch], before: Sequence[Sequence[int]], regions: Regions) -> list[list[int]]:
    """Groups of launches to merge, in order.

    Of the launches that are ready the one with the longest way to the end comes next, with all that are ready and can
    be merged with it; so what nothing waits for, an optimizer's updates say, is put off, and meets more of its kind.
    A region of scratch memory is taken from the first launch that touches it to the last. So the last comes as soon as
    it can, the first not before the others can, and one launch clears semaphores in as many regions as together are no
    larger than the largest, though it waits for nothing.
    """
    users = _users(launches)
    ends = {found[-1] for found in users}
    awaited = [set(earlier) for earlier in before]
    for first, *others in users:
        awaited[first].update(p for i in others for p in before[i] if p < first)
    room = max(regions.sizes, default=0)
    after: list[list[int]] = [[] for _ in launches]
    waits = [0] * len(launches)
    latest: list[int] = []
    for i, launch in enumerate(launches):
        large = launch.grid >= LARGE
        for p in {*awaited[i], *(latest if large else ())}:
            after[p].append(i)
            waits[i] += 1
        latest = [i] if large else latest
    height = [0] * len(launches)
    for i in range(len(launches) - 1, -1, -1):
        height[i] = 1 + max((height[j] for j in after[i]), default=0)
    ready = [i for i, n in enumerate(waits) if not n]
    groups = []
    while ready:
        first = min(ready, key=lambda i: (i not in ends, -height[i], i))
        key = _key(launches[first], first)
        group = sorted(i for i in ready if _key(launches[i], i) == key)
        if _clears(launches[first]):
            group = _within(room, sorted(group, key=lambda i: (-height[i], i)), launches, regions)
        ready = [i for i in ready if i not in group]
        for i in group:
            for j in after[i]:
                waits[j] -= 1
                if not waits[j]:
                    ready.append(j)
        groups.append(group)
    return groups


def _clears(launch: Launch) -> bool:
    return not launch.reads and all(r.buffer < 0 for r in launch.writes)


def _users(launches: Sequence[Launch]) -> list[list[int]]:
    """Of each region of scratch memory the launches that touch it, but for those that clear it."""
    found: dict[int, list[int]] = {}
    for i, launch in enumerate(launches):
        for region in {r.buffer for r in (*launch.reads, *launch.writes) if r.buffer < 0 and not _clears(launch)}:
            found.setdefault(region, []).append(i)
    return list(found.values())


def _within(room: int, group: Sequence[int], launches: Sequence[Launch], regions: Regions) -> list[int]:
    """The first of a group, while the regions that they write take no more than ``room``, in the plan's order."""
    ends = itertools.accumulate(sum(regions.size(r.buffer) for r in launches[i].writes) for i in group)
    return sorted(i for i, end in zip(group, ends, strict=True) if end <= room)


def _key(launch: Launch, number: int) -> tuple[str, int, int, int]:
    """Launches of one key run in one; those that run alone have a key each."""
    alone = launch.alone or launch.grid >= LARGE
    return launch.source.name, launch.threads, launch.shared, number if alone else -1


def verify_order(launches: Sequence[Launch], groups: Sequence[Sequence[int]], memory: Memory) -> None:
    """Check that each launch runs once, and after every earlier one that it conflicts with. Raises VerificationError.

    By comparing all pairs, from the ranges alone.
    """
    if sorted(i for group in groups for i in group) != list(range(len(launches))):
        raise VerificationError("merging lost a launch, or runs one twice")
    place = np.empty(len(launches), np.int64)
    for at, group in enumerate(groups):
        place[list(group)] = at
    touches = [memory.spans((*x.reads, *x.writes)) for x in launches]
    spans = np.concatenate([np.empty((0, _FIELDS), np.int64), *touches])
    owners = np.repeat(np.arange(len(launches)), [len(t) for t in touches])
    for i, launch in enumerate(launches):
        others = owners[_meeting(spans, memory.spans(launch.writes))]
        wrong = others[((others < i) & (place[others] >= place[i])) | ((others > i) & (place[others] <= place[i]))]
        if len(wrong):
            raise VerificationError(f"merging breaks the order of launches {i} and {wrong[0]}, which share memory")


def merged(launches: Sequence[Launch]) -> Launch:
    """One launch of all blocks: a table, then the calls' args blocks."""
    first = launches[0]
    if len(launches) == 1:
        return first
    starts = [0]
    for x in launches:
        starts.append(starts[-1] + x.grid)
    total, size = starts[-1], len(first.words)
    shift = max(0, (total // max(_COARSE, 2 * len(launches))).bit_length())
    coarse = [bisect.bisect_right(starts, block) - 1 for block in range(0, total, 1 << shift)]
    at_starts = TABLE_WORDS + len(coarse)
    at_args = at_starts + len(starts)
    words = [shift, 8 * at_starts, 8 * at_args, 8 * size, len(launches), *coarse, *starts]
    addresses = []
    for number, x in enumerate(launches):
        if len(x.words) != size:
            raise VerificationError(f"two launches of {x.source.name} have args of different sizes")
        words += x.words
        addresses += [(at_args + number * size + word, buffer, offset) for word, buffer, offset in x.addresses]
    return attrs.evolve(
        first,
        source=first.source.for_many(),
        grid=total,
        words=tuple(words),
        addresses=tuple(addresses),
        label=f"{len(launches)} × {first.label}",
        reads=tuple(dict.fromkeys(r for x in launches for r in x.reads)),
        writes=tuple(dict.fromkeys(r for x in launches for r in x.writes)),
        calls=len(launches),
    )


def place_scratch(launches: list[Launch], regions: Regions) -> list[Launch]:
    """Give each region of scratch memory a place, over the launches that use it: largest first, as low as possible."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, launch in enumerate(launches):
        for _, buffer, _ in (a for x in launch.flat() for a in x.addresses):
            if buffer < 0:
                first.setdefault(buffer, i)
                last[buffer] = i
    placed: dict[int, int] = {}
    for r in sorted(first, key=lambda r: (-regions.size(r), first[r], -r)):
        busy = sorted(
            (at, at + regions.size(o)) for o, at in placed.items() if first[o] <= last[r] and first[r] <= last[o]
        )
        at = 0
        for low, high in busy:
            if at + regions.size(r) <= low:
                break
            at = max(at, high)
        placed[r] = at

    def moved(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple(r.moved(SCRATCH, placed[r.buffer]) if r.buffer < 0 else r for r in ranges)

    def finished(launch: Launch) -> Launch:
        addresses = tuple((w, SCRATCH, placed[b] + n) if b < 0 else (w, b, n) for w, b, n in launch.addresses)
        used = {b for x in launch.flat() for _, b, _ in x.addresses if b < 0}
        scratch = max((placed[b] + regions.size(b) for b in used), default=0)
        reads, writes = moved(launch.reads), moved(launch.writes)
        inside = tuple(finished(x) for x in launch.inside)
        return attrs.evolve(launch, addresses=addresses, scratch=scratch, reads=reads, writes=writes, inside=inside)

    return [finished(launch) for launch in launches]
