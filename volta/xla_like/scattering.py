"""A scatter as a node: one row-major target for each row of updates, −1 where it is out of range; or bare targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.ir import Eqn
from volta.xla_like.nodes import Const, Operand, Ref, Val
from volta.xla_like.ordering import Scatter, ScatterSpec
from volta.xla_like.views import Ints, View, prod, row_major

Bare = Callable[[Scatter], bool]
"""Whether the kernels of a scatter read targets of 32 bits as they come, and leave out those that are out of range."""


class Lowering(Protocol):
    """What is needed of the lowering that comes to such an equation."""

    @property
    def bare(self) -> Bare: ...

    def add(
        self, kind: str, name: str, params: dict[str, Any], operands: Sequence[Operand], shape: Ints,
        outs: Sequence[ShapedArray],
    ) -> tuple[Val, ...]: ...  # fmt: skip

    def whole(self, val: Val) -> Ref: ...

    def contiguous(self, operand: Operand) -> Ref: ...

    def reshaped(self, x: Operand, shape: Ints) -> Operand: ...


def lower_scatter(low: Lowering, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
    table, updates, *indices = operands
    nb, axes = eqn.params["batch_dims"], eqn.params["axes"]
    rank = len(table.view.shape)
    rest = tuple(d for d in range(nb, rank) if d not in axes)
    order = tuple(range(nb)) + tuple(axes) + rest
    table = attrs.evolve(table, view=table.view.transpose(order))
    if not isinstance(table, Const):  # a constant is written where the result will be
        table = low.contiguous(table)
    shape = table.view.shape
    picked, index_shape = shape[nb : nb + len(axes)], indices[0].view.shape
    batch, width = prod(shape[:nb]), prod(shape[nb + len(axes) :])
    count = prod(index_shape[nb:])

    sizes = (batch, prod(picked), width, count)
    flat, clip = [low.reshaped(x, (batch * count,)) for x in indices], eqn.params["mode"] == "clip"
    narrow = len(flat) == 1 and flat[0].dtype == np.int32 and not clip
    if narrow and low.bare(Scatter(ScatterSpec(eqn.params["op"], table.dtype), *sizes)):
        target = low.contiguous(flat[0])
    else:
        target, inside = _targets(low, flat, picked, clip)
        if inside is not None:
            minus = Const(-1, target.dtype, View((), ()))
            target = _op(low, "select_n", [inside, minus, target], target.dtype)
    (out,) = low.add(
        "scatter", "scatter", {"op": eqn.params["op"], "sizes": sizes},
        [table, low.contiguous(updates), target], shape, [ShapedArray(shape, table.dtype)],
    )  # fmt: skip
    back = tuple(order.index(d) for d in range(rank))
    return Ref(out, View.of(shape).transpose(back))


def _targets(low: Lowering, indices: Sequence[Operand], sizes: Ints, clip: bool) -> tuple[Ref, Ref | None]:
    """Indices along several dimensions as one row-major index, and (unless clipped) whether all are in range."""
    int64, boolean = np.dtype(np.int64), np.dtype(np.bool_)

    def const(n: int) -> Const:
        return Const(n, int64, View((), ()))

    total: Ref | None = None
    inside: Ref | None = None
    for x, size, step in zip(indices, sizes, row_major(sizes), strict=True):
        if x.dtype == np.uint64:  # what is beyond int64 is out of range as well
            x = _op(low, "min", [x, Const(2**63 - 1, x.dtype, View((), ()))], x.dtype)
        i = _op(low, "convert_element_type", [x], int64, new_dtype=int64)
        if clip:
            i = _op(low, "max", [const(0), _op(low, "min", [i, const(size - 1)], int64)], int64)
        else:
            above, below = _op(low, "ge", [i, const(0)], boolean), _op(low, "lt", [i, const(size)], boolean)
            both = _op(low, "and", [above, below], boolean)
            inside = both if inside is None else _op(low, "and", [inside, both], boolean)
        i = _op(low, "mul", [i, const(step)], int64)
        total = i if total is None else _op(low, "add", [total, i], int64)
    assert total is not None
    return total, inside


def _op(low: Lowering, name: str, operands: Sequence[Operand], dtype: np.dtype, **params: Any) -> Ref:
    """An elementwise node over operands of one shape (constants are broadcast)."""
    shape = next(x.view.shape for x in operands if x.view.shape)
    wide = [x if x.view.shape == shape else attrs.evolve(x, view=x.view.broadcast(shape, ())) for x in operands]
    (val,) = low.add("elem", name, params, wide, shape, [ShapedArray(shape, dtype)])
    return low.whole(val)
