"""What is saved comes back, as the same bytes each time; like=; what cannot be saved; atomic replacement."""

import hashlib
import inspect
import math
import os
import re
import struct
import subprocess
import sys
from collections import OrderedDict, namedtuple

import attrs
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta import io, optim
from volta.core import dtypes, pytrees
from volta.core.errors import DTypeError, FormatError, TreeError
from volta.io import files
from volta.io import format as fmt
from volta.version import __version__

Point = namedtuple("Point", "x y")


@pytrees.register_dataclass
@attrs.frozen
class Layer:
    w: object
    b: object


def same(a, b):
    """Trees of one structure and types whose arrays have the same bits."""
    if pytrees.structure(a) != pytrees.structure(b):
        return False
    for x, y in zip(pytrees.leaves(a), pytrees.leaves(b), strict=True):
        if isinstance(x, (bool, int, float, str)):
            equal = type(x) is type(y) and (x == y or (x != x and y != y))
        else:
            x, y = np.asarray(x), np.asarray(y)
            equal = x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        if not equal:
            return False
    return True


def example_tree():
    params = {"w": vnp.asarray(np.arange(6, dtype="f4").reshape(2, 3)), "b": [vnp.zeros(3, "bfloat16"), None]}
    return {
        "params": params,
        "optimizer": optim.chain(optim.clip(1.0), optim.adamw(1e-3)).init(params),
        "step": 12,
        "rate": 0.1,
        "nothing": None,
        "name": "héllo",
        "done": False,
        "empty": {"list": [], "tuple": (), "dict": {}},
        "mask": vnp.asarray(np.array([True, False, True])),
        "dotted.key": vnp.asarray(np.float64(math.pi)),
        "zero": vnp.zeros((0, 3)),
        "point": Point(vnp.ones(2), 3),
        "ordered": OrderedDict(z=vnp.ones(1), a=vnp.zeros(1)),
        "numbers": {0: vnp.ones(1), 10: vnp.zeros(2), 9: 1},
    }


# -- round trips -------------------------------------------------------------------------------------------------------


def test_the_tree_comes_back(path):
    tree = example_tree()
    io.save(path, tree)
    assert same(io.load(path), tree)
    assert same(io.load(path, like=tree), tree)
    assert all(isinstance(x, (volta.Array, bool, int, float, str)) for x in pytrees.leaves(io.load(path)))


