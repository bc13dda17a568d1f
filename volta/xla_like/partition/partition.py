"""The pass over a program: each equation is cut as its operands lie, and becomes equations of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from volta.core.ir import Atom, ClosedJaxpr, Eqn, Literal, Var
from volta.core.sharding import Cut, Layout, Mesh, whole
from volta.xla_like.exact import exact_products
from volta.xla_like.partition.building import Building, Value
from volta.xla_like.partition.choosing import Moves, better_cuts, choose
from volta.xla_like.partition.factors import factors_of, params_of_part
from volta.xla_like.partition.local import Partitioned, collect
from volta.xla_like.partition.loops import own_loop
from volta.xla_like.partition.sums import SharedSum, shared_sum, unit_of
from volta.xla_like.partition.verify import verify_partition

CONSTRAINT = "sharding_constraint"


def partition(
    program: ClosedJaxpr, mesh: Mesh, inputs: Sequence[Layout | None], outputs: Sequence[Layout | None],
    name: str = "main", wishes: Sequence[Layout | None] = (),
) -> Partitioned:  # fmt: skip
    """Cut a program, without calls, for the ranks of a mesh. Its constants count as its last inputs.

    ``inputs`` and ``outputs`` say how arguments and results lie; None is for an argument that every rank has, and for
    a result that may lie as it comes out. ``wishes`` are how the first inputs are to be cut before anything is
    computed, where that is another way.

    Raises:
        VerificationError: where what came out breaks a rule (a bug of Volta's).
    """
    moves: Moves = {}
    found, build = _walked(program, mesh, inputs, outputs, name, wishes, {}, moves)
    better = better_cuts(moves)
    if better:
        other, its_build = _walked(program, mesh, inputs, outputs, name, wishes, better, {})
        if _most_sent(other) < _most_sent(found):
            found, build = other, its_build
    verify_partition(found, build)
    return found


def _most_sent(found: Partitioned) -> int:
    return max(found.bytes_sent(rank) for rank in range(found.mesh.size))


def _walked(
    program: ClosedJaxpr, mesh: Mesh, inputs: Sequence[Layout | None], outputs: Sequence[Layout | None], name: str,
    wishes: Sequence[Layout | None], better: dict[Cut, Cut], moves: Moves,
) -> tuple[Partitioned, Building]:  # fmt: skip
    program = exact_products(program)
    walk = _Walk(program, mesh, inputs, outputs, better, moves)
    for var, layout in zip_longest(program.jaxpr.invars, wishes):
        value = walk.values[var]
        walk.values[var] = walk.build.recut(value, walk.bettered(value.layout if layout is None else layout))
    for eqn in program.eqns:
        walk.equation(eqn)
    results = []
    for atom, layout in zip(program.jaxpr.outvars, outputs, strict=True):
        value = walk.read(atom)
        results.append(value if layout is None else walk.build.recut(value, layout))
    return collect(name, program, walk.build, walk.inputs, results, tuple(walk.sums)), walk.build


class _Walk:
    def __init__(
        self, program: ClosedJaxpr, mesh: Mesh, inputs: Sequence[Layout | None], outputs: Sequence[Layout | None],
        better: dict[Cut, Cut], moves: Moves,
    ):  # fmt: skip
        self.mesh, self.build = mesh, Building(mesh)
        self.better, self.moves = better, moves
        self.sums: list[SharedSum] = []
        self.inputs: list[Value] = []
        self.values: dict[Var, Value] = {}
        jaxpr = program.jaxpr
        for var, layout in zip((*jaxpr.invars, *jaxpr.constvars), inputs, strict=True):
            value = self.build.input(var.aval, whole(var.aval.ndim) if layout is None else layout)
            self.inputs.append(value)
            self.values[var] = value
        self.wanted = _wanted(program, outputs)

    def read(self, atom: Atom) -> Value:
        return self.build.literal(atom) if isinstance(atom, Literal) else self.values[atom]

    def bettered(self, layout: Layout) -> Layout:
        """A layout with cuts where sums can be shared as they lie, if it was found that this moves less."""
        return tuple(c if c is None else self.better.get(c, c) for c in layout)

    def equation(self, eqn: Eqn) -> None:
        self.build.source = eqn.source
        operands = [self.read(a) for a in eqn.inputs]
        name = eqn.primitive.name
        if name == CONSTRAINT:
            (aval,) = (v.aval for v in eqn.outputs)
            sharding = eqn.params["sharding"]
            layout = sharding.layout(aval.shape, name)
            outs = [self.build.recut(operands[0], layout if sharding.bounds else self.bettered(layout))]
        elif name == "optimization_barrier":
            outs = self._independent(eqn, operands)
        else:
            outs = self._cut(eqn, operands)
        self.values.update(zip(eqn.outputs, outs, strict=True))

    def _independent(self, eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
        """Operands that pass through, each as it lies."""
        outs = [(v.aval, x.layout) for v, x in zip(eqn.outputs, operands, strict=True)]
        return self.build.every(eqn.primitive, operands, outs, lambda rank: eqn.params)

    def _cut(self, eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
        loop = own_loop(eqn, [v.layout for v in operands], self._cut_body)
        if loop is not None:
            moved = [self.build.recut(v, layout) for v, layout in zip(operands, loop.operands, strict=True)]
            made = [(v.aval, layout) for v, layout in zip(eqn.outputs, loop.results, strict=True)]
            return self.build.every(eqn.primitive, moved, made, loop.params)
        factors = factors_of(eqn)
        units = [unit_of(eqn, f) for f in factors]
        choice = choose(self.mesh, eqn, factors, [v.layout for v in operands], units, self.moves)
        moved = [self.build.recut(v, choice.operand(i, v.aval.ndim)) for i, v in enumerate(operands)]
        if choice.reduced() is not None:
            value, record = shared_sum(self.build, eqn, choice, moved, self.wanted.get(eqn.outputs[0]))
            self.sums.append(record)
            return [value]
        outs = [(v.aval, choice.result(i, v.aval.ndim)) for i, v in enumerate(eqn.outputs)]

        def params(rank: int) -> dict[str, Any]:
            shapes = [v.parts[rank].aval.shape for v in moved]
            return params_of_part(eqn, shapes, [self.build.shape(*out, rank) for out in outs])

        return self.build.every(eqn.primitive, moved, outs, params)

    def _cut_body(self, body: ClosedJaxpr, layouts: Sequence[Layout]) -> Partitioned | None:
        outputs = [None] * len(body.out_avals)
        found, build = _walked(body, self.mesh, layouts, outputs, "body", (), {}, {})
        if body.consts or any(found.exchanges):
            return None
        verify_partition(found, build)
        return found


def _wanted(program: ClosedJaxpr, outputs: Sequence[Layout | None]) -> dict[Var, Layout]:
    """Where values are to lie, from where results are to, through what only computes element by element or moves."""
    wanted: dict[Var, Layout] = {}
    for atom, layout in zip(program.jaxpr.outvars, outputs, strict=True):
        if layout is not None and isinstance(atom, Var):
            wanted.setdefault(atom, layout)
    for eqn in reversed(program.eqns):
        if len(eqn.outputs) != 1 or (layout := wanted.get(eqn.outputs[0])) is None:
            continue
        if eqn.primitive.name == "transpose":
            back: list[Cut | None] = [None] * len(layout)
            for cut, d in zip(layout, eqn.params["permutation"], strict=True):
                back[d] = cut
            layout = tuple(back)
        elif eqn.primitive.emit is None:
            continue
        for atom in eqn.inputs:
            if isinstance(atom, Var) and atom.aval.ndim == len(layout):
                wanted.setdefault(atom, layout)
    return wanted
