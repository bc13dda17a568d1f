"""Trees whose arrays lie on several workers, and files that these read: each its parts, and a share of the hashes."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from volta.core import pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import FormatError
from volta.core.sharding import box_of, even_bounds
from volta.io import format as fmt
from volta.io.header import Header
from volta.runtime import workers
from volta.runtime.array import ConcreteArray
from volta.runtime.sharded import ShardedArray, spread_over


def is_shared(tree: Any) -> bool:
    """Whether a tree has arrays that other processes have parts of."""
    if workers.engine().size == len(workers.engine().here):
        return False
    return any(isinstance(x, ShardedArray) and not x.is_fully_addressable for x in pytrees.leaves(tree))


def workers_of(x: ShardedArray) -> list[int]:
    """The workers that an array lies on."""
    return [workers.names().index(device) for device in x.sharding.mesh.ranks]


def _brought(data: memoryview, all_of_them: Sequence[int]) -> bytes | None:
    """The hashes of a file's data, on the first of these workers; each looks at a share."""
    count, place = fmt.leaf_count(len(data)), all_of_them.index(workers.engine().here[0])
    cuts = even_bounds(count, len(all_of_them))
    mine = fmt.leaves(data, cuts[place], cuts[place + 1])
    return workers.bring(mine, [32 * (b - a) for a, b in pairwise(cuts)], "loading", all_of_them)


def check(header: Header, raw_header: bytes, data: memoryview, templates: Iterable[ShardedArray]) -> None:
    """Compare the checksum of a file that several workers read, of which each looks at a part; as `format.check`."""
    all_of_them = sorted({w for x in templates for w in workers_of(x)})
    alone = len(workers.engine().here) > 1 or len(all_of_them) == 1
    if alone or header.checksum is None or header.format == 1:
        fmt.check(header, raw_header, data)
        return
    found = _brought(data, all_of_them)
    made = "" if found is None else fmt.checksum_of(fmt.unsigned(header, raw_header), found)
    fmt.compare(header, workers.tell(made, "loading", all_of_them))


def cut_as(value: np.ndarray, template: ShardedArray) -> ShardedArray:
    """An array of a file as one that lies as ``template`` does: only this process's parts are read."""
    sharding, shape = template.sharding, value.shape

    def part(rank: int) -> ConcreteArray:
        box = box_of(sharding.mesh, sharding.layout(shape), shape, rank)
        x = np.asarray(value[tuple(slice(a, b) for a, b in box)])
        return ConcreteArray.from_numpy(x.astype(x.dtype.newbyteorder("="), copy=False))

    aval = ShapedArray(shape, template.aval.dtype, template.aval.weak_type)
    return spread_over(sharding, aval, part)


def mapped(file: BinaryIO, size: int) -> memoryview:
    """A file's bytes behind where it stands, read as they are asked for."""
    if not size:
        return memoryview(b"")
    start = file.tell()
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(whole) < start + size:
        raise FormatError("truncated: the file became shorter while it was read")
    return memoryview(whole)[start : start + size]
