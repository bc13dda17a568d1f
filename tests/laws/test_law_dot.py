"""DOT: chunks of 256 products, each a chain of FMAs; 16 of them added in ascending order to a block, blocks joined in
pairs; whatever the layout, sizes and batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.laws.law_orders import BLOCK, declared_dot, in_turn, joined_dot, masks
from tests.sampling import sampled
from volta.ops import lax
from volta.testing import assert_bits_equal, fill

pytestmark = pytest.mark.turns(6)

LAYOUTS = {
    "plain": lambda a, b: vnp.matmul(a, b),
    "left transposed": lambda a, b: vnp.matmul(vnp.asarray(np.asarray(a).T.copy()).T, b),
    "right transposed": lambda a, b: vnp.matmul(a, vnp.asarray(np.asarray(b).T.copy()).T),
    "swapped": lambda a, b: vnp.matmul(b.T, a.T).T,
    "einsum": lambda a, b: vnp.einsum("ik,kj->ij", a, b),
    "in a batch": lambda a, b: vnp.matmul(vnp.stack([-a, a]), vnp.stack([b, b]))[1],
    "mapped": lambda a, b: volta.vmap(vnp.dot, in_axes=(0, None))(a, b),
    "mapped over columns": lambda a, b: volta.vmap(lambda c: vnp.dot(a, c), in_axes=1, out_axes=1)(b),
    "row by row": lambda a, b: vnp.stack([vnp.dot(row, b) for row in a]),
    "column by column": lambda a, b: vnp.stack([vnp.dot(a, b[:, j]) for j in range(b.shape[1])], 1),
    "vdot": lambda a, b: vnp.stack([vnp.stack([vnp.dot(r, b[:, j]) for j in range(b.shape[1])]) for r in a]),
    "strided views": lambda a, b: vnp.matmul(vnp.repeat(a, 2, 1)[:, ::2], vnp.repeat(b, 2, 0)[1::2]),
    "padded": lambda a, b: vnp.matmul(vnp.pad(a, ((1, 2), (0, 0))), b)[1:-2],
    "contracted over two axes": lambda a, b: (
        vnp.tensordot(a.reshape(a.shape[0], -1, 1), b.reshape(-1, 1, b.shape[1]), 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_order_of_dot_seen_from_outside(dtype, rows) -> None:
    k = 700
    edges = [0, 1, 100, 254, 255, 256, 257, 511, 512, 513, 699]
    where = [(i, j) for j in edges for i in edges if i < j]
    x, ones = masks(k, where, np.dtype(dtype)), np.ones((k, 5), dtype)
    for start in range(0, len(where), rows):
        some = where[start : start + rows]
        counts = np.asarray(vnp.matmul(x[start : start + rows], ones))
        assert [[k - int(c) for c in row] for row in counts] == [[joined_dot(k, i, j)] * 5 for i, j in some]


def around_blocks(k: int) -> list[tuple[int, int]]:
    """Pairs of places at every block's beginning and at some blocks' ends and chunks."""
    starts = range(0, k, BLOCK)
    edges = {0, 255, 256, 4095, 4096, 4097, 4352, 8191, 8192, k - 257, k - 1}
    found = {(i, j) for j in starts for i in starts if i < j} | {(i, j) for j in edges for i in edges if i < j < k}
    return sorted(found)


@sampled("k", [4096, 4097, 8192, 8193, 12289, 16 * 4096, 65536 + 4097], quick=[4097, 12289])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_order_of_long_dots_seen_from_outside(dtype, k) -> None:
    where = around_blocks(k)
    ones = np.ones((k, 5), dtype)
    want = [[joined_dot(k, i, j)] * 5 for i, j in where]
    for product in (vnp.matmul, lambda x, y: vnp.matmul(x, vnp.asarray(y.T.copy()).T)):
        found = []
        for first in range(0, len(where), 40):
            some = where[first : first + 40]
            found += np.asarray(product(masks(k, some, np.dtype(dtype)), ones)).tolist()
        assert [[k - int(c) for c in row] for row in found] == want
    one = masks(k, where[-1:], np.dtype(dtype))
    assert [k - int(c) for c in np.asarray(vnp.matmul(one, np.ones((k, 40), dtype)))[0]] == want[-1][:1] * 40


@functools.cache
def long_product() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands of two blocks and a product more; and their product as declared."""
    a, b = fill("normal", (4, 2 * BLOCK + 1), "float32", seed=3), fill("normal", (2 * BLOCK + 1, 3), "float32", seed=4)
    return a, b, declared_dot(a, b)


