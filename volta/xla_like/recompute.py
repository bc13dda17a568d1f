"""Recomputation: a value that is cheap to compute again from what its reader has at hand is not stored.

The residuals that differentiation leaves for the backward pass are mostly such values. The clone applies the same
operations to the same operands, so it has the same bits; it saves a write, a read, and memory over the whole span
between the two kernels.
"""

from __future__ import annotations

import attrs

from volta.ops.primitive import REGISTRY
from volta.xla_like.fusion import Fuser
from volta.xla_like.groups import Group
from volta.xla_like.nodes import Lowered, Node, Ref, Val

BUDGET = 8
"""What a clone may cost: one a plain operation."""

SMALL = 8
"""A value that is at most 1/SMALL of the one it helps to recompute may be stored for it, or longer, unless it is one an
element."""


@attrs.frozen
class Copies:
    """How many nodes are computed once more, in the kernels of their readers, and what that costs."""

    count: int = 0
    work: int = 0


@attrs.define(eq=False)
class _Reads:
    """Who reads each value outside of the group that computes it."""

    of: dict[Val, list[tuple[Group, Node]]] = attrs.field(factory=dict)

    @staticmethod
    def collect(groups: list[Group]) -> _Reads:
        reads = _Reads()
        for group in groups:
            for node in group.nodes:
                for x in node.operands:
                    if isinstance(x, Ref) and x.val not in group.levels:
                        reads.of.setdefault(x.val, []).append((group, node))
        return reads


def recompute(fuser: Fuser, groups: list[Group], lowered: Lowered, tight: bool = False) -> Copies:
    """Clone cheap producers into the groups that read their values, wherever that spares storing the value.

    In a ``tight`` plan, one that is to keep to a budget, what a clone is computed from may be kept longer for it.
    """
    installed: list[Node] = []
    position = {g.index: i for i, g in enumerate(groups)}
    reads = _Reads.collect(groups)
    results = dict.fromkeys(lowered.outputs)
    last = {v: max(position[g.index] for g, _ in uses) for v, uses in reads.of.items()}
    for group in groups:
        if not group.fusible:
            continue
        wanted: list[tuple[Val, list[Group], int]] = []
        for node in group.nodes:
            for val in node.outputs:
                uses = reads.of.get(val)
                if not uses or val in results or group.levels.get(val) != "elem":
                    continue
                if all(_linear(g, n, val, group) for g, n in uses):
                    readers = list({g.index: g for g, _ in uses}.values())
                    wanted.append((val, readers, max(position[g.index] for g in readers)))
        hubs = _hubs(wanted, group, results, last)
        for val, readers, until in wanted:
            if val in hubs:
                continue
            plan = _closure(val, group, results, last, until, hubs)
            if plan is None and tight:
                plan = _closure(val, group, results, last, until, hubs, position[group.index])
            if plan is None:
                continue
            clones = [_clone(plan, fuser, reader) for reader in readers]
            if any(c is None for c in clones):
                continue
            for reader, copies in zip(readers, clones, strict=True):
                assert copies is not None
                _install(fuser, reader, copies, val, reads, last, position)
                installed += copies
            del reads.of[val], last[val]  # not stored any more: others that follow from it cannot count on it
    return Copies(len(installed), sum(n.outputs[0].size * REGISTRY[n.name].cost for n in installed))


def _hubs(
    wanted: list[tuple[Val, list[Group], int]], home: Group, results: dict[Val, None], last: dict[Val, int]
) -> dict[Val, None]:
    """Expensive values from which several wanted ones follow cheaply: storing the one spares storing the others."""
    expensive = {v: None for n in home.nodes if n.kind == "elem" and REGISTRY[n.name].cost > BUDGET for v in n.outputs}
    follow: dict[Val, int] = {}
    for val, _, until in wanted:
        plan = _closure(val, home, results, last, until, expensive)
        if plan is None or val in expensive:
            continue
        inside = {v for n in plan for v in n.outputs}
        for v in dict.fromkeys(x.val for n in plan for x in n.operands if isinstance(x, Ref) and x.val in expensive):
            if v not in inside:
                follow[v] = follow.get(v, 0) + 1
    stored = {v for v, _, _ in wanted}
    return {v: None for v, count in follow.items() if count > 1 or v in stored}


def _linear(group: Group, node: Node, val: Val, home: Group) -> bool:
    """Whether the reader is a fused loop over the same number of elements and reads the value in order."""
    if not group.fusible or group.size != home.size or node.kind == "gather":
        return False
    return all(x.is_whole and not x.after for x in node.operands if isinstance(x, Ref) and x.val is val)


def _closure(
    val: Val, home: Group, results: dict[Val, None], last: dict[Val, int], until: int, hubs: dict[Val, None],
    since: int | None = None,
) -> list[Node] | None:  # fmt: skip
    """Nodes of ``home`` that compute ``val`` from stored values that live until then, in order; None if too costly.

    If ``val`` would be stored ``since`` some group, those values may be kept longer, for half of what that takes.
    """
    nodes: dict[int, Node] = {}
    cost = 0
    room = 0 if since is None else val.nbytes * (until - since) // 2
    todo = [val]
    while todo:
        v = todo.pop()
        node = v.producer
        assert node is not None
        if node.index in nodes:
            continue
        if node.kind != "elem" or any(isinstance(x, Ref) and x.after for x in node.operands):
            return None
        cost += REGISTRY[node.name].cost
        if cost > BUDGET:
            return None
        nodes[node.index] = node
        for x in node.operands:
            if not isinstance(x, Ref):
                continue
            source = x.val
            level = home.levels.get(source)
            if level != "elem" and source.nbytes * SMALL <= val.nbytes:
                continue  # of this group or stored by another
            if source in hubs or source.producer is None or source in results or last.get(source, -1) >= until:
                continue  # is there anyway
            if source in last and (longer := source.nbytes * (until - last[source])) <= room:
                room -= longer
                continue
            if level != "elem":
                return None
            todo.append(source)
    return [nodes[i] for i in sorted(nodes)]


def _clone(plan: list[Node], fuser: Fuser, reader: Group) -> list[Node] | None:
    """Copies of the nodes for one reader, or None where its loop cannot compute them."""
    renamed: dict[Val, Val] = {}
    copies: list[Node] = []
    for node in plan:
        if not fuser.fits_clone(reader, node, renamed):
            return None
        operands = tuple(
            attrs.evolve(x, val=renamed[x.val]) if isinstance(x, Ref) and x.val in renamed else x for x in node.operands
        )
        copy = Node(node.index, node.kind, node.name, node.params, operands, node.shape, (), node.source)
        copy.outputs = tuple(Val(v.shape, v.dtype, copy) for v in node.outputs)
        renamed.update(zip(node.outputs, copy.outputs, strict=True))
        copies.append(copy)
    return copies


def _install(
    fuser: Fuser, reader: Group, copies: list[Node], val: Val, reads: _Reads, last: dict[Val, int],
    position: dict[int, int],
) -> None:  # fmt: skip
    result = copies[-1].outputs[0]
    for node in reader.nodes:
        node.operands = tuple(
            attrs.evolve(x, val=result) if isinstance(x, Ref) and x.val is val else x for x in node.operands
        )
    fuser.insert_clones(reader, copies)
    for copy in copies:
        for x in copy.operands:
            if isinstance(x, Ref) and x.val not in reader.levels:
                reads.of.setdefault(x.val, []).append((reader, copy))
                last[x.val] = max(last.get(x.val, -1), position[reader.index])