LEAVES = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(),
    st.text(max_size=3).filter(lambda s: s.isascii()),
    st.tuples(st.sampled_from(dtypes.ALL), st.lists(st.integers(0, 3), max_size=3)).map(
        lambda t: np.arange(math.prod(t[1])).reshape(t[1]).astype(t[0])
    ),
)
KEYS = st.one_of(st.integers(-3, 3), st.text(alphabet='ab.%_\\"é ', max_size=3), st.just("__metadata__"))
TREES = st.recursive(
    st.one_of(st.none(), LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


def _has_colliding_keys(tree):
    if isinstance(tree, dict) and len({str(k) for k in tree}) < len(tree):
        return True
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return any(map(_has_colliding_keys, children))


@given(TREES)
@pytest.mark.turns(6)
def test_any_tree_comes_back_and_has_one_file(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("trees")
    if _has_colliding_keys(tree):
        return
    io.save(folder / "a", tree)
    loaded = io.load(folder / "a")
    # optree sorts dict keys only where they compare, so compare trees that both went through a file.
    io.save(folder / "b", loaded)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    assert same(io.load(folder / "a", like=loaded), loaded)
    assert len(pytrees.leaves(loaded)) == len(pytrees.leaves(tree))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_each_dtype(path, dtype):
    x = np.array([0, 1, 3, 100]).astype(dtype)
    io.save(path, {"x": x, "scalar": x[1]})
    loaded = io.load(path)
    assert same(loaded, {"x": x, "scalar": x[1]})
    assert io.load_metadata(path).arrays["x"].dtype == dtype


def test_special_values_and_layouts(path):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.0, 2.0])
    tree = {"x": x, "strided": x[::2], "fortran": np.asfortranarray(x.reshape(2, 4)), "swapped": x.astype(">f8")}
    io.save(path, tree)
    loaded = io.load(path)
    for name, value in tree.items():
        assert np.asarray(loaded[name]).tobytes() == np.asarray(value, "<f8", order="C").tobytes()


def test_a_weak_type_comes_back(path):
    weak = volta.jit(lambda: 2.0 * vnp.asarray(1.5))()
    weak = weak if weak.weak_type else files._as_weak(vnp.asarray(3.0))
    io.save(path, {"weak": weak, "strong": vnp.ones(())})
    loaded = io.load(path)
    assert loaded["weak"].weak_type and not loaded["strong"].weak_type


def test_a_single_array_and_none(path):
    io.save(path, vnp.ones(3))
    assert same(io.load(path), vnp.ones(3))
    io.save(path, None)
    assert io.load(path) is None


# -- the bytes ---------------------------------------------------------------------------------------------------------


def test_the_same_state_is_the_same_file(tmp_path):
    tree = example_tree()
    shuffled = {key: tree[key] for key in reversed(tree)}
    io.save(tmp_path / "a", tree, {"one": "1", "two": "2"})
    io.save(tmp_path / "b", shuffled, {"two": "2", "one": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


PROGRAM = """
import sys
import numpy as np
from volta import io
tree = {name: np.arange(3, dtype="f4") + i for i, name in enumerate(["b", "a", "c"])}
io.save(sys.argv[1], {"layers": [tree, (1, None)], "kinds": {"f8": np.ones(2), "u1": np.zeros(3, "u1")}}, {"k": "v"})
"""


@pytest.mark.turns(6)
def test_another_process_writes_the_same_file(tmp_path, monkeypatch):
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "there")], check=True, env=environment)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "here")])
    exec(PROGRAM, {})
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


def test_golden_bytes(path):
    """Format v2 is frozen: this file must be written and read as it is here, by every later version."""
    io.save(path, {"w": np.array([1, 2], "f4"), "n": 3}, {"note": "golden"})
    raw = path.read_bytes()
    digest = re.search(rb'"volta.sha256":"([0-9a-f]{64})"', raw).group(1).decode()
    header = (
        '{"__metadata__":{"note":"golden","volta.contract":"' + fmt.CONTRACT + '","volta.format":"2",'
        '"volta.sha256":"' + digest + '","volta.structure":"[\\"dict\\",[[\\"n\\",[\\"scalar\\",3]],'
        '[\\"w\\",[\\"array\\",\\"w\\"]]]]","volta.version":"' + __version__ + '"},'
        '"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}'
    )
    header += " " * (-len(header) % 8)
    data = struct.pack("<ff", 1, 2)
    assert raw == struct.pack("<Q", len(header)) + header.encode() + data
    before = header.replace(digest, "0" * 64).encode()
    assert digest == hashlib.sha256(before + hashlib.sha256(data).digest()).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, (3 << 22) + 5])
def test_each_four_megabytes_have_a_hash(path, size):
    io.save(path, {"a": np.arange(size, dtype=np.uint8), "b": np.arange(3, dtype="f8")})
    raw = path.read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    digest = re.search(rb'"volta.sha256":"([0-9a-f]{64})"', raw).group(1)
    data, leaf = raw[length:], 1 << 22
    hashes = [hashlib.sha256(data[i : i + leaf]).digest() for i in range(0, len(data), leaf)]
    assert hashlib.sha256(raw[8:length].replace(digest, b"0" * 64) + b"".join(hashes)).hexdigest().encode() == digest
    assert io.load(path)["b"].tolist() == [0, 1, 2]
    for at in {length, length + leaf - 1, len(raw) - 1} if data else ():
        spoilt = bytearray(raw)
        spoilt[min(at, len(raw) - 1)] ^= 1
        path.write_bytes(spoilt)
        with pytest.raises(volta.errors.FormatError, match="SHA-256"):
            io.load(path)