@sampled("name", LAYOUTS, quick=["plain", "right transposed", "column by column", "mapped", "row by row"])
def test_long_dot_is_the_declared_one_in_every_layout(name) -> None:
    a, b, want = long_product()
    assert_bits_equal(LAYOUTS[name](vnp.asarray(a), vnp.asarray(b)), want, name)


def test_a_chain_of_blocks_differs() -> None:
    """The order of the contract before: on data of five blocks, in which every pair counts."""
    a, b = fill("ladder", (4, 5 * BLOCK), "float32", seed=5), fill("normal", (5 * BLOCK, 40), "float32", seed=6)
    parts = [np.asarray(vnp.matmul(a[:, i : i + BLOCK], b[i : i + BLOCK])) for i in range(0, 5 * BLOCK, BLOCK)]
    assert_bits_equal(vnp.matmul(a, b), ((parts[0] + parts[1]) + (parts[2] + parts[3])) + parts[4])
    with pytest.raises(AssertionError, match="differs"):
        assert_bits_equal(vnp.matmul(a, b), in_turn(parts, np.add))


def test_workers_that_hold_nodes_of_the_tree_have_the_sum_of_one() -> None:
    """Whoever holds a node's elements may compute it: contiguous whole blocks, as many as the workers like."""
    n = 11
    a, b = (
        fill("ladder", (3, n * BLOCK - 100), "float32", seed=7),
        fill("normal", (n * BLOCK - 100, 4), "float32", seed=8),
    )
    want = vnp.matmul(a, b)
    for cuts in ([0, 4, 8, n], [0, 8, 10, n], [0, 8, n], [0, 2, 4, 8, 10, n]):
        nodes = {}
        for i, j in zip(cuts, cuts[1:], strict=False):
            at = slice(i * BLOCK, j * BLOCK)
            nodes[i, j] = np.asarray(vnp.matmul(a[:, at], b[at]))
        assert_bits_equal(join_nodes(nodes, 0, n), want, str(cuts))


def join_nodes(nodes: dict[tuple[int, int], np.ndarray], first: int, last: int) -> np.ndarray:
    """The node of blocks first to last, made of those that are there."""
    if (first, last) in nodes:
        return nodes[first, last]
    half = first + (1 << (last - first - 1).bit_length() - 1)
    return join_nodes(nodes, first, half) + join_nodes(nodes, half, last)


@pytest.mark.parametrize("name", LAYOUTS)
def test_dot_is_the_declared_one_in_every_layout(name) -> None:
    for k, dtype, kind in [(5, "float32", "normal"), (257, "float32", "ladder"), (300, "float16", "normal"),
                           (300, "bfloat16", "normal"), (100, "float64", "cancel")]:  # fmt: skip
        a, b = fill(kind, (4, k), dtype, seed=k), fill("normal", (k, 3), dtype, seed=k + 1)
        assert_bits_equal(LAYOUTS[name](vnp.asarray(a), vnp.asarray(b)), declared_dot(a, b), f"{name} {k} {dtype}")


@pytest.mark.parametrize("k", [0, 1, 2, 255, 256, 257, 511, 512, 513])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 33), (33, 1), (3, 2), (15, 65)])
def test_dot_of_every_length(k, sizes) -> None:
    m, n = sizes
    a, b = fill("normal", (m, k), "float32", seed=k), fill("ladder", (k, n), "float32", seed=k + 1)
    assert_bits_equal(vnp.matmul(a, b), declared_dot(a, b))
    assert_bits_equal(volta.jit(lambda a, b: vnp.matmul(a * 1.5, b))(a, b), declared_dot(a * np.float32(1.5), b))


