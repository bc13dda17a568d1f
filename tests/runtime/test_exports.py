"""What other libraries get of an array: never memory that they may write to while Volta reads it."""

import contextlib
import ctypes
import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.errors import DeviceError, DTypeError
from volta.runtime import array
from volta.testing.bits import assert_bits_equal

F = np.float32


class Exporter:
    """Hands on another object's export as ``__dlpack__(**asked)`` gives it: to consumers old and new."""

    def __init__(self, x, **asked):
        self.x, self.asked = x, asked

    def __dlpack__(self, **_ignored):
        return self.x.__dlpack__(**self.asked)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


NEW = {"max_version": (1, 0)}
EXPORTS = {
    "asarray": np.asarray,
    "array of another dtype": lambda x: np.asarray(x, "f8"),
    "array, copied": lambda x: np.array(x, copy=True),
    "numpy": lambda x: x.numpy(),
    "numpy, as bytes": lambda x: x.numpy().reshape(-1).view("u1"),
    "a view of a view": lambda x: np.asarray(x)[...].T[::-1],
    "the buffer of a view": lambda x: np.frombuffer(np.asarray(x), F),
    "strided over a view": lambda x: np.lib.stride_tricks.as_strided(np.asarray(x), writeable=True),
    "DLPack, as NumPy asks": np.from_dlpack,
    "DLPack, with a copy": lambda x: np.from_dlpack(x, copy=True),
    "DLPack before versions": lambda x: np.from_dlpack(Exporter(x)),
    "DLPack 0.8": lambda x: np.from_dlpack(Exporter(x, max_version=(0, 8))),
    "DLPack 1.0": lambda x: np.from_dlpack(Exporter(x, **NEW)),
    "DLPack 1.3": lambda x: np.from_dlpack(Exporter(x, max_version=(1, 3))),
    "DLPack 1.0 without a copy": lambda x: np.from_dlpack(Exporter(x, **NEW, copy=False)),
    "DLPack 1.0 with a copy": lambda x: np.from_dlpack(Exporter(x, **NEW, copy=True)),
    "pickled": lambda x: np.asarray(pickle.loads(pickle.dumps(x, 5))),
    "pickled out of band": lambda x: out_of_band(x),
}


def out_of_band(x):
    buffers = []
    pickle.dumps(x, 5, buffer_callback=buffers.append)
    return np.frombuffer(buffers[0], "u1") if buffers else np.zeros(1)


def scribble(x):
    """Write to an array if that is possible by any road that NumPy has without force."""
    with contextlib.suppress(ValueError):
        x.flags.writeable = True
    with contextlib.suppress(ValueError):
        x[...] = 77
    with contextlib.suppress(TypeError, ValueError):
        memoryview(x).cast("B")[0] = 77
    with contextlib.suppress(TypeError, ValueError):
        ctypes.c_char.from_buffer(x).value = b"M"


@pytest.mark.parametrize("name", EXPORTS)
def test_nobody_writes_to_an_array(name) -> None:
    x = vnp.arange(6, dtype=F).reshape(2, 3)
    before = x.tobytes()
    scribble(EXPORTS[name](x))
    assert x.tobytes() == before


@pytest.mark.parametrize("name", EXPORTS)
def test_nobody_writes_to_a_constant_of_a_program(name) -> None:
    c = vnp.arange(6, dtype=F).reshape(2, 3) + 1
    f = volta.jit(lambda y: (y * c, c))
    expected, constant = f(vnp.ones((2, 3)))
    expected = expected.tolist()
    scribble(EXPORTS[name](constant))
    scribble(EXPORTS[name](c))
    assert f(vnp.ones((2, 3)))[0].tolist() == expected


def test_who_knows_the_flag_shares_the_memory() -> None:
    x = vnp.arange(6, dtype=F).reshape(2, 3)
    for view in (np.from_dlpack(x), np.from_dlpack(Exporter(x, **NEW))):
        assert_bits_equal(view, x)
        assert np.shares_memory(view, np.asarray(x)) and not view.flags.writeable


def test_who_does_not_know_the_flag_gets_memory_of_its_own() -> None:
    x = vnp.arange(6, dtype=F).reshape(2, 3)
    for asked in ({}, {"max_version": (0, 8)}, {**NEW, "copy": True}, {"copy": True}):
        copy = np.from_dlpack(Exporter(x, **asked))
        assert_bits_equal(copy, x)
        assert not np.shares_memory(copy, np.asarray(x))
    assert "versioned" not in repr(x.__dlpack__()) and "versioned" in repr(x.__dlpack__(**NEW))


