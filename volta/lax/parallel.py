"""Collectives, as in ``jax.lax``: operations between the examples along an axis that ``vmap(f, axis_name=...)`` maps.

A name that no axis has is an AxisNameError, a NameError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from volta.api.arguments import operand_of
from volta.core import axes, dtypes, pytrees
from volta.core.array import Array
from volta.core.errors import ShapeError, UnsupportedOperationError
from volta.core.source import at_user_line
from volta.ops import base, lax
from volta.ops.base import bind_named

__all__ = [
    "all_gather", "all_to_all", "axis_index", "axis_size", "pmax", "pmean", "pmin", "ppermute", "pshuffle", "psum",
    "psum_scatter", "pswapaxes",
]  # fmt: skip


def _axis(operation: str, axis_name: Any, axis_index_groups: Any = None) -> dict[str, Any]:
    if axis_index_groups is not None:
        raise UnsupportedOperationError(
            at_user_line(f"{operation}: axis_index_groups are not there: map two axes, and name the one that is meant")
        )
    names = axes.names_of(axis_name)
    return {"names": names, "sizes": tuple(axes.size_of(operation, name) for name in names)}


def _one(operation: str, axis_name: Any, axis_index_groups: Any = None) -> dict[str, Any]:
    found = _axis(operation, axis_name, axis_index_groups)
    if len(found["names"]) != 1:
        raise UnsupportedOperationError(at_user_line(f"{operation}: takes the name of one axis, got {axis_name!r}"))
    return found


def _reduced(operation: str, x: Any, axis_name: Any, axis_index_groups: Any) -> Any:
    over = _axis(operation, axis_name, axis_index_groups)
    held = (False,) * len(over["names"])
    return pytrees.map(lambda leaf: bind_named(operation, operand_of(leaf), held=held, **over), x)


def _summable(leaf: Any) -> Any:
    """An array to add up: of booleans those that are true are counted."""
    x = operand_of(leaf)
    return x.astype(dtypes.int32) if x.dtype == dtypes.bool_ else x


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over the examples along a named axis, which all of them get.

    It has the bits of ``sum`` over the batch; of a tuple of names, over all of these axes as one sequence in row-major
    order. A Python number is multiplied by the axis' size: ``psum(1, "i")`` is that size, a Python int.

    Args:
        x: a pytree of arrays.
        axis_name: a name, or a tuple of names.
        axis_index_groups: None.

    Raises:
        AxisNameError: no axis has that name.

    >>> import volta
    >>> volta.vmap(lambda x: x / lax.psum(x, "i"), axis_name="i")(np.float32([1, 3]))
    Array([0.25, 0.75], dtype=float32)
    """
    over = _axis("psum", axis_name, axis_index_groups)
    held = (False,) * len(over["names"])

    def summed(leaf: Any) -> Any:
        if type(leaf) in (bool, int, float, complex):
            for size in over["sizes"]:
                leaf = leaf * size
            return leaf
        return bind_named("psum", _summable(leaf), held=held, **over)

    return pytrees.map(summed, x)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over the examples along a named axis, MEAN of the bit contract; of integers in the default float dtype.

    >>> import volta
    >>> volta.vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(np.float32([1, 3]))
    Array([-1.,  1.], dtype=float32)
    """
    count = psum(1, axis_name, axis_index_groups=axis_index_groups)

    def mean(leaf: Any) -> Any:
        leaf = operand_of(leaf)
        if not dtypes.is_inexact(leaf.dtype):
            leaf = lax.convert_element_type(leaf, dtypes.DEFAULT_FLOAT)
        return lax.div(psum(leaf, axis_name), float(count))

    return pytrees.map(mean, x)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The maximum over the examples along a named axis, element by element.

    >>> import volta
    >>> volta.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(np.float32([1, 3]))
    Array([3., 3.], dtype=float32)
    """
    return _reduced("pmax", x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The minimum over the examples along a named axis, element by element.

    >>> import volta
    >>> volta.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(np.float32([1, 3]))
    Array([1., 1.], dtype=float32)
    """
    return _reduced("pmin", x, axis_name, axis_index_groups)


def all_gather(x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False) -> Any:
    """The values of all examples along a named axis, stacked along a new ``axis``; ``tiled``: joined along that one.

    >>> import volta
    >>> volta.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i", out_axes=None)(np.float32([1, 3]))
    Array([1., 3.], dtype=float32)
    """
    over = _axis("all_gather", axis_name, axis_index_groups)

    def gathered(leaf: Any) -> Array:
        x = operand_of(leaf)
        place = base.canonical_axis("all_gather", axis, x.ndim + (not tiled))
        out = x
        for name, size in reversed(list(zip(over["names"], over["sizes"], strict=True))):
            out = bind_named("all_gather", out, names=(name,), sizes=(size,), dimension=place)
        after = place + len(over["names"]) + tiled
        return lax.reshape(out, (*out.shape[:place], math.prod(out.shape[place:after]), *out.shape[after:]))

    return pytrees.map(gathered, x)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Each example's part of the sum over a named axis: element i of ``scatter_dimension`` for example i.

    ``tiled``: that axis is cut into as many equal parts as there are examples, and stays.

    Raises:
        ShapeError: the axis does not have the size of the named one (or a multiple of it).

    >>> import volta
    >>> volta.vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(np.float32([[1, 2], [3, 4]]))
    Array([4., 6.], dtype=float32)
    """
    over = _one("psum_scatter", axis_name, axis_index_groups)

    def scattered(leaf: Any) -> Array:
        x = _summable(leaf)
        place = base.canonical_axis("psum_scatter", scatter_dimension, x.ndim)
        x = _parts("psum_scatter", x, place, axis_name, over["sizes"][0], tiled)
        return bind_named("psum_scatter", x, dimension=place, **over)

    return pytrees.map(scattered, x)


def _parts(operation: str, x: Array, place: int, name: Any, count: int, tiled: bool) -> Array:
    """``x`` with a part for each example along axis ``place``; ``tiled``: that axis in parts, which stays behind."""
    size = x.shape[place]
    if tiled and size % count == 0:
        return lax.reshape(x, (*x.shape[:place], count, size // count, *x.shape[place + 1 :]))
    if tiled or size != count:
        must = "be a multiple of" if tiled else "have"
        raise ShapeError(
            at_user_line(f"{operation}: axis {place} of shape {x.shape} must {must} the size of axis {name!r}, {count}")
        )
    return x


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Values sent along a named axis: for each pair ``(source, destination)`` example ``destination`` gets that of
    example ``source``, and zeros if nobody sends to it.

    Raises:
        ShapeError: a number is out of range, or occurs twice among the sources or the destinations.

    >>> import volta
    >>> volta.vmap(lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2)]), axis_name="i")(np.float32([1, 2, 3]))
    Array([0., 1., 2.], dtype=float32)
    """
    over = _one("ppermute", axis_name)
    (size,) = over["sizes"]
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    for column in zip(*pairs, strict=True):
        if len(set(column)) < len(column) or not all(0 <= i < size for i in column):
            raise ShapeError(
                at_user_line(
                    f"ppermute: sources and destinations must be different numbers below {size}, the size of axis "
                    f"{axis_name!r}, got {list(pairs)}"
                )
            )
    return pytrees.map(lambda leaf: bind_named("ppermute", operand_of(leaf), perm=pairs, **over), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Example i gets the value of example ``perm[i]``.

    >>> import volta
    >>> volta.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(np.float32([1, 2, 3]))
    Array([3., 1., 2.], dtype=float32)
    """
    if sorted(perm) != list(range(axes.size_of("pshuffle", axis_name))):
        raise ShapeError(at_user_line(f"pshuffle: {list(perm)} is no permutation of axis {axis_name!r}"))
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)), strict=True)))


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Element i of ``split_axis`` goes to example i; what an example gets is stacked along ``concat_axis``.

    ``tiled``: ``split_axis`` is cut into equal parts, and stays; what an example gets is joined along ``concat_axis``.

    Raises:
        ShapeError: ``split_axis`` does not have the size of the named axis (or a multiple of it).

    >>> import volta
    >>> volta.vmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(np.int32([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
    """
    over = _one("all_to_all", axis_name, axis_index_groups)

    def exchanged(leaf: Any) -> Array:
        x = operand_of(leaf)
        split, concat = (base.canonical_axis("all_to_all", a, x.ndim) for a in (split_axis, concat_axis))
        x = _parts("all_to_all", x, split, axis_name, over["sizes"][0], tiled)
        out = bind_named("all_to_all", x, split=split, concat=concat, **over)
        if not tiled:
            return out
        shape = (*out.shape[:concat], out.shape[concat] * out.shape[concat + 1], *out.shape[concat + 2 :])
        return lax.reshape(out, shape)

    return pytrees.map(exchanged, x)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """The named axis and axis ``axis``, of the same size, change places.

    >>> import volta
    >>> volta.vmap(lambda x: lax.pswapaxes(x, "i", 0), axis_name="i")(np.int32([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def axis_index(axis_name: Any) -> Array:
    """Which example along a named axis this is, an int32; of a tuple of names in row-major order.

    >>> import volta
    >>> volta.vmap(lambda x: x + lax.axis_index("i"), axis_name="i")(np.int32([10, 20]))
    Array([10, 21], dtype=int32)
    """
    over = _axis("axis_index", axis_name)
    total: Any = None
    for name, size in zip(over["names"], over["sizes"], strict=True):
        index = bind_named("axis_index", names=(name,), sizes=(size,))
        total = index if total is None else lax.add(lax.mul(total, size), index)
    return total


def axis_size(axis_name: Any) -> int:
    """How many examples there are along a named axis.

    >>> import volta
    >>> volta.vmap(lambda x: x / lax.axis_size("i"), axis_name="i")(np.float32([10, 20]))
    Array([ 5., 10.], dtype=float32)
    """
    return math.prod(_axis("axis_size", axis_name)["sizes"])
