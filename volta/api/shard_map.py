"""``shard_map``: a function of one device's part, with collectives between the parts.

It means a program: arguments in equal parts, the function mapped over these, and the results put together again. The
axes that it is mapped over have the names of the mesh's, so collectives are what they are under ``vmap``: a sum over an
axis is SUM over the mesh's places. How many processes there are does not enter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta.api.arguments import check_callable, name_of, numbers_among, operand_of, value_of, with_numbers
from volta.api.shardings import prefix, put
from volta.core import dtypes, pytrees
from volta.core.absent import explains_keywords
from volta.core.axes import Axis
from volta.core.boundary import boundary
from volta.core.errors import ShardingError
from volta.core.sharding import Mesh, NamedSharding, PartitionSpec
from volta.core.source import at_user_line
from volta.ops import base
from volta.ops.shaping import index_in_dim
from volta.trace.batch import batch_flat

Run = Callable[..., list[Any]]


@explains_keywords
def shard_map(
    f: Callable[..., Any] | None = None, *, mesh: Mesh, in_specs: Any, out_specs: Any, check_vma: bool = True
) -> Callable[..., Any]:
    """A function that runs ``f`` on each device's part of its arguments. Without ``f`` it is a decorator.

    Args:
        f: takes parts and gives parts. ``volta.lax.psum``, ``all_gather``, ``psum_scatter``, ``ppermute`` and their
            like, with the names of the mesh's axes, reach the others'.
        mesh: the devices.
        in_specs: what each argument is cut along: a ``PartitionSpec``, or a pytree prefix of the arguments of these.
            Parts are equal. Along the axes that a spec does not name every device has the same.
        out_specs: likewise of the results, which are put together again. What a result's spec does not name it must not
            depend on.
        check_vma: with False, a result is that of the first device along axes that its spec does not name.

    Raises:
        ShardingError: a dimension is not divisible by its axes, the specs do not fit, or a result depends on an axis
            that its spec does not name.

    >>> import numpy as np
    >>> import volta
    >>> from volta.sharding import PartitionSpec as P, make_mesh
    >>> mesh = make_mesh((1,), ("i",))
    >>> volta.shard_map(lambda x: volta.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())(np.float32([1, 2]))
    Array([1., 2.], dtype=float32)
    """
    if f is None:
        return functools.partial(shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
    check_callable(f, "shard_map")
    if not isinstance(mesh, Mesh):
        text = f"shard_map: mesh must be a Mesh, such as volta.make_mesh((2,), ('i',)), not {mesh!r:.60}"
        raise ShardingError(at_user_line(text))
    name = name_of(f)

    @functools.wraps(f, updated=())
    @boundary
    def mapped(*args: Any) -> Any:
        leaves, tree = pytrees.flatten(args)
        specs = in_specs if isinstance(in_specs, PartitionSpec) or not isinstance(in_specs, list) else tuple(in_specs)
        given = [_known(s, mesh) for s in prefix(_shardings(mesh, specs), args, f"in_specs of `{name}`")]
        values = [value_of(x) for x in leaves]
        numbers = numbers_among(leaves, values)
        # A Python number, known or traced, lies nowhere and stays one.
        placed = [
            x if i in numbers or dtypes.is_number(x.aval.dtype, x.aval.weak_type) else put(x, s)
            for i, (x, s) in enumerate(zip(values, given, strict=True))
        ]
        parts = [_parted(x, s, name) for x, s in zip(placed, given, strict=True)]
        seen: list[Any] = []

        def flat(*own: Any) -> list[Any]:
            out = f(*pytrees.unflatten(tree, with_numbers(own, numbers)))
            values, out_tree = pytrees.flatten(out)
            wanted = prefix(_shardings(mesh, out_specs), out, f"out_specs of `{name}`")
            seen[:] = [out_tree, [_known(s, mesh) for s in wanted]]
            return [operand_of(x) for x in values]

        run: Run = flat
        for axis in reversed(mesh.axis_names):
            run = _over(Axis(mesh.shape[axis], axis), [axis in _names(s) for s in given], run, seen, check_vma, name)
        outs = run(*parts)
        out_tree, wanted = seen
        whole = [put(_joined(x, s), s) for x, s in zip(outs, wanted, strict=True)]
        return pytrees.unflatten(out_tree, whole)

    return mapped


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _shardings(mesh: Mesh, specs: Any) -> Any:
    """A tree of specs as one of shardings."""
    return pytrees.map(lambda s: NamedSharding(mesh, s) if _is_spec(s) else s, specs, is_leaf=_is_spec)


def _known(sharding: NamedSharding | None, mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec()) if sharding is None else sharding


def _names(sharding: NamedSharding) -> list[str]:
    """The axes of the mesh that a sharding names, in the mesh's order."""
    used = {axis for dim in range(len(sharding.spec)) for axis in sharding.spec.axes(dim)}
    return [axis for axis in sharding.mesh.axis_names if axis in used]


