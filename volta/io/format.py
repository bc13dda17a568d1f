"""Model format v1: the bytes of a file, and the checks that refuse any other bytes.

A file has the layout of the safetensors format, so other programs can read the arrays::

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}, padded with spaces
    data       the arrays, row-major, little-endian, without gaps

The bytes are a function of the contents: keys are sorted, separators fixed, the header padded to a multiple of 8,
arrays ordered by falling item size, then by name (so each lies at a multiple of its item size), and every NaN is
written as the one of the bit contract.

Volta's own entries in ``__metadata__`` begin with ``volta.``: format version, contract id, the version of Volta,
the pytree's structure, and a SHA-256 over the header (with the checksum itself written as zeros) and the data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from volta.core import contract, dtypes
from volta.core.errors import DTypeError, FormatError
from volta.version import __version__

FORMAT_VERSION = 1
CONTRACT = contract.ID

PREFIX = "volta."
_VERSION, _CONTRACT, _WRITER, _STRUCTURE, _CHECKSUM = (
    PREFIX + key for key in ("format", "contract", "version", "structure", "sha256")
)
_ZEROS = "0" * 64
_MAX_HEADER = 100_000_000  # safetensors' own limit: a broken length must not make a reader allocate the world

_NAMES = {
    dtypes.bool_: "BOOL",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    **{d: f"I{8 * d.itemsize}" for d in dtypes.SIGNED},
    **{d: f"U{8 * d.itemsize}" for d in dtypes.UNSIGNED},
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


@attrs.frozen
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
    """

    entries: dict[str, Entry]
    user: dict[str, str]
    format: int | None
    contract: str | None
    writer: str | None
    structure: Any
    checksum: str | None


