"""XLA's gather and scatter as Volta's.

XLA moves boxes: of each, ``start_indices`` has the corner, along its last axis, and ``slice_sizes`` the size. Volta's
indices pick positions of some axes and take the other axes whole. So an axis of which a box has all stays whole; of the
others the positions are written out, a corner plus 0, 1, …, which for boxes of size 1 is the corner itself. A box that
is not wholly inside is moved inside (clip), or left out whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.ops import base, lax
from volta.ops.base import dtype_of, shape_of


@attrs.frozen
class Boxes:
    """Boxes of an operand: their sizes and, by axis of the operand, where the corner is found.

    Axes in ``from_index`` have it in a column of the indices, those in ``from_batch`` at the place along an axis of the
    indices itself; of all others it is 0. ``dropped`` axes (of size 1) are not among those of a box.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    from_index: dict[int, int]
    from_batch: dict[int, int]
    dropped: frozenset[int]
    at_least_one: bool = False  # write out positions of some axis, though boxes may have all of each

    def shared(self) -> int:
        """How many leading axes the operand and the indices have in common."""
        count = len(self.from_batch)
        return count if all(self.from_batch.get(d) == d for d in range(count)) else 0

    def picked(self) -> list[int]:
        """The axes whose positions are written out."""
        axes = range(self.shared(), len(self.shape))
        found = [
            d
            for d in axes
            if d in self.from_batch or self.sizes[d] < self.shape[d] or (d in self.from_index and self.sizes[d] == 1)
        ]
        return found or list(axes[: self.at_least_one])

    def long(self) -> list[int]:
        """Those of them along which a box has more than one element."""
        return [d for d in self.picked() if self.sizes[d] != 1]

    def kept(self) -> list[int]:
        """The axes of a box, in order."""
        return [d for d in range(len(self.shape)) if d not in self.dropped]

    def whole(self) -> list[int]:
        return [d for d in range(self.shared(), len(self.shape)) if d not in self.picked()]

    def parts(self) -> list[int]:
        """The axes of a box in Volta's order: those written out, then the whole ones; without axes of size 1."""
        return [d for d in (*self.long(), *self.whole()) if d not in self.dropped]


def _indices(boxes: Boxes, starts: Any, mode: str) -> tuple[list[Any], Any]:
    """For each picked axis the positions, of the shape of the indices and the long axes; and which boxes are inside
    (None where positions tell it)."""
    batch, long, inside = shape_of(starts)[:-1], boxes.long(), None
    if dtype_of(starts).itemsize < 4 or not dtypes.is_integer(dtype_of(starts)):
        starts = lax.convert_element_type(starts, np.int32)
    dtype = dtype_of(starts)
    full = (*batch, *(boxes.sizes[d] for d in long))
    found = {}
    for d, column in boxes.from_index.items():
        corner = base.reshape_to(lax.slice_in_dim(starts, column, column + 1, axis=len(batch)), batch)
        last = boxes.shape[d] - boxes.sizes[d]
        if mode == "clip":
            corner = lax.clamp(np.asarray(0, dtype)[()], corner, np.asarray(last, dtype)[()])
        elif mode == "fill" and (long or d not in boxes.picked()):
            good = lax.bitwise_and(lax.ge(corner, 0), lax.le(corner, last))
            inside = good if inside is None else lax.bitwise_and(inside, good)
        found[d] = corner
    for d, axis in boxes.from_batch.items():
        found[d] = lax.broadcasted_iota(dtype, batch, axis)
    positions = []
    for d in boxes.picked():
        position = base.fill(full, 0, dtype) if d not in found else _spread(found[d], full)
        if d in long:
            position = lax.add(position, lax.broadcasted_iota(dtype, full, len(batch) + long.index(d)))
        positions.append(position)
    return positions, inside if inside is None else _spread(inside, full)


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape_of(x)))))


def _outside(positions: list[Any], inside: Any) -> list[Any]:
    """Positions that are none where a box is not inside."""
    if inside is None:
        return positions
    return [lax.select(inside, p, base.fill(shape_of(p), -1, dtype_of(p))) for p in positions]


# -- gather ------------------------------------------------------------------------------------------------------------


def gather_boxes(operand: Any, starts: Any, numbers: Any, sizes: Sequence[int], mode: str, fill_value: Any) -> Any:
    """The boxes of ``sizes`` at ``starts``; of ``numbers`` see :class:`volta.lax.GatherDimensionNumbers`.

    A mode 'fill' gives ``fill_value`` (None: what stands for no value) for boxes that are not inside; others clip.
    """
    boxes = Boxes(
        shape_of(operand),
        tuple(sizes),
        {d: column for column, d in enumerate(numbers.start_index_map)},
        dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)),
        frozenset((*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)),
    )
    positions, inside = _indices(boxes, starts, mode)
    batch = shape_of(starts)[:-1]
    if not positions:
        out = _of_whole(boxes, operand, batch)
    else:
        fill = mode == "fill" and fill_value in (None, 0)
        kind = ("fill" if fill_value is None else "zero") if fill else "clip"
        given = _outside(positions, inside) if fill else positions
        out = lax.gather(operand, given, boxes.picked(), boxes.shared(), kind)
    out = _from_parts(boxes, out, batch)
    if mode == "fill" and (fill_value not in (None, 0) or (not positions and inside is not None)):
        out = _filled(out, _all_inside(boxes, positions, inside, batch), fill_value)
    offsets = tuple(numbers.offset_dims)
    places = [i for i in range(len(shape_of(out))) if i not in offsets]
    order = [*places, *offsets]
    return base.permute(out, np.argsort(order).tolist())


