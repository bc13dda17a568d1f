"""The order of kernels: as the program says, but later where that lowers the peak of live memory."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from volta.xla_like.groups import Group
from volta.xla_like.nodes import Ref, Val

_AT_ONCE = 1 << 62
"""More bytes than any group frees."""


def schedule(groups: list[Group], outputs: tuple[Val, ...], carried: Sequence[tuple[Val, Val]] = ()) -> list[Group]:
    """Order groups by list scheduling; ties keep the program's order. Depends on the program alone.

    At each step, of the groups whose operands are computed, the one that changes live memory least runs next: bytes it
    allocates less bytes of operands that it is the last to read. Of ``carried`` pairs the second takes over the memory
    of the first: where that can be, it is computed when all others have read the first.
    """
    home = {val: g for g in groups for n in g.nodes for val in n.outputs}
    position = {g.index: i for i, g in enumerate(groups)}
    reads: dict[int, list[Val]] = {}
    waits: dict[int, int] = {}
    needed: dict[int, dict[int, None]] = {}
    remaining: dict[Val, dict[int, None]] = {}  # who has yet to read it
    users: dict[int, list[int]] = {g.index: [] for g in groups}
    for g in groups:
        vals: dict[Val, None] = {}
        needs: dict[int, None] = {}
        for node in g.nodes:
            for x in node.operands:
                if isinstance(x, Ref):
                    for val in (x.val, *x.after):
                        if val in home and home[val] is not g:
                            needs[home[val].index] = None
                    if x.val in home and home[x.val] is not g:
                        vals[x.val] = None
        reads[g.index] = list(vals)
        needed[g.index] = needs
        for v in vals:
            remaining.setdefault(v, {})[g.index] = None
    for before, after in carried:
        if after in home:
            _wait_for_readers(groups, home[after], before, needed)
    for index, needs in needed.items():
        waits[index] = len(needs)
        for n in needs:
            users[n].append(index)
    kept = dict.fromkeys(outputs)
    by_index = {g.index: g for g in groups}
    makes = {
        g.index: sum(_held(v) for n in g.nodes for v in n.outputs if v in remaining and v not in kept) for g in groups
    }
    for g in groups:
        if g.nodes[0].kind == "move":  # it waits for what it is to come after, and no longer
            makes[g.index] = -_AT_ONCE
    # What running a group changes; less once it is the last to read an operand. The heap may hold an older entry of a
    # group: that is larger, so the present one is met first.
    change = {i: makes[i] - sum(_held(v) for v in reads[i] if len(remaining[v]) == 1 and v not in kept) for i in makes}
    ready = [(change[i], position[i], i) for i in makes if waits[i] == 0]
    heapq.heapify(ready)
    done: set[int] = set()
    order: list[Group] = []
    while ready:
        *_, best = heapq.heappop(ready)
        if best in done:
            continue
        done.add(best)
        order.append(by_index[best])
        for v in reads[best]:
            del remaining[v][best]
            if len(remaining[v]) == 1 and v not in kept:
                (i,) = remaining[v]
                change[i] -= _held(v)
                if waits[i] == 0:
                    heapq.heappush(ready, (change[i], position[i], i))
        for u in users[best]:
            waits[u] -= 1
            if waits[u] == 0:
                heapq.heappush(ready, (change[u], position[u], u))
    return order


def _held(val: Val) -> int:
    """Bytes of the memory that a plan runs in."""
    return 0 if val.on_host else val.nbytes


def _wait_for_readers(groups: list[Group], writer: Group, val: Val, needed: dict[int, dict[int, None]]) -> None:
    """Let a group wait for all that read a value, but for those that wait for it."""
    later, found = {writer.index}, True
    while found:
        more = {i for i, needs in needed.items() if i not in later and not later.isdisjoint(needs)}
        found = bool(more)
        later |= more
    for g in groups:
        if g.index not in later and any(isinstance(x, Ref) and x.val is val for n in g.nodes for x in n.operands):
            needed[writer.index][g.index] = None
