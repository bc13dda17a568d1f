"""SUM: the order recovered from outside is the declared one, in every layout; wrong orders are seen to be wrong."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.laws.law_orders import (
    declared_cumsum,
    declared_sum,
    in_turn,
    joined,
    masks,
    neighbours,
    register,
    some_pairs,
)
from volta.core import dtypes
from volta.ops import lax
from volta.testing import assert_bits_equal, fill
from volta.xla_like.compile import CompileOptions

pytestmark = pytest.mark.turns(6)

# How to sum the rows of a (rows, n) array, with the data moved so that the reduction is met in another layout.
LAYOUTS = {
    "last axis": lambda x: vnp.sum(x, 1),
    "first axis": lambda x: vnp.sum(vnp.asarray(np.asarray(x).T.copy()), 0),
    "transposed": lambda x: vnp.sum(x.T, 0),
    "transposed back": lambda x: vnp.sum(vnp.asarray(np.asarray(x).T.copy()).T, 1),
    "middle axis": lambda x: vnp.sum(vnp.stack([x, -x], 2), 1)[:, 0],
    "backwards view": lambda x: vnp.sum(vnp.asarray(np.asarray(x)[:, ::-1].copy())[:, ::-1], 1),
    "strided view": lambda x: vnp.sum(vnp.asarray(np.repeat(np.asarray(x), 2, 1))[:, ::2], 1),
    "slice": lambda x: vnp.sum(vnp.asarray(np.pad(np.asarray(x), ((1, 1), (3, 2))))[1:-1, 3:-2], 1),
    "one by one": lambda x: vnp.stack([vnp.sum(row) for row in x]),
    "batched": lambda x: volta.vmap(vnp.sum)(x),
    "batched across": lambda x: volta.vmap(vnp.sum, in_axes=1)(x.T),
    "kept dims": lambda x: vnp.sum(x, 1, keepdims=True)[:, 0],
    "fused": lambda x: vnp.sum(vnp.negative(-x), 1) * 1.0,
    "used again": lambda x: (vnp.sum(x, 1, keepdims=True) + 0 * vnp.where(vnp.isfinite(x), x, 0))[:, 0],
    "by a product of ones": lambda x: vnp.sum(x * vnp.ones_like(x), 1),
}


def layout(name: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(LAYOUTS[name](vnp.asarray(x)))


@pytest.mark.parametrize("n", [2, 24, 63, 64, 65, 200, 4097, 12289])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows_first", [True, False])
def test_order_of_sum_seen_from_outside(n, dtype, rows_first) -> None:
    where = some_pairs(n)
    x = masks(n, where, np.dtype(dtype))
    counts = layout("last axis" if rows_first else "first axis", x)
    assert [n - int(c) for c in counts] == [joined(n, i, j) for i, j in where]


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("n", [4 * 4096 + 1, 7 * 4096])
def test_order_of_sum_by_blocks_seen_from_outside(n, across) -> None:
    """Few long rows are summed block by block by several tasks."""
    where = some_pairs(n)[::23]
    f = volta.jit(lambda x: vnp.sum(x, 0 if across else -1))
    for start in range(0, len(where), 4):
        some = where[start : start + 4]
        x = masks(n, some, np.dtype(np.float32))
        counts = np.asarray(f(x.T.copy() if across else x))
        assert [n - int(c) for c in counts] == [joined(n, i, j) for i, j in some]
    assert "combine" in f.lower(x.T.copy() if across else x).compile().as_text()


@pytest.mark.parametrize("name", LAYOUTS)
def test_sum_is_the_declared_one_in_every_layout(name) -> None:
    for n, kind, dtype in [(1, "zeros", "float32"), (63, "ladder", "float32"), (65, "cancel", "float64"),
                           (4095, "ladder", "float16"), (4097, "ladder", "float32"), (257, "specials", "float32"),
                           (130, "subnormal", "float32"), (300, "ladder", "bfloat16")]:  # fmt: skip
        x = fill(kind, (3, n), dtype, seed=n)
        assert_bits_equal(layout(name, x), declared_sum(x.T), f"{name} {n} {kind} {dtype}")


@pytest.mark.parametrize("kind", ["ladder", "cancel", "specials", "zeros", "subnormal"])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 4095, 4096, 4097, 3 * 4096 + 5, 16385, 5 * 4096])
def test_sum_of_every_length(n, kind) -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        x = fill(kind, (2, n), dtype, seed=n)
        for name in ("last axis", "first axis"):
            assert_bits_equal(layout(name, x), declared_sum(x.T), f"{name} {dtype}")


def test_sum_of_nothing_is_plus_zero() -> None:
    assert_bits_equal(vnp.sum(vnp.zeros((3, 0)), 1), np.zeros(3, np.float32))
    assert_bits_equal(vnp.sum(vnp.asarray([-0.0, -0.0])), np.float32(-0.0))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (0, 3), (1, 3)])
def test_several_axes_are_one_row_major_sequence(axes) -> None:
    x = fill("ladder", (5, 6, 70, 4), "float32", seed=1)
    kept = [d for d in range(4) if d not in axes]
    rows = np.transpose(x, (*axes, *kept)).reshape(-1, *(x.shape[d] for d in kept))
    assert_bits_equal(vnp.sum(x, axes), declared_sum(rows))
    assert_bits_equal(volta.jit(lambda v: vnp.sum(vnp.tanh(v) * 0 + v, axes))(x), declared_sum(rows))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_have_the_same_order(dtype) -> None:
    for n in (65, 200, 4097):
        x = 1 + fill("normal", (2, n), dtype, seed=n) * np.asarray(1e-3, dtype)
        assert_bits_equal(vnp.prod(x, 1), declared_sum(x.T, product=True))
        assert_bits_equal(vnp.prod(x.T.copy(), 0), declared_sum(x.T, product=True))


@pytest.mark.parametrize("n", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_cumsum_is_the_declared_one(n, dtype) -> None:
    x = fill("ladder", (n,), dtype, seed=n)
    want = declared_cumsum(x)
    assert_bits_equal(vnp.cumsum(x), want)
    assert_bits_equal(vnp.cumsum(np.stack([x, x], 1), axis=0)[:, 1], want)
    assert_bits_equal(lax.cumsum(x[::-1].copy(), 0, reverse=True)[::-1], want)
    assert_bits_equal(vnp.cumsum(x)[:1], vnp.cumsum(x[:1]))


@pytest.mark.parametrize("count", [1, 2, 7, 31, 65, 200, 6000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_scatter_add_sums_the_updates_of_a_target_first(dtype, count) -> None:
    updates = fill("ladder", (count,), dtype, seed=2)
    index = np.random.default_rng(3).integers(0, 5, count).astype(np.int32)
    index[-1] = 9  # out of range: dropped
    table = fill("normal", (5,), dtype, seed=4)
    want = table.copy()
    for slot in range(5):
        if (index == slot).any():
            want[slot] = register(table[slot]) + register(declared_sum(updates[index == slot]))
    assert_bits_equal(lax.scatter(table, updates, [index], (0,), op="add"), want)
    tables, many = np.stack([table] * 17, 1), np.stack([updates] * 17, 1)
    assert_bits_equal(lax.scatter(tables, many, [index], (0,), op="add"), np.stack([want] * 17, 1))
    mapped = volta.vmap(lambda t, u, i: lax.scatter(t, u, [i], (0,), op="add"))
    assert_bits_equal(mapped(tables.T, many.T, np.stack([index] * 17)), np.stack([want] * 17))
    last = lax.scatter(table, updates, [index], (0,), op="set")
    for slot in range(5):
        kept = updates[index == slot]
        assert_bits_equal(last[slot], kept[-1] if len(kept) else table[slot])


# -- the checks are able to fail ---------------------------------------------------------------------------------------


def test_other_orders_differ_on_the_same_data() -> None:
    """Were it not so, the comparisons above would be blind."""
    for n in (63, 4097, 3 * 4096 + 5):
        x = fill("normal", (50, n), "float32", seed=n)
        want = declared_sum(x.T)
        others = [np.sum(x, 1), np.cumsum(x, 1)[:, -1], declared_sum(x.T, across=neighbours)]
        if n > 64:  # the halves of one row of lanes mirror into themselves
            others.append(declared_sum(x.T[::-1]))
        for other in others:
            with pytest.raises(AssertionError, match="differs"):
                assert_bits_equal(other, want)
    x = fill("normal", (9, 5 * 4096), "float32", seed=1)
    with pytest.raises(AssertionError, match="differs"):
        assert_bits_equal(declared_sum(x.T, above=in_turn), declared_sum(x.T))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_sum(dtype) -> None:
    n = 2**24 + 1
    x = fill("ladder", (n,), dtype, seed=5)
    want = declared_sum(x)
    assert_bits_equal(vnp.sum(x), want)
    assert_bits_equal(vnp.sum(x[:, None], 0)[0], want)
    with volta.execution_context(options=CompileOptions(fusion=False)):
        assert_bits_equal(volta.jit(lambda v: vnp.sum(vnp.negative(-v)))(x), want)


def test_integer_sums_wrap_around() -> None:
    for d in dtypes.INTEGERS:
        x = fill("ladder", (3, 5000), d.name, seed=3)
        with np.errstate(over="ignore"):
            assert_bits_equal(lax.reduce_sum(x, (1,)), np.sum(x, 1, dtype=d))
            assert_bits_equal(lax.reduce_prod(x[:, :9], (1,)), np.prod(x[:, :9], 1, dtype=d))
