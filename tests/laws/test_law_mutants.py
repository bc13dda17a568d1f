"""Mutants: a backend with one edge of an order changed is caught by the same checks that the real one passes."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests import attention_reference
from tests.laws.law_orders import declared_dot, declared_sum, joined, joined_dot, masks, some_pairs
from volta import lax
from volta.core.recent import Recent
from volta.emit import pairs, reducers
from volta.numba_cpu import attention_rows, attention_tile, dot, dot_row, dot_tree, nests, unit
from volta.runtime import eager, plan_cache
from volta.testing import assert_bits_equal, fill

pytestmark = pytest.mark.turns(6)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing compiled before is found, and nothing compiled here is kept: neither in memory nor on disk."""
    monkeypatch.setenv("VOLTA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(unit, "_units", {})
    monkeypatch.setattr(eager, "_executables", Recent(2048))
    plan_cache.PLAN_CACHE.clear()
    yield monkeypatch
    plan_cache.PLAN_CACHE.clear()


def check_sums() -> None:
    for n, across in [(200, False), (200, True), (3 * 4096 + 5, False), (3 * 4096 + 5, True), (17000, False)]:
        x = fill("normal", (9, n), "float32", seed=n)
        assert_bits_equal(vnp.sum(x.T.copy(), 0) if across else vnp.sum(x, 1), declared_sum(x.T))


def check_tree() -> None:
    n = 200
    where = some_pairs(n)
    counts = np.asarray(vnp.sum(masks(n, where, np.dtype(np.float32)), 1))
    assert [n - int(c) for c in counts] == [joined(n, i, j) for i, j in where], "differs"


def check_dots() -> None:
    for m in (1, 5):
        a, b = fill("normal", (m, 700), "float32", seed=5), fill("normal", (700, 40), "float32", seed=6)
        assert_bits_equal(vnp.matmul(a, b), declared_dot(a, b))


def test_the_checks_pass_without_a_mutation(fresh) -> None:
    check_sums()
    check_tree()
    check_dots()


def swapped_edge(b, reducer, state):
    """Halving, except that the last four lanes combine as neighbours."""
    if state[0].builder.lanes != 4:
        return REAL_HALVE(b, reducer, state)
    order = [0, 2, 1, 3]
    mask = reducers.ir.Constant(reducers.ir.VectorType(reducers.I32, 4), order)
    moved = tuple(v.builder.value(b.shuffle_vector(v.ir, v.ir, mask), v.dtype) for v in state)
    return REAL_HALVE(b, reducer, moved)


REAL_HALVE = reducers.halve


def test_a_swapped_edge_between_lanes_is_caught(fresh) -> None:
    fresh.setattr(reducers, "halve", swapped_edge)
    with pytest.raises(AssertionError, match="differs"):
        check_sums()
    with pytest.raises(AssertionError, match="differs"):
        check_tree()


class Unpaired(reducers.BlockTree):
    """Blocks wait on the stack and are combined from its top."""

    def push(self, state, number) -> None:
        super().push(state, reducers.I64(0))


def test_blocks_combined_in_another_order_are_caught(fresh) -> None:
    fresh.setattr(nests, "BlockTree", Unpaired)
    with pytest.raises(AssertionError, match="differs"):
        check_sums()


def test_a_wrong_identity_is_caught(fresh) -> None:
    fresh.setattr(reducers.Reducer, "identity", lambda self, b: (b.const(self.dtype, 0.0),))
    x = np.full((3, 70), -0.0, np.float32)
    with pytest.raises(AssertionError, match="differs"):
        assert_bits_equal(vnp.sum(x, 1), declared_sum(x.T))


def check_long_dots() -> None:
    """Four blocks of k: the last joins two levels. Products in tiles, and a row's with a matrix along either side."""
    k = 3 * 4096 + 300
    where = [(i, j) for j in range(0, k, 4096) for i in range(0, j, 4096)]
    x, want = masks(k, where, np.dtype(np.float32)), [joined_dot(k, i, j) for i, j in where]
    ones = np.ones((k, 40), np.float32)
    found = [
        vnp.matmul(x, ones),
        *(vnp.concatenate([vnp.matmul(x[r : r + 1], y) for r in range(len(x))]) for y in (ones, ones.T.copy().T)),
    ]
    for counts in found:
        assert [k - int(c) for c in np.asarray(counts)[:, 7]] == want, "differs"


def test_blocks_of_dot_that_are_added_in_turn_are_caught(fresh) -> None:
    """The order of the contract before this one."""
    check_long_dots()
    forget(fresh)
    fresh.setattr(pairs, "joined", lambda b, number, last: b.select(number_is_0(b, number), number, number.type(1)))
    for module in (pairs, dot_tree):
        fresh.setattr(module, "level_of", lambda b, number: number.type(0))
    with pytest.raises(AssertionError, match="differs"):
        check_long_dots()


def number_is_0(b, number):
    return b.icmp_unsigned("==", number, number.type(0))


def test_two_nodes_of_dots_tree_exchanged_are_caught(fresh) -> None:
    """Behind the last block the node of two waits for the node of one: here it is the other way round."""
    real = pairs.joined_levels

    @contextmanager
    def exchanged(b, number, last):
        with real(b, number, last) as level:
            both = b.and_(last, b.icmp_unsigned("==", number, number.type(3)))
            yield b.select(both, b.sub(number.type(1), level), level)

    fresh.setattr(dot_tree, "joined_levels", exchanged)
    with pytest.raises(AssertionError, match="differs"):
        check_long_dots()


def forget(fresh) -> None:
    """What was compiled before a mutation."""
    fresh.setattr(unit, "_units", {})
    fresh.setattr(eager, "_executables", Recent(2048))
    plan_cache.PLAN_CACHE.clear()
    fresh.setenv("VOLTA_CACHE", "0")


def test_a_chunk_of_128_is_caught(fresh) -> None:
    for module in (dot, dot_row):
        fresh.setattr(module, "CHUNK", 128)
    with pytest.raises(AssertionError, match="differs"):
        check_dots()


def check_attention() -> None:
    q, k, v = (fill("normal", (1, 2, 70, 8), "float32", seed=i) for i in range(3))
    k[:, :, 5] = v[:, :, 5] = np.inf
    mask = (np.arange(70) != 5)[None, None, None]
    want = attention_reference.attention(q, k, v, causal=True, mask=mask)
    assert_bits_equal(list(lax.attention(q, k, v, causal=True, mask=mask)), want)


def neighbours(row, values):
    """The sum of a row of weights by pairs of neighbouring vectors, not of halves."""
    parts = list(values)
    while len(parts) > 1:
        parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return reducers.across_lanes(row.b, reducers.Reducer("sum", row.dtype), (parts[0],))[0]


def test_mutants_of_attention_are_caught(fresh) -> None:
    check_attention()
    every = attention_tile.ir.IntType(1)

    def everyone(b, word, index, lanes):
        return attention_tile.ir.Constant(attention_tile.ir.VectorType(every, lanes), [1] * lanes)

    for place, name, mutant in (
        (attention_rows.Row, "sum", neighbours),
        (attention_tile, "_lanes_of_bit", everyone),  # hidden keys weigh 0 instead of taking no part
    ):
        forget(fresh)
        with fresh.context() as changed:
            changed.setattr(place, name, mutant)
            with pytest.raises(AssertionError, match="differs"):
                check_attention()


def test_a_relaxed_sum_is_caught() -> None:
    """NumPy's own order on the same data."""
    x = fill("normal", (9, 200), "float32", seed=200)
    with pytest.raises(AssertionError, match="differs"):
        assert_bits_equal(np.sum(x, 1), volta.jit(lambda v: vnp.sum(v, 1))(x))
