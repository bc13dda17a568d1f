"""Damaged, newer, foreign and hostile files: each is refused, by an error that names the file and what is wrong."""

import json
import re
import resource
import struct
import sys
import types
from collections import namedtuple
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
from tests.workers import mesh_of, simulated
from volta import io
from volta.core.errors import FormatError, TreeError
from volta.io import format as fmt
from volta.io import structure
from volta.sharding import NamedSharding, PartitionSpec

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


@pytest.mark.turns(2)
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


OURS = {
    "volta.format": "1",
    "volta.contract": fmt.CONTRACT,
    "volta.version": "0.1",
    "volta.structure": "null",
    "volta.sha256": "0" * 64,
}


@pytest.mark.parametrize(
    "table, data, words",
    [
        (b"[1]", b"", "not a JSON object"),
        (b"{", b"", "not valid JSON"),
        (b"\xff", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not a JSON object"),
        (b'{"a":' * 100_000, b"", "has no end"),
        (b'{"a":{"a":' * 100 + b"}" * 200, b"", "not valid JSON"),
        (b'{"a":{' + b"[" * 3000 + b"}}", b"", "not valid JSON"),
        (b"{}[]", b"", "more text"),
        (b'{"a":NaN}', b"", "needs exactly"),
        (b'{"\\ud8":1}', b"", "not valid JSON"),
        (b'{"\\ud800":1}', b"", "needs exactly"),
        (json.dumps({"a": entry()})[:-1].encode() + b',"a":1}', bytes(8), "'a' occurs twice"),
        (b'{"a":{"dtype":"F32","dtype":"F32"}}', b"", "twice"),
        (b'{"__metadata__":{"k":"1","k":"1"}}', b"", "'k' occurs twice"),
        ({"__metadata__": {"a": 1}}, b"", "text to text"),
        ({"a": 3}, b"", "needs exactly"),
        ({"a": "F32"}, b"", "needs exactly"),
        ({"a" * 1_000_000: 3}, b"", "needs exactly"),
        ({"a": entry(extra=1)}, bytes(8), "needs exactly"),
        ({"a": entry(dtype="F8_E4M3")}, bytes(8), "Volta reads"),
        ({"a": entry(dtype=["F32"])}, bytes(8), "Volta reads"),
        ({"a": entry(shape=(-2, -1))}, bytes(8), "shape"),
        ({"a": entry(shape=(True, 2))}, bytes(8), "shape"),
        ({"a": entry(shape=(3,))}, bytes(8), "does not fill"),
        ({"a": entry(shape=(2,) + (1,) * 64)}, bytes(8), "65 dimensions"),
        ({"a": entry(shape=(9,) * 1_000_000)}, bytes(8), "longer than an array's"),
        ({"a": entry(shape=(2**63,))}, bytes(8), "'a' has shape"),
        ({"a": entry(shape=(0, 2**62, 4), offsets=(0, 0))}, b"", "larger than memory"),
        ({"a": entry(shape=(10**4000,))}, bytes(8), "shape|longer"),
        ({"a": entry(offsets=(0, 2**63))}, bytes(8), "'a' has data offsets"),
        ({"a": entry(offsets=(8, 0))}, bytes(8), "does not fill"),
        ({"a": entry(offsets=(0, 8, 9))}, bytes(8), "data offsets"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), "gap"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "overlap"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "gap"),
        ({"a": entry()}, bytes(7), "truncated"),
        ({"a": entry()}, bytes(9), "after the last array"),
        ({"a": entry(dtype="BOOL", shape=(1,), offsets=(0, 1))}, b"\x02", "other than 0 and 1"),
        ({"__metadata__": {"volta.format": "3", "volta.version": "9.9"}}, b"", "newer .*9.9|9.9.* newer"),
        ({"__metadata__": {"volta.format": "one"}}, b"", "format version 'one'"),
        ({"__metadata__": {"volta.format": "0"}}, b"", "format version '0'"),
        ({"__metadata__": {"volta.format": "1" * 5000}}, b"", "format version"),
        ({"__metadata__": {"volta.format": "\u0661"}}, b"", "format version"),
        ({"__metadata__": {"volta.format": "01"}}, b"", "format version"),
        ({"__metadata__": {"volta.format": "1"}}, b"", "lacks volta.contract"),
        ({"__metadata__": {**OURS, "volta.sha256": "\ud800"}}, b"", "as Volta writes it"),
        ({"__metadata__": {**OURS, "volta.sha256": "0" * 63}}, b"", "as Volta writes it"),
        (json.dumps({"__metadata__": OURS}).replace("00", "\\u0030" * 2, 1).encode(), b"", "as Volta writes it"),
        (json.dumps({"__metadata__": OURS | {"é": ""}}, ensure_ascii=False).encode(), b"", "as Volta writes it"),
        ({"__metadata__": OURS}, b"", "SHA-256"),
        ({"__metadata__": {**OURS, "volta.format": "2"}}, b"", "SHA-256"),
        ({"__metadata__": []}, b"", "text to text"),
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
    """A file whose checksum is right but whose structure (values, or their text) is not what Volta writes."""
    file = BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(structure, Text):
            compact = fmt.compact
            patch.setattr(fmt, "compact", lambda value: value if isinstance(value, Text) else compact(value))
        fmt.write(file, arrays or {}, structure, {})
    return file.getvalue()


class Text(str):
    """A structure that is given as text."""


def nested(depth):
    return Text('["list",[[0,' * depth + "null" + "]]]" * depth)


@pytest.mark.parametrize(
    "structure, words",
    [
        (["array", "value"], "different arrays"),
        (["array", "w"], "another leaf than 'value'"),
        ({"dict": 1}, "structure is none"),
        (["dict", 3], "structure is none"),
        (["dict", [["a"]]], "structure is none"),
        (["set", []], "no node"),
        (["scalar", [1]], "structure is none"),
        (["float", "one"], "no float"),
        (["float", 1.0], "structure is none"),
        (["array", 3], "structure is none"),
        (["array", "w"] * 2, "structure is none"),
        ("null", "structure is none"),
        (["scalar", 0.5], "structure is none"),
        (["scalar", None], "structure is none"),
        (["dict", [["a", ["scalar", 1]], ["a", ["scalar", 2]]]], "'a' occurs twice"),
        (["dict", [[1, ["scalar", 1]], ["1", ["scalar", 2]]]], "another leaf than '1'"),
        (["dict", [[True, None]]], "structure is none"),
        (["dict", [[None, None]]], "structure is none"),
        (["tuple", [["z", None], ["z", None]]], "occurs twice"),
        (["list", [[1, None]]], "counted from 0"),
        (["dict", [["a", ["array", "b"]]]], "another leaf than 'a'"),
        (nested(513), "more than 512 levels"),
        (nested(20_000), "more than 512 levels"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_bad_structures(path, structure, words):
    path.write_bytes(sealed(structure))
    with pytest.raises(FormatError, match=words):
        io.load(path)


def test_deeper_trees_of_earlier_versions(path):
    path.write_bytes(sealed(nested(400)))
    loaded = io.load(path)
    for _ in range(400):
        (loaded,) = loaded
    assert loaded is None


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


class Loud(Point):
    """A namedtuple that does something when one is made."""

    made = 0

    def __new__(cls, x, y):
        Loud.made += 1
        return super().__new__(cls, x, y)


def test_no_code_of_a_namedtuple_runs(path):
    io.save(path, Loud(1, np.ones(2, "f4")))
    made = Loud.made
    for loaded in (io.load(path), io.load(path, like=tuple.__new__(Loud, (0, np.zeros(2, "f4"))))):
        assert type(loaded) is Loud and loaded.x == 1 and Loud.made == made


def test_no_module_is_imported_or_asked(path, monkeypatch):
    """A package may import what is asked of it, and an object among the modules may do anything."""

    def ask(name):
        raise AssertionError(f"asked for {name}")

    module = types.ModuleType("asked")
    module.__getattr__ = ask
    monkeypatch.setitem(sys.modules, "asked", module)
    monkeypatch.setitem(
        sys.modules, "strange", type("Strange", (), {"__getattribute__": lambda self, name: ask(name)})()
    )
    before = set(sys.modules)
    for name in ("asked:Thing", "strange:Thing", "numpy:f2py.Thing", "concurrent.futures:ProcessPoolExecutor", "sys:"):
        path.write_bytes(sealed([f"namedtuple {name}", [["x", None]]]))
        with pytest.raises(TreeError, match="not imported"):
            io.load(path)
    assert set(sys.modules) == before


# -- what hostile files cost -------------------------------------------------------------------------------------------


def test_memory_is_a_small_multiple_of_the_header(path):
    """As a tree of values, 8 MB of empty objects take 300 MB."""
    for junk in (b'{"a":[' + b"{}," * 2_700_000 + b"{}]}", b'{"a":{"dtype":[' + b"[]," * 2_700_000 + b"[]]}}"):
        write(path, junk)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(FormatError):
            io.load_metadata(path)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 50_000, f"{grown} KB more for a header of {len(junk) >> 10} KB"


def test_too_long_a_header_is_not_written(path, monkeypatch):
    monkeypatch.setattr(fmt.head, "MAX_HEADER", 1000)
    with pytest.raises(ValueError, match="1,000 is the format's limit; keep many numbers in arrays"):
        io.save(path, list(range(100)))
    assert not path.exists()


def test_a_header_may_be_as_long_as_the_limit(path, monkeypatch):
    io.save(path, [1, 2])
    length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    monkeypatch.setattr(fmt.head, "MAX_HEADER", length)
    assert io.load(path) == [1, 2]
    monkeypatch.setattr(fmt.head, "MAX_HEADER", length - 1)
    with pytest.raises(FormatError, match=f"a header of {length} bytes"):
        io.load(path)


@pytest.mark.parametrize("count, said", [(5, "'4'$"), (6, "'4' and 1 more$")])
def test_of_many_names_some_are_said(count, said):
    assert re.search(said, structure._some([str(i) for i in range(count)]))


def test_what_does_not_fit_arrays_that_are_cut(path):
    with simulated(2):
        rows = NamedSharding(mesh_of(2), PartitionSpec("data"))
        io.save(path, {"x": np.zeros(4, np.float32)})
        for wrong in (np.zeros(6, np.float32), np.zeros((4, 2), np.float32), np.zeros(4)):
            with pytest.raises(FormatError, match="does not fit like= at 'x': it has float32\\[4\\]"):
                io.load(path, like={"x": volta.device_put(wrong, rows)})


def test_a_header_that_ends_behind_the_file(path):
    path.write_bytes(struct.pack("<Q", 100) + b"{}" + b" " * 97)
    for read in (io.load, io.load_metadata):
        with pytest.raises(FormatError, match="truncated: the header should end at byte 108, and the file at 107"):
            read(path)


def test_a_file_that_shrinks_while_it_is_read(path, monkeypatch):
    io.save(path, np.ones(100_000, "f4"))
    decode = fmt.head.decode_header

    def then_shrink(raw, size):
        found = decode(raw, size)
        with open(path, "r+b") as file:
            file.truncate(1000)
        return found

    monkeypatch.setattr(fmt.head, "decode_header", then_shrink)
    with pytest.raises(FormatError, match="became shorter"):
        io.load(path)
