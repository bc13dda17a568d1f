"""Damaged, newer, foreign and hostile files: each is refused, by an error that names the file and what is wrong."""

import json
import struct
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volta import io
from volta.core.errors import FormatError, TreeError
from volta.io import format as fmt

Point = namedtuple("Point", "x y")


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model"
    io.save(path, {"w": np.array([[1.5, -2]], "f4"), "l": [np.array([7], "u1"), 2.5, None]}, {"key": "value"})
    return path.read_bytes()


def test_truncated_at_any_byte(good, path):
    for n in range(len(good)):
        path.write_bytes(good[:n])
        with pytest.raises(FormatError):
            io.load(path)


def test_any_byte_flipped(good, path):
    for i in range(len(good)):
        for flip in (0x01, 0x20, 0x80):
            damaged = bytearray(good)
            damaged[i] ^= flip
            path.write_bytes(damaged)
            with pytest.raises(FormatError):
                io.load(path)


@given(st.data())
def test_random_damage(good, tmp_path_factory, data):
    """Any splice gives a FormatError, or is the file itself."""
    begin = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(begin, len(good)))
    damaged = good[:begin] + data.draw(st.binary(max_size=20)) + good[end:]
    path = tmp_path_factory.mktemp("damage") / "model"
    path.write_bytes(damaged)
    if damaged == good:
        io.load(path)
    else:
        with pytest.raises(FormatError):
            io.load(path)


# -- headers -----------------------------------------------------------------------------------------------------------


def write(path, table, data=b""):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def entry(shape=(2,), offsets=(0, 8), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize(
    "table, data, words",
    [
        (b"[1]", b"", "not a JSON object"),
        (b"{", b"", "not valid JSON"),
        (b"\xff", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a":1,"a":1}', b"", "twice"),
        ({"__metadata__": {"a": 1}}, b"", "text to text"),
        ({"a": 3}, b"", "needs exactly"),
        ({"a": entry(extra=1)}, bytes(8), "needs exactly"),
        ({"a": entry(dtype="F8_E4M3")}, bytes(8), "Volta reads"),
        ({"a": entry(dtype=["F32"])}, bytes(8), "Volta reads"),
        ({"a": entry(shape=(-2, -1))}, bytes(8), "shape"),
        ({"a": entry(shape=(True, 2))}, bytes(8), "shape"),
        ({"a": entry(shape=(3,))}, bytes(8), "does not fill"),
        ({"a": entry(offsets=(8, 0))}, bytes(8), "does not fill"),
        ({"a": entry(offsets=(0, 8, 9))}, bytes(8), "data offsets"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), "gap"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "overlap"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "gap"),
        ({"a": entry()}, bytes(7), "truncated"),
        ({"a": entry()}, bytes(9), "after the last array"),
        ({"a": entry(dtype="BOOL", shape=(1,), offsets=(0, 1))}, b"\x02", "other than 0 and 1"),
        ({"__metadata__": {"volta.format": "2", "volta.version": "9.9"}}, b"", "newer .*9.9|9.9.* newer"),
        ({"__metadata__": {"volta.format": "one"}}, b"", "format version 'one'"),
        ({"__metadata__": {"volta.format": "0"}}, b"", "format version '0'"),
        ({"__metadata__": {"volta.format": "1"}}, b"", "lacks volta.contract"),
        ({"__metadata__": {"volta.sha256": "0"}}, b"", "format version"),
    ],
)
def test_bad_headers(path, table, data, words):
    write(path, table, data)
    with pytest.raises(FormatError, match=words) as error:
        io.load(path)
    assert str(path) in str(error.value)


def test_a_huge_header_is_not_allocated(path):
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(FormatError, match="not a model file"):
        io.load(path)
    with pytest.raises(FormatError, match="not a model file"):
        io.load_metadata(path)


# -- structures --------------------------------------------------------------------------------------------------------


def sealed(structure, arrays=None):
    """A file whose checksum is right but whose structure is not what Volta writes."""
    return b"".join(bytes(part) for part in fmt.encode(arrays or {}, structure, {}))


@pytest.mark.parametrize(
    "structure, words",
    [
        (["array", "w"], "different arrays"),
        ({"dict": 1}, "no node"),
        (["dict", 3], "no node"),
        (["dict", [["a"]]], "no node"),
        (["set", []], "no node"),
        (["scalar", [1]], "no node"),
        (["float", "one"], "no float"),
        (["float", 1.0], "no node"),
        (["array", 3], "no node"),
    ],
)
def test_bad_structures(path, structure, words):
    path.write_bytes(sealed(structure))
    with pytest.raises(FormatError, match=words):
        io.load(path)


def test_an_array_that_the_structure_forgets(path):
    path.write_bytes(sealed(["list", []], {"w": np.ones(2, "f4")}))
    with pytest.raises(FormatError, match="different arrays"):
        io.load(path)


def test_a_namedtuple_that_is_not_imported(path):
    path.write_bytes(sealed(["namedtuple no_such_module:Thing", [["x", ["scalar", 1]]]]))
    with pytest.raises(TreeError, match="not imported"):
        io.load(path)
    path.write_bytes(sealed(["namedtuple os:system", [["command", ["scalar", "true"]]]]))
    with pytest.raises(TreeError, match="not imported"):
        io.load(path)
    path.write_bytes(sealed([f"namedtuple {__name__}:Point", [["y", ["scalar", 1]], ["x", ["scalar", 2]]]]))
    with pytest.raises(TreeError, match="not imported"):
        io.load(path)
