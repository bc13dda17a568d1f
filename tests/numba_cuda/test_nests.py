"""Loop kernels on CUDA: which variant runs which call, and that every variant has the CPU's bits."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import nn
from volta.api.arguments import ShapeDtypeStruct
from volta.numba_cuda import kernels
from volta.numba_cuda.launches import Regions
from volta.numba_cuda.loops import combining, nests_col, nests_map, nests_transposed, row_variants
from volta.numba_cuda.loops.row_variants import RowVariant, kept_slots
from volta.numba_cuda.loops.thread_groups import ThreadGroupShape
from volta.testing import fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import LoopKernel

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()


def normal(*shape, seed=0, dtype="float32"):
    return fill("normal", shape, dtype, seed)


def variants(f, *shapes, dtype="float32"):
    """The variants that a function's loop kernels run in, with their grids, for arguments of some shapes."""
    args = [ShapeDtypeStruct(s, np.dtype(dtype)) for s in shapes]
    plan, _ = build_plan(volta.make_jaxpr(f)(*args))
    found = kernels.unmerged(plan, Regions())
    return [
        (x.source.name.split("_", 3)[3], x.grid, x.threads, x.shared) for x in found if "combine" not in x.source.name
    ]


CHOICES = {
    "map": (lambda x: x + 1, ((1 << 18, 1024),), ("4x1n", 262144, 256, 0)),
    "transposed map": (lambda x: x.T + 1, ((1 << 18, 1024),), ("transposed0of0x64x64", 65536, 256, 0)),
    "dear map": (vnp.exp, ((1 << 18, 1024),), ("4x4nb128x12", 131072, 128, 0)),
    "small map": (lambda x: x + 1, ((1000,),), ("4x1n", 1, 256, 0)),
    "map with a tail": (lambda x: x + 1, ((1003,),), ("4x1nt", 1, 256, 0)),
    "map that is read apart": (lambda x: x[:, ::3] + 1, ((64, 96),), ("4x1n", 2, 256, 0)),
    "map of odd rows": (lambda x: x[:, 1:] + 1, ((64, 64),), ("1x1n", 16, 256, 0)),
    "rolls": (lambda x: vnp.roll(x, 1, 0) + vnp.roll(x, 1, 1), ((8192, 8192),), ("walk4x8b_1_3_4_6", 8192, 256, 0)),
    "roll of one row": (lambda x: x + vnp.roll(x, 3), ((1 << 20,),), ("walk4x1b", 1024, 256, 0)),
    "shortest rows": (nn.softmax, ((8192, 10),), ("2x2x1x32_10nsc", 256, 64, 0)),
    "short rows": (nn.softmax, ((1 << 20, 64),), ("4x8x1x32_64ns", 32768, 256, 0)),
    "rows": (nn.softmax, ((8192, 768),), ("2x32x1x8_768ns", 1024, 256, 0)),
    "odd rows": (nn.softmax, ((8192, 769),), ("1x32x1x8_769nsc", 1024, 256, 0)),
    "few rows": (nn.softmax, ((4, 768),), ("2x32x1x1_768ns", 4, 32, 0)),
    "longer rows": (nn.softmax, ((8192, 2048),), ("1x64x1x4_2048ns", 2048, 256, 0)),
    "rows of a block": (nn.softmax, ((8192, 4096),), ("1x64x1x1_kept64ns", 8192, 64, 16384)),
    "rows in shared memory": (nn.softmax, ((8192, 50304),), ("1x64x13x1_kept64ns", 8192, 832, 212992)),
    "long rows, read once": (lambda x: vnp.sum(x, 1), ((8192, 50304),), ("4x16x14x1ns", 8192, 224, 0)),
    "longest rows": (nn.softmax, ((64, 100000),), ("1x64x16x1nc", 64, 1024, 0)),
    "one long row": (lambda x: vnp.sum(x), ((1 << 28,),), ("4x16x16x1n", 4096, 256, 0)),
    "columns": (lambda x: vnp.sum(x, 0), ((8192, 768),), ("4x2x2ns", 96, 256, 0)),
    "many columns": (lambda x: vnp.sum(x, 0), ((4096, 65536),), ("4x8x1ns", 2048, 512, 0)),
    "long columns": (lambda x: vnp.sum(x, 0), ((1 << 18, 1024),), ("4x16x1n", 1024, 1024, 0)),
    "long columns, few": (lambda x: vnp.sum(x, 0), ((1 << 16, 8),), ("4x2x8n", 2, 1024, 0)),
    "odd long columns": (lambda x: vnp.sum(x, 0), ((1 << 16, 1001),), ("1x16x1n", 1008, 1024, 0)),
    "short columns": (lambda x: vnp.sum(x, 0), ((8, 786432),), ("4_8ns", 768, 256, 0)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_variant_of_a_call_follows_from_its_shape(name):
    f, shapes, want = CHOICES[name]
    assert variants(f, *shapes)[0] == want


def norm_gradient(x, g, c):
    def norm(x, g):
        d = x - vnp.mean(x, -1, keepdims=True)
        return d / vnp.sqrt(vnp.mean(d * d, -1, keepdims=True) + 1e-5) * g

    return volta.vjp(norm, x, g)[1](c)


def reductions_of(y, axis):
    return [vnp.argmax(y * i, axis) for i in range(1, 10)]


def reductions(x, axis):
    return (
        vnp.sum(x, axis), vnp.max(x, axis), vnp.argmin(x, axis), vnp.prod(x, axis), vnp.all(x > -2, axis),
        nn.softmax(x, axis),
    )  # fmt: skip


PROGRAMS = {
    "maps": (lambda x: (nn.gelu(x), x.T * 2, x / 3.1, vnp.maximum(x, 0), x[::-1]), (normal(33, 36),)),
    "map with a tail": (lambda x: vnp.tanh(x), (normal(1031),)),
    "transposed map": (lambda x, y: x.T * 2 + y, (normal(161, 131), normal(131, 161))),
    "transposed heads": (lambda x: vnp.transpose(x, (0, 2, 3, 1)) + 1, (normal(3, 70, 2, 40),)),
    "transposed twice": (lambda x, y: x.T * y.T, (normal(130, 130), normal(130, 130, seed=1))),
    "transposed narrow": (lambda x: x.T + 1, (normal(700, 30),)),
    "rows of 10": (lambda x: reductions(x, 1), (normal(9, 10),)),
    "rows of 2": (lambda x: reductions(x, 1), (normal(70, 2),)),
    "rows of 28": (lambda x: reductions(x, 1), (normal(40, 28),)),
    "rows of 64": (lambda x: reductions(x, 1), (normal(9, 64),)),
    "rows of 101": (lambda x: reductions(x, 1), (normal(9, 101),)),
    "rows of 516": (lambda x: reductions(x, 1), (normal(5, 516),)),
    "rows of 1537": (lambda x: (nn.softmax(x, 1), vnp.sum(x, 1)), (normal(3, 1537),)),
    "rows of 2050": (lambda x: (nn.softmax(x, 1), vnp.sum(x, 1)), (normal(3, 2050),)),
    "rows of 4100": (lambda x: (nn.softmax(x, 1), vnp.sum(x, 1), vnp.argmax(x, 1)), (normal(2, 4100),)),
    "norms": (norm_gradient, (normal(7, 132), normal(132, seed=1), normal(7, 132, seed=2))),
    "columns": (lambda x: reductions(x, 0), (normal(70, 12),)),
    "odd columns": (lambda x: reductions(x, 0), (normal(130, 7),)),
    "short columns": (lambda x: reductions(x, 0), (normal(5, 12),)),
    "columns by blocks": (lambda x: (vnp.sum(x, 0), vnp.argmax(x, 0)), (normal(9000, 4),)),
    "long columns": (lambda x: (vnp.sum(x, 1), vnp.argmax(x, 1)), (normal(2, 17000, 20),)),
    "one long row": (lambda x: (vnp.sum(x), vnp.argmax(x)), (normal(70000),)),
    "many reductions": (lambda x: reductions_of(vnp.exp(x), 1), (normal(2, 1600),)),
    "many reductions of columns": (lambda x: reductions_of(vnp.exp(x), 0), (normal(70, 36),)),
    "bfloat16": (lambda x: (nn.softmax(x, 1), x + x, vnp.sum(x, 0)), (normal(6, 72, dtype="bfloat16"),)),
    "float64": (lambda x: (nn.softmax(x, 1), x + x, vnp.sum(x, 0)), (normal(6, 72, dtype="float64"),)),
    "int8": (lambda x: (vnp.sum(x, 1), x // 3, vnp.max(x, 0)), (normal(6, 72, dtype="int8"),)),
}


QUICK = (
    "maps", "transposed map", "rows of 10", "rows of 101", "rows of 1537", "norms", "odd columns", "short columns",
    "one long row", "bfloat16",
)  # fmt: skip


@sampled("name", PROGRAMS, quick=QUICK)
def test_variants_have_the_cpus_bits(name):
    f, args = PROGRAMS[name]
    check_on_host(f, *args, orders=("shuffled",), kernels=KERNELS)


IN_PLACE = {
    "rows": (nn.softmax, normal(13, 20)),
    "longer rows": (nn.softmax, normal(3, 1700)),
    "columns": (lambda x: nn.softmax(x, 0), normal(70, 7)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_threads_beyond_an_edge_read_nothing_that_is_written_in_place(name):
    f, x = IN_PLACE[name]
    check_on_host(f, x, orders=("shuffled",), donated=(0,), kernels=KERNELS)


def rows(lanes, threads, blocks, groups, length, single=True):
    return lambda call, capability: RowVariant(ThreadGroupShape(lanes, threads, blocks), groups, length, True, single)


def kept(lanes, threads, blocks, elements):
    shape = ThreadGroupShape(lanes, threads, blocks)
    return lambda call, capability: RowVariant(shape, 1, 0, True, True, kept_slots(call.kernel), elements)


ROWS = [
    rows(4, 16, 1, 2, 200), rows(4, 4, 1, 8, 200), rows(4, 2, 1, 16, 200), rows(1, 1, 1, 32, 200),
    rows(2, 2, 1, 16, 200), rows(2, 32, 1, 3, 200), rows(1, 32, 1, 1, 200), rows(1, 64, 1, 2, 200),
    rows(4, 16, 2, 1, 0), rows(1, 64, 1, 1, 0), rows(2, 32, 2, 1, 0, False), kept(2, 32, 1, 4), kept(1, 64, 1, 64),
]  # fmt: skip


@sampled("choose", ROWS, quick=ROWS[::3])
def test_two_ways_to_share_rows_out_have_the_same_bits(monkeypatch, choose):
    monkeypatch.setattr(row_variants, "choose_row", choose)
    check_on_host(nn.softmax, normal(5, 200), orders=("shuffled",), kernels=KERNELS)


@pytest.mark.parametrize("shape", [(4, 2, 1), (1, 8, 1), (2, 1, 2), (4, 1, 4)])
def test_two_ways_to_share_columns_out_have_the_same_bits(monkeypatch, shape):
    chosen = nests_col.ColVariant(*shape, 0, True, False)
    monkeypatch.setattr(nests_col, "choose_col", lambda call: chosen)
    check_on_host(lambda x: vnp.sum(x * 2, 0) + 1, normal(4200, 12), orders=("shuffled",), kernels=KERNELS)


LEAN, WIDE, MIDDLE, HEAVY, LONG = (getattr(nests_map, x) for x in ("LEAN", "WIDE", "MIDDLE", "HEAVY", "LONG"))


@pytest.mark.parametrize(
    "lanes, groups, bound", [(4, 1, None), (4, 2, WIDE), (2, 3, None), (1, 4, None), (4, 4, LEAN), (4, 4, LONG)]
)
def test_two_ways_to_share_a_map_out_have_the_same_bits(monkeypatch, lanes, groups, bound):
    monkeypatch.setattr(nests_map, "choose_map", lambda call: nests_map.MapVariant(lanes, groups, True, False, bound))
    check_on_host(lambda x: nn.gelu(x) + x[:1], normal(33, 64), orders=("shuffled",), kernels=KERNELS)


def test_a_bound_on_registers_is_that_of_the_dear_operations():
    def bound(f, dtype="float32", operands=1):
        ((name, _, threads, _),) = variants(f, *[(1 << 10, 1 << 10)] * operands, dtype=dtype)
        bounds = set(nests_map.BOUNDS.values())
        found = next((x for x in bounds if name.endswith(f"b{x.threads}x{x.resident}{'o' * x.looped}")), None)
        assert threads == (found.threads if found else 256)
        return found

    for f in (nn.gelu, vnp.tanh, vnp.exp, lambda x: vnp.where(x > 0, vnp.log(x), 1.0)):
        assert bound(f) == LEAN
    for f in (vnp.log1p, nn.sigmoid, vnp.sin, vnp.arcsin, lambda x: x * nn.sigmoid(x)):
        assert bound(f) == WIDE
    for f in (vnp.arccos, volta.lax.cbrt, nn.softplus, nn.mish, lambda x: vnp.exp(vnp.log1p(x))):
        assert bound(f) == MIDDLE
    for f in (vnp.tan, vnp.sinh):
        assert bound(f) == HEAVY
    assert bound(volta.lax.pow, operands=2) == MIDDLE
    assert bound(volta.lax.erf_inv) == nests_map.LOOPED
    for f in (volta.lax.atan2, vnp.logaddexp):
        assert bound(f, operands=2) == HEAVY
    assert bound(volta.lax.lgamma) == bound(lambda x, y: y * volta.lax.digamma(x), operands=2) == LONG
    assert bound(lambda x, y: vnp.exp(x) + y, operands=2) is None
    much = (volta.lax.erfc, lambda x: vnp.exp(x) / vnp.tanh(x), lambda x: vnp.sin(x) * vnp.cos(x))  # to hold
    for f in (lambda x: x + 1, *much):
        assert bound(f) is None
    assert bound(nn.gelu, "float16") is None and bound(nn.gelu, "float64") is None


PARTS = [(4, 1, False), (2, 64, False), (2, 32, True)]


@pytest.mark.parametrize("choose", PARTS)
def test_two_ways_to_share_partial_results_out_have_the_same_bits(monkeypatch, choose):
    chosen = combining.CombineVariant(*choose)
    monkeypatch.setattr(combining, "choose_combine", lambda parts: chosen)
    parts = min(chosen.share * chosen.across, 40) if not chosen.rounds else 75  # of four blocks each
    rows = 1 if parts > 4 else 3
    x = normal(rows, 4 * 4096 * (parts - 1) + 5000)
    check_on_host(lambda x: (vnp.sum(x, 1), vnp.argmax(x, 1)), x, orders=("shuffled",), kernels=KERNELS)


def test_what_two_passes_read_or_compute_dearly_is_kept():
    plan, _ = build_plan(volta.make_jaxpr(nn.softmax)(ShapeDtypeStruct((8, 5000), np.dtype("float32"))))
    (kernel,) = [c.kernel for c in plan.calls if isinstance(c.kernel, LoopKernel)]
    places = [(type(kernel.body[s.value]).__name__, s.first, s.last, s.place) for s in kept_slots(kernel)]
    assert places == [("Load", 0, 1, 0), ("Compute", 1, 2, 0)]  # one place: the input's, then the exponential's


@pytest.mark.parametrize("name", ["maps", "rows of 101", "odd columns", "short columns"])
def test_indices_of_64_bits_find_the_same_elements(monkeypatch, name):
    for module in (nests_map, row_variants, nests_col, nests_transposed):
        monkeypatch.setattr(module, "is_narrow", lambda call: False)
    f, args = PROGRAMS[name]
    check_on_host(f, *args, orders=("shuffled",), kernels=KERNELS)


def test_numbers_are_divided_by_multiplication():
    from volta.numba_cuda.loops.nests_body import division_words

    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 5, 7, 64, 768, 1023, 1 << 20, (1 << 31) - 1, *map(int, rng.integers(1, 1 << 31, 50))]
    for d in sizes:
        multiplier, shift = division_words((1, d))
        assert multiplier < 1 << 32
        for n in (0, 1, d - 1, d, d + 1, 7 * d - 1, 7 * d, (1 << 31) - 1, *map(int, rng.integers(0, 1 << 31, 50))):
            if n < 1 << 31:
                assert n * multiplier >> shift == n // d
