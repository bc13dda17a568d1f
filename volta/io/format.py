"""Model format v2: the bytes of a file, and the checks that refuse any other bytes.

A file has the layout of the safetensors format, so other programs can read the arrays::

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}, padded with spaces
    data       the arrays, row-major, little-endian, without gaps

The bytes are a function of the contents: keys are sorted, separators fixed, the header padded to a multiple of 8,
arrays ordered by falling item size, then by name (so each lies at a multiple of its item size), every NaN is
written as the one of the bit contract, and True as 1.

Volta's own entries in ``__metadata__`` begin with ``volta.``: format version, contract id, the version of Volta,
the pytree's structure, and a checksum: the SHA-256 of the header, with the checksum itself written as zeros, and behind
it the SHA-256 of each 4 MiB of the data, of which the last may be shorter. So several workers can each look at a part
of a file. In v1, which is read still, the data stood there themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from volta.core import contract, dtypes
from volta.core.errors import DTypeError, FormatError
from volta.io import header as head
from volta.io.header import Entry, Header
from volta.version import __version__

CONTRACT = contract.ID

_ZEROS = "0" * 64
_PIECE = 1 << 20  # bytes of an array that are hashed and written at a time
_LEAF = 1 << 22  # bytes of the data that have a hash of their own


def compact(value: Any) -> str:
    """JSON that is a function of the value: one order of keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray], structure: Any, user: Mapping[str, str]) -> None:
    """Write a model file. Its checksum is that of the bytes written, whatever happens to the arrays meanwhile.

    Raises:
        DTypeError: for an array that Volta's dtypes do not cover.
        ValueError: for user metadata that is not text to text, or takes a key of Volta's; for too long a header.
    """
    names, header, checksum_at = prepare(arrays, structure, user)
    file.write(len(header).to_bytes(8, "little") + header)
    checksum = Checksum(header)
    for name in names:
        for piece in _pieces(arrays[name]):
            checksum.update(piece)
            file.write(piece)
    file.seek(8 + checksum_at)
    file.write(checksum.hexdigest().encode())


class Checksum:
    """The checksum of a file with this header, whose data come piece by piece."""

    def __init__(self, header: bytes):
        self._root, self._leaf, self._left = hashlib.sha256(header), hashlib.sha256(b""), _LEAF

    def update(self, data: memoryview) -> None:
        while len(data):
            part, data = data[: self._left], data[self._left :]
            self._leaf.update(part)
            self._left -= len(part)
            if not self._left:
                self._end_leaf()

    def _end_leaf(self) -> None:
        self._root.update(self._leaf.digest())
        self._leaf, self._left = hashlib.sha256(b""), _LEAF

    def hexdigest(self) -> str:
        if self._left < _LEAF:
            self._end_leaf()
        return self._root.hexdigest()


def prepare(arrays: Mapping[str, np.ndarray], structure: Any, user: Mapping[str, str]) -> tuple[list[str], bytes, int]:
    """The names of arrays in the order in which they lie in a file, its header with zeros for the checksum, and where
    in the header that is. Raises as `write` does."""
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header = _header({name: arrays[name] for name in names}, structure, user)
    size = sum(x.nbytes for x in arrays.values())
    return names, header, head.decode_header(header, size).checksum_at  # what it refuses is not written


def _header(arrays: Mapping[str, np.ndarray], structure: Any, user: Mapping[str, str]) -> bytes:
    """The header of arrays that lie in this order, with zeros for the checksum."""
    for key, value in user.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ValueError(f"metadata must map str to str; got {key!r}: {value!r}")
        if key.startswith(head.PREFIX):
            raise ValueError(f"metadata key {key!r}: keys that begin with {head.PREFIX!r} belong to Volta")
        _check_text(key, value)
    table: dict[str, Any] = {}
    position = 0
    for name, x in arrays.items():
        if x.dtype not in head.NAMES:
            raise DTypeError(f"array {name!r} has dtype {x.dtype}, which the model format does not have")
        end = position + x.nbytes
        table[name] = {"dtype": head.NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [position, end]}
        position = end
    metadata = {
        **user,
        head.VERSION: str(head.FORMAT_VERSION),
        head.CONTRACT: CONTRACT,
        head.WRITER: __version__,
        head.STRUCTURE: compact(structure),
        head.CHECKSUM: _ZEROS,
    }
    header = compact({head.METADATA: metadata, **table}).encode("ascii")
    header += b" " * (-len(header) % 8)
    if len(header) > head.MAX_HEADER:
        raise ValueError(
            f"the file's header would have {len(header):,} bytes, and {head.MAX_HEADER:,} is the format's limit; "
            "keep many numbers in arrays, not as leaves of their own"
        )
    return header