@pytest.mark.parametrize("kind", ["specials", "subnormal", "zeros", "cancel"])
def test_dot_of_difficult_numbers(kind) -> None:
    for dtype in ("float32", "float64"):
        a, b = fill(kind, (5, 300), dtype, seed=1), fill(kind, (300, 20), dtype, seed=2)
        assert_bits_equal(vnp.matmul(a, b), declared_dot(a, b))


def test_gradients_of_dot_are_dots() -> None:
    a, b, g = (fill("normal", s, "float32", seed=i) for i, s in enumerate([(6, 270), (270, 9), (6, 9)]))
    _, pullback = volta.vjp(vnp.matmul, a, b)
    left, right = volta.jit(pullback)(g)
    assert_bits_equal(left, declared_dot(g, b.T))
    assert_bits_equal(right, declared_dot(a.T, g))


def test_gradients_over_a_long_batch_are_those_of_its_blocks() -> None:
    """What workers with a part of the batch each have to add up: in pairs."""
    x, w = fill("normal", (3 * BLOCK, 6), "float32", seed=1), fill("normal", (6, 3), "float32", seed=2)
    g = fill("normal", (3 * BLOCK, 3), "float32", seed=3)

    def gradient(x, g):
        return np.asarray(volta.vjp(lambda w: vnp.matmul(x, w), w)[1](g)[0])

    first, second, third = (gradient(x[i : i + BLOCK], g[i : i + BLOCK]) for i in range(0, 3 * BLOCK, BLOCK))
    assert_bits_equal(gradient(x, g), (first + second) + third)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_highest_precision_is_the_float64_order_rounded_once(dtype) -> None:
    for m, k, n in [(5, 300, 40), (1, 257, 9), (6, 600, 1)]:
        a, b = fill("normal", (m, k), dtype, seed=k), fill("normal", (k, n), dtype, seed=k + 1)
        want = declared_dot(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
        assert_bits_equal(vnp.matmul(a, b, precision="highest"), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_products_of_integers_wrap_around(dtype) -> None:
    a, b = fill("ladder", (5, 70), dtype, seed=1), fill("ladder", (70, 9), dtype, seed=2)
    assert_bits_equal(vnp.matmul(a, b), a @ b)


def test_other_orders_differ_on_the_same_data() -> None:
    """Were it not so, the comparisons above would be blind."""
    a, b = fill("normal", (6, 700), "float32", seed=5), fill("normal", (700, 9), "float32", seed=6)
    want = declared_dot(a, b)
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    unfused = sum(a[:, [k]] * b[[k], :] for k in range(700))
    for other in (declared_dot(a, b, chunk=128), declared_dot(a, b, chunk=512), exact, unfused, a @ b):
        with pytest.raises(AssertionError, match="differs"):
            assert_bits_equal(other, want)


def test_operands_computed_to_be_empty() -> None:
    """A matrix product over nothing, and a lookup in an empty table, where the empty operand is a temporary."""
    a, b = np.ones((3, 0), np.float32), np.ones((0, 2), np.float32)
    assert_bits_equal(volta.jit(lambda a, b: vnp.matmul(a + 1, b * 2))(a, b), np.zeros((3, 2), np.float32))
    for dtype, filler in [("float32", np.nan), ("bfloat16", np.nan), ("int8", -128), ("uint16", 65535), ("bool", True)]:
        x, i = np.zeros((0, 2), np.dtype(vnp.dtype(dtype))), np.array([0, -1, 5], np.int32)
        got = volta.jit(lambda x, i: lax.gather(vnp.flip(x, 1), [i], (0,)))(x, i)
        assert_bits_equal(got, np.full((3, 2), filler, x.dtype))
        assert_bits_equal(lax.gather(x, [i], (0,)), got)