def _over(axis: Axis, cut: Sequence[bool], inner: Run, seen: list[Any], check: bool, name: str) -> Run:
    """``inner`` mapped over one axis of the mesh, which is in front of those arguments that it cuts, and of results."""

    def run(*args: Any) -> list[Any]:
        dims = [0 if c else None for c in cut]
        outs, out_dims, _ = batch_flat(lambda *xs: (inner(*xs), None), axis, args, dims, name)
        return [_placed(x, d, s) for x, d, s in zip(outs, out_dims, seen[1], strict=True)]

    def _placed(x: Any, dim: int | None, sharding: NamedSharding) -> Any:
        if axis.name in _names(sharding):
            return base.to_front(x, dim, axis.size)
        if dim is None:
            return x
        if check:
            text = f"shard_map of `{name}`: a result depends on the mesh axis {axis.name!r}, which {sharding.spec} in "
            way = "name the axis, or reduce over it (volta.lax.psum); check_vma=False takes the first device's"
            raise ShardingError(at_user_line(f"{text}out_specs does not name: {way}"))
        return index_in_dim(x, 0, dim, keepdims=False)

    return run


def _parted(x: Any, sharding: NamedSharding, name: str) -> Any:
    """An argument with the axes of the mesh that cut it in front, in the mesh's order, then the part."""
    shape, sizes = base.shape_of(x), sharding.mesh.shape
    sharding.layout(shape, f"shard_map of `{name}`: an argument")
    split: list[int] = []
    place: dict[str, int] = {}
    own: list[int] = []
    for d, n in enumerate(shape):
        axes = sharding.spec.axes(d)
        parts = sharding.mesh.parts(axes)
        if n % parts:
            text = (
                f"shard_map of `{name}`: dimension {d} of {shape} is cut in {parts} along {axes}, and is not divisible"
            )
            raise ShardingError(at_user_line(text))
        for axis in axes:
            place[axis] = len(split)
            split.append(sizes[axis])
        own.append(len(split))
        split.append(n // parts)
    order = [*(place[axis] for axis in _names(sharding)), *own]
    return base.permute(base.reshape_to(x, tuple(split)), order)


def _joined(x: Any, sharding: NamedSharding) -> Any:
    """A result of parts as a whole: the inverse of `_parted`."""
    names, shape = _names(sharding), base.shape_of(x)
    order: list[int] = []
    whole: list[int] = []
    for d, n in enumerate(shape[len(names) :]):
        axes = sharding.spec.axes(d)
        order += [*(names.index(axis) for axis in axes), len(names) + d]
        whole.append(n * sharding.mesh.parts(axes))
    if sorted(order) != list(range(len(shape))):
        text = f"shard_map: a result's part of shape {shape[len(names) :]} has fewer dimensions than {sharding.spec}"
        raise ShardingError(at_user_line(text))
    return base.reshape_to(base.permute(x, order), tuple(whole))
