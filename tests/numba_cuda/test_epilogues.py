"""Epilogues in the kernels of products: one launch, no memory for the product, and the CPU's bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_cuda_dot import TABLES, TILES, compute_serially
from tests.numba_cuda.test_gpu import needs_gpu
from tests.sampling import sampled
from volta import nn
from volta.numba_cuda.device_plan import device_plan
from volta.numba_cuda.products import dot_choice, dot_split
from volta.offline import plan_on_cuda
from volta.ops import lax
from volta.testing import assert_bits_equal, fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.compile import CompileOptions

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()


def normal(*shape, dtype="float32", seed=0):
    return np.asarray(vnp.asarray(fill("normal", shape, "float32", seed) * 3).astype(dtype))


def plan_of(f, *args, options=None, donated=()):
    with volta.execution_context(options=options or CompileOptions()):
        return device_plan(plan_on_cuda(volta.make_jaxpr(f)(*args), donated=donated)[0])


def unstored(plan):
    return [b for b in plan.buffers if b.kind == "unstored"]


def check_fused(f, *args, stored=False, launches=1, **options):
    """Assert that a function is so many launches, its product in no memory, and that its bits are the CPU's."""
    plan = plan_of(f, *args)
    assert [x.source.text for x in plan.launches if x.source.text.startswith("loop")] == []
    assert len(plan.launches) == launches
    assert len(unstored(plan)) == (not stored)
    assert plan.arena_bytes == 0 and (launches > 1 or plan.workspace_bytes == 0)
    check_on_host(f, *args, kernels=KERNELS, **options)


M, K, N = 37, 40, 72

EPILOGUES = {
    "bias": (lambda y, c, r, s, i, t: y + c),
    "one bias a row": (lambda y, c, r, s, i, t: y * s[:, None]),
    "bias and gelu": (lambda y, c, r, s, i, t: nn.gelu(y + c)),
    "gelu by erf": (lambda y, c, r, s, i, t: nn.gelu(y + c, approximate=False)),
    "residual": (lambda y, c, r, s, i, t: y + c + r),
    "several results": (lambda y, c, r, s, i, t: (nn.relu(y), y > 0, (y + c).astype(vnp.bfloat16))),
    "the product as well": (lambda y, c, r, s, i, t: (y, vnp.exp(y))),
    "quotients by rows": (lambda y, c, r, s, i, t: y / s[:, None]),
    "mirrored": (lambda y, c, r, s, i, t: y - r[::-1, ::-1]),
    "every seventh": (lambda y, c, r, s, i, t: y - t[:, ::7]),
    "two loops": (lambda y, c, r, s, i, t: (lax.optimization_barrier(vnp.tanh(y))[0], y * c)),
    "an index": (lambda y, c, r, s, i, t: vnp.where(vnp.arange(y.shape[1]) % 3 == 1, y, -1.0)),
    "rows of a table": (lambda y, c, r, s, i, t: y + r[i]),
    "as integers": (lambda y, c, r, s, i, t: (y * 3).astype(vnp.int8) % 7),
    "in a larger array": (lambda y, c, r, s, i, t: vnp.concatenate([r, vnp.tanh(y)])),
}
BOTH = {"the product as well"}
BESIDE = {
    "an index",
    "rows of a table",
    "in a larger array",
}  # where other kernels make a part of the result, or an operand


def operands(m=M, k=K, n=N):
    index = np.arange(m, dtype=np.int32) * 7 % m
    weights = normal(m, k), normal(k, n, seed=1)
    return *weights, normal(n, seed=2), normal(m, n, seed=3), normal(m, seed=4), index, normal(m, 7 * n, seed=5)


@sampled(
    "name, n",
    itertools.product(EPILOGUES, (N, 65)),
    quick=lambda x: x[1] == N or x[0] in ("bias and gelu", "turned", "in a larger array"),
)
@pytest.mark.few(5)
def test_an_epilogue_is_computed_in_the_kernel_of_its_product(name, n):
    f = EPILOGUES[name]
    args = operands(n=n)
    if name in BESIDE:
        check_on_host(lambda x, w, *rest: f(x @ w, *rest), *args, kernels=KERNELS)
        assert unstored(plan_of(lambda x, w, *rest: f(x @ w, *rest), *args))
        return
    check_fused(lambda x, w, *rest: f(x @ w, *rest), *args, stored=name in BOTH)


