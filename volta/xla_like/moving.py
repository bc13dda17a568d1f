"""Movement inside of loops: what a loop reads of a concatenation or a padding, it reads where that comes from.

Views (`views`) have one stride a dimension, so what is put together of parts is none. It is loads that say where they
are in range, and which value stands elsewhere: a part of a concatenation, or else the next one. So rolls, paddings and
slices that are replaced are read by the loop that needs them, and no copy is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np

from volta.core.ir import Eqn, Jaxpr, Var
from volta.ops.primitive import Family
from volta.xla_like.nodes import Const, Iota, Operand, Ref
from volta.xla_like.views import Ints, View, prod

PARTS = 4
"""Parts that are read in place at most: each is a load of its own for every element."""

RUN = 32
"""Elements that lie together at least, of a part: of fewer, copies are faster than vectors that are nearly empty."""

_POSITION = np.dtype(np.int64)


class Nodes(Protocol):
    """What builds nodes (see `Lowering`)."""

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
    if not _long(shape, axis) or any(map(_computed, (x for x, _ in arrays))):
        return None
    arrays.sort(key=lambda x: prod(x[0].view.shape))
    out: Operand | None = _broadcast(constants[0], shape) if constants else None
    for x, start in reversed(arrays):  # the largest is what stands elsewhere, if nothing else does
        out = _placed(nodes, x, {axis: start}, shape, out)
    return out


def padded(nodes: Nodes, eqn: Eqn, x: Operand, value: Operand, shape: Ints) -> Operand | None:
    """A padding as a value that loops read in place; None where copies are better."""
    config = eqn.params["padding_config"]
    if not isinstance(x, Ref) or _computed(x) or not prod(x.view.shape):
        return None
    if any(interior or low < 0 or high < 0 for low, high, interior in config):
        return None
    starts = {d: low for d, (low, high, _) in enumerate(config) if low or high}
    if not starts or not _long(shape, max(starts)):
        return None
    return _placed(nodes, x, starts, shape, _broadcast(value, shape))


def updated(nodes: Nodes, x: Operand, update: Operand, starts: Sequence[Operand]) -> Operand | None:
    """A slice at known places replaced, as a value that loops read in place; None where copies are better."""
    shape, known = x.view.shape, {}
    if not isinstance(update, Ref) or _computed(update) or isinstance(x, Iota) or not prod(update.view.shape):
        return None
    for d, (n, k, start) in enumerate(zip(shape, update.view.shape, starts, strict=True)):
        if n != k:
            if not isinstance(start, Const):
                return None
            known[d] = min(max(int(start.value), 0), n - k)
    if not known or not _long(shape, max(known)):
        return None
    return _placed(nodes, update, known, shape, x)


def _long(shape: Ints, axis: int) -> bool:
    """Whether the elements that one place along an axis decides about are many, or those along it."""
    return (prod(shape[axis + 1 :]) if prod(shape[axis + 1 :]) > 1 else shape[axis]) >= RUN


def _computed(x: Operand) -> bool:
    """Whether a loop may compute the operand where it belongs (`placing`), which is no copy either."""
    return isinstance(x, Ref) and x.is_whole and x.val.producer is not None


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