def test_metadata(path):
    io.save(path, {"w": np.zeros((2, 3), "f4")}, {"author": "me", "quote": 'a "b" \\ é'})
    info = io.load_metadata(path)
    assert (info.format, info.volta_version, info.contract) == (2, __version__, fmt.CONTRACT)
    assert info.contract.startswith("strict-v2")
    assert info.metadata == {"author": "me", "quote": 'a "b" \\ é'}
    assert str(info.arrays["w"]) == "f32[2,3]"


def test_a_file_of_format_v1_made_under_strict_v1_loads_and_is_named_so(path):
    """These bytes were written before the contract and the format changed: they are read by every later version."""
    path.write_bytes(
        b'P\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"note":"golden","volta.contract":"strict-v1-e71ff13f",'
        b'"volta.format":"1","volta.sha256":"e33e564a7642b4554e67556fd3f18307d239eea12dec32c7fb60e79e71808861",'
        b'"volta.structure":"[\\"dict\\",[[\\"n\\",[\\"scalar\\",3]],[\\"w\\",[\\"array\\",\\"w\\"]]]]",'
        b'"volta.version":"0.1.0"},"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}    \x00\x00\x80?\x00\x00\x00@'
    )
    info = io.load_metadata(path)
    assert info.contract == "strict-v1-e71ff13f" != fmt.CONTRACT and info.format == 1
    tree = io.load(path)
    assert tree["n"] == 3
    np.testing.assert_array_equal(tree["w"], np.array([1, 2], "f4"))
    path.write_bytes(path.read_bytes()[:-1] + b"A")
    with pytest.raises(volta.errors.FormatError, match="SHA-256"):
        io.load(path)


def test_files_of_an_earlier_contract_load(path, monkeypatch):
    """A contract says how numbers were made; the numbers themselves are bytes."""
    monkeypatch.setattr(fmt, "CONTRACT", "strict-v1-538453da")
    io.save(path, {"w": np.array([1, 2], "f4")})
    monkeypatch.undo()
    assert io.load_metadata(path).contract == "strict-v1-538453da" != fmt.CONTRACT
    np.testing.assert_array_equal(io.load(path)["w"], np.array([1, 2], "f4"))


def test_the_safetensors_package_reads_it(path):
    safetensors = pytest.importorskip("safetensors")
    numpy_reader = pytest.importorskip("safetensors.numpy")
    tree = {"a": {"w": np.arange(6, dtype="f4").reshape(2, 3)}, "b": [np.ones(2, "f8"), np.zeros((), "f2")]}
    io.save(path, {**tree, "c": np.ones(3, "i8"), "d": np.array([True])}, {"k": "v"})
    theirs = numpy_reader.load_file(path)
    np.testing.assert_array_equal(theirs["a.w"], tree["a"]["w"])
    assert theirs["b.0"].dtype == "f8" and theirs["b.1"].shape == ()
    assert theirs["d"].tolist() == [True]
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["k"] == "v"
    io.save(path, {"half": np.ones(3, ml_dtypes.bfloat16), "x": np.ones(2, "f4")})
    with safetensors.safe_open(path, "np") as file:
        assert file.get_slice("half").get_dtype() == "BF16"