@sampled(
    "kind", ("highest", "float64", "bfloat16", "float16", "int32", "int64"), quick=("highest", "bfloat16", "int32")
)
def test_products_of_every_kind_have_epilogues(kind):
    dtype = "float32" if kind == "highest" else kind
    x, w, c, r = (normal(*s, dtype=dtype) for s in ((50, 200), (200, 68), (68,), (50, 68)))
    precision = "highest" if kind == "highest" else None
    check_fused(lambda x, w, c, r: vnp.abs(vnp.matmul(x, w, precision=precision) + c) * r, x, w, c, r)

    def both(x, w, c):
        y = vnp.matmul(x, w, precision=precision)
        return y, y + c

    check_fused(both, x, w, c, stored=True)


@sampled("kind, tile", TILES, quick=lambda x: x[1].rows == 32, ids=lambda x: f"{x[0]}-{TILES.index(x)}")
def test_every_tile_has_an_epilogue_inside_and_at_the_edges(monkeypatch, kind, tile):
    monkeypatch.setattr(dot_choice, TABLES[kind], {tile: (1, 1, 1, 1)})
    monkeypatch.setattr(dot_choice, "_cut", lambda chip, tile, blocks, *_: (float("inf"), blocks, 0))
    dtype = "float32" if kind == "highest" else kind
    precision = "highest" if kind == "highest" else None
    for m, k, n in ((tile.rows + 4, 2 * tile.depth + 5, tile.cols + 8), (tile.rows - 3, 272, 7)):
        x, w, c = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1), normal(n, dtype=dtype, seed=2)
        check_fused(lambda x, w, c: vnp.maximum(vnp.matmul(x, w, precision=precision) + c, 0), x, w, c)


@pytest.mark.parametrize("per", [1, 2])
def test_tiles_in_parts_have_epilogues_where_their_parts_are_joined(monkeypatch, per):
    monkeypatch.setattr(dot_choice, "_cut", lambda chip, tile, blocks, *_: (-1.0, 1, per))
    x, w, c = normal(70, 700), normal(700, 140, seed=1), normal(140, seed=2)
    check_fused(dense, x, w, c, launches=2)
    assert dot_split.slots_of(3, per) > 0


@sampled(
    "capability, precision",
    itertools.product(("7.5", "8.0"), (None, "highest")),
    quick=[("7.5", None), ("8.0", "highest")],
)
def test_older_gpus_have_epilogues(capability, precision):
    for rows in (70, 2):
        args = normal(rows, 300), normal(300, 132, seed=1), normal(132, seed=2)
        check_fused(
            lambda x, w, c: nn.relu(vnp.matmul(x, w, precision=precision) + c), *args, orders=("shuffled",),
            capability=capability,
        )  # fmt: skip


@sampled("n", (140, 139), quick=(139,))
def test_the_last_turn_at_a_tile_has_the_epilogue(monkeypatch, n):
    compute_serially(monkeypatch)
    x, w, c = normal(70, 700), normal(700, n, seed=1), normal(n, seed=2)
    check_fused(dense, x, w, c, launches=2)


