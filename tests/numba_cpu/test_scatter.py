"""Scatters on the CPU: updates sorted by target, whatever the numbers of slots, updates, columns and batch items."""

from __future__ import annotations

import numpy as np
import pytest

import volta
from tests.laws.law_orders import declared_sum
from volta import lax, nn
from volta.numba_cpu import scatter_schedule
from volta.numba_cpu.launches import Launch
from volta.numba_cpu.scatter_schedule import (
    ALONE,
    BUCKET_SLOTS,
    BUCKETS,
    CHUNK,
    LONG_ROW,
    NUMBER_BUCKETS,
    NUMBERS_ALONE,
    SHORT_ROW,
    Filling,
    Sorting,
)
from volta.testing import assert_bits_equal, fill
from volta.testing.kernel_kinds import assert_kernels_agree
from volta.xla_like.kernels import LibraryKernel
from volta.xla_like.ordering import Scatter, ScatterSpec

F32 = np.dtype(np.float32)
MILLION = 1 << 20


def targets(count: int, slots: int) -> np.ndarray:
    """In any order, some of them out of range; some slots have many updates, and some none."""
    at = np.random.default_rng(count).integers(-2, slots + 2, count)
    return np.where(at % 5 == 0, at % 3 * (slots // 3), at).astype(np.int32)


def summed(x: np.ndarray, at: np.ndarray, slots: int) -> np.ndarray:
    """The definition, slot by slot."""
    out = np.zeros((slots, *x.shape[1:]), x.dtype)
    for slot in np.unique(at[(at >= 0) & (at < slots)]):
        out[slot] = declared_sum(x[at == slot])
    return out


SLOTS = {
    "one": 1, "sorted at once": 300, "the most of these": ALONE, "by buckets": ALONE + 1,
    "the most rows": NUMBERS_ALONE, "rows of buckets": NUMBERS_ALONE + 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", SLOTS)
@pytest.mark.parametrize("columns", [1, 3])
def test_sums_are_those_of_the_definition(kind, columns) -> None:
    slots, count = SLOTS[kind], 9000
    x, at = fill("ladder", (count, columns), seed=1), targets(count, slots)
    x = x[:, 0] if columns == 1 else x
    assert_bits_equal(nn.segment_sum(x, at, slots), 0 + summed(x, at, slots))


@pytest.mark.parametrize("slots", [100, ALONE + 904, NUMBERS_ALONE + 904])
def test_chunks_of_updates_stay_in_their_order(slots) -> None:
    """More updates than one task sorts: the last one stays, and a running number shows the order."""
    count = 2 * CHUNK + 77
    at, x = targets(count, slots), np.arange(count, dtype=np.int32)
    want = np.zeros(slots, np.int32)
    inside = (at >= 0) & (at < slots)
    want[at[inside]] = x[inside]
    for columns in ((), (2,)):
        updates = np.broadcast_to(x.reshape(-1, *(1,) * len(columns)), (count, *columns)).copy()
        got = lax.scatter(np.zeros((slots, *columns), np.int32), updates, [at], (0,), op="set")
        np.testing.assert_array_equal(got, np.broadcast_to(want.reshape(-1, *(1,) * len(columns)), got.shape))
    long = fill("ladder", (count,), seed=2)
    few = np.unique(at[:50][(at[:50] >= 0) & (at[:50] < slots)])
    want = np.array([0 + declared_sum(long[at == s]) for s in few], np.float32)
    assert_bits_equal(np.asarray(nn.segment_sum(long, at, slots))[few], want)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8", "bool"])
@pytest.mark.turns(6)
def test_dtypes_are_carried_by_their_bits(dtype) -> None:
    x, op = fill("normal", (500,), dtype, seed=3), "max" if dtype == "bool" else "add"
    for slots in (40, ALONE + 5, NUMBERS_ALONE + 5):
        at = targets(500, slots)
        one = lax.scatter(np.zeros(slots, x.dtype), x, [at], (0,), op=op)
        rows = lax.scatter(np.zeros((slots, 2), x.dtype), np.stack([x, x], 1), [at], (0,), op=op)
        assert_bits_equal(rows, np.stack([one, one], 1))  # positions are sorted there, not the updates


def test_items_of_a_batch_are_sorted_by_themselves() -> None:
    x, slots = fill("ladder", (3, 400), seed=4), NUMBERS_ALONE + 60
    at = np.stack([targets(400, slots) + i for i in range(3)])
    mapped = volta.vmap(lambda x, at: nn.segment_sum(x, at, slots))(x, at)
    for i in range(3):
        assert_bits_equal(mapped[i], nn.segment_sum(x[i], at[i], slots))


@pytest.mark.parametrize("slots", [40, ALONE + 5])
def test_positions_and_counts_may_have_64_bits(slots, monkeypatch) -> None:
    x, at = fill("ladder", (493, 2), seed=5), targets(493, slots)  # of a size that no other plan here has
    monkeypatch.setattr(scatter_schedule, "SMALL", 1)
    assert Sorting.of(Scatter(ScatterSpec("add", F32), 1, slots, 1, 493)).what.index == np.int64
    for v in (x, x[:, 0]):
        assert_bits_equal(nn.segment_sum(v, at, slots), 0 + summed(v, at, slots))


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("slots", [7, ALONE + 1])
def test_texts_sort_as_the_kernels_do(kind, slots) -> None:
    x, at = fill("ladder", (70, 2), seed=6), targets(70, slots)
    for v in (x, x[:, 1].copy()):
        assert_kernels_agree(lambda v, at: nn.segment_sum(v, at, slots), v, at, kinds=[kind])


def test_how_positions_are_sorted() -> None:
    def of(slots: int) -> Sorting:
        return Sorting.of(Scatter(ScatterSpec("add", F32), 1, slots, 3, MILLION))

    few, many, most = of(1000), of(100_000), of(1 << 28)
    assert (few.buckets, few.chunks, few.what.coarse) == (1000, MILLION // CHUNK, False)
    assert BUCKETS // 2 < many.buckets <= BUCKETS and many.what.coarse
    assert most.buckets == (1 << 28) // BUCKET_SLOTS  # a bucket's counts stay in the cache
    assert few.what.index == np.int32


def test_what_single_numbers_are_put_into() -> None:
    def of(slots: int) -> tuple[Filling, Scatter]:
        op = Scatter(ScatterSpec("add", F32), 1, slots, 1, MILLION)
        return Filling.of(op), op

    (few, few_op), (many, many_op), (most, _) = of(1000), of(100_000), of(1 << 28)
    assert (few.what.split, few.what.row, few.bytes(few_op)) == (False, LONG_ROW, 0)
    assert (many.what.split, many.what.row, many.chunks) == (True, SHORT_ROW, 8)
    assert NUMBER_BUCKETS // 2 < many.buckets <= NUMBER_BUCKETS
    assert many.bytes(many_op) < 12 * MILLION  # each number with its slot, and lists that are begun
    assert few.scratch() < 1 << 20 and many.scratch() < 1 << 18  # what slots keep lies in the cache
    assert most.slots == BUCKET_SLOTS


@pytest.mark.parametrize("op", ["add", "mul", "min", "max", "set"])
@pytest.mark.parametrize("slots", [3, 300, ALONE + 500, NUMBERS_ALONE + 500])
def test_numbers_that_ascend_and_those_that_do_not(op, slots) -> None:
    """Runs of some rows, of some blocks of SUM, and of none; in chunks that stay as they are and in lists."""
    count = 3 * CHUNK + 5 if slots > 3 else 5 * 4096 + 17
    x = fill("normal", (count,), seed=7) if op != "mul" else 1 + fill("normal", (count,), seed=7) / 4096
    at = targets(count, slots)
    first = np.full(slots, 1.5, np.float32)
    for where in (at, np.sort(at), np.sort(at)[::-1].copy()):
        got = np.asarray(lax.scatter(first, x, [where], (0,), op=op))
        two = lax.scatter(np.stack([first, first], 1), np.stack([x, x], 1), [where], (0,), op=op)
        assert_bits_equal(np.stack([got, got], 1), two)  # whose positions are sorted


def test_targets_of_32_and_of_64_bits_are_the_same() -> None:
    x, at = fill("ladder", (9000,), seed=8), targets(9000, 300)
    beyond = np.where(at < 0, np.int64(1) << 40, at.astype(np.int64))  # out of range, whatever is left of it
    for slots in (300, ALONE + 9, NUMBERS_ALONE + 9):
        assert_bits_equal(nn.segment_sum(x, at, slots), nn.segment_sum(x, beyond, slots))


def test_the_launches_of_a_large_scatter_are_shared_by_threads() -> None:
    x, at = fill("normal", (1 << 18,)), targets(1 << 18, 5000)

    def launches(x: np.ndarray, slots: int = 5000) -> list[tuple[str, int]]:
        compiled = volta.jit(lambda x, at: nn.segment_sum(x, at, slots)).lower(x, at).compile()
        found: list[Launch] = compiled.executable.plan.all_launches()
        kernels = [(x.kernel, x.tasks) for x in found]
        return [(k.name, n) for k, n in kernels if isinstance(k, LibraryKernel) and k.name.startswith("scatter")]

    assert launches(x) == [("scatter_numbers", 79)]
    assert launches(x, 40_000) == [("scatter_split", 4), ("scatter_numbers", 157)]
    sorted_first = [("scatter_count", 4), ("scatter_starts", 1), ("scatter_place", 4), ("scatter", 79)]
    assert launches(np.stack([x, x], 1)) == sorted_first
