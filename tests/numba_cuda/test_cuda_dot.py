"""Products on the host runner: whatever the tile, the layout and the dtypes, the bits are the CPU's."""

import itertools

import attrs
import numpy as np
import pytest

import volta.numpy as vnp
from tests.sampling import sampled
from volta.numba_cuda.products import dot, dot_choice, dot_split
from volta.numba_cuda.products.dot_problem import Problem
from volta.testing import fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.dot import CHUNK, Dot, DotSpec, item_size
from volta.xla_like.kernels import Access

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
FLOAT32 = DotSpec("float32", "float32", "float32")
TABLES = {"float32": "_FMA", "highest": "_MMA", "float64": "_MMA_LONG", "int64": "_FMA_LONG"}
TILES = [(kind, tile) for kind, table in TABLES.items() for tile in getattr(dot_choice, table)]
LAYOUTS = {
    "NN": lambda a, b: (a, b),
    "TN": lambda a, b: (a.T.copy(), b),
    "NT": lambda a, b: (a, b.T.copy()),
    "TT": lambda a, b: (a.T.copy(), b.T.copy()),
}


def operands(kind, m, k, n):
    dtype = "float32" if kind == "highest" else kind
    return (fill("normal", (m, k), "float32", 1) * 9).astype(dtype), (fill("normal", (k, n), "float32", 2) * 9).astype(
        dtype
    )


def product(layout, kind):
    def f(a, b):
        a, b = (x.T if t == "T" else x for x, t in zip((a, b), layout, strict=True))
        return vnp.matmul(a, b, precision="highest" if kind == "highest" else None)

    return f


@sampled(
    "layout, kind, tile",
    [(layout, *tile) for layout in LAYOUTS for tile in TILES],
    quick=lambda x: x[0] == "NT" and x[2].rows == 32 and x[1] != "float64",
    ids=lambda x: f"{x[0]}-{x[1]}-{TILES.index(x[1:])}",
)
def test_every_tile_has_the_cpus_bits_in_every_layout(monkeypatch, layout, kind, tile):
    monkeypatch.setattr(dot_choice, TABLES[kind], {tile: (1, 1, 1, 1)})
    for m, k, n in ((tile.rows + 4, 272, tile.cols + 8), (tile.rows - 3, 2 * tile.depth + 5, 7)):
        args = LAYOUTS[layout](*operands(kind, m, k, n))
        check_on_host(product(layout, kind), *args, kernels=KERNELS)


KINDS = ("float32", "highest", "float64")


@sampled(
    "kind, k",
    itertools.product(KINDS, (0, 1, 255, 256, 257, 513)),
    quick=[("float32", 0), ("float32", 257), ("highest", 257)],
)
def test_chunks_of_k_end_where_the_cpus_do(kind, k):
    check_on_host(product("NN", kind), *operands(kind, 33, k, 40), kernels=KERNELS)


@sampled(
    "kind, per, whole",
    [
        (kind, per, whole)
        for kind, per in (("float32", 2), ("float32", 1), ("highest", 2), ("float64", 3), ("int32", 2))
        for whole in (0, 1)
    ],
    quick=[("float32", 2, 1)],
)
def test_tiles_in_parts_of_k_have_the_same_bits(monkeypatch, kind, per, whole):
    monkeypatch.setattr(dot_choice, "_cut", lambda *args: (0.0, whole, per))
    monkeypatch.setattr(
        dot_choice,
        TABLES.get(kind, "_FMA"),
        dict([next(x for x in getattr(dot_choice, TABLES.get(kind, "_FMA")).items() if x[0].rows == 32)]),
    )
    for k in (4 * 256, 4 * 256 + 37)[per == 2 and kind == "float32" :]:
        check_on_host(product("TN", kind), *LAYOUTS["TN"](*operands(kind, 40, k, 70)), kernels=KERNELS)