def _pieces(x: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array in row-major, little-endian order, in memory that nobody else can change meanwhile.

    NaNs are made one, as which NaN it is, is not promised; so are the bytes that stand for True.
    """
    x = x.reshape(-1)
    count = max(1, _PIECE // x.dtype.itemsize)
    for begin in range(0, x.size, count):
        piece = standard_copy(x[begin : begin + count])
        yield piece.view(np.uint8).data


def standard_copy(x: np.ndarray) -> np.ndarray:
    """A copy as files have it: little-endian, with one NaN, and 1 for True."""
    if dtypes.is_complex(x.dtype):
        return standard_copy(x.view(dtypes.part_dtype(x.dtype))).view(x.dtype.newbyteorder("<"))
    piece = np.array(x, dtype=x.dtype.newbyteorder("<"), copy=True, order="C")
    plain = np.dtype(f"<u{x.dtype.itemsize}")
    if dtypes.is_float(x.dtype):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            piece.view(plain)[np.isnan(piece)] = contract.NAN_BITS[x.dtype.name]
    elif x.dtype == dtypes.bool_:
        np.not_equal(piece.view(plain), 0, out=piece)
    return piece


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{text!r} is not valid Unicode text, which the file's header needs") from None


def check(header: Header, raw_header: bytes, data: memoryview) -> None:
    """Compare the checksum; raises FormatError when header or data are not what was written."""
    if header.checksum is None:
        return
    if header.format == 1:
        digest = hashlib.sha256(unsigned(header, raw_header))
        digest.update(data)
        compare(header, digest.hexdigest())
    else:
        compare(header, checksum_of(unsigned(header, raw_header), leaves(data, 0, leaf_count(len(data)))))


def unsigned(header: Header, raw_header: bytes) -> bytes:
    """A header as it was before it had its checksum."""
    at = header.checksum_at
    return raw_header[:at] + _ZEROS.encode() + raw_header[at + len(_ZEROS) :]


def compare(header: Header, checksum: str) -> None:
    """Raise FormatError where the header has another checksum."""
    if checksum != header.checksum:
        raise FormatError("corrupt: the SHA-256 of the contents differs from the one in the header")


def leaf_count(size: int) -> int:
    """How many parts of so many bytes of data have a hash of their own."""
    return -(-size // _LEAF)


def leaves(data: memoryview, first: int, last: int) -> bytes:
    """The hashes of parts ``first`` to ``last - 1`` of a file's data, 32 bytes each."""
    return b"".join(hashlib.sha256(data[i * _LEAF : (i + 1) * _LEAF]).digest() for i in range(first, last))


def checksum_of(header: bytes, found: bytes) -> str:
    """The checksum of a file with this header, which has zeros for it, and with these hashes of its data."""
    return hashlib.sha256(header + found).hexdigest()


def view(entry: Entry, data: memoryview, name: str) -> np.ndarray:
    """One array as a view of the data section."""
    raw = np.frombuffer(data[entry.begin : entry.end], np.uint8)
    if entry.dtype == dtypes.bool_ and raw.size and np.max(raw) > 1:
        raise FormatError(f"corrupt: array {name!r:.80} of dtype BOOL holds bytes other than 0 and 1")
    return raw.view(entry.dtype.newbyteorder("<")).reshape(entry.shape)
