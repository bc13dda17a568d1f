"""What a plan is made from: values, and the nodes that compute them.

A :class:`Val` is an array that *may* be stored; a :class:`Node` computes Vals. An operand is a :class:`Ref` (a view of
a Val), a :class:`Const` or an :class:`Iota` (a view of the natural numbers, computed from the loop index).
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from volta.core.ir import Var
from volta.core.source import Source
from volta.xla_like.views import Ints, View, prod


@attrs.define(eq=False, slots=True)
class Val:
    """An array of the program. ``producer`` is None for inputs and constants; ``on_host``: a plan for a GPU keeps it in
    the host's memory (see offload.py)."""

    shape: Ints
    dtype: np.dtype
    producer: Node | None = None
    label: str = ""
    on_host: bool = False
    size: int = attrs.field(init=False, default=attrs.Factory(lambda self: prod(self.shape), takes_self=True))
    nbytes: int = attrs.field(init=False, default=attrs.Factory(lambda self: self.size * self.dtype.itemsize, True))


@attrs.frozen(eq=False, slots=True)
class Ref:
    """A view of a Val. ``after`` holds Vals that must be computed first (how an optimization barrier orders work)."""

    val: Val
    view: View
    after: tuple[Val, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        return self.val.dtype

    @property
    def is_whole(self) -> bool:
        """Whether the view is exactly the Val's memory, in order."""
        return self.view.is_linear and prod(self.view.shape) == self.val.size


@attrs.frozen(eq=False, slots=True)
class Const:
    """A scalar constant, broadcast to ``view.shape``."""

    value: Any
    dtype: np.dtype
    view: View


@attrs.frozen(eq=False, slots=True)
class Iota:
    """``offset + sum(stride * index)`` converted to ``dtype``."""

    dtype: np.dtype
    view: View


Operand = Ref | Const | Iota


def is_positions(x: Operand, axis: int) -> bool:
    """Whether an operand is each element's position along an axis, as an integer of 4 bytes."""
    if not isinstance(x, Iota) or x.dtype.kind not in "iu" or x.dtype.itemsize != 4:
        return False
    return x.view.offset == 0 and x.view.strides == tuple(int(d == axis) for d in range(len(x.view.shape)))


@attrs.define(eq=False, slots=True)
class Node:
    """One operation that needs work. ``kind`` is 'elem', 'gather', 'reduce' or the name of an opaque primitive.

    All operands of an 'elem' node are viewed in the node's own shape. A 'gather' node (also dynamic slices) has its
    table first, viewed as ``strides over the node's shape``, then one index operand per term; ``params['terms']`` holds
    ``(table stride, bound)`` per term and ``params['fill']`` says what out-of-range elements are (see ``Load``): those
    of a last operand where it is 'other'.
    """

    index: int
    kind: str
    name: str
    params: dict[str, Any]
    operands: tuple[Operand, ...]
    shape: Ints
    outputs: tuple[Val, ...]
    source: Source | None = None


@attrs.frozen(eq=False)
class Lowered:
    """Nodes in order, with the program's inputs, constants and results.

    ``operands`` are the program's variables as operands of nodes; ``ends`` says of each equation how many nodes there
    are when it is lowered.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Val, ...]
    consts: tuple[Val, ...]
    outputs: tuple[Val, ...]
    operands: dict[Var, Operand]
    ends: tuple[int, ...]
