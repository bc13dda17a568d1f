"""Loops in segments: what a scan's iterations leave for the scan that runs back over them is computed again.

A scan of n iterations stacks n residuals of each kind. Cut into segments it stacks what is carried into each of them
instead; before the backward scan runs through a segment, the segment's iterations run once more and leave the residuals
of these alone. With segments of about √n iterations that is 2 √n of both in the place of n, for one more pass. Every
iteration computes what it did, from the same operands, and cotangents are added up in the same order: no bit moves.

T. Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from volta.core import dtypes
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Var
from volta.ops.primitive import REGISTRY
from volta.xla_like.control import Program, int32
from volta.xla_like.passes import drop_dead, inline_calls


@attrs.frozen(eq=False)
class _Scan:
    """A scan's equation and its operands."""

    eqn: Eqn

    @property
    def length(self) -> int:
        return self.eqn.params["length"]

    @property
    def body(self) -> ClosedJaxpr:
        return self.eqn.params["jaxpr"]

    @property
    def carry(self) -> int:
        return self.eqn.params["num_carry"]

    def operands(self) -> tuple[tuple[Atom, ...], tuple[Atom, ...], tuple[Atom, ...]]:
        """What all iterations read, what is carried, and what is read slice by slice."""
        n = self.eqn.params["num_consts"]
        return self.eqn.inputs[:n], self.eqn.inputs[n : n + self.carry], self.eqn.inputs[n + self.carry :]


@attrs.frozen(eq=False)
class _Pair:
    """A scan and the one that runs back over it, cut into segments of ``size`` iterations; ``residuals`` are those of
    the first one's stacks that only the second reads."""

    forward: _Scan
    backward: _Scan
    residuals: tuple[Var, ...]
    size: int


def cut_scans(program: ClosedJaxpr) -> ClosedJaxpr | None:
    """The program with scans in segments, where residuals are computed again for a backward scan; None without any."""
    cut = {id(e): pair for pair in _pairs(program) for e in (pair.forward.eqn, pair.backward.eqn)}
    if not cut:
        return None
    eqns: list[Eqn] = []
    starts: dict[int, list[Var]] = {}
    for eqn in program.eqns:
        pair = cut.get(id(eqn))
        if pair is None:
            eqns.append(eqn)
        elif eqn is pair.forward.eqn:
            starts[id(pair)] = _cut_forward(pair, eqns)
        else:
            _cut_backward(pair, starts[id(pair)], eqns)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns)), program.consts)


def _pairs(program: ClosedJaxpr) -> list[_Pair]:
    readers: dict[Atom, list[Eqn | None]] = {}
    for eqn in program.eqns:
        for x in dict.fromkeys(eqn.inputs):
            readers.setdefault(x, []).append(eqn)
    for x in program.jaxpr.outvars:
        readers.setdefault(x, []).append(None)
    found = []
    for eqn in program.eqns:
        if eqn.primitive.name != "scan":
            continue
        forward = _Scan(eqn)
        behind: dict[int, tuple[_Scan, list[Var]]] = {}
        for stack in eqn.outputs[forward.carry :]:
            its = readers.get(stack, [])
            if len(its) == 1 and its[0] is not None and its[0].primitive.name == "scan":
                backward = _Scan(its[0])
                opposite = its[0].params["reverse"] is not eqn.params["reverse"]
                consts, carry, _ = backward.operands()
                if opposite and backward.length == forward.length and stack not in (*consts, *carry):
                    behind.setdefault(id(its[0]), (backward, []))[1].append(stack)
        for backward, residuals in behind.values():
            kept = sum(x.aval.nbytes for x in residuals) // max(forward.length, 1)
            begin = sum(x.aval.nbytes for x in forward.operands()[1])
            size = _size(forward.length, kept, begin)
            if size is not None and len(behind) == 1:
                found.append(_Pair(forward, backward, tuple(residuals), size))
    return found