SHAPES = {
    "batch": (lambda x, w, r: x @ w + r, (3, 20, 24), (3, 24, 36), (36,)),
    "two batches": (lambda x, w, r: vnp.tanh(x @ w) * r, (2, 3, 20, 24), (2, 3, 24, 36), (2, 3, 20, 36)),
    "a batch that is broadcast": (lambda x, w, r: x @ w - r, (4, 20, 24), (24, 36), (20, 36)),
    "positions": (lambda x, w, r: (x @ w).reshape(2, 10, 36) + r, (20, 24), (24, 36), (10, 36)),
    "outer": (lambda x, w, r: x @ w + r, (20, 1), (1, 36), (20, 36)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_epilogues_follow_the_shape_of_the_product(name):
    f, *shapes = SHAPES[name]
    args = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    plan = plan_of(f, *args)
    assert len(unstored(plan)) == 1 and len(plan.launches) == 1
    check_on_host(f, *args, kernels=KERNELS)


def test_heads_that_are_scaled_apart_stay_a_kernel_of_their_own():
    """Columns that the loop sees as two dimensions: it runs behind the product, which is stored."""

    def f(x, w, r):
        return (x @ w).reshape(20, 4, 9) * r

    args = normal(20, 24), normal(24, 36, seed=1), normal(4, 1, seed=2)
    plan = plan_of(f, *args)
    assert len(plan.launches) == 2 and not unstored(plan) and plan.arena_bytes
    check_on_host(f, *args, kernels=KERNELS)


@sampled("rows, n", itertools.product((1, 3), (96, 99)), quick=[(1, 99), (3, 96)])
def test_few_rows_times_a_matrix_have_an_epilogue(rows, n):
    x, w, c = normal(rows, 512), normal(512, n, seed=1), normal(n, seed=2)
    assert plan_of(dense, x, w, c).launches[0].source.name.startswith("volta_dot_vector")
    check_fused(dense, x, w, c)
    check_fused(lambda x, w, c: (lambda y: (y, nn.relu(y) * c))(x @ w.T), x, w.T.copy(), c, stored=True)


def test_what_the_gradient_needs_of_the_product_is_stored_with_the_epilogue():
    def loss(x, w, v):
        return vnp.sum(vnp.tanh(nn.gelu(x @ w) @ v) ** 2)

    args = normal(40, 24), normal(24, 36, seed=1), normal(36, 8, seed=2)
    f = volta.value_and_grad(loss, argnums=(0, 1, 2))
    fused, apart = plan_of(f, *args), plan_of(f, *args, options=CompileOptions(epilogues=False))
    assert len(fused.launches) < len(apart.launches)
    assert any(len(call.parts) == 2 and call.parts[0].writes[0] in call.writes for call in fused.calls)
    check_on_host(f, *args, kernels=KERNELS)


def test_an_update_of_weights_moves_up_to_the_product_of_its_gradient_and_stays_in_place():
    def step(x, w):
        g = volta.grad(lambda w: vnp.sum(vnp.sin(x @ w)))(w)
        return w - 0.1 * g

    x, w = normal(40, 24), normal(24, 36, seed=1)
    plan = plan_of(step, x, w, donated=(1,))
    assert [b.alias for b in plan.buffers if b.kind == "output"] == [1]
    assert len(unstored(plan)) == 2
    check_on_host(step, x, w, donated=(1,), kernels=KERNELS)


def test_memory_is_less_by_the_product():
    args = normal(64, 32), normal(32, 48, seed=1), normal(48, seed=2)
    fused, apart = (plan_of(dense, *args, options=CompileOptions(epilogues=x)) for x in (True, False))
    assert (fused.arena_bytes, apart.arena_bytes) == (0, 64 * 48 * 4)
    assert "f32[64,48] registers" in str(fused) and "registers" not in str(apart)
    assert "registers" not in fused.bytes_by_placement() and "registers" not in fused.memory_report()


def dense(x, w, c):
    return nn.gelu(x @ w + c)


@pytest.mark.parametrize("rows", [64, 1])
def test_the_memory_that_is_measured_is_the_plans(gpu, rows):
    args = volta.device_put((normal(rows, 512), normal(512, 96, seed=1), normal(96, seed=2)), "cuda")
    with volta.default_device("cuda"):
        compiled = volta.jit(dense).lower(*args).compile()
    before = gpu.pool.stats().live
    gpu.pool.reset_peak()
    out = compiled(*args)
    arguments = compiled.plan.bytes_by_class()["input"]
    assert gpu.pool.stats().peak - before + arguments == compiled.plan.peak_live_bytes
    assert_bits_equal(out, dense(*volta.device_put(args, "cpu")))


operations = st.sampled_from(
    [
        lambda y, c, r: y + c, lambda y, c, r: y * r, lambda y, c, r: vnp.tanh(y), lambda y, c, r: vnp.maximum(y, c),
        lambda y, c, r: y / (1 + r * r), lambda y, c, r: vnp.where(r > c, y, -y), lambda y, c, r: lax.exp(-vnp.abs(y)),
        lambda y, c, r: y.astype(vnp.bfloat16).astype(vnp.float32),
    ]
)  # fmt: skip


@given(st.integers(9, 80), st.integers(1, 300), st.integers(1, 100), st.lists(operations, min_size=1, max_size=4))
@settings(max_examples=8)
def test_epilogues_of_random_operations_have_the_cpus_bits(m, k, n, steps):
    def f(x, w, c, r):
        y = x @ w
        for step in steps:
            y = step(y, c, r)
        return y

    args = normal(m, k), normal(k, n, seed=1), normal(n, seed=2), normal(m, n, seed=3)
    assert len(unstored(plan_of(f, *args))) == 1
    check_on_host(f, *args, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", EPILOGUES)
def test_a_gpu_computes_the_cpus_bits_in_epilogues(name):
    f = volta.jit(lambda x, w, *rest: EPILOGUES[name](x @ w, *rest))
    for sizes in ((M, K, N), (513, 300, 257), (1024, 768, 512)):
        args = operands(*sizes)
        assert_bits_equal(f(*volta.device_put(args, "cuda")), f(*args))
