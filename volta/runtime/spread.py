"""Programs that several workers run together: cut for the ranks, compiled for those here, and run round by round.

Each segment of a rank goes through the gateway like any other program. Between two segments bytes move, as the
exchanges of the round say: within the process by copying, to other processes by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import ShardingError, UnsupportedOperationError
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Literal, Var, subjaxprs
from volta.core.recent import Recent
from volta.core.sharding import Box, Layout, Mesh, NamedSharding, box_of, sharding_of
from volta.core.source import at_user_line
from volta.ops.callbacks import calls_python
from volta.runtime import gateway, workers
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context
from volta.runtime.sharded import ShardedArray, common_mesh, empty, local_ranks, part_of
from volta.runtime.spread_plan import SpreadPlan
from volta.xla_like.partition.exchange import Exchange, Transfer
from volta.xla_like.partition.local import LocalProgram
from volta.xla_like.partition.partition import CONSTRAINT, partition
from volta.xla_like.passes import optimize

Shardings = Sequence[NamedSharding | None]


@attrs.define
class Traffic:
    """What a process has moved since it was started, in bytes: counted where it is moved, not planned."""

    sent: int = 0
    received: int = 0
    rounds: int = 0


TRAFFIC = Traffic()


def constraints(program: ClosedJaxpr) -> list[NamedSharding]:
    """The shardings that a program, or one nested in it, asks for."""
    found = []
    for eqn in program.eqns:
        if eqn.primitive.name == CONSTRAINT:
            found.append(eqn.params["sharding"])
        for sub in subjaxprs(eqn.params):
            found += constraints(sub)
    return found


def mesh_of(program: ClosedJaxpr, values: Sequence[Any], shardings: Sequence[NamedSharding | None], what: str) -> Mesh:
    """The one mesh of a call: that of arguments, constants, constraints and wishes.

    Raises:
        ShardingError: there are two.
    """
    found = common_mesh([*values, *program.consts], what)
    for s in (*shardings, *constraints(program)):
        if s is not None and found is not None and s.mesh != found:
            text = f"{what}: one program runs on one mesh, and here are {found} and {s.mesh}"
            raise ShardingError(at_user_line(f"{text}; pipelines are several jitted functions"))
        found = s.mesh if s is not None else found
    assert found is not None, "a program of several workers has a mesh"
    return found


def is_spread(program: ClosedJaxpr, values: Sequence[Any]) -> bool:
    """Whether a program is one of several workers: by its arguments, its constants or what it asks for."""
    return any(isinstance(x, ShardedArray) for x in (*values, *program.consts)) or bool(constraints(program))


def compile(  # noqa: A001 - as the gateway's
    program: ClosedJaxpr, values: Sequence[Any], *, wishes: Shardings = (), outputs: Shardings | None = None,
    donated: Sequence[int] = (), name: str = "main",
) -> SpreadExecutable:  # fmt: skip
    """Compile a program for arguments that lie as these do, to be cut as ``wishes`` and ``outputs`` say where they do.

    Raises:
        ShardingError: for two meshes, and for what cannot be cut so.
    """
    outputs = [None] * len(program.out_avals) if outputs is None else outputs
    wishes = [None] * len(values) if not wishes else wishes
    mesh = mesh_of(program, values, [*wishes, *outputs], f"`{name}`")
    inputs = [x.sharding if isinstance(x, ShardedArray) else w for x, w in zip(values, wishes, strict=True)]
    others = [w if isinstance(x, ShardedArray) else None for x, w in zip(values, wishes, strict=True)]
    return SpreadExecutable(program, mesh, inputs, outputs, wishes=others, donated=donated, name=name)


def put(x: ShardedArray, sharding: NamedSharding) -> ShardedArray:
    """An array as it lies on its mesh, lying in another way on the same mesh."""
    if x.sharding == sharding:
        return x
    var = Var(x.aval)
    program = ClosedJaxpr(Jaxpr((), (var,), (), (var,)), ())
    return run(program, [x], "device_put", ("device_put", x.aval, sharding), (sharding,))[0]


_executables: Recent[Any, SpreadExecutable] = Recent(512)


def run(
    program: ClosedJaxpr, values: Sequence[Any], name: str, key: Any, outputs: Shardings | None = None
) -> list[ShardedArray]:
    """Run a program: it is compiled once for each ``key``, which tells programs apart, and way that values lie."""
    placed = tuple([x.sharding if isinstance(x, ShardedArray) else None for x in values])
    key = (key, placed, current_context(), workers.engine())
    found = _executables.find(key)
    if found is None:
        found = _executables.keep(key, compile(program, values, outputs=outputs, name=name))
    return found(values)


class SpreadExecutable:
    """A program compiled for the ranks of a mesh that are in this process."""

    def __init__(
        self, program: ClosedJaxpr, mesh: Mesh, inputs: Shardings, outputs: Shardings, *, wishes: Shardings = (),
        donated: Sequence[int] = (), name: str = "main",
    ):  # fmt: skip
        """``inputs``: how arguments lie (None: every process has them). ``wishes`` and ``outputs``: as they should."""
        self.mesh, self.name = mesh, name
        self.donated = tuple(donated)
        _refuse_calls(program, name)
        program = optimize(program, only_inline=not current_context().options.passes, kept=(CONSTRAINT,))
        self.consts = program.consts
        placed = [*inputs, *(x.sharding if isinstance(x, ShardedArray) else None for x in program.consts)]
        avals = [*program.in_avals, *(v.aval for v in program.jaxpr.constvars)]
        layouts = _layouts("argument", name, avals, placed)
        wanted = _layouts("result", name, program.out_avals, outputs)
        wished = _layouts("argument", name, program.in_avals[: len(wishes)], wishes)
        self.partition = partition(program, mesh, layouts, wanted, name, wished)
        self._ranks = local_ranks(mesh)
        self._workers = [workers.names().index(device) for device in mesh.ranks]
        workers.agree(self.partition.as_text(), f"the program `{name}`", self._workers)
        self._segments = {r: self._compiled(self.partition.locals[r]) for r in self._ranks}
        plans = {r: [None if e is None else e.plan for e in made] for r, made in self._segments.items()}
        self.plan = SpreadPlan(self.partition, plans, current_context().level)
        self._out_shardings = [
            sharding_of(mesh, layout, a.shape) if s is None else s
            for layout, a, s in zip(self.partition.out_layouts, self.partition.out_avals, outputs, strict=True)
        ]

    def _compiled(self, local: LocalProgram) -> list[Any]:
        return [
            gateway.compile(segment, name=f"{self.name}.{i}") if segment.eqns else None
            for i, segment in enumerate(local.segments)
        ]

    @property
    def peak_live_bytes(self) -> int:
        """Bytes that are live at once on one of this process's workers, as planned."""
        return self.plan.peak_live_bytes

    # -- running -------------------------------------------------------------------------------------------------------

    def __call__(self, values: Sequence[Any]) -> list[ShardedArray]:
        """Run, with arguments that lie as those that the program was compiled for.

        Raises:
            TypeError: one lies in another way. Nothing has happened.
        """
        for x, layout in zip(values, self.partition.in_layouts, strict=False):
            if isinstance(x, ShardedArray) and (x.layout != layout or x.sharding.mesh != self.mesh):
                raise TypeError(f"`{self.name}` was compiled for arguments that lie in another way")
        held = {r: self._arguments(values, r) for r in self._ranks}
        for i in range(len(self.partition.exchanges) + 1):
            for r in self._ranks:
                self._segment(r, i, held[r])
            if i < len(self.partition.exchanges):
                self._round(i, held)
            for r in self._ranks:
                for var in self.partition.locals[r].drops[i]:
                    del held[r][var]
        results = []
        for k, sharding in enumerate(self._out_shardings):
            aval = self.partition.out_avals[k]
            parts = {r: _read(held[r], self.partition.locals[r].outputs[k]) for r in self._ranks}
            results.append(ShardedArray(aval, sharding, parts))
        for d in self.donated:
            if isinstance(values[d], (ShardedArray, ConcreteArray)):
                values[d].delete()
        return results

    def _arguments(self, values: Sequence[Any], rank: int) -> dict[Var, ConcreteArray]:
        held: dict[Var, ConcreteArray] = {}
        layouts = zip(
            self.partition.locals[rank].inputs, (*values, *self.consts), self.partition.in_layouts, strict=True
        )
        for var, x, layout in layouts:
            assert isinstance(var, Var)
            if isinstance(x, ShardedArray):
                held[var] = x.parts()[rank]
            else:
                x = as_array(x)
                held[var] = part_of(x, box_of(self.mesh, layout, x.aval.shape, rank))
        return held

    def _segment(self, rank: int, i: int, held: dict[Var, ConcreteArray]) -> None:
        run, jaxpr = self._segments[rank][i], self.partition.locals[rank].segments[i].jaxpr
        if run is not None:
            outs = run([held[v] for v in jaxpr.invars])
            held.update(zip(jaxpr.outvars, outs, strict=True))  # type: ignore[arg-type]

    def _round(self, i: int, held: dict[int, dict[Var, ConcreteArray]]) -> None:
        """All exchanges of a round: what stays in the process is copied, the rest is one message a pair of workers."""
        views: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        for r in self._ranks:
            for k, g in enumerate(self.partition.locals[r].rounds[i]):
                out, view = empty(g.got.aval)
                views[r, k] = _read(held[r], g.given)._view(), view
                held[r][g.got] = out
        here, outgoing, incoming = set(self._ranks), {}, {}
        later: list[tuple[np.ndarray, np.ndarray]] = []
        for pair, pieces in _pieces(self.partition.exchanges[i]).items():
            source, target = pair
            sizes = [t.nbytes(e.aval.dtype.itemsize) for _, e, t in pieces]
            if source in here and target in here:
                for k, _, t in pieces:
                    views[target, k][1][_index(t.put)] = views[source, k][0][_index(t.taken)]
            elif source in here:
                data = [np.ascontiguousarray(views[source, k][0][_index(t.taken)]) for k, _, t in pieces]
                outgoing[self._workers[target]] = np.concatenate([x.reshape(-1).view(np.uint8) for x in data])
            elif target in here:
                message = np.empty(sum(sizes), np.uint8)
                incoming[self._workers[source]] = message
                at = 0
                for (k, e, t), n in zip(pieces, sizes, strict=True):
                    piece = message[at : at + n].view(e.aval.dtype).reshape([b - a for a, b in t.taken])
                    later.append((views[target, k][1][_index(t.put)], piece))
                    at += n
            if source != target:
                TRAFFIC.sent += sum(sizes) * (source in here)
                TRAFFIC.received += sum(sizes) * (target in here)
        TRAFFIC.rounds += 1
        workers.engine().swap(outgoing, incoming, f"round {i} of `{self.name}`")
        for place, piece in later:
            place[...] = piece