def test_reads_what_the_safetensors_package_writes(path):
    numpy_writer = pytest.importorskip("safetensors.numpy")
    arrays = {"layers.0.w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.array([1, 2], "i8")}
    numpy_writer.save_file(arrays, path, {"from": "elsewhere"})
    assert same(io.load(path), arrays)
    like = {"layers": [{"w": vnp.zeros((2, 3))}], "b": vnp.zeros(2, "int64")}
    np.testing.assert_array_equal(np.asarray(io.load(path, like=like)["layers"][0]["w"]), arrays["layers.0.w"])
    info = io.load_metadata(path)
    assert info.format is None and info.metadata == {"from": "elsewhere"}


# -- classes and like= -------------------------------------------------------------------------------------------------


def test_registered_classes_need_like(path):
    tree = {"layer": Layer(vnp.ones(2), vnp.zeros(1))}
    io.save(path, tree)
    with pytest.raises(TreeError, match="pass a tree of its kind as like="):
        io.load(path)
    loaded = io.load(path, like={"layer": Layer(vnp.zeros(2), vnp.ones(1))})
    assert isinstance(loaded["layer"], Layer) and same(loaded, tree)


@pytest.mark.parametrize(
    "like, words",
    [
        ({"w": np.zeros((2, 3), "f4")}, "has in excess 'n'"),
        ({"w": np.zeros((2, 3), "f4"), "n": 1, "v": np.zeros(2)}, "lacks 'v'"),
        ({"w": np.zeros((3, 2), "f4"), "n": 1}, "at 'w': it has float32\\[2, 3\\], like= has float32\\[3, 2\\]"),
        ({"w": np.zeros((2, 3), "f8"), "n": 1}, "like= has float64"),
        ({"w": np.zeros((2, 3), "f4"), "n": 1.0}, "it has a int, like= has a float"),
    ],
)
def test_like_that_does_not_fit(path, like, words):
    io.save(path, {"w": np.ones((2, 3), "f4"), "n": 5})
    before = {key: np.array(value) for key, value in like.items()}
    with pytest.raises(FormatError, match=words):
        io.load(path, like=like)
    assert all(np.array_equal(like[key], before[key]) for key in like), "a failed load changed its template"


# -- what cannot be saved ----------------------------------------------------------------------------------------------


def nested(depth):
    tree = np.ones(2, "f4")
    for _ in range(depth):
        tree = [tree]
    return tree


def endless():
    tree = {}
    tree["again"] = [tree]
    return tree


@pytest.mark.parametrize(
    "tree, error, words",
    [
        ({"a": [object()]}, TreeError, "at 'a.0': cannot save a object"),
        ({(1, 2): 3}, TreeError, "must be str or int"),
        ({True: 3}, TreeError, "must be str or int"),
        ({1: np.ones(1), "1": np.ones(1)}, TreeError, "two leaves would have the name '1'"),
        ({"\ud800": np.ones(1)}, TreeError, "Unicode"),
        ({"c": np.ones(1, np.longdouble)}, DTypeError, "at 'c'"),
        ({"s": np.array(["text"])}, DTypeError, "at 's'"),
        ({"m": np.ma.masked_array([1.0, 2.0], [0, 1])}, DTypeError, "at 'm': a masked array"),
        ({"n": [10**5000]}, TreeError, "at 'n.0': an int of more than 4000 digits"),
        ({"n": {10**5000: 1}}, TreeError, "at 'n': an int of more than 4000 digits"),
        (nested(257), TreeError, "more than 256 levels deep"),
        (nested(100_000), TreeError, "more than 256 levels deep"),
        (endless(), TreeError, "or contains itself"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_saved(path, tree, error, words):
    path.write_bytes(b"old")
    with pytest.raises(error, match=words):
        io.save(path, tree)
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == [path.name]


def test_deep_trees(path):
    """The deepest tree that can be saved is loaded, also by a caller far down the stack, or is refused by name."""
    tree = nested(256)
    io.save(path, tree)

    def deeper(levels):
        return io.load(path) if not levels else deeper(levels - 1)

    for levels in (0, 300):
        loaded = deeper(levels)
        for _ in range(256):
            (loaded,) = loaded
        assert loaded.tolist() == [1, 1]
    near = sys.getrecursionlimit() - len(inspect.stack()) - 60
    with pytest.raises(TreeError, match="Python's stack"):
        deeper(near)
    with pytest.raises(TreeError, match="Python's stack"):
        (save := lambda n: io.save(path, tree) if not n else save(n - 1))(near)


def test_large_ints(path):
    for n in (10**4000 - 1, -(10**4000) + 1, 2**63, -(2**63)):
        io.save(path, {n: n})
        assert io.load(path) == {n: n}


def test_bad_metadata(path):
    for metadata, words in (
        ({"a": 1}, "str to str"),
        ({"volta.x": "1"}, "belong to Volta"),
        ({"a": "\ud800"}, "Unicode"),
    ):
        with pytest.raises(ValueError, match=words):
            io.save(path, {}, metadata)
