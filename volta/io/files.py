"""Saving and loading: whole files, replaced all at once or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import FormatError
from volta.io import format as fmt
from volta.io import structure
from volta.runtime.array import ConcreteArray

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


def save(path: Path, tree: PyTree, metadata: Mapping[str, str] | None = None) -> None:
    """Write a pytree of arrays (and Python numbers and texts) to a file, in model format v1.

    The same tree gives the same bytes. The file appears all at once: it is written beside its place, flushed to the
    disk and renamed, so a crash leaves either the old file or the new one. Other programs read it as safetensors.

    Args:
        path: where to; an existing file is replaced.
        tree: dicts (keys str or int), lists, tuples, namedtuples, None and registered nodes around arrays of any dtype.
        metadata: texts to keep in the file, such as ``{"vocabulary": "bytes"}``.

    Raises:
        TreeError: for a leaf or a key that cannot be saved.
        ValueError: for metadata that is not text to text.
        OSError: when the file cannot be written; the old one is then untouched.

    >>> import os, tempfile
    >>> import volta.numpy as vnp
    >>> from volta import io
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> io.save(path, {"w": vnp.ones((2, 3)), "steps": 7})
    >>> io.load(path)["w"].shape
    (2, 3)
    """
    stored, arrays = structure.describe(tree)
    _write(os.fspath(path), fmt.encode(arrays, stored, dict(metadata or {})))


def load(path: Path, like: PyTree = None) -> PyTree:
    """Read a file that :func:`save` wrote, or any safetensors file (as a dict of its names).

    The whole file is checked before anything is returned, and nothing but the result is changed.

    Args:
        path: the file.
        like: a tree of the same structure, whose arrays (or anything with ``shape`` and ``dtype``) the file must fit.
            Needed for registered dataclasses; otherwise the file knows its own structure.

    Returns:
        The tree that was saved, with its arrays as :class:`volta.Array`.

    Raises:
        FormatError: when the file is truncated, corrupt, of a newer format, or does not fit ``like``.
        TreeError: when a node's class is not at hand and there is no ``like``.
        OSError: when the file cannot be read.
    """
    with _naming(path):
        raw = np.fromfile(path, np.uint8)
        contents = memoryview(raw)  # type: ignore[arg-type]  # an array is a buffer
        length = fmt.header_length(bytes(contents[:8]), len(contents))
        raw_header, data = bytes(contents[8 : 8 + length]), contents[8 + length :]
        header = fmt.decode_header(raw_header, len(data))
        fmt.check(header, raw_header, data)
        views = {name: fmt.view(entry, data, name) for name, entry in header.entries.items()}
        arrays = {name: ConcreteArray.from_numpy(x) for name, x in views.items()}
        if header.format is None:  # another program's file has no structure: it is a dict of its names
            leaves = {name: ["array", name] for name in sorted(arrays)}
            stored = ["dict", list(leaves.items())]
        else:
            stored = header.structure
            leaves = structure.leaves_by_name(stored)
        named = [node[1] for node in leaves.values() if node[0] in ("array", "weak array")]
        if sorted(named) != sorted(arrays):
            raise FormatError("corrupt: the pytree and the table of arrays name different arrays")
        if like is None:
            return structure.rebuild(stored, arrays, _as_weak)
        return structure.fill(like, leaves, lambda node: structure.leaf(node, arrays, _as_weak))


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
        size = os.fstat(file.fileno()).st_size
        length = fmt.header_length(file.read(8), size)
        header = fmt.decode_header(file.read(length), size - 8 - length)
    arrays = {name: ShapedArray(entry.shape, entry.dtype) for name, entry in header.entries.items()}
    return FileInfo(header.format, header.contract, header.writer, header.user, arrays)


def _as_weak(x: ConcreteArray) -> ConcreteArray:
    return ConcreteArray.from_numpy(np.asarray(x), weak_type=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's path in front of a FormatError."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


def _write(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Temporary file in the same folder, fsync, rename, fsync of the folder."""
    path = os.path.realpath(path)  # through a symbolic link, replace what it points at
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".volta-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if os.path.exists(path):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
