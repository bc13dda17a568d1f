"""Numbers alone are sorted by vectors of their keys: one order there is, also of zeros and NaNs, and nothing beyond."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
from tests.numba_cpu.test_radix_sorting import drawn, launched, stable
from volta.emit.loops import load_arg, load_pointer
from volta.numba_cpu import quicksort, target, unit
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.ordering_schedule import FEW_ROWS, REGISTER_BITS, SORT_CHUNK
from volta.testing import assert_bits_equal

pytestmark = [
    pytest.mark.skipif(
        target.vector_bits() < REGISTER_BITS, reason="this processor has no AVX-512, which moves lanes under a mask"
    ),
    pytest.mark.turns(3),
]

DTYPES = [np.dtype(d) for d in ("float32", "float64", "int32", "int64", "uint32", "uint64")]
LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 5003]
serial = itertools.count()


def shapes_of(n: int, dtype: np.dtype, seed: int = 0) -> dict[str, np.ndarray]:
    """Keys that quicksorts have been slow or wrong for."""
    info, r = np.iinfo(dtype), np.random.default_rng(seed)
    i = np.arange(n)
    return {
        "any": r.integers(info.min, info.max, n, dtype=dtype, endpoint=True),
        "few": r.integers(0, 3, n).astype(dtype),
        "least": np.full(n, info.min, dtype),
        "most": np.full(n, info.max, dtype),
        "up": i.astype(dtype),
        "down": i[::-1].astype(dtype),
        "saw": (i % 17).astype(dtype),
        "rare": np.where(i % 100 == 99, info.min, info.max).astype(dtype),
        "powers": (np.array(1, dtype) << (i % (8 * dtype.itemsize - 1)).astype(dtype)).astype(dtype),
    }


def sorter(dtype: np.dtype):
    """The sort of keys alone, over guarded buffers; results in a buffer of their own or in either of the two."""
    module = unit._new_module()
    name = f"test_quicksort_{next(serial)}"
    sort = quicksort.Quicksort(module, name, dtype)
    function, b = new_kernel(module, name)
    sort.call(b, *(load_pointer(b, function.args[0], i) for i in range(3)), load_arg(b, function.args[0], 3))
    b.ret_void()
    address = unit.compile_module(str(module), [name])[name]
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(address)

    def run(x: np.ndarray, out: int) -> np.ndarray:
        buffers = np.full((3, x.size + 64), 77, dtype)
        buffers[0, : x.size] = x
        args = np.array([buffers[i].ctypes.data for i in (0, 1, out)] + [x.size], np.int64)
        kernel(args.ctypes.data, 0, 0, 0)
        assert (buffers[:, x.size :] == 77).all()
        return buffers[out, : x.size]

    return run


@pytest.mark.parametrize("dtype", [np.dtype(np.int32), np.dtype(np.int64)], ids=str)
@pytest.mark.parametrize("patience", [2, 0], ids=["medians", "middles"])
def test_keys_of_every_shape(dtype, patience, monkeypatch) -> None:
    monkeypatch.setattr(quicksort, "_PATIENCE", patience)
    run = sorter(dtype)
    for n, out in zip(LENGTHS, itertools.cycle(range(3))):
        for name, x in shapes_of(n, dtype).items():
            np.testing.assert_array_equal(run(x, out), np.sort(x), err_msg=f"{name} of {n}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows(dtype) -> None:
    for length in LENGTHS:
        x = drawn(dtype, (3, length))
        assert length == 0 or launched(volta.numpy.sort, x) == ["vector_sort"]
        assert_bits_equal(volta.numpy.sort(x), np.take_along_axis(x, stable(x), -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_rows_by_buckets(dtype) -> None:
    steps = ["sample", "share", "buckets", *(["special"] if dtype.kind == "f" else [])]
    for shape in ((1, SORT_CHUNK + 1), (2, 3 * SORT_CHUNK - 5)):
        x = drawn(dtype, shape)
        assert launched(volta.numpy.sort, x) == [f"vector_sort_{step}" for step in steps]
        assert_bits_equal(volta.numpy.sort(x), np.take_along_axis(x, stable(x), -1))


@pytest.mark.parametrize("kind", sorted(shapes_of(1, np.dtype(np.int32))))
def test_long_rows_of_every_shape(kind) -> None:
    x = shapes_of(2 * SORT_CHUNK + 77, np.dtype(np.int32))[kind]
    np.testing.assert_array_equal(volta.numpy.sort(x), np.sort(x))


def test_zeros_and_nans_stay_in_the_order_of_the_row() -> None:
    words = np.array([0, 1 << 31, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F800000, 0xFF800000], np.uint32)
    for n in (100, SORT_CHUNK + 9):
        x = np.random.default_rng(n).choice(words, n).view(np.float32)
        assert_bits_equal(volta.numpy.sort(x), x[stable(x)])
        assert_bits_equal(volta.numpy.sort(-np.zeros(n, np.float32)), -np.zeros(n, np.float32))


def test_what_is_sorted_along_goes_by_digits() -> None:
    x = drawn(np.dtype(np.float32), (FEW_ROWS, 400))
    assert launched(volta.numpy.argsort, x) == ["sort_rows"]
    assert launched(volta.numpy.sort, drawn(np.dtype(np.float16), (FEW_ROWS, 400))) == ["sort_rows"]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_move_no_bit(threads) -> None:
    x = drawn(np.dtype(np.float32), (2, 2 * SORT_CHUNK + 5))
    before = volta.get_num_threads()
    try:
        volta.set_num_threads(threads)
        assert_bits_equal(volta.numpy.sort(x), np.take_along_axis(x, stable(x), -1))
    finally:
        volta.set_num_threads(before)


@given(st.integers(0, 600), st.sampled_from(DTYPES), st.integers(0, 99))
def test_any_length(length: int, dtype: np.dtype, seed: int) -> None:
    x = drawn(dtype, (length,), seed)
    assert_bits_equal(volta.numpy.sort(x), x[stable(x)])
