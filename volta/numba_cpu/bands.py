"""Loops over the same rows run band by band: what one writes, the next reads while it is in the cache.

Of each row they read what the loop before has written of it, and of no other. The kernels and their elements are the
same, so nothing about the bits changes; no thread waits between two of them. (Passes of a transform: see `tiles.py`.)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.numba_cpu import loop_schedule
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, Joined, KernelCall, LoopKernel
from volta.xla_like.loops import unique
from volta.xla_like.plan import Buffer

BAND_BYTES = 1 << 17
"""Aim for what the loops write of a band: well inside the second-level cache of a core."""

LEAST = 1 << 20
"""Bytes that loops pass on at least: fewer are in the cache anyway."""

LEAST_ROWS = 64
"""Rows at least, so that there are bands enough for threads."""

MAX_PARTS = 12


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Join loops that come one after the other and pass rows on."""
    users = {b: i for i, c in enumerate(calls) for b in (*c.reads, *c.writes)}  # the last one of each
    out: list[KernelCall] = []
    i = 0
    while i < len(calls):
        parts = [calls[i]]
        rows = _rows(calls[i])
        while rows and i + len(parts) < len(calls) and len(parts) < MAX_PARTS:
            following = calls[i + len(parts)]
            if _rows(following) != rows or not _row_by_row([*parts, following], rows, buffers):
                break
            parts.append(following)
        while len(parts) > 1 and not _passed(parts[:-1], parts[-1:]):
            parts.pop()  # it reads nothing of the others
        if len(parts) > 1 and sum(buffers[b].nbytes for b in _passed(parts, parts)) >= LEAST:
            dying = {b for p in parts for b in (*p.reads, *p.writes) if users[b] < i + len(parts)}
            out.append(_joined(parts, rows, buffers, dying))
        else:
            parts = parts[:1]
            out += parts
        i += len(parts)
    return out


def _rows(call: KernelCall) -> int:
    """Rows that a loop computes, of which any number may be a task; 0 where there are none or few."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or kernel.mode == "col" or kernel.by_blocks or not call.sizes:
        return 0
    if len(kernel.body) == 1 and call.inplace:
        return 0  # a copy that may turn out to be none
    rows = call.sizes[0] if len(call.sizes) > (kernel.mode == "row") else 0
    return rows if rows >= LEAST_ROWS else 0


def _row_by_row(parts: Sequence[KernelCall], rows: int, buffers: Sequence[Buffer]) -> bool:
    """Whether of what any of the loops writes, each touches in a row nothing but that row."""
    written = dict.fromkeys(b for p in parts for b in p.writes)
    return all(_own_rows(b, parts, rows, buffers) for b in written)


def _own_rows(number: int, parts: Sequence[KernelCall], rows: int, buffers: Sequence[Buffer]) -> bool:
    """Whether loops touch in a row of a buffer nothing but that row."""
    return all(_own_row(a, p.sizes, rows, buffers[number]) for p in parts for a in p.accesses if a.buffer == number)


def _own_row(access: Access, sizes: Sequence[int], rows: int, buffer: Buffer) -> bool:
    nbytes, rest = divmod(buffer.nbytes, rows)
    if rest or access.strides[0] != nbytes:
        return False
    steps = [(n - 1) * s for n, s in zip(sizes[1:], access.strides[1:], strict=True)]
    steps += [s * largest for s, largest in access.terms]
    low = access.offset + sum(min(0, s) for s in steps)
    high = access.offset + sum(max(0, s) for s in steps)
    return low >= 0 and high + buffer.aval.dtype.itemsize <= nbytes


def _passed(parts: Sequence[KernelCall], readers: Sequence[KernelCall]) -> list[int]:
    """What some loops write and some read."""
    read = {b for p in readers for b in p.reads}
    return [b for b in dict.fromkeys(b for p in parts for b in p.writes) if b in read]


def _joined(parts: list[KernelCall], rows: int, buffers: Sequence[Buffer], dying: set[int]) -> KernelCall:
    """To the planner all parts run at once, so what memory a later one may take over is said here: buffers of one size
    have their rows at the same places. Of ``dying`` ones nobody else reads what the parts leave in them."""
    touched: dict[int, list[int]] = {}
    for i, p in enumerate(parts):
        for b in dict.fromkeys((*p.reads, *p.writes)):
            touched.setdefault(b, []).append(i)
    given = {b for b in touched if b not in parts[touched[b][0]].writes}  # from before the parts
    alike = {b for b in touched if b in dying and _own_rows(b, parts, rows, buffers)}

    def follows(b: int, a: int) -> bool:
        """Whether a buffer may lie where another one lies."""
        first, until = touched[b][0], touched[a][-1]
        in_time = until < first or until == first and (a, b) in parts[first].inplace
        return in_time and buffers[a].nbytes == buffers[b].nbytes

    taken: dict[int, int] = {}
    last = {b: b for b in touched if b in given & alike and buffers[b].kind == "temp"}  # who lies where
    for b in sorted(touched.keys() - given, key=lambda b: (touched[b][0], b)):
        if b in alike and buffers[b].kind == "temp":
            found = [(touched[a][-1], place) for place, a in last.items() if follows(b, a)]
            taken[b] = max(found, default=(0, b))[1]  # in place if possible: others may take the rest
            last[taken[b]] = b
    results = [b for b in touched if buffers[b].kind == "output" and b not in given]
    begins = {b: b for b in results}  # who lies first where a result does
    for b in results:
        before = next((place for place, a in last.items() if place not in given and follows(b, a)), None)
        if before is not None and _own_rows(b, parts, rows, buffers):
            begins[b] = before
            del last[before]
            taken |= {a: b for a, place in taken.items() if place == before}
    pairs = [
        (a, b) for a in touched if a in given & alike and buffers[a].kind == "input"
        for b in results if follows(begins[b], a)
    ]  # fmt: skip
    parts = [_renamed(p, taken) for p in parts]
    written = unique(b for p in parts for b in p.writes)
    reads = [b for p in parts for b in p.reads]
    return KernelCall(
        kernel=Joined(),
        sizes=(),
        accesses=(),
        reads=unique(b for b in reads if b not in written or b in given),
        writes=written,
        label=parts[0].label,
        inplace=tuple(pairs),
        parts=tuple(parts),
    )


def _renamed(call: KernelCall, names: dict[int, int]) -> KernelCall:
    def of(b: int) -> int:
        return names.get(b, b)

    return attrs.evolve(
        call,
        accesses=tuple(a if a.buffer is None else attrs.evolve(a, buffer=of(a.buffer)) for a in call.accesses),
        reads=unique(map(of, call.reads)),
        writes=unique(map(of, call.writes)),
        inplace=tuple((of(r), of(w)) for r, w in call.inplace),
    )


def launches(call: KernelCall, buffers: Sequence[Buffer]) -> tuple[list[Launch], int, int]:
    """Of each loop, its tasks whole rows or parts of one; how many rows there are, and in a band."""
    rows = call.parts[0].sizes[0]
    parts = [loop_schedule.launch(p, 1) if len(p.sizes) == 1 else loop_schedule.launch(p) for p in call.parts]
    assert not any(p.tasks % rows for p in parts)
    nbytes = sum(buffers[b].nbytes for b in call.writes) // rows
    return parts, rows, max(1, BAND_BYTES // nbytes)
