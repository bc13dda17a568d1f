"""Arrays that lie on several workers, each of which has a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from volta.core.avals import ShapedArray
from volta.core.device import Device
from volta.core.errors import DonatedBufferError, ShardingError
from volta.core.extended import is_key
from volta.core.sharding import Box, Layout, Mesh, NamedSharding, Shard, box_of, index_boxes
from volta.core.source import at_user_line
from volta.runtime import devices, workers
from volta.runtime.array import ConcreteArray, SpreadArray, intern_aval
from volta.runtime.memory import as_numpy, default_pool

Parts = Mapping[int, ConcreteArray]
"""The part of each rank of the mesh that is in this process."""


class ShardedArray(SpreadArray):
    """An array that is cut over the devices of a mesh. Users know it as :class:`volta.Array`."""

    __slots__ = ("__weakref__", "_layout", "_parts", "_sharding", "aval")

    def __init__(self, aval: ShapedArray, sharding: NamedSharding, parts: Parts, layout: Layout | None = None):
        """``layout``: what the sharding makes of the shape, where that is known."""
        self.aval = intern_aval(aval)
        self._sharding, self._layout = sharding, layout
        self._parts: Parts | None = dict(parts)

    # -- how it lies ---------------------------------------------------------------------------------------------------

    @property
    def sharding(self) -> NamedSharding:
        return self._sharding

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._layout = self._sharding.layout(self.aval.shape)
        return self._layout

    def parts(self) -> Parts:
        """The parts that are here; DonatedBufferError where the array is gone."""
        if self._parts is None:
            text = f"this {self.aval.short()} array was donated to a jitted call (donate_argnums) and is gone"
            raise DonatedBufferError(at_user_line(f"{text}. Use the call's result instead, or do not donate it."))
        return self._parts

    @property
    def addressable_shards(self) -> list[Shard]:
        mesh, layout, shape = self._sharding.mesh, self.layout, self.aval.shape
        holders = index_boxes(mesh, layout, shape)
        found = []
        for rank, data in sorted(self.parts().items()):
            box = box_of(mesh, layout, shape, rank)
            index = tuple(slice(a, b) for a, b in box)
            found.append(Shard(mesh.ranks[rank], index, data, holders[box].index(rank)))
        return found

    def addressable_data(self, index: int) -> ConcreteArray:
        """The part of this process's device of that number."""
        data: ConcreteArray = self.addressable_shards[index].data
        return data

    def devices(self) -> frozenset[Device]:
        """The devices that the array lies on."""
        return self._sharding.device_set

    @property
    def is_fully_replicated(self) -> bool:
        return all(cut is None for cut in self.layout)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all parts are in this process."""
        return len(local_ranks(self._sharding.mesh)) == self._sharding.mesh.size

    # -- elements ------------------------------------------------------------------------------------------------------

    def assembled(self) -> ConcreteArray:
        """The whole array on this process's device.

        Raises:
            ShardingError: where other processes have parts that this one lacks.
        """
        parts, mesh, layout, shape = self.parts(), self._sharding.mesh, self.layout, self.aval.shape
        out, view = empty(self.aval)
        for box, ranks in index_boxes(mesh, layout, shape).items():
            rank = next((r for r in ranks if r in parts), None)
            if any(a == b for a, b in box):
                continue
            if rank is None:
                text = f"this process has only a part of the {self.aval.short()} array, which lies on {mesh} as "
                way = "volta.distributed.process_allgather(x) brings all of it to every process"
                raise ShardingError(at_user_line(f"{text}{self._sharding.spec}: {way}"))
            if all((a, b) == (0, n) for (a, b), n in zip(box, shape, strict=True)):
                return parts[rank]
            view[tuple(slice(a, b) for a, b in box)] = parts[rank]._view()
        return out

    def stored(self) -> ShardedArray:
        """Random keys as their words, in the same memory; anything else itself."""
        if not is_key(self.aval.dtype):
            return self
        return ShardedArray(self.aval.stored, self._sharding, {r: x.stored() for r, x in self.parts().items()})

    def keyed(self, kind: Any) -> ShardedArray:
        """Words of random keys as keys of a type, in the same memory."""
        return ShardedArray(self.aval.keys(kind), self._sharding, {r: x.keyed(kind) for r, x in self.parts().items()})

    def numpy(self) -> np.ndarray:
        return self.assembled().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.assembled().__array__(dtype, copy)

    def item(self, *index: Any) -> Any:
        return self.assembled().item(*index)

    def tolist(self) -> Any:
        return self.assembled().tolist()

    def tobytes(self) -> bytes:
        return self.assembled().tobytes()

    def __bool__(self) -> bool:
        return bool(self.assembled())

    def __int__(self) -> int:
        return int(self.assembled())

    def __float__(self) -> float:
        return float(self.assembled())

    def __complex__(self) -> complex:
        return complex(self.assembled())

    def __index__(self) -> int:
        return self.assembled().__index__()

    def __format__(self, spec: str) -> str:
        return format(self.assembled(), spec)

    def __reduce__(self) -> Any:
        return self.assembled().__reduce__()

    def __copy__(self) -> ShardedArray:
        return self

    def __deepcopy__(self, memo: Any) -> ShardedArray:
        return self

    def __hash__(self) -> int:
        raise TypeError("arrays are compared by value and cannot be hashed; hash x.tobytes() or id(x) instead")

    def __repr__(self) -> str:
        if self._parts is None:
            return f"Array(<donated>, shape={self.shape}, dtype={self.dtype})"
        if not self.is_fully_addressable and not self.is_fully_replicated:
            return f"Array(<parts on {self._sharding.mesh}>, shape={self.shape}, dtype={self.dtype})"
        return repr(self.assembled())

    def __str__(self) -> str:
        if self._parts is None or not (self.is_fully_addressable or self.is_fully_replicated):
            return repr(self)
        return str(self.assembled())

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    @property
    def device(self) -> Any:
        """As in JAX, the sharding of what lies on several devices."""
        return self._sharding

    def copy_to_host_async(self) -> None:
        for part in self.parts().values():
            part.copy_to_host_async()

    def block_until_ready(self) -> ShardedArray:
        for part in self.parts().values():
            part.block_until_ready()
        return self

    def is_deleted(self) -> bool:
        return self._parts is None

    def delete(self) -> None:
        """Let go of the parts; any later use raises DonatedBufferError."""
        self._parts = None


def empty(aval: ShapedArray) -> tuple[ConcreteArray, np.ndarray]:
    """A new array, and a view to write its elements by before anybody else has it."""
    buffer = default_pool().allocate(aval.nbytes)
    view = as_numpy(buffer, aval.stored.shape, None, aval.stored.dtype, writable=True)
    return ConcreteArray(intern_aval(aval), buffer, buffer.address), view


def local_ranks(mesh: Mesh) -> list[int]:
    """The ranks of a mesh that are in this process.

    Raises:
        ShardingError: the mesh has a device that is not there.
    """
    names, here = workers.names(), workers.engine().here
    for device in mesh.ranks:
        if device not in names:
            text = f"{mesh} has the device {device!r}, and there are {', '.join(names)}"
            raise ShardingError(at_user_line(f"{text}; volta.distributed.initialize makes a process one of several"))
    return [rank for rank, device in enumerate(mesh.ranks) if names.index(device) in here]


def cut(x: ConcreteArray, sharding: NamedSharding, what: str = "an array") -> ShardedArray:
    """An array that every process has, cut: each keeps its parts."""
    shape, mesh = x.aval.shape, sharding.mesh
    layout = sharding.layout(shape, what)
    return spread_over(sharding, x.aval, lambda rank: part_of(x, box_of(mesh, layout, shape, rank)))


def spread_over(sharding: NamedSharding, aval: ShapedArray, part: Callable[[int], ConcreteArray]) -> ShardedArray:
    """An array whose parts a function gives, by rank; each comes to lie on the device of its worker."""
    mesh, names = sharding.mesh, workers.names()
    where = {rank: workers.engine().device(names.index(mesh.ranks[rank])) for rank in local_ranks(mesh)}
    return ShardedArray(aval, sharding, {rank: devices.put(part(rank), device) for rank, device in where.items()})


def part_of(x: ConcreteArray, box: Box) -> ConcreteArray:
    """A box of an array as an array, on the same device."""
    shape = x.aval.shape
    if all((a, b) == (0, n) for (a, b), n in zip(box, shape, strict=True)):
        return x
    aval = x.aval.update(shape=tuple(b - a for a, b in box))
    if x.buffer().stream is not None:
        return devices.part_of(x, box, aval)
    out, view = empty(aval)
    view[...] = x._view()[tuple(slice(a, b) for a, b in box)]
    return out


def common_mesh(values: Sequence[Any], what: str) -> Mesh | None:
    """The mesh of the sharded arrays among values; ShardingError where they lie on different ones."""
    mesh: Mesh | None = None
    for x in values:
        if isinstance(x, ShardedArray):
            if mesh is not None and mesh != x.sharding.mesh:
                text = f"{what}: arrays lie on different meshes, {mesh} and {x.sharding.mesh}"
                raise ShardingError(at_user_line(f"{text}; volta.device_put(x, sharding) brings one to the other's"))
            mesh = x.sharding.mesh
    return mesh
