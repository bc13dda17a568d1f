"""One file that several workers write: each its own parts, at places that follow from the shapes.

The bytes are those that one worker would have written, so a file does not say how many there were.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from volta.core import pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import DistributedError, FormatError
from volta.core.replacing import replacing, sweep
from volta.core.sharding import box_of, even_bounds, index_boxes
from volta.core.source import at_user_line
from volta.io import format as fmt
from volta.io import structure
from volta.io.header import Header
from volta.runtime import workers
from volta.runtime.array import ConcreteArray, plain
from volta.runtime.sharded import ShardedArray, spread_over


def is_shared(tree: Any) -> bool:
    """Whether a tree has arrays that other processes have parts of."""
    if workers.engine().size == len(workers.engine().here):
        return False
    return any(isinstance(x, ShardedArray) and not x.is_fully_addressable for x in pytrees.leaves(tree))


def save(place: str, tree: Any, metadata: Mapping[str, str]) -> None:
    """Write a tree to a file, together with the other workers that have its arrays. All of them must call this.

    Raises:
        DistributedError: the first of them could not write the file. The old one is untouched.
        And as ``io.save``.
    """
    leaves: list[Any] = []

    def elements(x: Any) -> np.ndarray:
        """Of what lies on several workers the shape and dtype, which take no memory."""
        leaves.append(x)
        return np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, ShardedArray) else plain(x)

    stored, arrays = structure.describe(tree, elements)
    own = dict(zip(arrays, leaves, strict=True))
    names, header, checksum_at = fmt.prepare(arrays, stored, metadata)
    all_of_them = sorted({w for x in leaves if isinstance(x, ShardedArray) for w in _workers(x)})
    if workers.engine().here[0] == all_of_them[0]:
        _first(place, all_of_them, names, arrays, own, header, checksum_at)
        return
    temporary = workers.tell("", "saving", all_of_them)
    if not temporary:
        text = "the first worker could not write the file, and says why; the old one is untouched"
        raise DistributedError(at_user_line(f"save: {text}"))
    with open(temporary, "r+b") as file:
        _parts(file, names, arrays, own, len(header) + 8, mine_alone=False)
        os.fsync(file.fileno())
        workers.agree("written", "saving", all_of_them)
        _hashes(file, len(header) + 8, all_of_them, "saving")
    workers.agree("renamed", "saving", all_of_them)


def _first(
    place: str, all_of_them: Sequence[int], names: Sequence[str], arrays: Mapping[str, np.ndarray],
    own: Mapping[str, Any], header: bytes, checksum_at: int,
) -> None:  # fmt: skip
    """What the first worker does besides: the header, what is not cut, the checksum, and the new name."""
    told = False
    try:
        sweep(os.path.dirname(place))
        with replacing(place, durable=True) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + sum(arrays[name].nbytes for name in names))
            file.flush()
            with open(file.name, "r+b") as both:
                told = bool(workers.tell(os.path.abspath(str(file.name)), "saving", all_of_them))
                _parts(both, names, arrays, own, len(header) + 8, mine_alone=True)
                workers.agree("written", "saving", all_of_them)
                found = _hashes(both, len(header) + 8, all_of_them, "saving")
            file.seek(8 + checksum_at)
            file.write(fmt.checksum_of(header, found or b"").encode())
    except OSError:
        if not told:
            workers.tell("", "saving", all_of_them)
        raise
    workers.agree("renamed", "saving", all_of_them)


def _hashes(file: BinaryIO, start: int, all_of_them: Sequence[int], what: str) -> bytes | None:
    """The hashes of a file's data, which begin at ``start``, on the first worker: each has looked at a part of them."""
    file.seek(0, os.SEEK_END)
    size = file.tell() - start
    file.seek(start)
    return _shared(mapped(file, size), all_of_them, what)


def _shared(data: memoryview, all_of_them: Sequence[int], what: str) -> bytes | None:
    count, place = fmt.leaf_count(len(data)), sorted(all_of_them).index(workers.engine().here[0])
    cuts = even_bounds(count, len(all_of_them))
    mine = fmt.leaves(data, cuts[place], cuts[place + 1])
    return workers.bring(mine, [32 * (b - a) for a, b in pairwise(cuts)], what, all_of_them)


def check(header: Header, raw_header: bytes, data: memoryview, templates: Iterable[ShardedArray]) -> None:
    """Compare the checksum of a file that several workers read, of which each looks at a part; as `format.check`."""
    all_of_them = sorted({w for x in templates for w in _workers(x)})
    alone = len(workers.engine().here) > 1 or len(all_of_them) == 1
    if alone or header.checksum is None or header.format == 1:
        fmt.check(header, raw_header, data)
        return
    found = _shared(data, all_of_them, "loading")
    made = "" if found is None else fmt.checksum_of(fmt.unsigned(header, raw_header), found)
    fmt.compare(header, workers.tell(made, "loading", all_of_them))


def _workers(x: ShardedArray) -> list[int]:
    return [workers.names().index(device) for device in x.sharding.mesh.ranks]


def _parts(
    file: BinaryIO, names: Sequence[str], arrays: Mapping[str, np.ndarray], own: Mapping[str, Any], start: int,
    mine_alone: bool,
) -> None:  # fmt: skip
    """Write this worker's parts: of what several have, the one with the lowest rank writes it."""
    for name in names:
        like, x = arrays[name], own[name]
        if like.nbytes:
            view = np.memmap(file, like.dtype.newbyteorder("<"), "r+", start, like.shape)
            if isinstance(x, ShardedArray):
                _own_parts(view, x)
            elif mine_alone:
                view[...] = fmt.standard_copy(like)
            view.flush()
        start += like.nbytes


def _own_parts(view: np.ndarray, x: ShardedArray) -> None:
    parts, mesh = x.parts(), x.sharding.mesh
    for box, ranks in index_boxes(mesh, x.layout, x.aval.shape).items():
        if ranks[0] in parts and all(a < b for a, b in box):
            view[tuple(slice(a, b) for a, b in box)] = fmt.standard_copy(parts[ranks[0]].numpy())


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
