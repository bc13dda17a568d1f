"""How an array is cut over workers, in JAX's words: `Mesh`, `PartitionSpec`, `NamedSharding`.

Pure data. What a sharding makes of an array's shape is said once, by `NamedSharding.layout`: a `Cut` or None for each
dimension. The partitioner, the engines and arrays all work with these layouts. An axis may be cut anywhere, so the
parts of a dimension need not be equal, and may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from volta.core.device import Device
from volta.core.errors import ShardingError
from volta.core.source import at_user_line

Axes = tuple[str, ...]
Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""From where to where, in each dimension of a whole array."""


@attrs.frozen(slots=True)
class Cut:
    """A dimension cut along axes of a mesh: part p of it is ``bounds[p]:bounds[p + 1]``."""

    axes: Axes
    bounds: tuple[int, ...]

    @property
    def parts(self) -> int:
        return len(self.bounds) - 1


Layout = tuple[Cut | None, ...]
"""One entry a dimension; None: each worker has all of it."""


def even_bounds(n: int, parts: int) -> tuple[int, ...]:
    """n elements in parts whose sizes differ by one at most."""
    return tuple(n * p // parts for p in range(parts + 1))


class Mesh:
    """Devices in a grid whose axes have names.

    Args:
        devices: the names of devices (``volta.devices()``) as an array of the mesh's shape.
        axis_names: one name an axis.

    Raises:
        ShardingError: where names and shape do not fit, or a name or a device is there twice.

    >>> import numpy as np
    >>> from volta.sharding import Mesh
    >>> Mesh(np.array(["cpu:0"]), ("data",)).shape
    {'data': 1}
    """

    __slots__ = ("_hash", "axis_names", "axis_sizes", "ranks")
    axis_names: Axes
    axis_sizes: Shape
    ranks: tuple[str, ...]
    _hash: int

    def __init__(self, devices: Any, axis_names: str | Sequence[str]):
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = np.asarray(devices, dtype=object)
        if grid.ndim != len(names):
            text = f"Mesh: devices in {grid.ndim} dimensions need as many axis names, got {names}"
            raise ShardingError(at_user_line(text))
        if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            raise ShardingError(at_user_line(f"Mesh: axis names must be distinct strings, got {names}"))
        ranks = tuple(str(device) for device in grid.reshape(-1))
        if not ranks or len(set(ranks)) != len(ranks):
            raise ShardingError(at_user_line(f"Mesh: devices must be there, and once each, got {ranks}"))
        object.__setattr__(self, "axis_names", names)
        object.__setattr__(self, "axis_sizes", tuple(int(n) for n in grid.shape))
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "_hash", hash((names, grid.shape, ranks)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Mesh does not change: make another one")

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis, by name."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.ranks)

    @property
    def devices(self) -> np.ndarray:
        """The devices' names as an array of the mesh's shape."""
        return np.array([Device(name) for name in self.ranks], dtype=object).reshape(self.axis_sizes)

    @property
    def local_devices(self) -> list[Device]:
        """The devices that are in this process."""
        return [device for device in map(Device, self.ranks) if device.is_local]

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank, which is a position among the devices in row-major order, lies along each axis."""
        place = np.unravel_index(rank, self.axis_sizes)
        return {name: int(i) for name, i in zip(self.axis_names, place, strict=True)}

    def part(self, rank: int, axes: Axes) -> int:
        """The number of a rank's part of a dimension that is cut along these axes."""
        place, sizes, number = self.place(rank), self.shape, 0
        for axis in axes:
            number = number * sizes[axis] + place[axis]
        return number

    def parts(self, axes: Axes) -> int:
        return math.prod(self.shape[axis] for axis in axes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        mine = (self.axis_names, self.axis_sizes, self.ranks)
        return self is other or mine == (other.axis_names, other.axis_sizes, other.ranks)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return Mesh, (self.devices, self.axis_names)

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{name!r}: {n}" for name, n in self.shape.items()) + ")"


class PartitionSpec(tuple[Any, ...]):
    """For each dimension of an array the mesh axis, or axes, that it is cut along; None for none.

    Dimensions that are not named are not cut.

    >>> from volta.sharding import PartitionSpec as P
    >>> P("data", None)
    PartitionSpec('data', None)
    """

    __slots__ = ()

    def __new__(cls, *partitions: None | str | Sequence[str]) -> PartitionSpec:
        for entry in partitions:
            names = entry if isinstance(entry, (tuple, list)) else () if entry is None else (entry,)
            if not all(isinstance(name, str) for name in names):
                text = f"PartitionSpec: an entry is None, the name of a mesh axis or a tuple of names, not {entry!r}"
                raise ShardingError(at_user_line(text))
        return super().__new__(cls, (tuple(e) if isinstance(e, list) else e for e in partitions))

    def axes(self, dim: int) -> Axes:
        """The mesh axes of one dimension."""
        entry = self[dim] if dim < len(self) else None
        return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)

    def __repr__(self) -> str:
        return f"PartitionSpec{tuple.__repr__(self)}"

    def __reduce__(self) -> Any:
        return PartitionSpec, tuple(self)


def _as_spec(spec: Sequence[Any]) -> PartitionSpec:
    return PartitionSpec(*spec)


def _as_bounds(bounds: Any) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(sorted((int(dim), tuple(map(int, at))) for dim, at in dict(bounds).items()))


@attrs.frozen
class NamedSharding:
    """A mesh, and how an array lies on it.

    Args:
        mesh: the devices.
        spec: what each dimension is cut along.
        bounds: where a dimension is cut, by its number, if not into parts that differ by one element at most.

    Raises:
        ShardingError: for an axis that the mesh does not have, or that cuts two dimensions.

    >>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
    >>> NamedSharding(make_mesh((1,), ("data",)), P("data")).spec
    PartitionSpec('data',)
    """

    mesh: Mesh
    spec: PartitionSpec = attrs.field(converter=_as_spec)
    bounds: Any = attrs.field(default=(), kw_only=True, converter=_as_bounds)

    def __attrs_post_init__(self) -> None:
        seen: dict[str, int] = {}
        for dim in range(len(self.spec)):
            for axis in self.spec.axes(dim):
                if axis not in self.mesh.axis_names:
                    text = f"NamedSharding: {self.mesh} has no axis {axis!r}, which {self.spec} names"
                    raise ShardingError(at_user_line(text))
                if axis in seen:
                    text = f"NamedSharding: {self.spec} cuts dimensions {seen[axis]} and {dim} along one axis, {axis!r}"
                    raise ShardingError(at_user_line(text))
                seen[axis] = dim

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        return all(self.mesh.parts(self.spec.axes(dim)) == 1 for dim in range(len(self.spec)))

    @property
    def device_set(self) -> frozenset[Device]:
        """The devices of the mesh."""
        return frozenset(map(Device, self.mesh.ranks))

    @property
    def addressable_devices(self) -> frozenset[Device]:
        """Those of them that are in this process."""
        return frozenset(self.mesh.local_devices)

    def addressable_devices_indices_map(self, global_shape: Shape) -> dict[str, tuple[slice, ...]]:
        """Which part of an array of this shape each device of this process has."""
        here = self.addressable_devices
        return {device: part for device, part in self.devices_indices_map(global_shape).items() if device in here}

    def layout(self, shape: Shape, what: str = "an array") -> Layout:
        """The cuts of an array of this shape.

        Raises:
            ShardingError: for fewer dimensions than the spec has, and for bounds that do not fit.
        """
        if len(self.spec) > len(shape):
            text = f"{what} of shape {shape} has fewer dimensions than {self.spec}"
            raise ShardingError(at_user_line(text))
        given: Mapping[int, tuple[int, ...]] = dict(self.bounds)
        layout: list[Cut | None] = []
        for dim, n in enumerate(shape):
            axes = self.spec.axes(dim)
            parts = self.mesh.parts(axes)
            bounds = given.get(dim, even_bounds(n, parts))
            ascending = all(a <= b for a, b in pairwise(bounds))
            if len(bounds) != parts + 1 or bounds[0] != 0 or bounds[-1] != n or not ascending:
                text = f"{what} of shape {shape} cannot be cut at {bounds}: dimension {dim} has {parts} parts of {n}"
                raise ShardingError(at_user_line(text))
            layout.append(Cut(axes, tuple(bounds)) if parts > 1 else None)
        wrong = [dim for dim in given if not 0 <= dim < len(shape)]
        if wrong:
            raise ShardingError(at_user_line(f"{what} of shape {shape} has no dimension {wrong[0]} to be cut"))
        return tuple(layout)

    def devices_indices_map(self, global_shape: Shape) -> dict[str, tuple[slice, ...]]:
        """Which part of an array of this shape each device has."""
        shape = tuple(global_shape)
        layout = self.layout(shape)
        return {
            name: tuple(slice(a, b) for a, b in box_of(self.mesh, layout, shape, rank))
            for rank, name in enumerate(self.mesh.ranks)
        }

    def shard_shape(self, global_shape: Shape) -> Shape:
        """The shape of each device's part. Raises ShardingError where they differ."""
        shape = tuple(global_shape)
        layout = self.layout(shape)
        shapes = {local_shape(self.mesh, layout, shape, rank) for rank in range(self.mesh.size)}
        if len(shapes) > 1:
            text = f"an array of shape {shape} has parts of different shapes; ask for devices_indices_map"
            raise ShardingError(at_user_line(text))
        return shapes.pop()


@attrs.frozen
class SingleDeviceSharding:
    """How an array lies that is on one device."""

    device: str

    @property
    def is_fully_replicated(self) -> bool:
        return True


@attrs.frozen(eq=False)
class Shard:
    """One device's part of an array: ``data`` is ``array[index]``.

    ``replica_id`` numbers the devices that have the same part.
    """

    device: str
    index: tuple[slice, ...]
    data: Any
    replica_id: int = 0


def sharding_of(mesh: Mesh, layout: Layout, shape: Shape) -> NamedSharding:
    """The sharding that has this layout for an array of this shape."""
    entries = [None if c is None else c.axes[0] if len(c.axes) == 1 else c.axes for c in layout]
    while entries and entries[-1] is None:
        entries.pop()
    uneven = {d: c.bounds for d, c in enumerate(layout) if c is not None and c.bounds != even_bounds(shape[d], c.parts)}
    return NamedSharding(mesh, PartitionSpec(*entries), bounds=uneven)


# -- what a rank has ---------------------------------------------------------------------------------------------------


def box_of(mesh: Mesh, layout: Layout, shape: Shape, rank: int) -> Box:
    """Which part of the whole a rank has."""
    box = []
    for cut, n in zip(layout, shape, strict=True):
        if cut is None:
            box.append((0, n))
        else:
            part = mesh.part(rank, cut.axes)
            box.append((cut.bounds[part], cut.bounds[part + 1]))
    return tuple(box)


def local_shape(mesh: Mesh, layout: Layout, shape: Shape, rank: int) -> Shape:
    return tuple(b - a for a, b in box_of(mesh, layout, shape, rank))


def whole(ndim: int) -> Layout:
    """The layout of what every rank has."""
    return (None,) * ndim


def index_boxes(mesh: Mesh, layout: Layout, shape: Shape) -> dict[Box, list[int]]:
    """The distinct parts of an array, each with the ranks that have it."""
    found: dict[Box, list[int]] = {}
    for rank in range(mesh.size):
        found.setdefault(box_of(mesh, layout, shape, rank), []).append(rank)
    return found
