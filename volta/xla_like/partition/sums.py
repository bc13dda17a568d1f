"""Reductions along a cut axis: each rank computes the nodes of the tree that lie in its part, and the nodes are joined.

The tree is the bit contract's: of SUM, products and DOT, over blocks of 4096 elements. Where any order gives the same
bits (extremes, integers, and and or) a part is one leaf, and parts may be cut anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.contract import DEFINITIONS
from volta.core.ir import Atom, Eqn, Var
from volta.core.sharding import Cut, Layout, even_bounds, local_shape
from volta.core.source import Source
from volta.ops.primitive import Family
from volta.xla_like.partition.building import Building, Value
from volta.xla_like.partition.choosing import SMALL, Choice
from volta.xla_like.partition.factors import Factor, free_dims
from volta.xla_like.partition.trees import Cover, Node, join

_COMBINES = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
_LEVEL = 8
"""Elements a part from which on parts that differ by one are as good as equal."""

_BLOCKS = {"sum": DEFINITIONS.sum_block, "prod": DEFINITIONS.sum_block, "dot": DEFINITIONS.dot_block}


@attrs.frozen(eq=False)
class SharedSum:
    """A reduction whose axis is cut: kept so that `verify` can look at it again."""

    name: str
    cover: Cover
    done: tuple[tuple[Node, ...], ...]  # by part
    joined: tuple[Node, ...]  # in the order in which the nodes lie
    source: Source | None


def _kind(eqn: Eqn) -> str:
    return "dot" if eqn.primitive.family is Family.CONTRACTION else str(eqn.primitive.reduction.combine)


def _axes(eqn: Eqn, operand: int) -> tuple[int, ...]:
    """The dimensions of an operand that go, in the order of the sequence that they are."""
    if eqn.primitive.family is Family.CONTRACTION:
        axes: tuple[int, ...] = eqn.params["dimension_numbers"][0][operand]
        return axes
    return tuple(eqn.params["axes"])


def _block(eqn: Eqn) -> int | None:
    """The length of a leaf; None where any order will do."""
    kind, aval = _kind(eqn), eqn.outputs[0].aval
    return _BLOCKS[kind] if kind in _BLOCKS and dtypes.is_inexact(aval.dtype) else None


def _inner(eqn: Eqn, factor: Factor) -> int:
    """How many elements of the sequence are one element of the factor."""
    shape = eqn.inputs[0].aval.shape
    return math.prod(shape[d] for d in _axes(eqn, 0)) // factor.size


def unit_of(eqn: Eqn, factor: Factor) -> int:
    """Between how many of its elements a factor that reduces may be cut; 0: nowhere."""
    if not factor.reduces:
        return 1
    if eqn.params.get("precision") is not None:  # sums of another dtype, or in an order of their own
        return 0
    if _kind(eqn) == "prod" and dtypes.is_complex(eqn.outputs[0].aval.dtype):  # by halves of the whole
        return 0
    block = _block(eqn)
    return 1 if block is None else math.lcm(block, _inner(eqn, factor)) // _inner(eqn, factor)


def shared_sum(
    build: Building, eqn: Eqn, choice: Choice, operands: Sequence[Value], wanted: Layout | None
) -> tuple[Value, SharedSum]:
    """The result of a reduction whose axis is cut, and how it was shared; it is to lie as ``wanted``, if known."""
    reduced = choice.reduced()
    assert reduced is not None
    factor, cut = reduced
    inner = _inner(eqn, factor)
    cover = Cover(tuple(b * inner for b in cut.bounds), _block(eqn))
    cover.check(f"{eqn.primitive.name} ({eqn.source})")
    aval = eqn.outputs[0].aval
    work = _work(eqn)
    layout = choice.result(0, aval.ndim)
    level = max(v.level for v in operands)
    done = tuple(tuple(cover.of(part)) for part in range(cut.parts))
    nodes = tuple(node for own in done for node in own)
    rows = []
    for rank in range(build.mesh.size):
        part = build.mesh.part(rank, cut.axes)
        own = done[part]
        local = _Local(build, eqn, rank, level, [v.parts[rank] for v in operands], work)
        made = [local.node(*(x - cover.edges[part] for x in cover.elements(part, n))) for n in own]
        shape = local_shape(build.mesh, layout, aval.shape, rank)
        rows.append(_stack(build, rank, level, made, ShapedArray((len(own), *shape), work)))
    counts = tuple(accumulate((len(own) for own in done), initial=0))
    stack_aval = ShapedArray((len(nodes), *aval.shape), work)
    stack = build.made(stack_aval, (Cut(cut.axes, counts), *layout), rows, level)
    spread, target = _places(aval, layout, cut, wanted)
    parts = build.recut(stack, (None, *spread), "nodes")
    joined = [_joined(build, eqn, rank, parts, nodes, cover.count) for rank in range(build.mesh.size)]
    value = build.made(aval, spread, joined, parts.level)
    record = SharedSum(eqn.primitive.name, cover, done, nodes, eqn.source)
    return (value if target is None else build.recut(value, target)), record


def _work(eqn: Eqn) -> dtypes.np.dtype:
    """The dtype that sums are kept in until the end: short floats are rounded once."""
    out = eqn.outputs[0].aval.dtype
    return dtypes.compute_dtype(out) if _kind(eqn) in _BLOCKS and dtypes.is_float(out) else out


def _places(aval: ShapedArray, layout: Layout, cut: Cut, wanted: Layout | None) -> tuple[Layout, Layout | None]:
    """How the result lies where its nodes are joined, and where it goes then (None: it stays).

    A large result is joined by parts, each on the rank that will have it: sums cost no more bytes than one part a rank.
    """
    if wanted is not None and _uses(wanted, cut):
        return wanted, None
    free = [d for d, c in enumerate(layout) if c is None and aval.shape[d] >= cut.parts]
    if aval.nbytes < SMALL or not free:
        return layout, None
    level = [d for d in free if aval.shape[d] >= _LEVEL * cut.parts]  # of the first such, parts are in one piece
    d = level[0] if level else max(free, key=lambda d: (aval.shape[d], -d))
    spread = (*layout[:d], Cut(cut.axes, even_bounds(aval.shape[d], cut.parts)), *layout[d + 1 :])
    return spread, wanted


def _uses(layout: Layout, cut: Cut) -> bool:
    return any(c is not None and not set(cut.axes).isdisjoint(c.axes) for c in layout)


def _stack(build: Building, rank: int, level: int, rows: Sequence[Atom], aval: ShapedArray) -> Atom:
    """Nodes as rows of one array."""
    if not rows:
        return build.empty(rank, level, aval)
    ones = [build.one(rank, level, "reshape", x, new_sizes=(1, *x.aval.shape))[0] for x in rows]
    return ones[0] if len(ones) == 1 else build.one(rank, level, "concatenate", *ones, dimension=0)[0]


def _joined(build: Building, eqn: Eqn, rank: int, parts: Value, nodes: Sequence[Node], count: int) -> Atom:
    """The root of the tree over a rank's part of all nodes, in the dtype of the result."""
    stack, level = parts.parts[rank], parts.level
    shape = stack.aval.shape[1:]
    rest, values = (0,) * len(shape), {}
    for i, node in enumerate(nodes):
        params = {"start_indices": (i, *rest), "limit_indices": (i + 1, *shape), "strides": None}
        row = build.one(rank, level, "slice", stack, **params)[0]
        values[node] = build.one(rank, level, "reshape", row, new_sizes=shape)[0]
    kind = _kind(eqn)
    combine = "add" if kind == "dot" else _COMBINES[kind]
    root = join(values, count, lambda a, b: build.one(rank, level, combine, a, b)[0])
    return _converted(build, rank, level, root, eqn.outputs[0].aval.dtype)


