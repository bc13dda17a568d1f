"""Gather and scatter of boxes, as ``jax.lax`` has them: dimension numbers say which axis of what is which.

``volta.numpy`` says the same by ``x[...]`` and ``x.at[...]``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.boxes import gather_boxes, scatter_boxes
from volta.ops import lax

__all__ = [
    "GatherDimensionNumbers", "GatherScatterMode", "ScatterDimensionNumbers", "gather", "scatter", "scatter_add",
    "scatter_max", "scatter_min", "scatter_mul", "scatter_sub",
]  # fmt: skip


class GatherDimensionNumbers(NamedTuple):
    """Of :func:`gather`: ``offset_dims`` are the result's axes that are a box's, ``collapsed_slice_dims`` the operand's
    axes (of which a box has one element) that are not among them; ``start_index_map`` has the operand's axis for each
    column of the indices. Axes in ``operand_batching_dims`` go along with the indices' ``start_indices_batching_dims``.

    >>> lax.GatherDimensionNumbers((1,), (0,), (0,)).offset_dims
    (1,)
    """

    offset_dims: Sequence[int]
    collapsed_slice_dims: Sequence[int]
    start_index_map: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    start_indices_batching_dims: Sequence[int] = ()


class ScatterDimensionNumbers(NamedTuple):
    """Of :func:`scatter`: ``update_window_dims`` are the updates' axes that are a box's, ``inserted_window_dims`` the
    operand's axes (of which a box has one element) that are not among them; ``scatter_dims_to_operand_dims`` has the
    operand's axis for each column of the indices. Axes in ``operand_batching_dims`` go along with the indices'
    ``scatter_indices_batching_dims``.

    >>> lax.ScatterDimensionNumbers((1,), (0,), (0,)).update_window_dims
    (1,)
    """

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()


class GatherScatterMode(enum.Enum):
    """What becomes of boxes that are not wholly inside: CLIP moves them inside, FILL_OR_DROP fills or leaves them out,
    PROMISE_IN_BOUNDS says that there are none (they are moved inside here, always).

    >>> lax.GatherScatterMode.from_any("drop").name
    'FILL_OR_DROP'
    """

    CLIP = enum.auto()
    FILL_OR_DROP = enum.auto()
    PROMISE_IN_BOUNDS = enum.auto()

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """A mode by its name: 'clip', 'fill' or 'drop' (None too), 'promise_in_bounds'.

        Raises:
            ValueError: there is no such mode.
        """
        if isinstance(mode, GatherScatterMode):
            return mode
        found = _MODES.get(mode)
        if found is None:
            raise ValueError(at_user_line(f"no mode {mode!r}; there are 'clip', 'fill', 'drop', 'promise_in_bounds'"))
        return found


_MODES = {
    "clip": GatherScatterMode.CLIP,
    **dict.fromkeys(("fill", "drop", None), GatherScatterMode.FILL_OR_DROP),
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}


def _kind(mode: Any) -> str:
    return "fill" if GatherScatterMode.from_any(mode) is GatherScatterMode.FILL_OR_DROP else "clip"


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: Any = None,
    slice_sizes: Any = 0,
    mode: Any = None,
    *,
    fill_value: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    axes: Any = None,
    batch_dims: int = 0,
) -> Array:
    """Boxes of ``operand``, of ``slice_sizes``, whose corners stand along the last axis of ``start_indices``.

    Without ``GatherDimensionNumbers`` it is the primitive, ``gather(operand, indices, axes, batch_dims, mode)``:
    it takes one array of indices for each of ``axes``, all of one shape batch + I, and gives an array of shape batch +
    I + (the operand's remaining axes); the first ``batch_dims`` axes are shared. Its modes for indices out of range are
    ``'fill'``, ``'zero'`` and ``'clip'``.

    Args:
        operand: any array.
        start_indices: integers, of shape (…, number of columns).
        dimension_numbers: a :class:`GatherDimensionNumbers`.
        slice_sizes: a box's size along each axis of the operand.
        mode: a :class:`GatherScatterMode` or its name; None promises that all boxes are inside.
        fill_value: what boxes have that are not inside, in mode ``'fill'``; None is NaN (signed integers: the smallest
            value; unsigned ones: the largest; booleans: True).
        indices_are_sorted, unique_indices: for JAX's sake; nothing depends on them.

    Raises:
        ShapeError: sizes and dimension numbers do not fit the shapes.
        DTypeError: indices that are no integers.
        ValueError: there is no such mode.

    >>> numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
    >>> lax.gather(np.arange(5), np.int32([[0], [3]]), numbers, (2,)).tolist()
    [[0, 1], [3, 4]]
    >>> lax.gather(np.float32([10, 20, 30]), [np.int32([2, 0, 9])], (0,))
    Array([30., 10., nan], dtype=float32)
    """
    if not isinstance(dimension_numbers, GatherDimensionNumbers):
        axes = dimension_numbers if axes is None else axes
        return lax.gather(operand, start_indices, axes, slice_sizes or batch_dims, "fill" if mode is None else mode)
    numbers, sizes = dimension_numbers, tuple(slice_sizes)
    boxes = _checked("gather", operand, start_indices, numbers, numbers.collapsed_slice_dims, sizes)
    rank = len(get_aval(start_indices).shape) - 1 + boxes
    if len(numbers.offset_dims) != boxes or not _ascend(numbers.offset_dims, rank):
        raise _misfit("gather", operand, start_indices, f"{numbers}: a box has {boxes} axes in a result of {rank}")
    kind = "clip" if mode is None else _kind(mode)
    out: Array = gather_boxes(operand, start_indices, numbers, sizes, kind, fill_value)
    return out


def scatter(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any = None,
    batch_dims: int = 0,
    mode: Any = None,
    op: str = "set",
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    axes: Any = None,
) -> Array:
    """``operand`` with ``updates`` in the boxes whose corners stand along the last axis of ``scatter_indices``.

    Without ``ScatterDimensionNumbers`` it is the primitive, ``scatter(operand, updates, indices, axes, batch_dims=0,
    mode="drop", op="set")``, of updates with the shape that :func:`gather` gives for these indices; its modes are
    ``'drop'`` and ``'clip'``.

    Args:
        operand: any array.
        scatter_indices: integers, of shape (…, number of columns).
        updates: of the operand's dtype.
        dimension_numbers: a :class:`ScatterDimensionNumbers`.
        mode: a :class:`GatherScatterMode` or its name; None leaves out boxes that are not inside.
        op: ``'set'``, ``'add'``, ``'sub'``, ``'mul'``, ``'min'`` or ``'max'``.
        indices_are_sorted, unique_indices: for JAX's sake; nothing depends on them.

    Where boxes overlap: of ``'set'`` the last update in row-major order stays; of ``'add'`` the updates of one position
    are summed as SUM in that order, then added to the operand.

    Raises:
        ShapeError: updates and dimension numbers do not fit the shapes.
        DTypeError: indices that are no integers, or updates of another dtype.
        ValueError: there is no such mode.

    >>> numbers = lax.ScatterDimensionNumbers((), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> lax.scatter(np.zeros(3, np.float32), np.int32([[2], [0]]), np.float32([5, 6]), numbers)
    Array([6., 0., 5.], dtype=float32)
    >>> lax.scatter(np.zeros(3, np.float32), np.float32([1, 2, 4]), [np.int32([0, 2, 0])], (0,), op="add")
    Array([5., 0., 2.], dtype=float32)
    """
    if not isinstance(dimension_numbers, ScatterDimensionNumbers):
        axes = dimension_numbers if axes is None else axes
        mode = "drop" if mode is None else mode
        return lax.scatter(operand, scatter_indices, updates, axes, batch_dims, mode, op)
    numbers, shape = dimension_numbers, get_aval(updates).shape
    front, window = get_aval(scatter_indices).shape[:-1], tuple(numbers.update_window_dims)
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(get_aval(operand).shape)) if d not in left_out]
    if len(kept) != len(window) or not _ascend(window, len(shape)):
        raise _misfit("scatter", operand, scatter_indices, f"{numbers}: a box has {len(kept)} axes")
    sizes = [1] * len(get_aval(operand).shape)
    for d, axis in zip(kept, window, strict=True):
        sizes[d] = shape[axis]
    _checked("scatter", operand, scatter_indices, numbers, numbers.inserted_window_dims, tuple(sizes))
    if tuple(n for i, n in enumerate(shape) if i not in window) != front:
        why = f"beside a box's axes the updates {get_aval(updates).short()} must have the indices' {front}"
        raise _misfit("scatter", operand, scatter_indices, why)
    out: Array = scatter_boxes(operand, scatter_indices, updates, numbers, _kind(mode), op)
    return out


def _ascend(dims: Sequence[int], rank: int) -> bool:
    return list(dims) == sorted(set(dims)) and all(0 <= d < rank for d in dims)


def _checked(
    name: str, operand: Any, starts: Any, numbers: Any, collapsed: Sequence[int], sizes: tuple[int, ...]
) -> int:
    """How many axes a box has; refuses what does not fit."""
    shape, index = get_aval(operand).shape, get_aval(starts)
    if not dtypes.is_integer(index.dtype):
        raise DTypeError(at_user_line(f"{name}: the indices must be integers, got {index.short()}"))
    columns, batching, theirs = tuple(numbers[2]), tuple(numbers[3]), tuple(numbers[4])
    dims = (*columns, *batching, *collapsed)
    if not index.shape or index.shape[-1] != len(columns):
        why = f"the indices need an axis of {len(columns)} columns in the end, one for each of {columns}"
    elif len(sizes) != len(shape) or any(not 0 <= n <= d for n, d in zip(sizes, shape, strict=True)):
        why = f"boxes of sizes {sizes} do not fit in"
    elif not all(0 <= d < len(shape) for d in dims) or len({*columns, *batching}) != len(columns) + len(batching):
        why = f"{numbers}: axes of the operand must be there, and in one place only"
    elif not _ascend((*sorted((*collapsed, *batching)),), len(shape)) or any(
        sizes[d] != 1 for d in dims[len(columns) :]
    ):
        why = f"{numbers}: a box must have one element along the axes that its part of the result has not"
    elif len(batching) != len(theirs) or any(
        not 0 <= j < len(index.shape) - 1 or index.shape[j] != shape[d] for d, j in zip(batching, theirs, strict=True)
    ):
        why = f"{numbers}: axes that the operand and the indices share must have one size"
    else:
        return len(shape) - len({*collapsed, *batching})
    raise _misfit(name, operand, starts, why)


def _misfit(name: str, operand: Any, starts: Any, why: str) -> ShapeError:
    avals = get_aval(operand).short(), get_aval(starts).short()
    return ShapeError(at_user_line(f"{name} of {avals[0]} by indices {avals[1]}: {why}"))


def _scatter_by(op: str, doc: str, example: str) -> Callable[..., Array]:
    def scatter_by(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
    ) -> Array:
        return scatter(operand, scatter_indices, updates, dimension_numbers, mode=mode, op=op)

    scatter_by.__name__ = scatter_by.__qualname__ = f"scatter_{op}"
    scatter_by.__doc__ = f"""{doc}: :func:`scatter` with ``op={op!r}``, and its errors.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_{op}(np.int32([1, 2]), np.int32([[0], [1]]), np.int32([5, 0]), numbers).tolist()
    {example}
    """
    return scatter_by


scatter_add = _scatter_by("add", "The operand plus the updates", "[6, 2]")
scatter_sub = _scatter_by("sub", "The operand less the updates", "[-4, 2]")
scatter_mul = _scatter_by("mul", "The operand times the updates", "[5, 0]")
scatter_min = _scatter_by("min", "The smaller ones of the operand's elements and the updates", "[1, 0]")
scatter_max = _scatter_by("max", "The larger ones of the operand's elements and the updates", "[5, 2]")
