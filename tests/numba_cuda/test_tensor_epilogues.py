"""Epilogues of products on tensor cores: one launch, no memory for the product, and the bits that it has apart."""

import functools

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_epilogues import BESIDE, BOTH, EPILOGUES, normal
from tests.sampling import sampled
from volta import nn
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.codegen import ptx_mbarrier
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.products import dot_tensor, epilogues
from volta.numba_cuda.products.dot_tensor_persistent import PersistentProduct
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels
from volta.xla_like.compile import CompileOptions, build_plan

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
planned = functools.partial(build_plan, level=DeterminismLevel.DEVICE, scheduler=Schedule())
FUSED = CompileOptions()
APART = attrs.evolve(FUSED, epilogues=False)


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(epilogues, "_pays", lambda *_: True)


def run(f, args, capability="9.0a", options=FUSED):
    """The outputs of a function's kernels on the host, and its plan. Races that barriers of copies order seem some."""
    races = capability != "9.0a"
    plan, program = planned(volta.make_jaxpr(f)(*args), options=options)
    launches = launches_of(plan, capability)
    found = host.run_plan(
        plan, args, program.consts, kernels=KERNELS, launches=launches, order="shuffled", races=races
    )  # fmt: skip
    assert found.violations == []
    return found.outputs, plan, launches


def check(f, *args, capability="9.0a", stored=False, **changed):
    """Assert that a function ends with its product, which is in no memory, and has the bits that it has apart."""
    fused, plan, found = run(f, args, capability, attrs.evolve(FUSED, **changed))
    assert ["dot_tc" in x.source.name for x in found].index(True) == len(found) - 1
    assert [b.kind for b in plan.buffers].count("unstored") == (not stored)
    apart, plan, more = run(f, args, capability, attrs.evolve(APART, **changed))
    assert len(more) > len(found) and "unstored" not in [b.kind for b in plan.buffers]
    for x, y in zip(fused, apart, strict=True):
        assert_bits_equal(x, y)


def product(x, w):
    return vnp.matmul(x, w, precision="tf32" if x.dtype == np.float32 else "bf16")


def operands(m, k, n, dtype):
    shapes = ((m, k), (k, n), (n,), (m, n), (m,))
    x, w, c, r, s = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
    return x, w, c, r, s, np.arange(m, dtype=np.int32) * 7 % m, normal(m, 7 * n, dtype=dtype, seed=5)


@sampled(
    "name, kind",
    [(name, kind) for name in EPILOGUES for kind in (("bfloat16", "9.0a"), ("float32", "9.0a"), ("float16", "8.0"))],
    quick=lambda x: x[0] in ("bias and gelu", "several results") or x == ("the product as well", ("bfloat16", "9.0a")),
)
@pytest.mark.few(3)
def test_an_epilogue_is_computed_in_the_kernel_of_its_product(name, kind):
    dtype, capability = kind
    f, args = EPILOGUES[name], operands(37, 40, 72, dtype)

    def whole(x, w, *rest):
        return f(product(x, w), *rest)

    if name in BESIDE:
        for x, y in zip(run(whole, args, capability)[0], run(whole, args, capability, APART)[0], strict=True):
            assert_bits_equal(x, y)
        return
    check(whole, *args, capability=capability, stored=name in BOTH)


def update(p, m, x, dy):
    g = product(x.T, dy).astype(vnp.float32)
    m = vnp.float32(0.9) * m + vnp.float32(0.1) * g
    return p - vnp.float32(0.001) * m, m


@pytest.mark.parametrize("shape", [(64, 136, 72), (70, 40, 33)])
def test_an_optimizer_updates_where_a_gradient_is_made(shape):
    m, k, n = shape
    p, old = normal(k, n), normal(k, n, seed=1)
    check(update, p, old, normal(m, k, dtype="bfloat16"), normal(m, n, dtype="bfloat16", seed=3))


def dense(x, w, c):
    return nn.gelu(product(x, w) + c)


TILES = [(engine, x) for engine, shapes in dot_tensor._SHAPES.items() if engine != "persistent" for x in shapes]


