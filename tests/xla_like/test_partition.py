"""Programs cut for ranks: what comes out, and that each of its rules is looked at."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.workers import draw_sharding, mesh_of, simulated
from volta import lax
from volta.core.errors import VerificationError
from volta.core.sharding import Cut, box_of
from volta.xla_like.partition.exchange import is_local, transfers
from volta.xla_like.partition.partition import partition
from volta.xla_like.partition.trees import Cover, join, nodes, span
from volta.xla_like.partition.verify import verify_exchange, verify_partition, verify_sum
from volta.xla_like.passes import inline_calls

F32 = "float32"


def _cut(f, shapes, layouts, size=4, outputs=None):
    with simulated(size):
        mesh = mesh_of(size)
        program = inline_calls(volta.make_jaxpr(f)(*(volta.ShapeDtypeStruct(s, F32) for s in shapes)))
        return partition(program, mesh, layouts, outputs or [None] * len(program.out_avals))


def _rows(n, *, at=None, size=4, ndim=2):
    return (Cut(("data",), at or tuple(n * p // size for p in range(size + 1))), *[None] * (ndim - 1))


# -- trees -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 70), st.lists(st.integers(0, 70), max_size=9))
def test_nodes_of_any_cut_join_to_the_tree(n: int, cuts: list[int]) -> None:
    """Whatever the cuts: the fewest nodes, each block once, and the parentheses of the tree over all blocks."""
    edges = [0, *sorted(min(c, n) for c in cuts), n]
    held = {}
    for lo, hi in zip(edges, edges[1:], strict=False):
        for node in nodes(lo, hi, n):
            first, last = span(node, n)
            assert lo <= first < last <= hi
            held[node] = join({(0, i): i for i in range(last - first)}, last - first, lambda a, b: (a, b))
            held[node] = _shifted(held[node], first)
    want = join({(0, i): i for i in range(n)}, n, lambda a, b: (a, b))
    assert join(held, n, lambda a, b: (a, b)) == want


def _shifted(tree, by):
    return tree + by if isinstance(tree, int) else tuple(_shifted(x, by) for x in tree)


def test_a_part_that_is_a_power_of_two_is_one_node() -> None:
    assert [len(nodes(8 * r, 8 * r + 8, 64)) for r in range(8)] == [1] * 8
    assert nodes(0, 7, 7) == [(3, 0)]  # all there is: the root
    assert nodes(3, 3, 9) == []


def test_nodes_that_do_not_cover_are_no_tree() -> None:
    with pytest.raises(ValueError, match="do not cover"):
        join({(0, 0): 1, (0, 2): 2}, 3, lambda a, b: a + b)


# -- exchanges ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 4]))
def test_any_layout_becomes_any_other(seed: int, size: int) -> None:
    """What moves is what is missing: pieces come from where they are, and each element arrives once."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 7, 2))
    whole = rng.random(shape)
    with simulated(size):
        mesh = mesh_of(size, (2, 2) if size == 4 else None)
        before, after = (draw_sharding(rng, mesh, shape).layout(shape) for _ in range(2))
    held = [whole[_slices(box_of(mesh, before, shape, r))] for r in range(mesh.size)]
    moved = transfers(mesh, shape, before, after)
    for rank in range(mesh.size):
        want = whole[_slices(box_of(mesh, after, shape, rank))]
        got = np.full(want.shape, np.nan)
        for t in moved:
            if t.target == rank:
                assert np.isnan(got[_slices(t.put)]).all()
                got[_slices(t.put)] = held[t.source][_slices(t.taken)]
        assert np.array_equal(got, want)
    if is_local(mesh, shape, before, after):
        assert all(t.source == t.target for t in moved)


def _slices(box):
    return tuple(slice(a, b) for a, b in box)


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_what_is_independent_needs_no_exchange() -> None:
    found = _cut(lambda x, w: vnp.tanh(x @ w) * 2, [(20, 8), (8, 4)], [_rows(20), None])
    assert found.exchanges == () and found.out_layouts == (_rows(20),)
    assert [p.inputs[0].aval.shape for p in found.locals] == [(5, 8)] * 4


