"""GGUF, the files of llama.cpp: what they say of a model, and its weights, in place where the file is mapped.

What is wrong with a file is refused before the rest is looked at, and nothing is made that the file's length does not
bound.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.block_formats import FORMATS
from volta.core.errors import FormatError
from volta.core.floats import standard
from volta.io.mapping import array_of, mapped_file
from volta.nn.quantized import QuantizedArray
from volta.runtime.array import ConcreteArray

_MAGIC, _VERSIONS, _ALIGNMENT, _MAX_RANK = b"GGUF", (2, 3), 32, 4
_MAX_SIZE = 2**63 - 1  # of an array in bytes
_SCALARS: dict[int, np.dtype] = {
    code: np.dtype(name)
    for code, name in enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))
} | {10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8")}  # fmt: skip
_TEXT, _LIST = 8, 9
_PLAIN: dict[int, np.dtype] = {
    0: dtypes.float32, 1: dtypes.float16, 24: dtypes.int8, 25: dtypes.int16, 26: dtypes.int32, 27: dtypes.int64,
    28: dtypes.float64, 30: dtypes.bfloat16,
}  # fmt: skip
_BLOCKS = {fmt.code: fmt for fmt in FORMATS.values()}


@attrs.frozen
class GGUF:
    """A model file: ``metadata`` as Python numbers, texts and lists under the file's keys, ``arrays`` by name.

    Arrays have their axes in Volta's order, the last one contiguous: a matrix is (outputs, inputs).
    """

    metadata: dict[str, Any]
    arrays: dict[str, Array | QuantizedArray]


@standard
def load_gguf(path: str | os.PathLike[str], *, mmap: bool = True) -> GGUF:
    """Read a GGUF file (version 2 or 3), as llama.cpp and its tools write it.

    Args:
        path: the file.
        mmap: the arrays are the file's own pages, read when they are asked for; nobody may change the file as long as
            they are used. False: they are copies.

    Returns:
        A :class:`GGUF`; weights in blocks are :class:`volta.nn.QuantizedArray`.

    Raises:
        FormatError: when the file is truncated, corrupt, of another version or byte order, or has weights in a format
            that Volta does not have, naming it.
        OSError: when the file cannot be read.

    >>> import pathlib, struct, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.gguf")
    >>> _ = path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))  # version 3, no arrays, no metadata
    >>> load_gguf(path).arrays
    {}
    """
    try:
        with open(path, "rb") as file:
            return _parse(mapped_file(file), mmap)
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


class _Reader:
    """The bytes of a file from left to right; FormatError where they end too early."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise FormatError(f"truncated or corrupt: {size:,} bytes are wanted at byte {self.at:,} of the file")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def text(self) -> str:
        # tokens are texts of any bytes: what is no UTF-8 is kept as surrogates
        return bytes(self.take(self.number("Q"))).decode("utf-8", "surrogateescape")

    def name(self, what: str, seen: dict[str, Any]) -> str:
        found = self.text()
        if found in seen:
            raise FormatError(f"corrupt: {what} {found!r:.80} occurs twice")
        return found

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            kind, count = self.number("I"), self.number("Q")
            if kind == _TEXT:
                if count > (len(self.data) - self.at) // 8:  # each has a length of 8 bytes
                    raise FormatError(f"truncated or corrupt: a list of {count:,} texts at byte {self.at:,}")
                return [self.text() for _ in range(count)]
            return self._plain(kind, count).tolist()
        return self._plain(kind, 1).tolist()[0]

    def _plain(self, kind: int, count: int) -> np.ndarray:
        if kind not in _SCALARS:
            raise FormatError(f"corrupt, or newer than Volta: a value of type {kind} at byte {self.at:,}")
        dtype = _SCALARS[kind]
        raw = np.frombuffer(self.take(count * dtype.itemsize), np.uint8)
        return raw != 0 if dtype == dtypes.bool_ else raw.view(dtype)


@attrs.frozen
class _Entry:
    shape: tuple[int, ...]
    code: int
    begin: int

    @property
    def row(self) -> tuple[int, np.dtype]:
        """Stored elements of a row, and what they are: of blocks, bytes."""
        last = self.shape[-1] if self.shape else 1
        if self.code in _PLAIN:
            return last, _PLAIN[self.code]
        return last // _BLOCKS[self.code].elements * _BLOCKS[self.code].nbytes, dtypes.uint8


def _parse(data: memoryview, mmap: bool) -> GGUF:
    reader = _Reader(data)
    if bytes(reader.take(4)) != _MAGIC:
        raise FormatError("no GGUF file: it does not begin with GGUF")
    version = reader.number("I")
    if version not in _VERSIONS:
        big = version & 0xFFFF == 0
        text = "its numbers are big-endian: convert it on the machine that wrote it" if big else "Volta reads 2 and 3"
        raise FormatError(f"GGUF version {version}: {text}")
    count, pairs = reader.number("Q"), reader.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.name("key", metadata)
        metadata[key] = reader.value()
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        name = reader.name("array", entries)
        entries[name] = _entry(reader, name)
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise FormatError(f"corrupt: general.alignment is {alignment!r:.40}, no power of two")
    start = -(-reader.at // alignment) * alignment
    return GGUF(metadata, {name: _array(name, entry, data, start, mmap) for name, entry in entries.items()})


def _entry(reader: _Reader, name: str) -> _Entry:
    rank = reader.number("I")
    if rank > _MAX_RANK:
        raise FormatError(f"corrupt: array {name!r:.80} has {rank} axes; GGUF has at most {_MAX_RANK}")
    shape = tuple(reversed([reader.number("Q") for _ in range(rank)]))
    code, begin = reader.number("I"), reader.number("Q")
    if code not in _PLAIN and code not in _BLOCKS:
        known = ", ".join([*FORMATS, "F32, F16, BF16, F64 and integers"])
        raise FormatError(f"array {name!r:.80} is of GGUF's type {code}; Volta reads {known}")
    elements = 1 if code in _PLAIN else _BLOCKS[code].elements
    if (shape[-1] if shape else 1) % elements:
        raise FormatError(f"corrupt: array {name!r:.80} has rows of {shape[-1:]}, no whole blocks of {elements}")
    return _Entry(shape, code, begin)


def _array(name: str, entry: _Entry, data: memoryview, start: int, mmap: bool) -> Array | QuantizedArray:
    last, dtype = entry.row
    shape = (*entry.shape[:-1], last) if entry.shape else ()
    begin, size = start + entry.begin, math.prod(shape) * dtype.itemsize
    if math.prod(n for n in shape if n) * dtype.itemsize > _MAX_SIZE:
        raise FormatError(f"corrupt: array {name!r:.80} has the shape {entry.shape}")
    if begin + size > len(data):
        raise FormatError(f"truncated or corrupt: array {name!r:.80} ends at byte {begin + size:,} of {len(data):,}")
    view = np.frombuffer(data[begin : begin + size], np.uint8).view(dtype.newbyteorder("<")).reshape(shape)
    found = array_of(view) if mmap else ConcreteArray.from_numpy(view)
    return found if entry.code in _PLAIN else QuantizedArray(found, _BLOCKS[entry.code].name)
