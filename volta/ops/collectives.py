"""Collectives: operations between the examples along an axis that has a name (``vmap(f, axis_name="i")``).

Their batch rules are their meaning: where the named axis is mapped, each is an ordinary operation along it. So a sum
over a named axis has the order of SUM, and the bits of ``sum`` over the batch. Under another mapped axis they stay.

Params ``names`` and ``sizes`` say which axes, and how long they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import bind
from volta.core.ir import subjaxprs
from volta.ops import base
from volta.ops.base import shape_of
from volta.ops.primitive import REGISTRY, Family, NoDerivative, Primitive, Zero, register

Names = tuple[Hashable, ...]
Sizes = tuple[int, ...]
Over = Callable[[Any, Any], tuple[Any, Any]]

__all__: list[str] = []  # their functions, on pytrees, are in volta.lax.parallel


def _linear_jvp(name: str) -> Any:
    return base.linear_jvp(name)


def _beside(primitive: str, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]) -> Any:
    """Under an axis that is not meant: it goes last, where no param counts."""
    (x,), (d,) = args, dims
    last = len(shape_of(x)) - 1
    out = bind(REGISTRY[primitive], base.move_axis(x, d, last), **params)  # type: ignore[arg-type]
    return out, len(shape_of(out)) - 1


def _batched(name: str, along: Callable[..., Any]) -> Callable[..., Any]:
    """The batch rule of a collective: ``along(x, axis, **params)`` where the mapped axis, in front, is meant."""

    def batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, **params: Any) -> Any:
        axis = trace.axis
        if axis.name is None or axis.name not in params["names"]:
            return _beside(name, args, dims, params)
        return along(base.to_front(args[0], dims[0], axis.size), axis, **params)

    return batch


# -- reductions over names ---------------------------------------------------------------------------------------------
# Of several names one after the other is mapped. Their axes gather in front, in the order of the names (`held` says
# which are there), until all are: then they are reduced as one sequence in row-major order.


def _reduced_abstract(x: ShapedArray, *, names: Names, sizes: Sizes, held: tuple[bool, ...]) -> ShapedArray:
    return x.update(shape=x.shape[sum(held) :])


def _reduction(name: str, reduce: str, doc: str, jvp: Any, transpose: Any = None) -> Primitive:
    def along(x: Any, axis: Any, *, names: Names, sizes: Sizes, held: tuple[bool, ...]) -> Any:
        place = names.index(axis.name)
        x = base.move_axis(x, 0, sum(held[:place]))
        held = (*held[:place], True, *held[place + 1 :])
        if all(held):
            return base.bind_named(reduce, x, axes=tuple(range(len(names)))), None
        return base.bind_named(name, x, names=names, sizes=sizes, held=held), None

    return register(
        Primitive(
            name, Family.COLLECTIVE, _reduced_abstract, jvp, _batched(name, along), transpose, doc=f"{doc} named axes."
        )
    )


def _sum_transpose(ct: Any, x: Any, *, names: Names, sizes: Sizes, held: tuple[bool, ...]) -> list[Any]:
    """Every example has had a share in the sum of every other: it gets the sum of their cotangents."""
    if isinstance(ct, Zero):
        return [None]
    rest = [i for i, h in enumerate(held) if not h]
    if rest:
        left = tuple(names[i] for i in rest), tuple(sizes[i] for i in rest)
        ct = base.bind_named("psum", ct, names=left[0], sizes=left[1], held=(False,) * len(rest))
    shape = shape_of(ct)
    return [base.broadcast_to(ct, x.aval.shape, range(len(x.aval.shape) - len(shape), len(x.aval.shape)))]


def _extremum_jvp(name: str, reduce: str) -> Any:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, names: Names, sizes: Sizes, held: Any) -> Any:
        """That of the extremum of all examples, gathered."""
        (x,), (t,) = primals, tangents
        if isinstance(t, Zero):
            out = base.bind_named(name, x, names=names, sizes=sizes, held=held)
            return out, base.zero_like(out)
        for place, (axis, size) in enumerate(zip(names, sizes, strict=True)):
            if not held[place]:
                given = {"names": (axis,), "sizes": (size,), "dimension": place}
                x, t = (base.bind_named("all_gather", v, **given) for v in (x, t))
        rule: Any = REGISTRY[reduce].jvp
        return rule([x], [t], axes=tuple(range(len(names))))

    return jvp


psum_p = _reduction("psum", "reduce_sum", "Sum over", _linear_jvp("psum"), _sum_transpose)
pmax_p = _reduction("pmax", "reduce_max", "Maximum over", _extremum_jvp("pmax", "reduce_max"))
pmin_p = _reduction("pmin", "reduce_min", "Minimum over", _extremum_jvp("pmin", "reduce_min"))


# -- exchanges ---------------------------------------------------------------------------------------------------------


def _gather_abstract(x: ShapedArray, *, names: Names, sizes: Sizes, dimension: int) -> ShapedArray:
    return x.update(shape=(*x.shape[:dimension], *sizes, *x.shape[dimension:]))


def _gather_along(x: Any, axis: Any, *, dimension: int, **params: Any) -> Any:
    return base.move_axis(x, 0, dimension), None


def _gather_transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
    return [None if isinstance(ct, Zero) else base.bind_named("psum_scatter", ct, **params)]


def _scatter_abstract(x: ShapedArray, *, names: Names, sizes: Sizes, dimension: int) -> ShapedArray:
    return x.update(shape=(*x.shape[:dimension], *x.shape[dimension + 1 :]))


def _scatter_along(x: Any, axis: Any, *, dimension: int, **params: Any) -> Any:
    return base.sum_axes(x, (0,)), dimension


def _scatter_transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
    return [None if isinstance(ct, Zero) else base.bind_named("all_gather", ct, **params)]


def _permute_abstract(x: ShapedArray, *, names: Names, sizes: Sizes, perm: Any) -> ShapedArray:
    return x


def _permute_along(x: Any, axis: Any, *, perm: tuple[tuple[int, int], ...], **params: Any) -> Any:
    source = np.full(axis.size, axis.size, np.int32)  # out of range: zero
    for a, b in perm:
        source[b] = a
    return base.bind_named("gather", x, source, axes=(0,), batch_dims=0, mode="zero"), 0


def _permute_transpose(ct: Any, x: Any, *, perm: tuple[tuple[int, int], ...], **params: Any) -> list[Any]:
    back = tuple((b, a) for a, b in perm)
    return [None if isinstance(ct, Zero) else base.bind_named("ppermute", ct, perm=back, **params)]


def _exchange_abstract(x: ShapedArray, *, names: Names, sizes: Sizes, split: int, concat: int) -> ShapedArray:
    rest = [*x.shape[:split], *x.shape[split + 1 :]]
    rest.insert(concat, sizes[0])
    return x.update(shape=tuple(rest))


def _exchange_along(x: Any, axis: Any, *, split: int, concat: int, **params: Any) -> Any:
    """The mapped axis takes the place of the one that is split, which is mapped then."""
    moved = base.move_axis(x, split + 1, 0)  # [split, mapped, the rest]
    return base.move_axis(moved, 1, concat + 1), 0


def _exchange_transpose(ct: Any, x: Any, *, split: int, concat: int, **params: Any) -> list[Any]:
    return [None if isinstance(ct, Zero) else base.bind_named("all_to_all", ct, split=concat, concat=split, **params)]


def _exchange(name: str, doc: str, abstract: Any, along: Any, transpose: Any) -> Primitive:
    batch = _batched(name, along)
    return register(Primitive(name, Family.COLLECTIVE, abstract, _linear_jvp(name), batch, transpose, doc=doc))


all_gather_p = _exchange(
    "all_gather", "The values of all examples along a named axis.", _gather_abstract, _gather_along, _gather_transpose
)
psum_scatter_p = _exchange(
    "psum_scatter", "Each example's part of a sum over a named axis.", _scatter_abstract, _scatter_along,
    _scatter_transpose,
)  # fmt: skip
ppermute_p = _exchange(
    "ppermute", "Values of other examples along a named axis.", _permute_abstract, _permute_along, _permute_transpose
)
all_to_all_p = _exchange(
    "all_to_all", "Each example's part of the values of all, along a named axis.", _exchange_abstract, _exchange_along,
    _exchange_transpose,
)  # fmt: skip


def _index_abstract(*, names: Names, sizes: Sizes) -> ShapedArray:
    return ShapedArray((), dtypes.int32)


def _index_batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, names: Names, sizes: Sizes) -> Any:
    return base.bind_named("iota", dtype=dtypes.int32, shape=(sizes[0],), dimension=0), 0


axis_index_p = register(
    Primitive(
        "axis_index",
        Family.COLLECTIVE,
        _index_abstract,
        NoDerivative("an integer", zero=True),
        _index_batch,
        doc="Which example along a named axis this is.",
    )
)


def mentions(params: dict[str, Any], name: Hashable) -> bool:
    """Whether an equation with these params, or one in a program among them, means the axis of that name."""
    return name in params.get("names", ()) or any(
        mentions(eqn.params, name) for program in subjaxprs(params) for eqn in program.eqns
    )