def compute_serially(monkeypatch, halves=False):
    """Have the blocks of every product of several chunks run serially, or (``halves``) those of half of its tiles."""
    choose = dot.choose

    def chosen(problem, capability):
        found = choose(problem, capability)
        variant = attrs.evolve(found.variant, serial=problem.dot.k > CHUNK, split=False, slices=1)
        variant = attrs.evolve(variant, halves=variant.serial and halves)
        tiles = dot.blocks_of(variant.tile, problem.dot)
        return dot_choice.DotChoice(variant, tiles if not variant.serial else tiles // 2 if halves else 0)

    monkeypatch.setattr(dot, "choose", chosen)


@sampled(
    "kind, k",
    itertools.product((*KINDS, "int32"), (CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 37)),
    quick=[("float32", 4 * CHUNK + 37), ("highest", CHUNK + 1)],
)
def test_blocks_that_add_to_a_tile_serially_have_the_same_bits(monkeypatch, kind, k):
    table = TABLES.get(kind, "_FMA")
    small = next(x for x in getattr(dot_choice, table).items() if x[0].rows == 32)
    monkeypatch.setattr(dot_choice, table, dict([small]))
    compute_serially(monkeypatch)
    for layout in ("TN", "NT"):
        check_on_host(product(layout, kind), *LAYOUTS[layout](*operands(kind, 40, k, 70)), kernels=KERNELS)


@sampled(
    "kind, k",
    itertools.product((*KINDS, "int32"), (CHUNK + 1, 3 * CHUNK, 7 * CHUNK + 37)),
    quick=[("float32", 7 * CHUNK + 37)],
)
def test_tiles_that_are_taken_by_halves_have_the_same_bits(monkeypatch, kind, k):
    table = TABLES.get(kind, "_FMA")
    small = next(x for x in getattr(dot_choice, table).items() if x[0].rows == 32)
    monkeypatch.setattr(dot_choice, table, dict([small]))
    compute_serially(monkeypatch, halves=True)
    for layout in ("TN", "NT"):
        check_on_host(product(layout, kind), *LAYOUTS[layout](*operands(kind, 40, k, 70)), kernels=KERNELS)


def test_operands_whose_rows_lie_far_apart_have_the_same_bits(monkeypatch):
    choose = dot.choose

    def far(problem, capability):
        found = choose(problem, capability)
        lhs, rhs = (attrs.evolve(x, near=False) for x in (found.variant.lhs, found.variant.rhs))
        return attrs.evolve(found, variant=attrs.evolve(found.variant, lhs=lhs, rhs=rhs))

    monkeypatch.setattr(dot, "choose", far)
    for layout in ("TN", "NT"):
        check_on_host(product(layout, "float32"), *LAYOUTS[layout](*operands("float32", 40, 300, 70)), kernels=KERNELS)


def plain(m, n, k, spec=FLOAT32):
    """Row-major operands."""
    sizes = item_size(spec.lhs), item_size(spec.rhs), item_size(spec.out)
    strides = ((0, 0, size * columns, size) for size, columns in zip(sizes, (k, n, n), strict=True))
    lhs, rhs, out = (Access(i, 0, x) for i, x in enumerate(strides))
    return Problem(Dot(spec, (1, 1), m, n, k), lhs, rhs, out)


def test_operands_are_near_while_32_bits_measure_a_tile():
    for k, near in ((1 << 20, True), (1 << 25, False)):
        assert dot_choice.choose(plain(512, 512, k), "9.0").variant.lhs.near == near


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_parts_that_are_not_looked_at_are_never_the_best(monkeypatch, kind):
    spec, rng = DotSpec(kind, kind, kind), np.random.default_rng(0)
    sizes = rng.integers(1, 900, (30, 2)).tolist()
    shapes = [(m, n, int(2 ** rng.uniform(8, 17))) for m, n in sizes]
    few = [dot_choice.choose(plain(*shape, spec), "9.0") for shape in shapes]
    monkeypatch.setattr(dot_split, "_equally_many", lambda units: range(1, units))
    assert few == [dot_choice.choose(plain(*shape, spec), "9.0") for shape in shapes]


def slice_chunks(monkeypatch, slices):
    """Have groups of a block's threads compute chunks side by side."""
    choose = dot.choose

    def chosen(problem, capability):
        found = choose(problem, capability)
        variant = attrs.evolve(found.variant, slices=slices, split=False, serial=False, halves=False)
        return dot_choice.DotChoice(variant, found.whole)

    monkeypatch.setattr(dot, "choose", chosen)


@sampled(
    "kind, slices",
    itertools.product((*KINDS, "int32"), (2, 3, 6)),
    quick=[("float32", 3), ("highest", 2)],
)
def test_chunks_side_by_side_have_the_same_bits(monkeypatch, kind, slices):
    table = TABLES.get(kind, "_FMA")
    small = next(x for x in getattr(dot_choice, table).items() if x[0].rows == 32)
    monkeypatch.setattr(dot_choice, table, dict([small]))
    slice_chunks(monkeypatch, slices)
    for layout in ("TN", "NT"):
        args = LAYOUTS[layout](*operands(kind, 40, 6 * CHUNK, 70))
        check_on_host(product(layout, kind), *args, kernels=KERNELS)


GROUPED = [
    (kind, tile) for kind, tile in TILES if kind != "int64" and tile.rows * tile.cols <= (16384, 8192)[tile.mma > 0]
]


@sampled("kind, tile", GROUPED, quick=[GROUPED[0], next(x for x in GROUPED if x[0] == "highest")])
def test_groups_of_every_tile_have_room_for_their_sums(monkeypatch, kind, tile):
    """They may take more than the stages in whose place they are stored."""
    monkeypatch.setattr(dot_choice, TABLES[kind], {tile: getattr(dot_choice, TABLES[kind])[tile]})
    slice_chunks(monkeypatch, 2)
    args = LAYOUTS["NN"](*operands(kind, 24, 2 * CHUNK, 40))
    check_on_host(product("NN", kind), *args, kernels=KERNELS)


@pytest.mark.slow
def test_items_of_a_batch_are_added_serially_by_themselves(monkeypatch):
    compute_serially(monkeypatch)
    a, b = (fill("normal", shape, "float32", i) for i, shape in enumerate([(3, 40, 600), (3, 600, 36)]))
    check_on_host(lambda a, b: a @ b, a, b, kernels=KERNELS)


def test_tiles_that_nearly_fill_the_gpu_are_computed_serially():
    """108 tiles of 30 chunks; few tiles are joined, many filled waves left whole. Where blocks of k are whole, as in
    the weight gradient of GPT-2's attention, their first parts nearly fill the GPU, and single chunks the rest."""
    assert dot_choice.choose(plain(768, 2304, 7680), "9.0").variant.serial
    assert dot_choice.choose(plain(768, 2304, 8192), "9.0").variant.apart
    assert dot_choice.choose(plain(256, 256, 8192), "9.0").variant.split
    for m, n, k in ((2048, 2048, 2048), (8192, 8192, 256), (768, 2304, 256)):
        v = dot_choice.choose(plain(m, n, k), "9.0").variant
        assert not v.serial and not v.split


def test_the_last_tiles_of_many_are_taken_by_halves():
    """More than one wave of them and less than two, so that those who need a total find it."""
    for m, n, k, tiles in ((8192, 8192, 8192, 4096), (8192, 768, 50304, 384)):
        found = dot_choice.choose(plain(m, n, k), "9.0")
        assert found.variant.halves and 264 <= tiles - found.whole < 528


def test_a_multiprocessor_with_one_tile_of_float64_has_eight_warps_for_it():
    """Of 1024² there are 128 tiles of 64 x 128: by four warps they took 1.17 of cuBLAS' time, by eight 1.03 (H200)."""
    tile = dot_choice.choose(plain(1024, 1024, 1024, DotSpec("float64", "float64", "float64")), "9.0").variant.tile
    assert (tile.rows, tile.cols, tile.threads, tile.mma) == (64, 128, 256, 8)


def test_chunks_of_few_tiles_are_computed_side_by_side():
    for m, n, k, slices in ((128, 2048, 2048, 8), (128, 768, 768, 3), (128, 2048, 2040, 1), (8192, 8192, 8192, 1)):
        assert dot_choice.choose(plain(m, n, k), "9.0").variant.slices == slices


@sampled(
    "dtype, layout",
    itertools.product(("bfloat16", "float16", "int8", "uint16", "int32"), ("NN", "TT")),
    quick=[("bfloat16", "TT")],
)
def test_operands_that_change_their_dtype_on_the_way(dtype, layout):
    a, b = (vnp.asarray(x).astype(dtype) for x in LAYOUTS[layout](*operands("float32", 40, 48, 72)))
    check_on_host(product(layout, dtype), np.asarray(a), np.asarray(b), kernels=KERNELS)


@sampled("dtype, rows", itertools.product(("float32", "bfloat16", "float64", "int8"), (1, 3)), quick=[("float32", 3)])
def test_few_rows_times_a_matrix(dtype, rows):
    for k, n in ((300, 64), (700, 132), (2600, 33))[: 1 if (dtype, rows) == ("float32", 3) else 3]:
        a, b = (np.asarray(vnp.asarray(x).astype(dtype)) for x in operands("float32", rows, k, n))
        check_on_host(lambda a, b: a @ b, a, b, kernels=KERNELS)
        check_on_host(lambda a, b: a @ b.T, a, b.T.copy(), kernels=KERNELS)


def test_a_matrix_times_a_column():
    a, b = operands("float32", 72, 96, 1)
    check_on_host(lambda a, b: (a @ b, a.T.copy() @ a[:, :1]), a, b, kernels=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-25, 1e-30])