def _converted(build: Building, rank: int, level: int, x: Var, dtype: dtypes.np.dtype) -> Var:
    if x.aval.dtype == dtype:
        return x
    return build.one(rank, level, "convert_element_type", x, new_dtype=dtype, weak_type=False)[0]


class _Local:
    """One rank's part of the operands, as sequences that nodes are computed from."""

    def __init__(self, build: Building, eqn: Eqn, rank: int, level: int, parts: Sequence[Atom], work: dtypes.np.dtype):
        self.eqn, self.work = eqn, work
        self.one: Callable[..., list[Var]] = lambda primitive, *xs, **ps: build.one(rank, level, primitive, *xs, **ps)
        self.convert = lambda x: _converted(build, rank, level, x, work)
        self.dot = eqn.primitive.family is Family.CONTRACTION
        self.flat: list[Var] | None = None
        self.parts = parts

    def node(self, first: int, last: int) -> Var:
        """The node of so many of the rank's own elements."""
        if self.flat is None:
            self.flat = [self._sequence(i, x) for i, x in enumerate(self.parts)]
        rows = [self._rows(x, first, last) for x in self.flat]
        if not self.dot:
            return self.one(self.eqn.primitive, *rows, axes=(0,))[0]
        (lb, rb) = self.eqn.params["dimension_numbers"][1]
        batch = tuple(range(1, len(lb) + 1))
        preferred = None if self.work == rows[0].aval.dtype else self.work
        params = {
            **self.eqn.params,
            "dimension_numbers": (((0,), (0,)), (batch, batch)),
            "preferred_element_type": preferred,
        }
        return self.one(self.eqn.primitive, *rows, **params)[0]

    def _sequence(self, operand: int, x: Atom) -> Var:
        """An operand with the elements of the sequence first, in order; then those of batches, then the others."""
        axes, shape = _axes(self.eqn, operand), x.aval.shape
        batch: tuple[int, ...] = self.eqn.params["dimension_numbers"][1][operand] if self.dot else ()
        rest = [*batch, *free_dims(len(shape), axes, batch)]
        order = (*axes, *rest)
        if order != tuple(range(len(shape))):
            x = self.one("transpose", x, permutation=order)[0]
        sizes = (math.prod(shape[d] for d in axes), *(shape[d] for d in rest))
        flat = self.one("reshape", x, new_sizes=sizes)[0]
        return flat if self.dot else self.convert(flat)

    def _rows(self, x: Var, first: int, last: int) -> Var:
        shape = x.aval.shape
        if (first, last) == (0, shape[0]):
            return x
        params = {
            "start_indices": (first, *[0] * (len(shape) - 1)),
            "limit_indices": (last, *shape[1:]),
            "strides": None,
        }
        return self.one("slice", x, **params)[0]
