"""What must hold of a partitioned program, looked at again from what came out of the walk.

Each local shape is its global one cut; each sum over a cut axis is made of nodes of its tree, each once; each rank has
the same exchanges in the same order; and what one rank sends, another expects, of the same place of the same array.
"""

from __future__ import annotations

import math

from volta.core.errors import VerificationError
from volta.core.sharding import Box, Layout, Mesh, box_of, local_shape
from volta.xla_like.partition.building import Building
from volta.xla_like.partition.exchange import Exchange, Transfer
from volta.xla_like.partition.local import LocalProgram, Partitioned
from volta.xla_like.partition.sums import SharedSum
from volta.xla_like.partition.trees import join, span
from volta.xla_like.verify import verify_graph


def verify_partition(found: Partitioned, build: Building | None = None) -> None:
    """Raises VerificationError for the first rule that is broken."""
    mesh = found.mesh
    if build is not None:
        for value in build.values:
            for rank, part in enumerate(value.parts):
                _shape(mesh, value.aval.shape, value.layout, rank, part.aval.shape, "a value")
    for local in found.locals:
        _arguments(found, local)
        for segment in local.segments:
            verify_graph(segment)
        _rounds(found, local)
    for shared in found.sums:
        verify_sum(shared)
    for together in found.exchanges:
        for exchange in together:
            verify_exchange(mesh, exchange)


def _shape(
    mesh: Mesh, shape: Box | tuple[int, ...], layout: Layout, rank: int, got: tuple[int, ...], what: str
) -> None:
    want = local_shape(mesh, layout, tuple(shape), rank)  # type: ignore[arg-type]
    if got != want:
        raise VerificationError(f"{what} of shape {shape} lies on rank {rank} as {got}, and its part is {want}")


def _arguments(found: Partitioned, local: LocalProgram) -> None:
    for what, atoms, avals, layouts in (
        ("an argument", local.inputs, found.in_avals, found.in_layouts),
        ("a result", local.outputs, found.out_avals, found.out_layouts),
    ):
        for atom, aval, layout in zip(atoms, avals, layouts, strict=True):
            _shape(found.mesh, aval.shape, layout, local.rank, atom.aval.shape, what)


def _rounds(found: Partitioned, local: LocalProgram) -> None:
    """A rank's exchanges are those of all ranks, in their order, and its values have their shapes."""
    if len(local.rounds) != len(found.exchanges) + 1 or local.rounds[-1]:
        raise VerificationError(
            f"rank {local.rank} has {len(local.rounds) - 1} rounds, the program {len(found.exchanges)}"
        )
    for mine, together in zip(local.rounds, found.exchanges, strict=False):
        if [id(g.exchange) for g in mine] != [id(e) for e in together]:
            raise VerificationError(f"rank {local.rank} has other exchanges in a round than the program")
        for g in mine:
            e = g.exchange
            if (g.given.aval.dtype, g.got.aval.dtype) != (e.aval.dtype, e.aval.dtype):
                raise VerificationError(f"exchange x{e.number} of {e.aval.short()} is given {g.given.aval.short()}")
            _shape(found.mesh, e.aval.shape, e.before, local.rank, g.given.aval.shape, f"exchange x{e.number}")
            _shape(found.mesh, e.aval.shape, e.after, local.rank, g.got.aval.shape, f"exchange x{e.number}")


def verify_sum(shared: SharedSum) -> None:
    """The parts' nodes are those of the contract's tree that lie within each, and join to its root."""
    cover, where = shared.cover, f"{shared.name} ({shared.source})" if shared.source else shared.name
    cover.check(where)
    for part, own in enumerate(shared.done):
        for node in own:
            lo, hi = cover.elements(part, node)
            if not cover.edges[part] <= lo < hi <= cover.edges[part + 1]:
                raise VerificationError(f"{where}: node {node} is {lo}:{hi}, and part {part} has not all of it")
    if tuple(node for own in shared.done for node in own) != shared.joined:
        raise VerificationError(f"{where}: nodes are joined in another order than they lie in")
    spans = {node: [span(node, cover.count)] for node in shared.joined}
    if len(spans) != len(shared.joined):
        raise VerificationError(f"{where}: a node is there twice")
    try:
        root = join(spans, cover.count, lambda a, b: [*a, *b])
    except ValueError as error:
        raise VerificationError(f"{where}: {error}") from None
    if [a for a, _ in root] + [cover.count] != [0] + [b for _, b in root]:
        raise VerificationError(f"{where}: nodes do not follow each other: {root}")


def verify_exchange(mesh: Mesh, e: Exchange) -> None:
    """Each piece comes from where it is, and each rank gets every element of its part once."""
    shape = e.aval.shape
    before = [box_of(mesh, e.before, shape, rank) for rank in range(mesh.size)]
    after = [box_of(mesh, e.after, shape, rank) for rank in range(mesh.size)]
    got: list[list[Box]] = [[] for _ in range(mesh.size)]
    for t in e.transfers:
        taken, put = _outer(t.taken, before[t.source]), _outer(t.put, after[t.target])
        if taken is None or put is None or taken != put:
            raise VerificationError(f"exchange x{e.number}: rank {t.source} sends {_said(t, before, after)}")
        got[t.target].append(put)
    for rank, boxes in enumerate(got):
        many = sum(math.prod(b - a for a, b in box) for box in boxes)
        apart = all(not _meet(x, y) for i, x in enumerate(boxes) for y in boxes[:i])
        if many != math.prod(b - a for a, b in after[rank]) or not apart:
            raise VerificationError(f"exchange x{e.number}: rank {rank} does not get each element of its part once")
    sent, received = (sum(f(rank) for rank in range(mesh.size)) for f in (e.sent, e.received))
    if sent != received:
        raise VerificationError(f"exchange x{e.number}: {sent} bytes are sent, and {received} expected")


def _outer(box: Box, held: Box) -> Box | None:
    """A box of a part, in the whole array; None where it leaves the part."""
    if any(a < 0 or d + b > e for (a, b), (d, e) in zip(box, held, strict=True)):
        return None
    return tuple((a + d, b + d) for (a, b), (d, _) in zip(box, held, strict=True))


def _meet(x: Box, y: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(x, y, strict=True))


def _said(t: Transfer, before: list[Box], after: list[Box]) -> str:
    return f"{t.taken} of {before[t.source]}, which rank {t.target} takes for {t.put} of {after[t.target]}"