def _size(length: int, kept: int, begin: int) -> int | None:
    """How many iterations a segment has so that least is stored: residuals of one, and what is carried into each."""
    sizes = [s for s in range(2, length) if length % s == 0]
    best = min(sizes, key=lambda s: s * kept + length // s * begin, default=None)
    return best if best is not None and best * kept + length // best * begin < length * kept else None


def _scan(
    writer: Program, body: ClosedJaxpr, consts: Sequence[Atom], carry: Sequence[Atom], xs: Sequence[Atom], length: int,
    like: _Scan,
) -> list[Var]:  # fmt: skip
    params = {**like.eqn.params, "jaxpr": body, "num_consts": len(consts), "num_carry": len(carry), "length": length}
    primitive, inputs = REGISTRY["scan"], (*consts, *carry, *xs)
    outputs = tuple([Var(a) for a in primitive.abstract(*(x.aval for x in inputs), **params)])
    writer.eqns.append(Eqn(primitive, inputs, outputs, params, like.eqn.source))
    return list(outputs)


def _numbers(writer: Program, count: int) -> Var:
    return writer.emit("iota", dtype=dtypes.int32, shape=(count,), dimension=0)


def _inputs(*groups: Sequence[Atom]) -> tuple[Program, list[list[Var]]]:
    """A program of inputs like these atoms, group by group."""
    writer = Program([x.aval for x in itertools.chain(*groups)])
    given = iter(writer.inputs)
    return writer, [[next(given) for _ in group] for group in groups]


def _forward_body(scan: _Scan, outputs: Sequence[int]) -> ClosedJaxpr:
    """An iteration of a segment: (what all read, what is read by slices, the segment's first number), what is carried,
    and the number within the segment. Of the stacks those that are asked for."""
    consts, carry, xs = scan.operands()
    number = int32(0)
    writer, (consts_, xs_, (first,), carry_, (at,)) = _inputs(consts, xs, [number], carry, [number])
    where = writer.emit("add", first, at)
    results = writer.call(scan.body, [*consts_, *carry_, *(writer.part(x, where) for x in xs_)])
    return drop_dead(inline_calls(writer.close([*results[: scan.carry], *(results[i] for i in outputs)])))


def _segment(writer: Program, number: Var, size: int) -> tuple[Var, Var]:
    """The number of a segment's first iteration, and those of its iterations within it."""
    return writer.emit("mul", number, int32(size)), _numbers(writer, size)


def _joined(eqns: list[Eqn], stacks: Sequence[Var], wanted: Sequence[Var]) -> None:
    """Stacks of segments' stacks as one stack each."""
    for stack, out in zip(stacks, wanted, strict=True):
        eqns.append(Eqn(REGISTRY["reshape"], (stack,), (out,), {"new_sizes": out.aval.shape}))


def _cut_forward(pair: _Pair, eqns: list[Eqn]) -> list[Var]:
    """Writes the forward scan; returns the stacks of what is carried into segments."""
    scan, size = pair.forward, pair.size
    consts, carry, xs = scan.operands()
    kept = [i for i, v in enumerate(scan.eqn.outputs) if i >= scan.carry and v not in pair.residuals]
    outer = Program([])
    numbers = _numbers(outer, scan.length // size)
    writer, (consts_, xs_, carry_, (number,)) = _inputs(consts, xs, carry, [int32(0)])
    first, within = _segment(writer, number, size)
    results = _scan(writer, _forward_body(scan, kept), [*consts_, *xs_, first], carry_, [within], size, scan)
    body = writer.close([*results[: scan.carry], *carry_, *results[scan.carry :]])
    outs = _scan(outer, body, [*consts, *xs], carry, [numbers], scan.length // size, scan)
    renamed = dict(zip(outs[: scan.carry], scan.eqn.outputs, strict=False))
    last = outer.eqns.pop()
    outer.eqns.append(last.replace(outputs=tuple(renamed.get(v, v) for v in outs)))
    eqns += outer.eqns
    _joined(eqns, outs[2 * scan.carry :], [scan.eqn.outputs[i] for i in kept])
    return outs[scan.carry : 2 * scan.carry]


def _cut_backward(pair: _Pair, starts: Sequence[Var], eqns: list[Eqn]) -> None:
    """Writes the backward scan: segment by segment, each after the forward iterations of the segment."""
    ahead, scan, size = pair.forward, pair.backward, pair.size
    before, _, read = ahead.operands()
    consts, carry, xs = scan.operands()
    others = [x for x in xs if x not in pair.residuals]
    outer = Program([])
    numbers = _numbers(outer, scan.length // size)
    begun = [ahead.eqn.inputs[len(before) + i] for i in range(ahead.carry)]
    writer, groups = _inputs(before, read, consts, others, carry, begun, [int32(0)])
    before_, read_, consts_, others_, carry_, begun_, (number,) = groups
    first, within = _segment(writer, number, size)
    wanted = [i for i, v in enumerate(ahead.eqn.outputs) if v in pair.residuals]
    again = _scan(writer, _forward_body(ahead, wanted), [*before_, *read_, first], begun_, [within], size, ahead)
    stacks = dict(zip((ahead.eqn.outputs[i] for i in wanted), again[ahead.carry :], strict=True))

    inner, parts = _inputs(consts, others, [int32(0)], carry, [_one_of(stacks[r]) for r in stacks], [int32(0)])
    consts__, others__, (first_,), carry__, slices, (at,) = parts
    where = inner.emit("add", first_, at)
    own, rest = dict(zip(stacks, slices, strict=True)), iter(others__)
    given = [own[x] if x in own else inner.part(next(rest), where) for x in xs]
    results = inner.call(scan.body, [*consts__, *carry__, *given])
    done = _scan(
        writer, inner.close(results), [*consts_, *others_, first], carry_, [*stacks.values(), within], size, scan
    )
    outs = _scan(
        outer,
        writer.close(done),
        [*before, *read, *consts, *others],
        carry,
        [*starts, numbers],
        scan.length // size,
        scan,
    )
    renamed = dict(zip(outs[: scan.carry], scan.eqn.outputs, strict=False))
    last = outer.eqns.pop()
    outer.eqns.append(last.replace(outputs=tuple(renamed.get(v, v) for v in outs)))
    eqns += outer.eqns
    _joined(eqns, outs[scan.carry :], scan.eqn.outputs[scan.carry :])


def _one_of(stack: Var) -> Var:
    """One element of a stack."""
    return Var(stack.aval.update(shape=stack.aval.shape[1:]))
