"""The memory planner: offsets in one arena, reuse, in-place, donated inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import attrs
import numpy as np

from volta.core.errors import VerificationError
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import ALIGNMENT, Buffer, aligned, lifetimes


def assign_memory(
    buffers: tuple[Buffer, ...], calls: tuple[KernelCall, ...], donated: tuple[int, ...],
    moments: Sequence[int] | None = None,
) -> tuple[tuple[Buffer, ...], int]:  # fmt: skip
    """Give every temp an offset and let outputs, and temps on the way to them, take over donated inputs; returns the
    buffers and the arena's size.

    A temp's memory is taken from the first of the calls that run in the same of `moments` to the last of them.

    Temps that a call may compute in place share an offset. The rest is placed largest first at the lowest offset that
    is free for its whole lifetime (greedy by size, https://arxiv.org/abs/2001.03288).
    """
    first, last = lifetimes(buffers, calls)
    out = list(buffers)
    _alias_donated(out, calls, donated, first, last)
    _take_over_on_the_way(out, calls, first, last)

    # Chains of in-place temps become one block with the union of their lifetimes.
    block = {b.id: b.id for b in out if b.in_arena}
    starts, ends = _moment_ends(range(len(calls)) if moments is None else moments)
    span = {b: (starts[first[b]], ends[last[b]]) for b in block}
    size = {b.id: aligned(b.nbytes) for b in out if b.in_arena}
    for i, call in enumerate(calls):
        taken: set[int] = set()
        for read, written in call.inplace:
            if read not in block or written not in block or read in taken or written in taken:
                continue
            if last[read] != i or first[written] != i or size[block[read]] != size[written]:
                continue
            root = block[read]
            block[written] = root
            span[root] = (span[root][0], ends[last[written]])
            taken |= {read, written}

    offset, arena = _placed({r: span[r] for r in sorted(set(block.values()))}, size)
    return tuple(b.at(offset[block[b.id]]) if b.in_arena else b for b in out), arena


def assign_host_memory(
    buffers: tuple[Buffer, ...], calls: tuple[KernelCall, ...]
) -> tuple[tuple[Buffer, ...], int]:  # fmt: skip
    """Give what waits in the host's memory an offset in an arena there; returns the buffers and its size."""
    first, last = lifetimes(buffers, calls)
    waiting = [b for b in buffers if b.kind == "host"]
    offset, arena = _placed(
        {b.id: (first[b.id], last[b.id]) for b in waiting}, {b.id: aligned(b.nbytes) for b in waiting}
    )
    return tuple(b.at(offset[b.id]) if b.kind == "host" else b for b in buffers), arena


def _placed(spans: Mapping[int, tuple[int, int]], size: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """The offset of each block, by its first and last call, and the bytes of all."""
    roots = sorted(spans, key=lambda r: (-size[r], spans[r][0], r))
    # Of a large plan every pair of blocks is looked at, so the columns are arrays: first call, last call, offset, end.
    placed = np.zeros((4, len(roots)), np.int64)
    offset: dict[int, int] = {}
    for n, r in enumerate(roots):
        lo, hi = spans[r]
        begin, end, low, high = placed[:, :n]
        busy = ((begin <= hi) & (lo <= end)).nonzero()[0]
        offset[r] = _lowest_gap(low[busy], high[busy], size[r])
        placed[:, n] = lo, hi, offset[r], offset[r] + size[r]
    return offset, int(placed[3].max(initial=0))


def _moment_ends(moments: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each call the first and the last call of its moment; behind them what `lifetimes` says where no call is."""
    starts, ends = list(range(len(moments) + 1)), [*range(len(moments)), -1]
    for i in range(1, len(moments)):
        if moments[i] == moments[i - 1]:
            starts[i] = starts[i - 1]
    for i in range(len(moments) - 2, -1, -1):
        if moments[i] == moments[i + 1]:
            ends[i] = ends[i + 1]
    return starts, ends


def _lowest_gap(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """The lowest offset at which ``size`` bytes overlap none of the pieces from ``low`` to ``high``."""
    order = low.argsort(kind="stable")
    if not order.size or size <= low[order[0]]:
        return 0
    ends = np.maximum.accumulate(high[order])  # up to where all is taken, after each piece
    gaps = (ends[:-1] + size <= low[order[1:]]).nonzero()[0]
    return int(ends[gaps[0]] if gaps.size else ends[-1])


def _alias_donated(
    out: list[Buffer], calls: tuple[KernelCall, ...], donated: tuple[int, ...], first: list[int], last: list[int]
) -> None:
    free = [d for d in donated if out[d].kind == "input"]
    inplace = {(r, w, i) for i, c in enumerate(calls) for r, w in c.inplace}
    for b in list(out):
        if b.kind != "output" or b.alias is not None:
            continue
        fitting = [
            d
            for d in free
            if out[d].nbytes == b.nbytes
            and b.nbytes
            and (last[d] < first[b.id] or (last[d] == first[b.id] and (d, b.id, first[b.id]) in inplace))
        ]
        exact = [d for d in fitting if (d, b.id, first[b.id]) in inplace] or fitting
        if exact:
            out[b.id] = attrs.evolve(b, alias=exact[0])
            free.remove(exact[0])


def _take_over_on_the_way(
    out: list[Buffer], calls: tuple[KernelCall, ...], first: Sequence[int], last: Sequence[int]
) -> None:
    """Temps from which an output that takes over an input is computed in place, one after the other, lie there too: an
    array that is updated more than once is then copied neither to the arena nor back."""
    before = {(i, w): r for i, c in enumerate(calls) for r, w in c.inplace if last[r] == i and first[w] == i}
    for b in [b for b in out if b.alias is not None]:
        assert b.alias is not None
        chain: list[int] = []
        reached: int | None = b.id
        while reached is not None and reached != b.alias:
            chain.append(reached)
            at = first[reached]
            reached = before.get((at, reached))
            if reached is not None and reached != b.alias:
                free = out[reached].kind == "temp" and out[reached].alias is None
                reached = reached if free and out[reached].nbytes == b.nbytes else None
        begins = first[chain[-1]] if chain else 0
        if reached == b.alias or (chain and last[b.alias] < begins):
            for number in chain[1:]:
                out[number] = attrs.evolve(out[number], alias=b.alias)


def without_memory(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers; what the parts of a joined call alone pass on to each other is 'unstored': never in memory."""
    passed = {b for call in calls for part in call.parts for b in part.writes if b not in call.writes}
    return [attrs.evolve(b, kind="unstored", placement="registers") if b.id in passed else b for b in buffers]


_ROWS = 128
"""Of a large plan every pair of temps is looked at: so many of them beside all others at once."""


def _overlapping(temps: Sequence[Buffer], first: Sequence[int], last: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The pairs of temps that share memory and are live at one call."""
    spans = [(a.offset, a.offset + a.nbytes, first[a.id], last[a.id]) for a in temps if a.offset is not None]
    columns = np.asarray(spans, np.int64).reshape(-1, 4).T
    for n in range(0, len(temps), _ROWS):
        low, high, begin, end = columns[:, n : n + _ROWS, None]
        lows, highs, begins, ends = columns[:, n:]
        for row, column in np.argwhere((low < highs) & (lows < high) & (begin <= ends) & (begins <= end)).tolist():
            if row < column:
                yield temps[n + row].id, temps[n + column].id


def verify_allocation(buffers: tuple[Buffer, ...], calls: tuple[KernelCall, ...], arena: int) -> None:
    """Check that no two live temps overlap, and that aliases are legal. Raises VerificationError."""
    first, last = lifetimes(buffers, calls)
    temps = [b for b in buffers if b.in_arena]
    inplace = {(i, *pair) for i, c in enumerate(calls) for pair in c.inplace}
    for a in temps:
        if a.offset is None or a.offset < 0 or a.offset + a.nbytes > arena:
            raise VerificationError(
                f"temp b{a.id} of {a.nbytes} bytes lies at {a.offset}, outside the arena of {arena}"
            )
        if a.offset % ALIGNMENT:
            raise VerificationError(f"temp b{a.id} lies at {a.offset}, which is no multiple of {ALIGNMENT}")
    if (pair := next(_overlapping([b for b in buffers if b.kind == "host"], first, last), None)) is not None:
        raise VerificationError(f"b{pair[0]} and b{pair[1]} wait together and overlap in the host's memory")
    for i, k in _overlapping(temps, first, last):
        if not any(last[a] == first[b] and (first[b], a, b) in inplace for a, b in ((i, k), (k, i))):
            raise VerificationError(f"temps b{i} and b{k} are live together and overlap in the arena")
    for source, holders in _holders(buffers):
        if source.kind != "input" or any(b.nbytes != source.nbytes for b in holders):
            raise VerificationError(f"b{holders[0].id} aliases b{source.id}, which is no input of its size")
        holders.sort(key=lambda b: (first[b.id], last[b.id]))  # parts of one call write and use up within it
        for a, b in pairwise([source, *holders]):
            in_place = last[a.id] == first[b.id] and (first[b.id], a.id, b.id) in inplace
            if last[a.id] >= first[b.id] and not in_place:
                raise VerificationError(f"b{b.id} overwrites b{a.id} in the memory of b{source.id} before its last use")


def _holders(buffers: Sequence[Buffer]) -> list[tuple[Buffer, list[Buffer]]]:
    """The buffers that others take over, and those that do."""
    found: dict[int, list[Buffer]] = {}
    for b in buffers:
        if b.alias is not None:
            found.setdefault(b.alias, []).append(b)
    return [(buffers[number], holders) for number, holders in found.items()]
