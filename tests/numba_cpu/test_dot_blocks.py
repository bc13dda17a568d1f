"""Products with weights in blocks have the bits of DOT over their numbers: any format, width, size, cut into tasks;
rows one behind the other in memory, or interleaved."""

import ctypes

import numpy as np
import pytest

from tests.block_reference import numbers_of
from tests.block_weights import interleaved, random_blocks
from tests.guarded_memory import SIDES, GuardedPool
from tests.numba_cpu.dot_oracle import aligned, bits, kernel, oracle
from volta.core.block_formats import FORMATS, INTERLEAVED, LAYOUTS
from volta.emit.dot_args import dot_words
from volta.numba_cpu import target
from volta.numba_cpu.dot_schedule import ROW_STRIPS, WIDE_TILES, TileSpec, dot_plan
from volta.xla_like.dot import CHUNK, Dot, DotSpec, DotStrides

WIDTHS = [bits_ for bits_ in (512, 256, 128) if bits_ <= target.vector_bits()]


def product(name, x, packed, width, parts):
    """By the kernel, its tasks in so many parts, the last one first."""
    spec, fmt = DotSpec("float32", name, "float32"), LAYOUTS[name]
    (m, k), n, nbytes = x.shape, len(packed) * fmt.rows, packed.shape[1] // fmt.rows
    out = np.full((m, n), 77, np.float32)
    dot = Dot(spec, (1, 1), m, n, k)
    strides = DotStrides((0, 0, *x.strides), (0, 0, fmt.chunk_bytes * fmt.rows, nbytes), (0, 0, *out.strides))
    plan = dot_plan(dot, strides, width)
    scratch = aligned(plan.scratch_bytes)
    (launch,) = plan.launches
    addresses = [a.ctypes.data for a in (x, packed, out)]
    args = np.array([*addresses, 0, launch.batch1, *dot_words(dot, strides)[1:], *launch.tiling], np.int64)
    for part in reversed(range(parts)):
        begin, end = launch.tasks * part // parts, launch.tasks * (part + 1) // parts
        kernel(launch.name, TileSpec.of(spec, width))(args.ctypes.data, begin, end, scratch.ctypes.data)
    assert (scratch[plan.scratch_bytes :] == 0xFF).all()
    return out


def check(name, m, n, blocks, width, parts=1):
    rng = np.random.default_rng(m + n)
    packed = random_blocks(name, n, blocks, seed=n)
    x = rng.standard_normal((m, blocks * FORMATS[name].elements)).astype(np.float32)
    numbers = numbers_of(packed, name)
    layouts = {name: packed}
    if n % INTERLEAVED == 0 and x.shape[1] % CHUNK == 0:
        layouts[LAYOUTS[name].interleaved().name] = interleaved(name, packed)
    wanted = oracle(DotSpec("float32", "float32", "float32"), x[None, None], numbers.T[None, None])[0, 0]
    for layout, own in layouts.items():
        found = product(layout, x, own, width, parts)
        np.testing.assert_array_equal(bits(found), bits(wanted), f"{layout} {m} {n} {blocks}")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(3)
@pytest.mark.turns(3)
def test_sizes(name, width):
    for m in (1, 2, 5, 15, 31):
        for n in (1, 7, 16, 17, 33, 66):
            check(name, m, n, 1 + n % 3, width)
    check(name, 3, 70, 2, width, parts=3)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q5_1", "Q4_K"])
@pytest.mark.few(1)
def test_long_sums_and_parts_of_chunks(name):
    """Sums of more blocks than one; of small blocks also chunks that are not full."""
    per = 4096 // FORMATS[name].elements
    for blocks in (per, per + 1, 2 * per + 3, 5 * per - 1):
        for m in (1, 20):
            check(name, m, 40, blocks, WIDTHS[0], parts=2)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.few(1)
