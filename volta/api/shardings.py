"""Functions over several workers: shardings of arguments and results, and arrays cut over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from volta.api.programs import FlatCall, TracedCall
from volta.core import pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.errors import ShardingError
from volta.core.interp import Tracer
from volta.core.sharding import Mesh, NamedSharding, SingleDeviceSharding, box_of, local_shape
from volta.core.source import at_user_line
from volta.ops.base import settled
from volta.runtime import sharded, spread, workers
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.sharded import ShardedArray
from volta.trace.constraint import constrain


class Shardings:
    """What a jitted function was told of how its arguments and results lie."""

    def __init__(self, name: str, given: Any, wanted: Any):
        self._name, self._given, self._wanted = name, given, wanted
        self.given = given is not None or wanted is not None

    def key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """How the arguments of a call lie, where one lies on several devices; and on which engine."""
        if not self.given and not any(type(x) is ShardedArray for x in values):
            return ()
        return *(x.sharding if type(x) is ShardedArray else None for x in values), workers.engine()

    def compiled(
        self, traced: TracedCall, call: FlatCall, values: Sequence[Any], donated: Sequence[int]
    ) -> spread.SpreadExecutable | None:
        """The executable of a call that several workers share; None where one runs it."""
        if not self.given and not spread.is_spread(traced.program, values):
            return None
        wishes = prefix(self._given, call.args, f"in_shardings of `{self._name}`")
        wishes += [None] * (len(values) - len(wishes))  # keyword arguments
        outputs: list[NamedSharding | None] | None = None
        if self._wanted is not None:
            dummy = pytrees.unflatten(traced.out_tree, list(range(len(traced.program.out_avals))))
            outputs = prefix(self._wanted, dummy, f"out_shardings of `{self._name}`")
        if all(s is None for s in (*wishes, *(outputs or ()))) and not spread.is_spread(traced.program, values):
            return None
        return spread.compile(traced.program, values, wishes=wishes, outputs=outputs, donated=donated, name=self._name)


def prefix(shardings: Any, tree: Any, what: str) -> list[NamedSharding | None]:
    """One sharding a leaf of ``tree``, from a pytree prefix of shardings."""
    if shardings is None or isinstance(shardings, NamedSharding):
        return [shardings] * len(pytrees.leaves(tree))
    try:
        parts = optree.tree_flatten_one_level(shardings, namespace=pytrees.NAMESPACE)
    except ValueError:
        text = f"{what}: an entry must be a NamedSharding or None, not {shardings!r:.80}"
        raise ShardingError(at_user_line(text)) from None
    try:
        whole = optree.tree_flatten_one_level(tree, namespace=pytrees.NAMESPACE)
    except ValueError:
        whole = None
    same_kind = (
        isinstance(shardings, (list, tuple)) and isinstance(tree, (list, tuple)) or type(shardings) is type(tree)
    )
    if whole is None or not same_kind or list(whole.entries) != list(parts.entries):
        seen = "one array" if whole is None else f"{type(tree).__name__} with entries {list(whole.entries)}"
        text = f"{what}: {shardings!r:.80} stands where the value is {seen}; it must be a prefix of the structure"
        raise ShardingError(at_user_line(f"{text}, where a NamedSharding stands for everything below it"))
    pairs = zip(parts.children, whole.children, strict=True)
    return [s for part, below in pairs for s in prefix(part, below, what)]


def put(x: Any, sharding: NamedSharding) -> Any:
    """One leaf, on the devices of a mesh. Tracers become constrained."""
    x = x if isinstance(x, ShardedArray) else settled(x)
    if isinstance(x, Tracer):
        return constrain(x, sharding)
    if isinstance(x, ShardedArray):
        if x.sharding.mesh == sharding.mesh:
            return spread.put(x, sharding)
        x = x.assembled()
    return sharded.cut(as_array(x), sharding, "device_put: an array")


def make_array_from_process_local_data(
    sharding: NamedSharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> Any:
    """An array of which each process brings the part that its devices have.

    Args:
        sharding: how the whole array lies.
        local_data: this process's part: the smallest box of the array that holds the parts of its devices.
        global_shape: the shape of the whole; without it the parts of the processes must be equal.

    Raises:
        ShardingError: the data is not of the shape of this process's part, or its devices' parts make no box.

    >>> import numpy as np
    >>> import volta
    >>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
    >>> rows = NamedSharding(make_mesh((1,), ("data",)), P("data"))
    >>> volta.make_array_from_process_local_data(rows, np.arange(3, dtype=np.float32)).shape
    (3,)
    """
    data = as_array(settled(local_data) if isinstance(local_data, Array) else np.asarray(local_data))
    mesh = sharding.mesh
    ranks = sharded.local_ranks(mesh)
    if not ranks:
        raise ShardingError(at_user_line(f"make_array_from_process_local_data: {mesh} has no device of this process"))
    shape = tuple(global_shape) if global_shape is not None else _whole_shape(sharding, data.aval, ranks)
    layout = sharding.layout(shape, "make_array_from_process_local_data: an array")
    boxes = [box_of(mesh, layout, shape, rank) for rank in ranks]
    outer = tuple((min(a for a, _ in dim), max(b for _, b in dim)) for dim in zip(*boxes, strict=True))
    held = tuple(b - a for a, b in outer)
    if data.aval.shape != held:
        text = f"make_array_from_process_local_data: this process has {held} of the {shape} array, not {data.shape}"
        raise ShardingError(at_user_line(text))

    def part(rank: int) -> ConcreteArray:
        box = boxes[ranks.index(rank)]
        return sharded.part_of(
            data, tuple((a - first, b - first) for (a, b), (first, _) in zip(box, outer, strict=True))
        )

    return sharded.spread_over(sharding, data.aval.update(shape=shape), part)


def _whole_shape(sharding: NamedSharding, local: ShapedArray, ranks: Sequence[int]) -> tuple[int, ...]:
    """The shape of the whole if all processes bring as much: each part of a dimension is as long as this one's."""
    mesh, shape = sharding.mesh, []
    for dim, n in enumerate(local.shape):
        axes = sharding.spec.axes(dim)
        here = len({mesh.part(rank, axes) for rank in ranks})
        shape.append(n * mesh.parts(axes) // here)
    return tuple(shape)


def make_array_from_callback(shape: Sequence[int], sharding: NamedSharding, data_callback: Callable[[Any], Any]) -> Any:
    """An array whose parts ``data_callback`` gives: it is called with the index of each part that is here.

    >>> import numpy as np
    >>> import volta
    >>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
    >>> rows = NamedSharding(make_mesh((1,), ("data",)), P("data"))
    >>> volta.make_array_from_callback((4,), rows, lambda index: np.arange(4)[index]).tolist()
    [0, 1, 2, 3]
    """
    shape, mesh = tuple(shape), sharding.mesh
    layout = sharding.layout(shape, "make_array_from_callback: an array")

    def part_of(rank: int) -> ConcreteArray:
        box = box_of(mesh, layout, shape, rank)
        part = as_array(np.asarray(data_callback(tuple(slice(a, b) for a, b in box))))
        want = local_shape(mesh, layout, shape, rank)
        if part.shape != want:
            text = f"make_array_from_callback: the part of {mesh.ranks[rank]} is of shape {want}, not {part.shape}"
            raise ShardingError(at_user_line(text))
        return part

    parts = {rank: part_of(rank) for rank in sharded.local_ranks(mesh)}
    (first, *_) = parts.values()
    return sharded.spread_over(sharding, first.aval.update(shape=shape), parts.__getitem__)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: NamedSharding | SingleDeviceSharding, arrays: Sequence[Any]
) -> Any:
    """An array of the parts that this process's devices have.

    Args:
        shape: the whole array's.
        sharding: how it lies.
        arrays: a part for each device of this process, in the order of ``sharding.addressable_devices_indices_map``.

    Raises:
        ShardingError: there are more or fewer parts than devices, or one has another shape than its device's part.

    >>> import volta
    >>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
    >>> rows = NamedSharding(make_mesh((1,), ("data",)), P("data"))
    >>> volta.make_array_from_single_device_arrays((2,), rows, [volta.numpy.arange(2)]).tolist()
    [0, 1]
    """
    what, shape = "make_array_from_single_device_arrays", tuple(shape)
    parts = [as_array(settled(x)) for x in arrays]
    if isinstance(sharding, SingleDeviceSharding):
        wanted = {0: shape}
    else:
        layout = sharding.layout(shape, f"{what}: an array")
        wanted = {r: local_shape(sharding.mesh, layout, shape, r) for r in sharded.local_ranks(sharding.mesh)}
    if [x.shape for x in parts] != list(wanted.values()):
        text = f"parts of shapes {list(wanted.values())} are needed, got {[x.shape for x in parts]}"
        raise ShardingError(at_user_line(f"{what}: {text}"))
    if len({x.dtype for x in parts}) > 1:
        text = f"{what}: the parts have dtypes {', '.join(x.dtype.name for x in parts)}, and an array has one"
        raise ShardingError(at_user_line(text))
    if isinstance(sharding, SingleDeviceSharding):
        return parts[0]
    found = dict(zip(wanted, parts, strict=True))
    return sharded.spread_over(sharding, parts[0].aval.update(shape=shape), found.__getitem__)


def make_mesh(
    axis_shapes: Sequence[int], axis_names: str | Sequence[str], *, devices: Sequence[str] | None = None
) -> Mesh:
    """A mesh of the given shape over the first devices that there are.

    Args:
        axis_shapes: the size of each axis.
        axis_names: the name of each axis (of a single one by itself).
        devices: which devices; all workers' (``volta.devices()``) where not given.

    Raises:
        ShardingError: there are fewer devices than the mesh has places.

    >>> from volta.sharding import make_mesh
    >>> make_mesh((1,), ("data",))
    Mesh('data': 1)
    """
    sizes = tuple(int(n) for n in axis_shapes)
    there = workers.names() if devices is None else [str(d) for d in devices]
    count = int(np.prod(sizes, dtype=np.int64))
    if count > len(there) or count < 1:
        text = f"make_mesh: a mesh of shape {sizes} has {count} places, and there are {len(there)} devices"
        way = "volta.distributed.initialize makes this process one of several workers, or simulates several"
        raise ShardingError(at_user_line(f"{text}; {way}"))
    return Mesh(np.array(there[:count], dtype=object).reshape(sizes), axis_names)
