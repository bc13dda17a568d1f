"""Saving and loading: whole files, replaced all at once or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import attrs
import numpy as np

from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.errors import FormatError, TreeError
from volta.core.floats import standard
from volta.core.replacing import replacing, sweep
from volta.io import format as fmt
from volta.io import header as head
from volta.io import mapping, saving, structure, together
from volta.runtime.array import ConcreteArray
from volta.runtime.sharded import ShardedArray

PyTree = Any
Path = str | os.PathLike[str]


@attrs.frozen
class FileInfo:
    """What a model file says of itself: see :func:`load_metadata`.

    ``format``, ``contract`` (the bit contract its numbers were made under) and ``volta_version`` are None for a
    safetensors file of another program. ``arrays`` maps names to shapes and dtypes, ``metadata`` is the user's own.
    """

    format: int | None
    contract: str | None
    volta_version: str | None
    metadata: dict[str, str]
    arrays: dict[str, ShapedArray]


@standard
def save(path: Path, tree: PyTree, metadata: Mapping[str, str] | None = None) -> None:
    """Write a pytree of arrays (and Python numbers and texts) to a file, in model format v2.

    The same tree gives the same bytes. The file appears all at once: it is written beside its place, flushed to the
    disk and renamed, so a crash leaves either the old file or the new one. What a process that was killed has left
    beside it, the next ``save`` into the folder removes. A file that is replaced hands on its mode and, where the
    system allows it, owner and group. Arrays that somebody writes to meanwhile are saved with what each element held at
    some moment, and the file is sound. Other programs read it as safetensors.

    Where arrays lie on several processes, all of these call this, and write one file together: the very bytes that one
    process would have written.

    Args:
        path: where to; an existing file is replaced.
        tree: dicts (keys str or int), lists, tuples, namedtuples, None and registered nodes around arrays of any dtype.
        metadata: texts to keep in the file, such as ``{"vocabulary": "bytes"}``.

    Raises:
        TreeError: for a leaf or a key that cannot be saved, and a tree of more than 256 levels.
        DTypeError: for arrays of other dtypes than Volta's, and masked ones.
        ValueError: for metadata that is not text to text, and for a header of more than 100 MB: so many leaves.
        OSError: when the file cannot be written. The old one is then untouched, but for one case, and the message names
            it: the new file is in place, but the folder could not be flushed to the disk, so a crash of the machine may
            bring the old one back.

    >>> import os, tempfile
    >>> import volta.numpy as vnp
    >>> from volta import io
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> io.save(path, {"w": vnp.ones((2, 3)), "steps": 7})
    >>> io.load(path)["w"].shape
    (2, 3)
    """
    place = os.path.realpath(os.fsdecode(path))  # through a symbolic link, replace what it points at
    if together.is_shared(tree):
        with _enough_stack():
            saving.begin(place, tree, dict(metadata or {})).result()
        return
    with _enough_stack():
        stored, arrays = structure.describe(tree)
    sweep(os.path.dirname(place))
    with replacing(place, durable=True) as file:
        fmt.write(file, arrays, stored, dict(metadata or {}))


@standard
def load(path: Path, like: PyTree = None, *, mmap: bool = False) -> PyTree:
    """Read a file that :func:`save` wrote, or any safetensors file (as a dict of its names).

    The whole file is checked before anything is returned, and nothing but the result is changed. No code is run that a
    file names: a namedtuple becomes one of its class if that is imported, by its fields alone.

    Args:
        path: the file.
        like: a tree of the same structure, whose arrays (or anything with ``shape`` and ``dtype``) the file must fit.
            Needed for registered dataclasses; otherwise the file knows its own structure. Where one of its arrays lies
            on several workers, so does what is loaded; where these are processes, all of them call this.
        mmap: the arrays are the file's own pages, where its layout allows that, instead of copies; nobody may change
            the file as long as they are used.

    Returns:
        The tree that was saved, with its arrays as :class:`volta.Array`.

    Raises:
        FormatError: when the file is truncated, corrupt, of a newer format, or does not fit ``like``.
        TreeError: when a node's class is not at hand and there is no ``like``, or too little of Python's stack is left.
        OSError: when the file cannot be read.
    """
    with _naming(path), _enough_stack(), open(path, "rb") as file:
        header, raw_header, size = _read_header(file)
        cut = {} if like is None else {k: x.stored() for k, x in structure.named(like, ShardedArray).items()}
        if cut:  # only parts are needed here
            data = together.mapped(file, size)
            together.check(header, raw_header, data, cut.values())
        elif mmap:
            data = together.mapped(file, size)
            fmt.check(header, raw_header, data)
        else:
            raw = np.empty(size, np.uint8)
            data = raw.data
            if file.readinto(data) < size:
                raise FormatError("truncated: the file became shorter while it was read")
            fmt.check(header, raw_header, data)
        views = {name: fmt.view(entry, data, name) for name, entry in header.entries.items()}
        arrays = {name: _loaded(x, cut.get(name), mmap) for name, x in views.items()}
        stored: structure.Node
        if header.structure is None:  # another program's file: it is a dict of its names
            stored = "dict", [(name, ("array", name)) for name in sorted(arrays)]
            leaves = dict(stored[1])
        else:
            stored = structure.parse(header.structure)
            leaves = structure.leaves_by_name(stored)
        named = [node[1] for node in leaves.values() if node is not None and node[0].endswith("array")]
        if sorted(named) != sorted(arrays):
            raise FormatError("corrupt: the pytree and the table of arrays name different arrays")
        if like is None:
            return structure.rebuild(stored, arrays, _as_weak)
        return structure.fill(like, leaves, lambda node: structure.leaf(node, arrays, _as_weak))


@standard
def load_metadata(path: Path) -> FileInfo:
    """Read what a file says of itself, without its data (so without checking the checksum).

    >>> import os, tempfile
    >>> from volta import io
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> io.save(path, {}, metadata={"author": "me"})
    >>> io.load_metadata(path).metadata
    {'author': 'me'}

    Raises:
        FormatError: when the header is truncated, corrupt or of a newer format.
    """
    with _naming(path), open(path, "rb") as file:
        header, _, _ = _read_header(file)
    arrays = {name: ShapedArray(entry.shape, entry.dtype) for name, entry in header.entries.items()}
    return FileInfo(header.format, header.contract, header.writer, header.user, arrays)


def _read_header(file: BinaryIO) -> tuple[head.Header, bytes, int]:
    """The header of a file, as values and as bytes, and the number of bytes behind it."""
    size = os.fstat(file.fileno()).st_size
    length = head.header_length(file.read(8), size)
    raw = file.read(length)
    return head.decode_header(raw, size - 8 - length), raw, size - 8 - length


def _loaded(x: np.ndarray, template: ShardedArray | None, mmap: bool) -> Array:
    if template is None or (x.shape, x.dtype) != (template.shape, template.dtype):
        return mapping.array_of(x) if mmap else ConcreteArray.from_numpy(x)
    return together.cut_as(x, template)


def _as_weak(x: Array) -> Array:
    if isinstance(x, ShardedArray):
        return x  # as weak as what it was loaded for
    return ConcreteArray.from_numpy(np.asarray(x), weak_type=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's path in front of a FormatError."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


@contextmanager
def _enough_stack() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise TreeError(
            "the tree is nested deeper than the rest of Python's stack allows here: call from a shallower place, or "
            "raise sys.setrecursionlimit"
        ) from None
