"""Sorts on the CPU: rows merged, sorted by digits, and by digits in chunks have the one stable order there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
from volta import lax
from volta.core import dtypes
from volta.numba_cpu import ordering_schedule
from volta.numba_cpu.ordering_schedule import FEW_ROWS, SHORT_ROW, SORT_CHUNK
from volta.testing import assert_bits_equal, fill

KEYS = [d for d in dtypes.ALL if not dtypes.is_complex(d)]


def edges(dtype: np.dtype) -> np.ndarray:
    """Zeros of both signs, NaN of both signs and of other payloads, ends of the range and their neighbours."""
    if not dtypes.is_float(dtype):
        return np.array([0, 1, *([] if dtype.kind == "b" else _ends(dtype))], dtype)
    limits, word = dtypes.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    largest = int(np.array(limits.max, dtype).view(word))
    sign = 1 << (8 * dtype.itemsize - 1)
    magnitudes = [0, 1, 2, int(np.array(1, dtype).view(word)), largest, largest + 1, largest + 2, sign - 1]
    return np.array([m | s for m in magnitudes for s in (0, sign)], word).view(dtype)


def _ends(dtype: np.dtype) -> list[int]:
    limits = np.iinfo(dtype)
    return [limits.min, limits.min + 1, limits.max, limits.max - 1]


def drawn(dtype: np.dtype, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A third of the elements at the edges, a third of few values, so that many are equal."""
    x, at = fill("normal", shape, dtype, seed), np.random.default_rng(seed).integers(0, 3, shape)
    return np.where(at == 0, np.resize(edges(dtype), shape), np.where(at == 1, x, np.resize(x.reshape(-1)[:5], shape)))


def stable(*keys: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling NaN is one
        wide = [k.astype(np.float64) if dtypes.is_float(k.dtype) else k for k in keys]
    return np.lexsort(wide[::-1], axis=-1)


def launched(f, *args) -> list[str]:
    compiled = volta.jit(f).lower(*args).compile()
    return [x.kernel.name for x in compiled.plan.all_launches() if "sort" in x.kernel.name]


@pytest.mark.parametrize("dtype", KEYS, ids=str)
def test_rows_by_digits(dtype) -> None:
    for length in (SHORT_ROW * dtype.itemsize, SHORT_ROW * dtype.itemsize + 1, 400):
        x = drawn(dtype, (3, length))
        order = stable(x)
        values, positions = lax.sort((x, np.broadcast_to(np.arange(length, dtype=np.int32), x.shape)), num_keys=1)
        assert_bits_equal(values, np.take_along_axis(x, order, -1))
        np.testing.assert_array_equal(positions, order)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.int64), dtypes.bfloat16], ids=str)
def test_a_long_row_in_chunks(dtype) -> None:
    x = drawn(dtype, (2, SORT_CHUNK + 3))
    f = volta.jit(lambda x: lax.sort((x, lax.broadcasted_iota(np.int32, x.shape, 1)), num_keys=1))
    assert launched(f, x).count("sort_place") == dtype.itemsize
    values, positions = f(x)
    order = stable(x)
    assert_bits_equal(values, np.take_along_axis(x, order, -1))
    np.testing.assert_array_equal(positions, order)


def test_many_long_rows_are_a_task_each() -> None:
    x = drawn(np.dtype(np.int16), (FEW_ROWS, SORT_CHUNK + 1))
    assert launched(volta.numpy.sort, x) == ["sort_rows"]
    assert_bits_equal(volta.numpy.sort(x), np.sort(x, -1))


@pytest.mark.parametrize("length", [SORT_CHUNK + 1, 100, 5])
def test_several_keys_the_first_counts_most(length) -> None:
    keys = [drawn(np.dtype(d), (length,), i) for i, d in enumerate((bool, np.float16, np.uint8, np.float64))]
    payload = np.arange(length, dtype=np.int64)
    order = stable(*keys)
    for got, x in zip(lax.sort((*keys, payload), num_keys=4), (*keys, payload), strict=True):
        assert_bits_equal(got, x[order])


def test_records_are_no_wider_than_needed() -> None:
    """The memory that a sort asks for is twice its records, and what is counted."""
    x = np.zeros(1 << 20, np.float32)
    plan = volta.jit(volta.numpy.argsort).lower(x).compile().plan
    (call,) = (c for c in plan.calls if c.workspace is not None)
    assert ordering_schedule.sort_bytes(call, 512) == 2 * 8 * x.size + 16 * 8 * 256


@given(st.integers(0, 300), st.sampled_from(KEYS), st.integers(0, 99))
def test_any_length(length: int, dtype: np.dtype, seed: int) -> None:
    x = drawn(dtype, (length,), seed)
    assert_bits_equal(volta.numpy.sort(x), x[stable(x)])