def test_a_numpy_without_the_flag(monkeypatch) -> None:
    """NumPy 2.0 makes exports without versions only: the consumer could know, but would not be told."""
    monkeypatch.setattr(array, "_FLAGS_READ_ONLY", False)
    x = vnp.ones(3)
    assert not np.shares_memory(np.from_dlpack(Exporter(x, **NEW)), np.asarray(x))
    with pytest.raises(BufferError, match="immutable"):
        x.__dlpack__(**NEW, copy=False)


def test_what_is_shared_is_not_overwritten_by_donation() -> None:
    for asked in ({}, NEW):
        x = vnp.zeros(3000) + 5
        view = np.from_dlpack(Exporter(x, **asked))
        volta.jit(lambda x: x + 1, donate_argnums=0)(x)
        assert (view == 5).all()


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"copy": False}, "immutable"),
        ({"copy": False, "max_version": (0, 8)}, "immutable"),
        ({"dl_device": (2, 0)}, r"dl_device=\(2, 0\): arrays are exported from the host's memory"),
        ({"stream": 1, **NEW}, "stream=1: arrays are exported"),
    ],
)
def test_exports_that_are_refused(asked, words) -> None:
    with pytest.raises(BufferError, match=words) as raised:
        vnp.ones(2).__dlpack__(**asked)
    assert "test_exports.py" in str(raised.value)


def test_the_device_and_dtypes() -> None:
    x = vnp.ones(2)
    assert x.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(Exporter(x, dl_device=(1, 0), stream=None)).tolist() == [1, 1]
    for dtype in ("bool", "int8", "uint64", "float16", "float64"):
        assert np.from_dlpack(vnp.zeros((2, 0), dtype)).dtype == dtype
    with pytest.raises(DTypeError, match="bfloat16"):
        np.from_dlpack(vnp.ones(2, vnp.bfloat16))


def test_jax_takes_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = vnp.arange(6, dtype=F).reshape(2, 3)
    taken = jnp.from_dlpack(x)
    volta.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert np.asarray(taken).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert_bits_equal(vnp.from_dlpack(taken), np.asarray(taken))


# -- what comes in -----------------------------------------------------------------------------------------------------

IMPORTS = {
    "from_dlpack": vnp.from_dlpack,
    "from_dlpack of what is read-only": lambda x: vnp.from_dlpack(read_only(x)),
    "from_dlpack, old": lambda x: vnp.from_dlpack(Exporter(x)),
    "asarray": vnp.asarray,
    "array": vnp.array,
    "frombuffer": lambda x: vnp.frombuffer(memoryview(x), "float32"),
    "an argument": volta.jit(lambda x: x),
    "a constant": lambda x: volta.jit(lambda: vnp.asarray(x))(),
    "an operand": lambda x: vnp.reshape(x, (-1,)),
}


def read_only(x):
    view = x[...]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("name", IMPORTS)
def test_later_writes_to_foreign_memory_do_not_arrive(name) -> None:
    x = np.arange(6, dtype=F)
    taken = IMPORTS[name](x)
    x[:] = 77
    assert taken.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["from_dlpack", "asarray", "an argument", "a constant", "an operand"])
def test_true_is_one_byte(name) -> None:
    """In foreign memory any byte but 0 may stand for it."""
    x = np.array([0, 1, 2, 255, 128, 0], "u1").view(bool)
    assert IMPORTS[name](x).tobytes() == bytes([0, 1, 1, 1, 1, 0])
    assert IMPORTS[name](x[::-2]).tobytes() == bytes([0, 1, 1])
    assert vnp.asarray(x[3]).tobytes() == b"\1"


def test_our_own_arrays_are_not_copied() -> None:
    """They are immutable, as everywhere in Volta."""
    x = vnp.ones(3)
    assert all(vnp.from_dlpack(x, **how) is x for how in ({}, {"copy": False}, {"copy": None}))
    assert vnp.from_dlpack(x, device="cpu").tobytes() == vnp.from_dlpack(np.ones(3, "f"), device="cpu").tobytes()


@pytest.mark.parametrize(
    "x, words",
    [
        (object(), "a object has no __dlpack__"),
        (3, "a int has no __dlpack__"),
        (np.array(["text"]), "from_dlpack: DLPack only supports"),
    ],
)
def test_imports_that_are_refused(x, words) -> None:
    with pytest.raises(DTypeError, match=words):
        vnp.from_dlpack(x)


def test_memory_of_others_is_always_copied() -> None:
    with pytest.raises(BufferError, match="another library may write to its memory"):
        vnp.from_dlpack(np.ones(2), copy=False)
    with pytest.raises(ValueError, match="elements of anything but an array of its own dtype are copied"):
        vnp.asarray(np.ones(2), copy=False)
    with pytest.raises(DeviceError, match="no device 'tpu'"):
        vnp.from_dlpack(np.ones(2), device="tpu")
