"""Movement inside of loops: what a loop reads of a concatenation or a padding, it reads where that comes from.

Views (`views`) have one stride a dimension, so what is put together of parts is none. It is loads that say where they
are in range, and which value stands elsewhere: a part of a concatenation, or else the next one. So rolls, paddings and
slices that are replaced are read by the loop that needs them, and no copy is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import Eqn, Jaxpr, Var
from volta.ops.primitive import REGISTRY, Family
from volta.xla_like.nodes import Const, Iota, Operand, Ref, Val
from volta.xla_like.views import Ints, View, prod

PARTS = 4
"""Parts that are read in place at most: each is a load of its own for every element."""

AGAIN = 8
"""Operations that compute a part at most, all of them cheap, for a loop to do them where it reads the part: of more, it
costs less to keep what they give."""

RUN = 32
"""Elements that lie together at least, of a part: of fewer, copies are faster than vectors that are nearly empty."""

_POSITION = np.dtype(np.int64)


class Nodes(Protocol):
    """What builds nodes (see `Lowering`)."""

    def add(
        self, kind: str, name: str, params: dict[str, Any], operands: Sequence[Operand], shape: Ints,
        outs: Sequence[ShapedArray],
    ) -> tuple[Val, ...]: ...  # fmt: skip

    def whole(self, val: Val) -> Ref: ...

    def gathered(
        self, table: Ref, strides: Ints, indices: Sequence[Operand], terms: tuple[tuple[int, int], ...], fill: str,
        shape: Ints, other: Operand | None = None,
    ) -> Ref: ...  # fmt: skip


def read_by_loops(jaxpr: Jaxpr) -> set[Var]:
    """The values that an elementwise operation or a reduction reads, as they are or in another shape."""
    found: set[Var] = set()
    for eqn in reversed(jaxpr.eqns):
        loops = eqn.primitive.family in (Family.ELEMENTWISE, Family.REDUCTION)
        if loops or eqn.primitive.name == "reshape" and eqn.outputs[0] in found:
            found.update(x for x in eqn.inputs if isinstance(x, Var))
    return found


def concatenated(nodes: Nodes, eqn: Eqn, operands: Sequence[Operand], shape: Ints) -> Operand | None:
    """A concatenation as a value that loops read in place; None where copies are better."""
    axis, starts, at = eqn.params["dimension"], [], 0
    for x in operands:
        starts.append(at)
        at += x.view.shape[axis]
    parts = [(x, start) for x, start in zip(operands, starts, strict=True) if prod(x.view.shape)]
    constants = [x for x, _ in parts if isinstance(x, Const)]
    arrays = [(x, start) for x, start in parts if isinstance(x, Ref)]
    if len(constants) > 1 or len(arrays) + len(constants) < len(parts) or not 0 < len(arrays) <= PARTS:
        return None
    if not _long(shape, axis) or not all(_in_reach(x) for x, _ in arrays):
        return None
    arrays.sort(key=lambda x: prod(x[0].view.shape))
    out: Operand | None = _broadcast(constants[0], shape) if constants else None
    for x, start in reversed(arrays):  # the largest is what stands elsewhere, if nothing else does
        out = _part(nodes, x, {axis: start}, shape, out)
    return out


def padded(nodes: Nodes, eqn: Eqn, x: Operand, value: Operand, shape: Ints) -> Operand | None:
    """A padding as a value that loops read in place; None where copies are better."""
    config = eqn.params["padding_config"]
    if not isinstance(x, Ref) or not _in_reach(x) or not prod(x.view.shape):
        return None
    if any(interior or low < 0 or high < 0 for low, high, interior in config):
        return None
    starts = {d: low for d, (low, high, _) in enumerate(config) if low or high}
    if not starts or not _long(shape, max(starts)):
        return None
    return _part(nodes, x, starts, shape, _broadcast(value, shape))


def updated(nodes: Nodes, x: Operand, update: Operand, starts: Sequence[Operand]) -> Operand | None:
    """A slice at known places replaced, as a value that loops read in place; None where copies are better."""
    shape, part = x.view.shape, update.view.shape
    known = known_starts(shape, part, starts)
    if len(known) < sum(n != k for n, k in zip(shape, part, strict=True)) or not known or not _long(shape, max(known)):
        return None
    if isinstance(update, Iota) or isinstance(x, Iota) or not prod(part) or not _in_reach(update):
        return None
    return _part(nodes, update, known, shape, x)


def known_starts(shape: Ints, part: Ints, starts: Sequence[Operand]) -> dict[int, int]:
    """Where a part that is replaced begins, along those axes that it does not fill and whose start is a constant."""
    sizes = enumerate(zip(shape, part, starts, strict=True))
    return {d: min(max(int(x.value), 0), n - k) for d, (n, k, x) in sizes if n != k and isinstance(x, Const)}


def _long(shape: Ints, axis: int) -> bool:
    """Whether the elements that one place along an axis decides about are many, or those along it."""
    return (prod(shape[axis + 1 :]) if prod(shape[axis + 1 :]) > 1 else shape[axis]) >= RUN


def _computed(x: Operand) -> bool:
    """Whether a loop may compute the operand where it belongs (`placing`), which is no copy either."""
    if not isinstance(x, Ref) or not x.is_whole or x.val.producer is None:
        return False
    return x.val.producer.kind in ("elem", "gather", "reduce")


def _in_reach(x: Operand) -> bool:
    """Whether a loop can have an operand where it reads it: from memory, or by a few cheap operations."""
    todo, seen = [x], set[Val]()
    while todo and len(seen) <= AGAIN:
        y = todo.pop()
        if not isinstance(y, Ref) or not _computed(y) or y.val in seen:
            continue
        node = y.val.producer
        assert node is not None
        if y.after or node.kind != "elem" or REGISTRY[node.name].cost > 1 or y.view.shape != node.shape:
            return False
        seen.add(y.val)
        todo += node.operands
    return len(seen) <= AGAIN


def _part(nodes: Nodes, x: Operand, starts: dict[int, int], shape: Ints, other: Operand | None) -> Operand:
    """``x`` from some places on, along some axes, in an array of a shape; elsewhere ``other`` (None: nobody looks)."""
    if isinstance(x, Ref) and not _computed(x):
        return _placed(nodes, x, starts, shape, other)
    value = _again(nodes, x, starts, shape, {})
    return value if other is None else _chosen(nodes, value, starts, x.view.shape, shape, other)


def _again(nodes: Nodes, x: Operand, starts: dict[int, int], shape: Ints, done: dict[Val, Ref]) -> Operand:
    """An operand in an array of a shape, from some places on, by what computes it; elsewhere nobody looks."""
    if isinstance(x, Const):
        return _broadcast(x, shape)
    if isinstance(x, Iota):
        view = x.view
        before = sum(start * view.strides[d] for d, start in starts.items())
        return attrs.evolve(x, view=View(shape, view.strides, view.offset - before))
    if not _computed(x):
        return _placed(nodes, x, starts, shape, None)
    if x.val not in done:
        node = x.val.producer
        assert node is not None
        operands = [_again(nodes, y, starts, shape, done) for y in node.operands]
        (val,) = nodes.add("elem", node.name, node.params, operands, shape, [ShapedArray(shape, x.dtype)])
        done[x.val] = nodes.whole(val)
    return done[x.val]


def _chosen(nodes: Nodes, x: Operand, starts: dict[int, int], extent: Ints, shape: Ints, other: Operand) -> Operand:
    """``x`` where an index is in a range along some axes, ``other`` elsewhere."""
    inside: Ref | None = None
    for d, start in starts.items():
        dtype = dtypes.int32 if shape[d] < 1 << 31 else dtypes.int64
        at = Iota(dtype, View(shape, tuple(int(axis == d) for axis in range(len(shape)))))
        for name, bound, needed in (("ge", start, start > 0), ("lt", start + extent[d], start + extent[d] < shape[d])):
            if needed:
                limit = _broadcast(Const(bound, dtype, View((), ())), shape)
                (fits,) = nodes.add("elem", name, {}, [at, limit], shape, [ShapedArray(shape, dtypes.bool_)])
                if inside is not None:
                    both = [inside, nodes.whole(fits)]
                    (fits,) = nodes.add("elem", "and", {}, both, shape, [ShapedArray(shape, dtypes.bool_)])
                inside = nodes.whole(fits)
    if inside is None:
        return x
    (val,) = nodes.add("elem", "select_n", {}, [inside, other, x], shape, [ShapedArray(shape, x.dtype)])
    return nodes.whole(val)


def _broadcast(x: Operand, shape: Ints) -> Operand:
    scalar = View((), ()) if isinstance(x, Const) else x.view
    return attrs.evolve(x, view=scalar.broadcast(shape, ()))


def _placed(nodes: Nodes, x: Ref, starts: dict[int, int], shape: Ints, other: Operand | None) -> Ref:
    """``x`` from some places on, along some axes, in an array of a shape; elsewhere ``other`` (None: nobody looks)."""
    indices, terms = [], []
    for d, start in starts.items():
        view = View(shape, tuple(int(axis == d) for axis in range(len(shape))), -start)
        indices.append(Iota(_POSITION, view))
        terms.append((x.view.strides[d], x.view.shape[d] - 1))
    strides = tuple(0 if d in starts else s for d, s in enumerate(x.view.strides))
    if other is None or _is_zero(other):
        return nodes.gathered(x, strides, indices, tuple(terms), "any" if other is None else "zero", shape)
    return nodes.gathered(x, strides, indices, tuple(terms), "other", shape, other)


def _is_zero(x: Operand) -> bool:
    """Whether an operand is 0, and not −0."""
    return isinstance(x, Const) and not any(np.asarray(x.value, x.dtype).tobytes())