@sampled(
    "engine, shape", TILES, quick=lambda x: x[1].rows == 64 or x[0] == "writing",
    ids=lambda x: f"{x[0]}-{x[1].rows}x{x[1].cols}",
)  # fmt: skip
@pytest.mark.few(1)
def test_every_tile_has_an_epilogue_inside_and_at_the_edges(monkeypatch, engine, shape):
    """Several tiles a block, whole ones and those at the edges; neighbours by eights, by fours and one by one."""
    monkeypatch.setitem(dot_tensor._SHAPES, engine, (shape,))
    if engine == "wgmma":
        monkeypatch.setattr(dot_tensor, "_has_maps", lambda *_: False)
    capability = "8.0" if engine == "mma" else "9.0a"
    k, few = (42, True) if engine == "staged" else (72, False)
    for dtype in ("bfloat16", "float32"):
        for n in (shape.cols + 8, shape.cols - 4, shape.cols + 1)[few:]:
            x, w, c, *_ = operands(shape.rows + 8, k, n, dtype)
            if n % 8 and engine != "staged":  # rows of the right operand are not pieces, but columns are
                check(lambda x, w, c: dense(x, w.T, c), x, np.ascontiguousarray(w.T), c, capability=capability)
            else:
                check(dense, x, w, c, capability=capability)


def test_batches_have_their_rows_one_after_the_other():
    shapes = (2, 3, 20, 40), (2, 3, 40, 24), (2, 3, 20, 24)
    x, w, r = (normal(*shape, dtype="bfloat16", seed=i) for i, shape in enumerate(shapes))
    check(lambda x, w, r: nn.relu(product(x, w)) + r, x, w, r)


@pytest.mark.parametrize(
    ("rows", "depth", "fused"), [(4096, 2048, True), (2048, 2048, False), (4096, 2056, False), (4096, 64, None)]
)
def test_products_of_few_tiles_or_deep_ones_have_no_epilogue(monkeypatch, rows, depth, fused):
    """Nor do those that are stored as well (None): measured, none of them gains by it."""
    monkeypatch.undo()
    args = (volta.ShapeDtypeStruct(s, vnp.bfloat16) for s in ((rows, depth), (depth, 1024), (1024,)))

    def both(x, w, c):
        return product(x, w), dense(x, w, c)

    program = volta.make_jaxpr(both if fused is None else dense)(*args)
    plan, _ = planned(program, options=FUSED)
    assert len(launches_of(plan, "9.0a")) == 2 - bool(fused)


FEW = {"processors": 1}
"""So few multiprocessors that a block has many tiles."""


def test_a_block_writes_one_tile_while_it_multiplies_the_next():
    x, w, c, r, *_ = operands(264, 72, 264, "bfloat16")
    check(lambda x, w, c, r: nn.relu(product(x, w) + c) * r, x, w, c, r, **FEW)


@pytest.mark.parametrize("forgotten", ["_left", "_taken"])
def test_who_does_not_wait_is_caught(monkeypatch, forgotten):
    """A tile that is written before it is there, or left where the one before still is, shows on the host."""
    x, w, c, *_ = operands(264, 72, 264, "bfloat16")
    options = attrs.evolve(FUSED, **FEW)
    right = run(dense, (x, w, c), options=options)[0][0]
    wait, method, places = ptx_mbarrier.wait, getattr(PersistentProduct, forgotten), []

    def noted(self):
        places.append(method(self))
        return places[-1]

    monkeypatch.setattr(PersistentProduct, forgotten, noted)
    monkeypatch.setattr(ptx_mbarrier, "wait", lambda b, x, parity: x in places or wait(b, x, parity))
    plan, program = planned(volta.make_jaxpr(dense)(x, w, c), options=options)
    launches = launches_of(plan, "9.0a")
    found = host.run_plan(plan, (x, w, c), program.consts, launches=launches, order="shuffled", races=False)
    assert found.violations or found.outputs[0].tobytes() != right.tobytes()