def test_tasks_of_several_tiles(width):
    """Of one row, and of rows enough that tasks are wider; the last task has fewer columns."""
    spec = TileSpec("float32", "Q6_K", "float32", vector_bits=width)
    wide = 16 * WIDE_TILES * spec.tile_cols + 5
    check("Q6_K", 1, 3 * ROW_STRIPS * spec.lanes + 3, 2, width, parts=3)
    for name in ("Q6_K", "Q8_0"):
        check(name, spec.tile_rows + 1, wide, 1, width, parts=3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(3)
@pytest.mark.turns(3)
def test_one_row_of_whole_tiles(name, width):
    """While a chunk is multiplied the next one's words are turned: of the same tile, of the one behind it, of a tile or
    a chunk that is not whole; and of tasks that end in between."""
    tile = ROW_STRIPS * width // 32
    per = CHUNK // FORMATS[name].elements
    for blocks in (per, 3 * per, 2 * per + max(1, per // 3), 17 * per):
        check(name, 1, 2 * tile + 5, blocks, width, parts=2)
    check(name, 1, tile, 2 * per, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(4)
@pytest.mark.turns(3)
def test_interleaved_rows(name, width):
    """One row and several, of one group of rows and of more, whose tasks begin inside of a group; long sums."""
    per = CHUNK // FORMATS[name].elements
    for m in (1, 2, 15):
        check(name, m, INTERLEAVED, per, width)
        check(name, m, 3 * INTERLEAVED, 2 * per, width, parts=5)
    check(name, 1, 2 * INTERLEAVED, 37 * per, width, parts=2)
    wide = 16 * WIDE_TILES * 2 * width // 32
    check(name, 20, wide + INTERLEAVED, per, width, parts=3)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(2)
def test_interleaved_numbers_that_are_none(name):
    """Any bytes: scales that are infinite, NaN, huge or subnormal."""
    per = CHUNK // FORMATS[name].elements
    packed = np.random.default_rng(3).integers(0, 256, (INTERLEAVED, per * FORMATS[name].nbytes), dtype=np.uint8)
    x = np.random.default_rng(4).standard_normal((1, CHUNK)).astype(np.float32)
    layout, own = LAYOUTS[name].interleaved().name, interleaved(name, packed)
    numbers = numbers_of(packed, name)
    wanted = oracle(DotSpec("float32", "float32", "float32"), x[None, None], numbers.T[None, None])[0, 0]
    for width in WIDTHS:
        np.testing.assert_array_equal(bits(product(layout, x, own, width, 1)), bits(wanted))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q3_K", "Q4_K", "Q6_K_R64", "Q4_0_R64"])
@pytest.mark.few(1)
def test_no_byte_is_read_that_holds_no_weights(name, side):
    """Weights lie between pages without access."""
    pool, fmt = GuardedPool(side), FORMATS[name.removesuffix("_R64")]
    per = CHUNK // fmt.elements
    sizes = ((1, 1), (7, per), (64, 1), (64, 2 * per), (130, 2 * per + 1))
    for n, blocks in sizes if name in FORMATS else ((64, per), (192, 3 * per)):
        packed = random_blocks(fmt.name, n, blocks, seed=n)
        packed = packed if name in FORMATS else interleaved(fmt.name, packed)
        there = pool.allocate(packed.nbytes)
        ctypes.memmove(there.address, packed.ctypes.data, packed.nbytes)
        kept = np.ctypeslib.as_array((ctypes.c_uint8 * packed.nbytes).from_address(there.address))
        x = np.ones((1, blocks * fmt.elements), np.float32)
        for width in WIDTHS:
            product(name, x, kept.reshape(packed.shape), width, 1)


@pytest.mark.parametrize("spec", [("float64", "Q4_K", "float64"), ("float32", "Q4_K", "float32", "highest")])
def test_other_products_with_blocks_are_not_defined(spec):
    with pytest.raises(ValueError, match="products with Q4_K are of float32"):
        DotSpec(*spec)
