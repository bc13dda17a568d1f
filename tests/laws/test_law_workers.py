"""S8: a program on several workers has the bits of one worker, however its arrays are cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.laws.law_orders import joined, joined_dot, masks, some_pairs
from tests.laws.test_law_programs import operands
from tests.sampling import sampled
from tests.workers import GRIDS, SIZES, assert_same_on_workers, draw_sharding, mesh_of, ragged, simulated
from volta import lax, nn, optim, random
from volta.core.errors import VerificationError
from volta.sharding import NamedSharding, PartitionSpec
from volta.testing import FILLS, assert_bits_equal, fill
from volta.testing.bits import differing
from volta.testing.strategies import programs
from volta.testing.transformer import Transformer
from volta.xla_like.partition import choosing, sums, trees

pytestmark = pytest.mark.turns(6)

P = PartitionSpec
few = settings(
    max_examples=max(4, settings().max_examples // 4), suppress_health_check=list(HealthCheck), deadline=None
)

LONG = 3 * 4096 + 517

PROGRAMS = {
    "sum": (lambda x: vnp.sum(x), [(LONG, 3)]),
    "columns": (lambda x: vnp.sum(x, 0), [(LONG, 5)]),
    "rows": (lambda x: vnp.sum(x, 1), [(5, LONG)]),
    "product": (lambda x: vnp.prod(1 + x / 4096, 0), [(LONG, 3)]),
    "extremes": (lambda x: (vnp.max(x, 0), vnp.min(x), vnp.argmax(x, 0)), [(LONG, 4)]),
    "mean": (lambda x: vnp.mean(x, 0), [(LONG, 4)]),
    "short": (lambda x: vnp.sum(x.astype(np.float16), 0), [(LONG, 3)]),
    "integers": (lambda x: vnp.sum((x * 1000).astype(np.int32), 0), [(LONG, 3)]),
    "gram": (lambda x, y: x.T @ y, [(LONG, 5), (LONG, 3)]),
    "half gram": (lambda x, y: x.astype(vnp.bfloat16).T @ y.astype(vnp.bfloat16), [(LONG, 5), (LONG, 3)]),
    "highest": (lambda x, y: vnp.matmul(x.T, y, precision="highest"), [(LONG, 5), (LONG, 3)]),
    "exact": (lambda x, y: vnp.matmul(x.T, y, precision="exact"), [(LONG, 5), (LONG, 3)]),
    "two axes": (lambda x, y: vnp.einsum("btd,bte->de", x, y), [(67, 129, 5), (67, 129, 3)]),
    "forward": (lambda x, w: nn.gelu(x @ w), [(131, 40), (40, 24)]),
    "deep": (lambda x, w: vnp.tanh(x @ w), [(7, LONG), (LONG, 6)]),
    "softmax": (lambda x: nn.softmax(x, -1), [(23, 4099)]),
    "layer norm": (lambda x, s: nn.layer_norm(x, s), [(23, 4100), (4100,)]),
    "attention": (lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), [(5, 70, 4, 8)] * 3),
    "grouped": (lambda q, k: nn.dot_product_attention(q, k, k), [(3, 70, 6, 8), (3, 70, 2, 8)]),
    "attended": (
        lambda q, k, v: volta.grad(lambda *a: vnp.sum(nn.dot_product_attention(*a) ** 2), (0, 1, 2))(q, k, v),
        [(3, 66, 4, 8)] * 3,
    ),
    "table": (lambda t, x: t[(x * 7).astype(np.int32) % 50], [(50, 6), (LONG,)]),
    "table's gradient": (
        lambda t, x: volta.grad(lambda t: vnp.sum(t[(x * 7).astype(np.int32) % 50] ** 2))(t),
        [(50, 6), (LONG,)],
    ),
    "scans": (lambda x: (vnp.cumsum(x, 0), vnp.cumsum(x, 1)), [(600, 5)]),
    "sort": (lambda x: (vnp.sort(x, 1), vnp.argsort(x, 0)), [(70, 33)]),
    "pieces": (lambda x: vnp.concatenate([x[:, 3:], vnp.flip(x, 0)[:, :4], x[:, ::2]], 1), [(40, 11)]),
    "turned": (lambda x: (x.transpose(2, 0, 1).reshape(6, -1), x.reshape(-1, 6)), [(40, 12, 6)]),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: vnp.tanh(c + vnp.sum(x)), x), [(40, 12)]),
    "recurrent": (
        lambda x, w: lax.scan(lambda h, row: ((h := vnp.tanh(row + h @ w)), h * 2), x[:, 0] * 0, x.swapaxes(0, 1)),
        [(40, 7, 12), (12, 12)],
    ),
    "layers": (lambda x, w: lax.scan(lambda h, w: (vnp.tanh(h @ w), None), x, w)[0], [(40, 12), (5, 12, 12)]),
    "until": (
        lambda x: lax.while_loop(lambda c: c[1] < 4, lambda c: (vnp.tanh(c[0] - vnp.flip(c[0], 1)), c[1] + 1), (x, 0)),
        [(40, 12)],
    ),
    "until small": (lambda x: lax.while_loop(lambda c: vnp.max(c) > 0.1, lambda c: c / 2, x), [(40, 12)]),
    "choice": (
        lambda x, y: lax.cond(vnp.sum(y) > 0, lambda a, b: a * b, lambda a, b: a - b, x, y),
        [(40, 12), (40, 12)],
    ),
    "learned loop": (
        lambda x, w: volta.grad(lambda w: vnp.sum(lax.fori_loop(0, 3, lambda i, h: vnp.tanh(h @ w), x)))(w),
        [(40, 12), (12, 12)],
    ),
    "random": (lambda x: x + random.normal(random.key(3), x.shape), [(40, 12)]),
}  # fmt: skip

QUICK = ("columns", "gram", "softmax", "attention")


@sampled("name", PROGRAMS, quick=QUICK)
def test_programs_have_one_workers_bits(name: str) -> None:
    """Each program, cut evenly, in ragged parts and over two axes, on 1 to 8 workers."""
    f, shapes = PROGRAMS[name]
    rng = np.random.default_rng(len(name))
    args = [fill("cancel" if i == 0 else "normal", shape, np.float32, seed=i) for i, shape in enumerate(shapes)]
    want = volta.jit(f)(*args)
    sizes = (2, 3) if name in QUICK else (*SIZES, 6)
    for size in sizes:
        with simulated(size):
            first = NamedSharding(mesh_of(size), P("data"))
            assert_same_on_workers(f, args, [first] * len(args), want, f"{size} workers, evenly")
            for grid in (None, GRIDS.get(size)):
                mesh = mesh_of(size, grid)
                for _ in range(1 if name in QUICK else 3):
                    drawn = [draw_sharding(rng, mesh, x.shape) for x in args]
                    assert_same_on_workers(f, args, drawn, want, f"{size} workers on {mesh}")


@contextmanager
def counted_as_large(large: bool) -> Iterator[None]:
    """Inside the block even small arrays are worth cutting anew, so that small programs take that road too."""
    before = choosing.SMALL
    choosing.SMALL = sums.SMALL = 1 if large else before
    try:
        yield
    finally:
        choosing.SMALL = sums.SMALL = before


@given(programs(), st.sampled_from(sorted(FILLS)), st.integers(0, 2**16), st.sampled_from(SIZES[1:]))
@few
def test_random_programs_have_one_workers_bits(p, kind, seed, size) -> None:
    rng = np.random.default_rng(seed)
    xs = operands(p, kind, seed)
    want = volta.jit(p)(*xs)
    with simulated(size), counted_as_large(seed % 3 == 0):
        mesh = mesh_of(size, GRIDS.get(size) if seed % 2 else None)
        drawn = [draw_sharding(rng, mesh, x.shape) for x in xs]
        outs = tuple(draw_sharding(rng, mesh, np.shape(x)) if rng.random() < 0.5 else None for x in want)
        assert_same_on_workers(p, xs, drawn, want, f"{size} workers", outs)


@pytest.mark.slow
@given(programs(max_steps=8, smooth=True), st.integers(0, 2**16), st.sampled_from(SIZES[1:]))
@few
def test_gradients_have_one_workers_bits(p, seed, size) -> None:
    rng = np.random.default_rng(seed)
    xs = operands(p, "normal", seed)
    f = volta.value_and_grad(p.loss)
    want = volta.jit(f)(*xs)
    with simulated(size), counted_as_large(seed % 3 == 0):
        mesh = mesh_of(size)
        drawn = [draw_sharding(rng, mesh, x.shape) for x in xs]
        assert_same_on_workers(f, xs, drawn, want, f"{size} workers")
        placed = [volta.device_put(x, s) for x, s in zip(xs, drawn, strict=True)]
        assert_bits_equal(f(*placed), want, "operation by operation")


MODEL = Transformer(layers=1, width=32, heads=2, length=32, batch=300, vocabulary=64)
ADAM = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-2))


def _step(params, state, inputs, targets):
    loss, gradients = volta.value_and_grad(MODEL.loss)(params, inputs, targets)
    updates, state = ADAM.update(gradients, state, params)
    return optim.apply_updates(params, updates), state, loss


def _cut_all(tree, mesh, axis: str, smallest: int):
    """Arrays cut along their longest dimension, if they are large enough."""

    def one(x):
        if x.size < smallest:
            return NamedSharding(mesh, P())
        d = int(np.argmax(x.shape))
        return NamedSharding(mesh, P(*[None] * d, axis))

    return volta.tree.map(one, tree)


def _columns(params, mesh):
    """Tensor parallel: matrices of a layer by columns, so that no sum is cut."""

    def one(path, x):
        inside = volta.tree.keystr(path).split("'")[-2] in ("qkv", "up")
        return NamedSharding(mesh, P(None, "model") if inside else P())

    return volta.tree.map_with_path(one, params)


HOW = [(how, size) for how in ("batch", "ragged", "optimizer", "parameters") for size in SIZES]


@sampled("how,size", [*HOW, *(("columns", size) for size in GRIDS)], quick=[("parameters", 3)])
def test_training_has_one_workers_bits(how: str, size: int) -> None:
    """Two steps of Adam on a transformer: data parallel, ZeRO, sharded parameters, and beside these tensor parallel."""
    params = MODEL.init(random.key(0))
    state = ADAM.init(params)
    batches = [MODEL.draw(random.key(i + 1)) for i in range(2)]
    want = (params, state)
    step = volta.jit(_step)
    for inputs, targets in batches:
        *want, loss = step(*want, inputs, targets)
    rng = np.random.default_rng(size)
    with simulated(size):
        mesh = mesh_of(size, GRIDS[size] if how == "columns" else None)
        bounds = {0: ragged(rng, MODEL.batch, mesh.shape["data"])} if how == "ragged" else {}
        rows = NamedSharding(mesh, P("data"), bounds=bounds)
        every = NamedSharding(mesh, P())
        placed_params = volta.tree.map(lambda x: every, params)
        placed_state = volta.tree.map(lambda x: every, state)
        if how in ("optimizer", "parameters"):
            placed_state = _cut_all(state, mesh, "data", 512)
        if how == "parameters":
            placed_params = _cut_all(params, mesh, "data", 512)
        if how == "columns":
            placed_params = _columns(params, mesh)
        spread = volta.jit(
            _step,
            in_shardings=(placed_params, placed_state, rows, rows),
            out_shardings=(placed_params, placed_state, None),
        )
        got = (volta.device_put(params, placed_params), volta.device_put(state, placed_state))
        for inputs, targets in batches:
            *got, found = spread(*got, inputs, targets)
        assert_bits_equal(tuple(got), tuple(want), f"{size} workers, {how}")
        assert_bits_equal(found, loss)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("by_dot", [False, True])
def test_the_order_on_workers_seen_from_outside(size: int, by_dot: bool) -> None:
    """Whatever the cuts, elements meet where the declared tree has them meet."""
    n = 6 * 4096 + 100
    where = some_pairs(n)[:: 101 if size == 3 else 11]
    columns = masks(n, where, np.dtype(np.float32)).T.copy()
    rng = np.random.default_rng(size)
    f = volta.jit((lambda x: vnp.ones((1, n)) @ x) if by_dot else lambda x: vnp.sum(x, 0))
    declared = joined_dot if by_dot else joined
    with simulated(size):
        for at in (None, ragged(rng, n, size)):
            rows = NamedSharding(mesh_of(size), P("data"), bounds={0: at} if at else {})
            found = f(volta.device_put(columns, rows))
            counts = np.asarray(found).reshape(-1)
            assert [n - int(c) for c in counts] == [declared(n, i, j) for i, j in where]


# -- the laws notice ---------------------------------------------------------------------------------------------------


def test_nodes_joined_in_another_order_are_noticed(monkeypatch) -> None:
    """Two neighbours of the tree exchanged with two others: a number differs, so the law above would fail."""
    x = fill("cancel", (8 * 4096, 5), np.float32, seed=1)
    want = volta.jit(lambda v: vnp.sum(v, 0))(x)
    real = trees.join

    def swapped(values, n, add):
        mixed = dict(values)
        mixed[0, 1], mixed[0, 4] = values[0, 4], values[0, 1]
        return real(mixed, n, add)

    with simulated(8):
        rows = NamedSharding(mesh_of(8), P("data"))
        assert_same_on_workers(lambda v: vnp.sum(v, 0), [x], [rows], want)
        monkeypatch.setattr(sums, "join", swapped)
        got = volta.jit(lambda v: vnp.sum(v, 0) + 0)(volta.device_put(x, rows))
    assert differing(got, want).size


def test_partial_sums_where_workers_happen_to_be_cut_are_noticed(monkeypatch) -> None:
    """What other frameworks do, a sum for each worker over whatever it holds, is refused before it runs."""
    x = fill("cancel", (3 * 4096, 5), np.float32, seed=1)
    with simulated(4):
        rows = NamedSharding(mesh_of(4), P("data"))
        monkeypatch.setattr("volta.xla_like.partition.partition.unit_of", lambda eqn, factor: 1)
        with pytest.raises(VerificationError, match="not between blocks|has not all of it"):
            volta.jit(lambda v: vnp.sum(v, 0) * 1)(volta.device_put(x, rows))
