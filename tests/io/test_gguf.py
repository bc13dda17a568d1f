"""GGUF files as the public package writes them; damaged and hostile ones, each refused by name."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
from volta import io, nn
from volta.core.block_formats import FORMATS
from volta.core.errors import FormatError
from volta.testing import assert_bits_equal

TYPES = gguf.GGMLQuantizationType


def written(path, arrays, **values):
    """A file of arrays, each with its type; returns what the public package's reader says they are."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "ß", ""])
    writer.add_array("counts", [1, -2, 3])
    for key, value in values.items():
        getattr(writer, {bool: "add_bool", int: "add_uint32", float: "add_float64"}[type(value)])(key, value)
    for name, (data, kind) in arrays.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def sample():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    arrays = {"plain": (x[:, :5].copy(), TYPES.F32), "half": (x[:2, :3].astype(np.float16), TYPES.F16)}
    for kind in (TYPES.BF16, TYPES.Q8_0, TYPES.Q4_0):
        arrays[kind.name] = (gguf.quants.quantize(x, kind), kind)
    blocks = rng.integers(0, 60, (3, FORMATS["Q4_K"].nbytes), dtype=np.uint8)
    return arrays | {"Q4_K": (blocks, TYPES.Q4_K)}


def numbers(x):
    return x.dequantize() if isinstance(x, nn.QuantizedArray) else x.astype(np.float32)


@pytest.mark.parametrize("mmap", [True, False])
def test_what_the_public_package_writes_is_read(tmp_path, mmap):
    wanted = written(tmp_path / "m", sample(), flag=True, size=7, eps=1e-5)
    found = io.load_gguf(tmp_path / "m", mmap=mmap)
    assert found.metadata == {
        "general.architecture": "llama", "tokens": ["a", "ß", ""], "counts": [1, -2, 3], "flag": True, "size": 7,
        "eps": 1e-5,
    }  # fmt: skip
    assert sorted(found.arrays) == sorted(wanted)
    for name, x in found.arrays.items():
        assert_bits_equal(numbers(x), wanted[name])
    assert found.arrays["Q4_K"].format == "Q4_K" and found.arrays["BF16"].dtype == volta.numpy.bfloat16


def test_arrays_are_the_files_own_pages(tmp_path):
    """Not copied, and not written to: what is donated is copied first."""
    written(tmp_path / "m", sample())
    before = (tmp_path / "m").read_bytes()
    x = io.load_gguf(tmp_path / "m").arrays["plain"]
    kept = np.asarray(x)
    assert before.count(kept.tobytes()) == 1
    doubled = volta.jit(lambda x: x * 2, donate_argnums=0)(x)
    assert_bits_equal(doubled, kept * 2)
    assert (tmp_path / "m").read_bytes() == before


def test_safetensors_are_mapped_too(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tree = {"x": x, "flags": np.array([True, False]), "h": x.astype(np.float16)}
    io.save(tmp_path / "m", tree)
    found = io.load(tmp_path / "m", mmap=True)
    for name, wanted in tree.items():
        assert_bits_equal(found[name], wanted)
    volta.jit(lambda x: x * 2, donate_argnums=0)(found["x"])
    assert_bits_equal(io.load(tmp_path / "m")["x"], x)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "m"
    x = np.ones((2, 32), np.float32)
    written(path, {"x": (x, TYPES.F32), "q": (gguf.quants.quantize(x, TYPES.Q8_0), TYPES.Q8_0)}, flag=True)
    return path.read_bytes()


def test_truncated_at_any_byte(good, tmp_path):
    last = max(n for n in range(len(good)) if good[n])
    for n in range(0, last, 3):
        (tmp_path / "m").write_bytes(good[:n])
        with pytest.raises(FormatError, match="m: "):
            io.load_gguf(tmp_path / "m")


@given(st.data())
@settings(max_examples=150)
def test_random_damage_is_refused_or_read(good, tmp_path_factory, data):
    """Any bytes in the place of others give an error that names the file, or arrays within it."""
    begin = data.draw(st.integers(0, len(good) - 1))
    put = data.draw(st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\0\0\0\x80" * 2]))
    path = tmp_path_factory.mktemp("bad") / "m"
    path.write_bytes(good[:begin] + put + good[begin + len(put) :])
    try:
        found = io.load_gguf(path)
    except FormatError as error:
        assert str(path) in str(error)
    else:
        for x in found.arrays.values():
            np.asarray(numbers(x)) if x.ndim and x.dtype == np.float32 else np.asarray(x)


def header(*parts):
    return b"GGUF" + b"".join(parts)


def word(*numbers, code="Q"):
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def named(text):
    return word(len(text)) + text


THREE = word(3, code="I")
HOSTILE = {
    "no GGUF file": b"ELF?" + THREE,
    "GGUF version 9": header(word(9, code="I"), word(0, 0)),
    "big-endian": header(struct.pack(">I", 3), word(0, 0)),
    "40 texts": header(THREE, word(0, 1), named(b"k"), word(9, 8, code="I"), word(40)),
    "bytes are wanted": header(THREE, word(0, 1), named(b"k"), word(9, 0, code="I"), word(2**63)),
    "a value of type 9": header(THREE, word(0, 1), named(b"k"), word(9, 9, code="I"), word(2**40)),
    "'k' occurs twice": header(THREE, word(0, 2), *[named(b"k") + word(7, code="I") + b"\1"] * 2),
    "has 5 axes": header(THREE, word(1, 0), named(b"x"), word(5, code="I")),
    "of GGUF's type 16; Volta reads Q4_0": header(
        THREE, word(1, 0), named(b"x"), word(1, code="I"), word(256), word(16, code="I"), word(0)
    ),
    "no whole blocks of 32": header(
        THREE, word(1, 0), named(b"x"), word(1, code="I"), word(33), word(8, code="I"), word(0)
    ),
    "has the shape": header(
        THREE, word(1, 0), named(b"x"), word(3, code="I"), word(2**40, 2**40, 0), word(0, code="I"), word(0)
    ),
    "ends at byte": header(THREE, word(1, 0), named(b"x"), word(1, code="I"), word(9), word(0, code="I"), word(2**40)),
    "no power of two": header(
        THREE, word(0, 1), named(b"general.alignment"), word(4, code="I"), word(24, code="I")
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_files_are_refused_by_name(why, tmp_path):
    (tmp_path / "m").write_bytes(HOSTILE[why])
    with pytest.raises(FormatError, match=why.replace("?", ".")):
        io.load_gguf(tmp_path / "m")