def test_a_gradient_of_weights_moves_one_node_a_rank() -> None:
    """k of four blocks on four ranks: each has one block, so what moves is four partial sums, joined by parts."""
    n = 4 * 4096
    found = _cut(lambda x, y: x.T @ y, [(n, 64), (n, 256)], [_rows(n), _rows(n)])
    ((exchange,),) = found.exchanges
    assert (exchange.kind, exchange.aval.shape) == ("nodes", (4, 64, 256))
    assert [exchange.sent(r) for r in range(4)] == [64 * 256 * 4 * 3 // 4] * 4
    assert found.out_layouts[0][0] is not None, "the result lies where it was joined: rows, which are in one piece"


def test_rows_move_so_that_blocks_are_whole() -> None:
    n = 4 * 4096 + 100
    found = _cut(lambda x: vnp.sum(x, 0), [(n, 3)], [_rows(n)])
    first = found.exchanges[0][0]
    assert first.kind == "all-to-all" and first.after[0].bounds == (0, 4096, 8192, 12288, n)
    assert sum(first.sent(r) for r in range(4)) < 400 * 3 * 4, "only the rows between the cuts move"


def test_what_has_no_rule_is_gathered() -> None:
    """As loops whose parts need each other: ranks do not meet within them."""
    for body in (lambda i, h: h - vnp.mean(h), lambda i, h: h[::-1] * 2, lambda i, h: h @ h):
        found = _cut(lambda x, body=body: lax.fori_loop(0, 3, body, x), [(40, 40)], [_rows(40)])
        assert [e.kind for together in found.exchanges for e in together] == ["all-gather"]


def test_scattered_updates_move_to_columns() -> None:
    """The updates of a target are one sequence: a table's gradient is shared by columns, and nobody has all updates."""
    index = np.arange(5000) % 50
    found = _cut(lambda u: vnp.zeros((50, 64)).at[index].add(u), [(5000, 64)], [_rows(5000), *[None] * 1])
    kinds = [e.kind for e in found.exchanges[0]]
    assert kinds == ["all-to-all"] and found.out_layouts[0][1] is not None


def test_the_text_says_what_moves() -> None:
    n = 2 * 4096
    text, again = (_cut(_columns, [(n, 3)], [_rows(n, size=2)], size=2).as_text() for _ in range(2))
    assert "x0: nodes f32[2,3] ('data',) to (), sends 12, gets 12" in text
    assert "bytes sent by each rank: [12, 12], 24 in all, in 1 rounds" in text
    assert text == again


def _columns(x):
    return vnp.sum(x, 0)


# -- each rule is looked at --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summed():
    n = 5 * 4096
    return _cut(lambda x: vnp.sum(x, 0), [(n, 3)], [_rows(n, at=(0, 4096, 8192, 12288, n))])


def test_a_node_that_is_missing_doubled_or_elsewhere_is_found(summed) -> None:
    (shared,) = summed.sums
    verify_sum(shared)
    missing = attrs.evolve(shared, done=((), *shared.done[1:]), joined=shared.joined[1:])
    doubled = attrs.evolve(
        shared, done=(shared.done[0] * 2, *shared.done[1:]), joined=(shared.joined[0], *shared.joined)
    )
    moved = attrs.evolve(shared, done=(shared.done[1], shared.done[0], *shared.done[2:]))
    crossed = attrs.evolve(shared, joined=(shared.joined[1], shared.joined[0], *shared.joined[2:]))
    cut = attrs.evolve(shared, cover=Cover((0, 4000, 8192, 12288, 5 * 4096), 4096))
    for wrong in (missing, doubled, moved, crossed, cut):
        with pytest.raises(VerificationError, match="reduce_sum"):
            verify_sum(wrong)


def test_a_piece_that_is_missing_doubled_or_from_elsewhere_is_found(summed) -> None:
    ((exchange,),) = summed.exchanges
    first, *rest = exchange.transfers
    shifted = attrs.evolve(first, taken=tuple((a + 1, b + 1) for a, b in first.taken))
    for wrong in (tuple(rest), (first, *exchange.transfers), (shifted, *rest)):
        with pytest.raises(VerificationError, match="exchange x0"):
            verify_exchange(summed.mesh, attrs.evolve(exchange, transfers=wrong))


def test_ranks_that_meet_in_another_order_are_found(summed) -> None:
    one, *others = summed.locals
    silent = attrs.evolve(one, rounds=tuple(() for _ in one.rounds))
    with pytest.raises(VerificationError, match="other exchanges"):
        verify_partition(attrs.evolve(summed, locals=(silent, *others)))


def test_a_part_of_another_shape_is_found(summed) -> None:
    wrong = attrs.evolve(summed, in_layouts=(_rows(5 * 4096, at=(0, 1, 2, 3, 5 * 4096)),))
    with pytest.raises(VerificationError, match="lies on rank 0"):
        verify_partition(wrong)


def test_a_batch_is_cut_between_blocks_once_rather_than_at_every_sum() -> None:
    """Six blocks on four ranks, cut within blocks: the argument moves first, and no activation after it."""

    def f(w, x):
        for _ in range(4):
            x = vnp.tanh(x @ w)
        return vnp.sum(x)

    n = 6 * 4096
    found = _cut(volta.grad(f), [(32, 32), (n, 32)], [None, _rows(n)])
    kinds = [e.kind for together in found.exchanges for e in together]
    assert kinds.count("all-to-all") == 1 and kinds.count("nodes") >= 4
    few = _cut(volta.grad(f), [(32, 32), (5000, 32)], [None, _rows(5000)])
    kept = [e for e in few.exchanges[0] if e.aval.shape == (5000, 32)]
    assert len(kept) > 1, "two blocks on four ranks would leave half of them idle: the cut stays"


# -- loops -------------------------------------------------------------------------------------------------------------


def test_loops_without_a_word_between_parts_need_no_exchange() -> None:
    """What begins whole is carried as it comes out; each rank's body has its own rows."""

    def run(x, w):
        y = lax.scan(lambda h, row: ((h := vnp.tanh(row @ w + h)), h), vnp.zeros((40, 12)), x)[1]
        z = lax.while_loop(lambda c: c[1] < 9, lambda c: (c[0] * 2, c[1] + 1), (y, 0))[0]
        return lax.cond(w[0, 0] > 0, lambda a: a + 1, lambda a: a - 1, z)

    found = _cut(run, [(7, 40, 12), (12, 12)], [(None, *_rows(40)), None])
    assert not any(found.exchanges) and len(found.locals[0].segments) == 1
    (layout,) = found.out_layouts
    assert layout[0] is None and layout[1] is not None
    names = [eqn.primitive.name for eqn in found.locals[0].segments[0].eqns]
    assert {"scan", "while", "cond"} <= set(names)