def _refuse_calls(program: ClosedJaxpr, name: str) -> None:
    for eqn in program.eqns:
        if calls_python(eqn):
            text = f"`{name}` runs on several workers, and calls a Python function"
            where = "" if eqn.source is None else f" (at {eqn.source})"
            way = "each of them would call it. Return what it needs, and call it outside of the jitted function"
            raise UnsupportedOperationError(at_user_line(f"{text}{where}: {way}"))


def _layouts(
    what: str, name: str, avals: Sequence[ShapedArray], shardings: Sequence[NamedSharding | None]
) -> list[Layout | None]:
    return [
        None if s is None else s.layout(a.shape, f"{what} {i} of `{name}`")
        for i, (a, s) in enumerate(zip(avals, shardings, strict=True))
    ]


def _read(held: dict[Var, ConcreteArray], atom: Atom) -> ConcreteArray:
    return as_array(atom.value) if isinstance(atom, Literal) else held[atom]


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in box)


def _pieces(exchanges: Sequence[Exchange]) -> dict[tuple[int, int], list[tuple[int, Exchange, Transfer]]]:
    """What each pair of ranks moves in a round, in one order that both know."""
    found: dict[tuple[int, int], list[tuple[int, Exchange, Transfer]]] = {}
    for k, e in enumerate(exchanges):
        for t in e.transfers:
            found.setdefault((t.source, t.target), []).append((k, e, t))
    return found
