"""The header of a model file, read entry by entry: what is wrong is refused before the rest is looked at.

So memory stays a small multiple of the header's length, whatever a hostile file holds.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.errors import FormatError
from volta.io.reading import Reader
from volta.version import __version__

FORMAT_VERSION = 2
PREFIX = "volta."
VERSION, CONTRACT, WRITER, STRUCTURE, CHECKSUM = (
    PREFIX + key for key in ("format", "contract", "version", "structure", "sha256")
)
METADATA = "__metadata__"

MAX_HEADER = 100_000_000  # safetensors' own limit: a broken length must not make a reader allocate the world
MAX_RANK = 64  # NumPy's
_MAX_SIZE = 2**63 - 1  # of one dimension, and of an array in bytes
_MAX_ENTRY = 4096  # characters: 64 sizes of 19 digits take 1,280

NAMES = {
    dtypes.bool_: "BOOL",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    dtypes.complex64: "C64",
    dtypes.complex128: "C128",
    **{d: f"I{8 * d.itemsize}" for d in dtypes.SIGNED},
    **{d: f"U{8 * d.itemsize}" for d in dtypes.UNSIGNED},
}
_DTYPES = {name: dtype for dtype, name in NAMES.items()}

_NOT_JSON = "corrupt: the header is not valid JSON"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@attrs.frozen(slots=True)
class Entry:
    """Where one array lies in the data section."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@attrs.frozen
class Header:
    """What a file says about itself.

    ``format`` is None for a safetensors file that Volta did not write; such a file has no structure and no checksum.
    ``checksum_at`` is where the checksum's digits begin in the header.
    """

    entries: dict[str, Entry]
    user: dict[str, str]
    format: int | None = None
    contract: str | None = None
    writer: str | None = None
    structure: str | None = None
    checksum: str | None = None
    checksum_at: int = 0


def header_length(first: bytes, file_size: int) -> int:
    """The header's length from a file's first 8 bytes."""
    if len(first) < 8:
        raise FormatError(f"truncated: {file_size} bytes, and 8 are needed for the header's length alone")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER:
        raise FormatError(f"not a model file: its first 8 bytes give a header of {length} bytes")
    if 8 + length > file_size:
        raise FormatError(f"truncated: the header should end at byte {8 + length}, and the file at {file_size}")
    return length


def decode_header(raw: bytes, data_size: int) -> Header:
    """Read and check a header; ``data_size`` is the number of bytes behind it.

    Raises:
        FormatError: when the header is damaged, contradicts ``data_size``, or is of a newer format.
    """
    try:
        reader = Reader(raw.decode("utf-8"), _NOT_JSON)
    except UnicodeDecodeError as error:
        raise FormatError(f"{_NOT_JSON} ({error})") from None
    if reader.next() != "{":
        raise FormatError("corrupt: the header is not a JSON object")
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    checksum_at = 0
    for name in reader.members():
        if name != METADATA:
            entries[name] = _entry(name, reader)
            continue
        if reader.next() != "{":
            raise FormatError("corrupt: __metadata__ must map text to text")
        for key in reader.members():
            if reader.next() != '"':
                raise FormatError("corrupt: __metadata__ must map text to text")
            if key == CHECKSUM:
                checksum_at = reader.at + 1
            metadata[key] = reader.string()
    reader.end()
    user = {key: value for key, value in metadata.items() if not key.startswith(PREFIX)}
    if len(user) == len(metadata):
        header = Header(entries, user)
    else:
        header = Header(entries, user, **_ours(metadata), checksum_at=checksum_at)
        # Written as ASCII, a character is a byte; and the digits have no second spelling.
        if not (raw.isascii() and raw[checksum_at : checksum_at + 64].decode() == header.checksum):
            raise FormatError("corrupt: the checksum is not written as Volta writes it")
    _check_offsets(entries, data_size)
    return header


def _ours(metadata: dict[str, str]) -> dict[str, Any]:
    """Volta's own part of the metadata, as fields of a `Header`."""
    version = metadata.get(VERSION, "")
    if not re.fullmatch(r"[1-9][0-9]{0,17}", version):
        raise FormatError(f"corrupt: format version {version!r:.80}")
    writer = metadata.get(WRITER, "an unknown version")
    if int(version) > FORMAT_VERSION:
        raise FormatError(
            f"model format {version}, written by Volta {writer:.80}, is newer than this Volta ({__version__}) reads "
            f"(up to {FORMAT_VERSION}); upgrade Volta"
        )
    missing = [key for key in (CONTRACT, WRITER, STRUCTURE, CHECKSUM) if key not in metadata]
    if missing:
        raise FormatError(f"corrupt: __metadata__ lacks {', '.join(missing)}")
    if not _DIGEST.fullmatch(metadata[CHECKSUM]):
        raise FormatError("corrupt: the checksum is not written as Volta writes it")
    return {
        "format": int(version),
        "contract": metadata[CONTRACT],
        "writer": writer,
        "structure": metadata[STRUCTURE],
        "checksum": metadata[CHECKSUM],
    }


def _check_offsets(entries: dict[str, Entry], data_size: int) -> None:
    """Arrays must fill the data section, without a gap."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            fault = "overlap" if entry.begin < position else "leave a gap"
            raise FormatError(f"corrupt: data offsets {fault} at array {name!r:.80}")
        position = entry.end
    if position > data_size:
        raise FormatError(f"truncated: {position} bytes of data are announced, {data_size} are there")
    if position < data_size:
        raise FormatError(f"corrupt: {data_size - position} bytes after the last array")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _is_size(x: Any) -> bool:
    return type(x) is int and 0 <= x <= _MAX_SIZE


def _entry(name: str, reader: Reader) -> Entry:
    """The entry of one array. An entry holds no other object, so it ends at the first brace."""
    wrong = FormatError(f"corrupt: array {name!r:.80} needs exactly dtype, shape and data_offsets")
    if reader.next() != "{":
        raise wrong
    begin, end = reader.at, reader.text.find("}", reader.at, reader.at + _MAX_ENTRY) + 1
    if not end:
        raise FormatError(f"corrupt: the entry of array {name!r:.80} is longer than an array's can be, or has no end")
    reader.at = end
    try:
        value = json.loads(reader.text[begin:end], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{_NOT_JSON} ({error}, in array {name!r:.80})") from None
    if value.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise FormatError(f"array {name!r:.80} has dtype {kind!r:.80}; Volta reads {', '.join(_DTYPES)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise FormatError(f"corrupt: array {name!r:.80} has shape {shape!r:.80}")
    if len(shape) > MAX_RANK:
        raise FormatError(f"array {name!r:.80} has {len(shape)} dimensions; Volta reads up to {MAX_RANK}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise FormatError(f"corrupt: array {name!r:.80} has data offsets {offsets!r:.80}")
    dtype = _DTYPES[kind]
    if (
        dtype.itemsize * math.prod(size for size in shape if size) > _MAX_SIZE
    ):  # also where another size is 0: NumPy's rule
        raise FormatError(f"corrupt: array {name!r:.80} of shape {shape!r:.80} is larger than memory can be")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise FormatError(
            f"corrupt: array {name!r:.80} of dtype {kind} and shape {shape} does not fill its data offsets {offsets}"
        )
    return Entry(dtype, tuple(shape), *offsets)