def _of_whole(boxes: Boxes, operand: Any, batch: tuple[int, ...]) -> Any:
    """Every box is all of the operand (of what it does not share with the indices)."""
    shared = boxes.shared()
    shape = (*batch, *boxes.shape[shared:])
    return lax.broadcast_in_dim(operand, shape, (*range(shared), *range(len(batch), len(shape))))


def _from_parts(boxes: Boxes, out: Any, batch: tuple[int, ...]) -> Any:
    """What Volta gathers, with the axes of a box in their order and those of size 1."""
    parts, n = boxes.parts(), len(batch)
    out = base.reshape_to(out, (*batch, *(boxes.sizes[d] for d in parts)))
    order = sorted(range(len(parts)), key=parts.__getitem__)
    out = base.permute(out, [*range(n), *(n + i for i in order)])
    return base.reshape_to(out, (*batch, *(boxes.sizes[d] for d in boxes.kept())))


def _all_inside(boxes: Boxes, positions: list[Any], inside: Any, batch: tuple[int, ...]) -> Any:
    """Of each box whether it is inside."""
    n = len(batch)
    good = base.fill(batch, True, dtypes.bool_)
    if inside is not None:
        rest = tuple(range(n, len(shape_of(inside))))
        return lax.reduce_and(inside, rest) if rest else inside
    for d, position in zip(boxes.picked(), positions, strict=True):
        if d in boxes.from_index:
            limits = lax.bitwise_and(lax.ge(position, 0), lax.lt(position, boxes.shape[d]))
            good = lax.bitwise_and(good, limits)
    return good


def _filled(out: Any, inside: Any, value: Any) -> Any:
    """``out`` with the value for boxes that are not inside: what is asked for, or what stands for no value."""
    dtype = dtype_of(out)
    value = _no_value(dtype) if value is None else value
    return lax.select(_spread(inside, shape_of(out)), out, base.fill(shape_of(out), value, dtype))


def _no_value(dtype: np.dtype) -> Any:
    if dtypes.is_integer(dtype):
        return np.iinfo(dtype).max if dtypes.is_unsigned(dtype) else np.iinfo(dtype).min
    return np.nan if dtypes.is_inexact(dtype) else True


# -- scatter -----------------------------------------------------------------------------------------------------------


def scatter_boxes(operand: Any, starts: Any, updates: Any, numbers: Any, mode: str, op: str) -> Any:
    """``operand`` with ``updates`` in its boxes at ``starts``, put there by ``op`` ('set', 'add', 'sub', 'mul', 'min'
    or 'max'); see :class:`volta.lax.ScatterDimensionNumbers`.

    A mode 'fill' leaves boxes out that are not inside; others clip.
    """
    if not shape_of(operand):  # one axis of size 1, which is not among those of a box
        row = numbers._replace(inserted_window_dims=(0,))
        return base.reshape_to(scatter_boxes(base.reshape_to(operand, (1,)), starts, updates, row, mode, op), ())
    shape = shape_of(operand)
    dropped = frozenset((*numbers.inserted_window_dims, *numbers.operand_batching_dims))
    window = iter(shape_of(updates)[i] for i in numbers.update_window_dims)
    sizes = tuple(1 if d in dropped else next(window) for d in range(len(shape)))
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    columns = {d: column for column, d in enumerate(numbers.scatter_dims_to_operand_dims)}
    boxes = Boxes(shape, sizes, columns, batching, dropped, at_least_one=True)
    positions, inside = _indices(boxes, starts, mode)
    if op == "sub":
        updates, op = lax.neg(updates), "add"
    updates = _to_parts(boxes, updates, numbers.update_window_dims, len(shape_of(starts)) - 1)
    kind = "drop" if mode == "fill" else "clip"
    return lax.scatter(operand, updates, _outside(positions, inside), boxes.picked(), boxes.shared(), kind, op)


def _to_parts(boxes: Boxes, updates: Any, window: Sequence[int], n: int) -> Any:
    """Updates with the axes of their boxes behind, in Volta's order."""
    batch_axes = [i for i in range(len(shape_of(updates))) if i not in window]
    updates = base.permute(updates, [*batch_axes, *window])
    batch = shape_of(updates)[:n]
    parts = boxes.parts()
    present = sorted(parts)
    updates = base.reshape_to(updates, (*batch, *(boxes.sizes[d] for d in present)))
    updates = base.permute(updates, [*range(n), *(n + present.index(d) for d in parts)])
    rest = [boxes.sizes[d] for d in (*boxes.long(), *boxes.whole())]
    return base.reshape_to(updates, (*batch, *rest))