def test_what_underflows_keeps_its_sign(scale):
    a, b = operands("float32", 20, 70, 24)
    check_on_host(
        lambda a, b: (a @ b, (a[:, 1:-1] * 1e-3) @ b[2:]), a * np.float32(scale), b * np.float32(1e-15), kernels=KERNELS
    )


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.9", "9.0"])
def test_every_gpu_has_a_tile_that_fits(capability):
    for m, n, k in ((1, 1, 1), (1, 5000, 300), (64, 64, 64), (768, 2304, 8192), (8192, 8192, 64)):
        for kind in TABLES:
            spec = DotSpec(
                *["float32" if kind == "highest" else kind] * 3, "highest" if kind == "highest" else "default"
            )
            v = dot_choice.choose(plain(m, n, k, spec), capability).variant
            assert dot.shared_bytes(spec, v) <= dot_choice._CHIPS[capability].block_bytes
            assert capability != "7.5" or not (v.lhs.direct or v.rhs.direct or v.tile.mma)


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "9.0"])
def test_few_rows_have_room_on_every_gpu(capability):
    for rows, k, kind in itertools.product((1, 3, 8), (512, 8192, 1 << 22), TABLES):
        narrow = "float32" if kind == "highest" else kind
        spec = DotSpec(narrow, narrow, narrow, "highest" if kind == "highest" else "default")
        v = dot_choice.choose_vector(plain(rows, 1 << 16, k, spec), capability)
        assert v is None or v.shared_bytes(spec) <= dot_choice._CHIPS[capability].block_bytes
        assert v is not None or capability != "9.0" or (rows == 8 and k == 1 << 22)