def _compact(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _pad(header: bytes) -> bytes:
    return header + b" " * (-len(header) % 8)


def _raw(x: np.ndarray) -> memoryview:
    """The bytes of an array in row-major, little-endian order, its NaNs made one: which NaN it is, is not promised."""
    x = np.asarray(x, dtype=x.dtype.newbyteorder("<"), order="C").reshape(-1)
    if dtypes.is_float(x.dtype):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            is_nan = np.isnan(x)
        if is_nan.any():
            plain = np.dtype(f"<u{x.dtype.itemsize}")
            x = np.where(is_nan, plain.type(contract.NAN_BITS[x.dtype.name]), x.view(plain)).astype(plain, copy=False)
    return memoryview(x.view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer


def encode(arrays: Mapping[str, np.ndarray], structure: Any, user: Mapping[str, str]) -> Iterable[bytes | memoryview]:
    """The file as parts to write one after the other.

    Raises:
        DTypeError: for an array that Volta's dtypes do not cover.
        ValueError: for user metadata that is not text to text, or takes a key of Volta's.
    """
    for key, value in user.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ValueError(f"metadata must map str to str; got {key!r}: {value!r}")
        if key.startswith(PREFIX):
            raise ValueError(f"metadata key {key!r}: keys that begin with {PREFIX!r} belong to Volta")
        _check_text(key, value)
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    table: dict[str, Any] = {}
    position = 0
    for name in names:
        x = arrays[name]
        if x.dtype not in _NAMES:
            raise DTypeError(f"array {name!r} has dtype {x.dtype}, which the model format does not have")
        table[name] = {
            "dtype": _NAMES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [position, position + x.nbytes],
        }
        position += x.nbytes
    metadata = {
        **user,
        _VERSION: str(FORMAT_VERSION),
        _CONTRACT: CONTRACT,
        _WRITER: __version__,
        _STRUCTURE: _compact(structure).decode(),
        _CHECKSUM: _ZEROS,
    }
    header = _pad(_compact({"__metadata__": metadata, **table}))
    parts = [_raw(arrays[name]) for name in names]
    digest = hashlib.sha256(header)
    for part in parts:
        digest.update(part)
    header = header.replace(_key_value(_ZEROS), _key_value(digest.hexdigest()))
    return [len(header).to_bytes(8, "little"), header, *parts]


def _key_value(digest: str) -> bytes:
    return f'"{_CHECKSUM}":"{digest}"'.encode()


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{text!r} is not valid Unicode text, which the file's header needs") from None


def header_length(first: bytes, file_size: int) -> int:
    """The header's length from a file's first 8 bytes."""
    if len(first) < 8:
        raise FormatError(f"truncated: {file_size} bytes, and 8 are needed for the header's length alone")
    length = int.from_bytes(first, "little")
    if length > _MAX_HEADER:
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
        table = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt: the header is not valid JSON ({error})") from None
    if not isinstance(table, dict):
        raise FormatError("corrupt: the header is not a JSON object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError("corrupt: __metadata__ must map text to text")
    user = {key: value for key, value in metadata.items() if not key.startswith(PREFIX)}
    ours = {key: value for key, value in metadata.items() if key.startswith(PREFIX)}
    if not ours:
        return Header(_entries(table, data_size), user, None, None, None, None, None)

    version = ours.get(_VERSION, "")
    if not (version.isascii() and version.isdecimal()) or int(version) < 1:
        raise FormatError(f"corrupt: format version {version!r}")
    writer = ours.get(_WRITER, "an unknown version")
    if int(version) > FORMAT_VERSION:
        raise FormatError(
            f"model format {version}, written by Volta {writer}, is newer than this Volta ({__version__}) reads "
            f"(up to {FORMAT_VERSION}); upgrade Volta"
        )
    missing = [key for key in (_CONTRACT, _WRITER, _STRUCTURE, _CHECKSUM) if key not in ours]
    if missing:
        raise FormatError(f"corrupt: __metadata__ lacks {', '.join(missing)}")
    try:
        structure = json.loads(ours[_STRUCTURE], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt: the pytree's structure is not valid JSON ({error})") from None
    return Header(_entries(table, data_size), user, int(version), ours[_CONTRACT], writer, structure, ours[_CHECKSUM])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("corrupt: a key occurs twice in the header")
    return found


def _is_size(x: Any) -> bool:
    return type(x) is int and x >= 0


def _entries(table: dict[str, Any], data_size: int) -> dict[str, Entry]:
    entries = {name: _entry(name, value) for name, value in table.items()}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            fault = "overlap" if entry.begin < position else "leave a gap"
            raise FormatError(f"corrupt: data offsets {fault} at array {name!r}")
        position = entry.end
    if position > data_size:
        raise FormatError(f"truncated: {position} bytes of data are announced, {data_size} are there")
    if position < data_size:
        raise FormatError(f"corrupt: {data_size - position} bytes after the last array")
    return entries


def _entry(name: str, value: Any) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"corrupt: array {name!r} needs exactly dtype, shape and data_offsets")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise FormatError(f"array {name!r} has dtype {kind!r}; Volta reads {', '.join(_DTYPES)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise FormatError(f"corrupt: array {name!r} has shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise FormatError(f"corrupt: array {name!r} has data offsets {offsets!r}")
    dtype = _DTYPES[kind]
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise FormatError(
            f"corrupt: array {name!r} of dtype {kind} and shape {shape} does not fill its data offsets {offsets}"
        )
    return Entry(dtype, tuple(shape), *offsets)


def check(header: Header, raw_header: bytes, data: memoryview) -> None:
    """Compare the checksum; raises FormatError when header or data are not what was written."""
    if header.checksum is None:
        return
    stated = _key_value(header.checksum)
    if raw_header.count(stated) != 1:
        raise FormatError("corrupt: the checksum is not written as Volta writes it")
    digest = hashlib.sha256(raw_header.replace(stated, _key_value(_ZEROS)))
    digest.update(data)
    if digest.hexdigest() != header.checksum:
        raise FormatError("corrupt: the SHA-256 of the contents differs from the one in the header")


def view(entry: Entry, data: memoryview, name: str) -> np.ndarray:
    """One array as a view of the data section."""
    raw = np.frombuffer(data[entry.begin : entry.end], np.uint8)
    if entry.dtype == dtypes.bool_ and raw.size and raw.max() > 1:
        raise FormatError(f"corrupt: array {name!r} of dtype BOOL holds bytes other than 0 and 1")
    return raw.view(entry.dtype.newbyteorder("<")).reshape(entry.shape)
