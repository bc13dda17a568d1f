"""What a partitioned program is: for each rank programs without exchanges, and between two of them a round of these."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from volta.core import contract
from volta.core.avals import ShapedArray
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Var
from volta.core.sharding import Layout, Mesh, sharding_of
from volta.xla_like.partition.building import Building, Meeting, Value
from volta.xla_like.partition.exchange import Exchange
from volta.xla_like.partition.sums import SharedSum


@attrs.frozen(eq=False)
class Given:
    """An exchange as one rank sees it: what it gives, and what it gets."""

    exchange: Exchange
    given: Atom
    got: Var


@attrs.frozen(eq=False)
class LocalProgram:
    """One rank's part: ``segments[i]``, then ``rounds[i]``, and so on; the last segment has no round behind it.

    ``drops[i]`` are the values that nobody reads after segment i and its round.
    """

    rank: int
    inputs: tuple[Atom, ...]
    segments: tuple[ClosedJaxpr, ...]
    rounds: tuple[tuple[Given, ...], ...]
    drops: tuple[tuple[Var, ...], ...]
    outputs: tuple[Atom, ...]

    def donated(self, inputs: Collection[int]) -> list[tuple[int, ...]]:
        """What each segment may overwrite, as positions among its operands: what nobody reads later, of values of the
        program's own and of these ``inputs``."""
        kept = {v for i, v in enumerate(self.inputs) if i not in inputs}
        found = []
        for segment, met, gone in zip(self.segments, self.rounds, self.drops, strict=True):
            over = {*gone} - {g.given for g in met} - kept
            found.append(tuple(i for i, v in enumerate(segment.jaxpr.invars) if v in over))
        return found


@attrs.frozen(eq=False)
class Partitioned:
    """A program cut for the ranks of a mesh."""

    name: str
    mesh: Mesh
    in_avals: tuple[ShapedArray, ...]
    in_layouts: tuple[Layout, ...]
    out_avals: tuple[ShapedArray, ...]
    out_layouts: tuple[Layout, ...]
    locals: tuple[LocalProgram, ...]
    exchanges: tuple[tuple[Exchange, ...], ...]  # by round
    sums: tuple[SharedSum, ...]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that a rank sends to others in one run."""
        return sum(e.sent(rank) for together in self.exchanges for e in together)

    def bytes_received(self, rank: int) -> int:
        return sum(e.received(rank) for together in self.exchanges for e in together)

    def as_text(self, rank: int = 0) -> str:
        """Arguments, each round's exchanges, a rank's programs, and bytes: the same text in every process."""
        lines = [f"partition {self.name} {self.mesh} contract={contract.ID}"]
        lines += [f"  argument {i}: {_placed(self.mesh, a, x)}" for i, (a, x) in enumerate(self._args())]
        own = self.locals[rank]
        for i, segment in enumerate(own.segments):
            lines.append(f"rank {rank}, program {i}")
            lines += ["  " + line for line in str(segment).splitlines()]
            if i < len(self.exchanges):
                lines.append(f"round {i}")
                lines += [f"  {_exchange(self.mesh, e, rank)}" for e in self.exchanges[i]]
        results = zip(self.out_avals, self.out_layouts, strict=True)
        lines += [f"  result {i}: {_placed(self.mesh, a, x)}" for i, (a, x) in enumerate(results)]
        sent = [self.bytes_sent(r) for r in range(self.mesh.size)]
        lines.append(f"bytes sent by each rank: {sent}, {sum(sent)} in all, in {len(self.exchanges)} rounds")
        return "\n".join(lines)

    __str__ = as_text

    def _args(self) -> list[tuple[ShapedArray, Layout]]:
        return list(zip(self.in_avals, self.in_layouts, strict=True))


def _placed(mesh: Mesh, aval: ShapedArray, layout: Layout) -> str:
    sharding = sharding_of(mesh, layout, aval.shape)
    cuts = "".join(f" {d} at {bounds}" for d, bounds in sharding.bounds)
    return f"{aval.short()} {tuple(sharding.spec)}{cuts}"


def _exchange(mesh: Mesh, e: Exchange, rank: int) -> str:
    before, after = (tuple(sharding_of(mesh, x, e.aval.shape).spec) for x in (e.before, e.after))
    where = "" if e.user is None else f"  # {e.user}"
    moved = f"sends {e.sent(rank)}, gets {e.received(rank)}"
    return f"x{e.number}: {e.kind} {e.aval.short()} {before} to {after}, {moved}{where}"


def collect(
    name: str, program: ClosedJaxpr, build: Building, inputs: Sequence[Value], outputs: Sequence[Value],
    sums: tuple[SharedSum, ...],
) -> Partitioned:  # fmt: skip
    """The ranks' programs from what was built."""
    build.level(0)
    rounds = tuple(tuple(m.exchange for m in level.meetings) for level in build.levels)
    while rounds and not rounds[-1]:
        rounds = rounds[:-1]
    count = max(len(rounds), len(build.levels) - 1)
    rounds += ((),) * (count - len(rounds))
    return Partitioned(
        name, build.mesh, tuple(v.aval for v in inputs), tuple(v.layout for v in inputs),
        tuple(v.aval for v in outputs), tuple(v.layout for v in outputs),
        tuple(_local(build, rank, inputs, outputs, len(rounds)) for rank in range(build.mesh.size)), rounds, sums,
    )  # fmt: skip


def _local(build: Building, rank: int, inputs: Sequence[Value], outputs: Sequence[Value], rounds: int) -> LocalProgram:
    levels = [build.level(i) for i in range(rounds + 1)]
    results = tuple(v.parts[rank] for v in outputs)
    live = {a for a in results if isinstance(a, Var)}
    backwards: list[tuple[ClosedJaxpr, tuple[Given, ...], set[Var]]] = []
    for level in reversed(levels):
        after = set(live)
        met = tuple(Given(m.exchange, m.given[rank], m.got[rank]) for m in level.meetings)
        live.difference_update(g.got for g in met)
        live.update(g.given for g in met if isinstance(g.given, Var))
        eqns = level.eqns[rank]
        made = {v: None for e in eqns for v in e.outputs}
        outs = tuple(v for v in made if v in live)
        read: dict[Var, None] = {}
        for e in eqns:
            read.update(dict.fromkeys(a for a in e.inputs if isinstance(a, Var) and a not in made))
        live.difference_update(made)
        live.update(read)
        segment = ClosedJaxpr(Jaxpr((), tuple(read), tuple(eqns), outs), ())
        backwards.append((segment, met, after))
    segments, rounds_, drops = [], [], []
    held: dict[Var, None] = dict.fromkeys(a for v in inputs if isinstance(a := v.parts[rank], Var))
    for segment, met, after in reversed(backwards):
        held.update(dict.fromkeys((*segment.jaxpr.outvars, *(g.got for g in met))))  # type: ignore[arg-type]
        gone = tuple(v for v in held if v not in after)
        for v in gone:
            del held[v]
        segments.append(segment)
        rounds_.append(met)
        drops.append(gone)
    given = tuple(v.parts[rank] for v in inputs)
    return LocalProgram(rank, given, tuple(segments), tuple(rounds_), tuple(drops), results)


__all__ = ["Given", "LocalProgram", "Meeting", "Partitioned", "collect"]
