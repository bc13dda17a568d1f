"""Sorts, scans and scatters by their CUDA kernels, run on the host: the CPU's bits, whatever the order of threads."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.core import dtypes
from volta.numba_cuda import kernels
from volta.numba_cuda.ordering import indexing, scattering, steps
from volta.numba_cuda.schedule import Schedule
from volta.testing.host_grid import check_on_host
from volta.xla_like.compile import build_plan
from volta.xla_like.ordering import ScatterSpec

pytestmark = pytest.mark.turns(6)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def targets(slots, count, seed=0):
    """Indices, some out of range: those updates are dropped."""
    return np.random.default_rng(seed).integers(-1, slots + 1, count).astype(np.int32)


def scatter(op):
    return lambda table, updates, index: getattr(table.at[index], op)(updates)


def awkward(dtype, *shape):
    """Few values, many of them equal, with the special ones of the dtype."""
    rng, dtype = np.random.default_rng(0), np.dtype(dtype)
    x = rng.integers(-3, 4, shape).astype(np.float64)
    if dtype.kind in "biu":
        return (np.abs(x) if dtype.kind in "bu" else x).astype(dtype)
    for value in (-0.0, np.nan, np.inf, -np.inf):
        x[rng.random(shape) < 0.08] = value
    return x.astype(dtype)


SCATTERS = [("add", 7, 700, 3), ("add", 30, 900, 40), ("set", 50, 100, 8), ("add", 40, 60, 1292), ("set", 40, 60, 36)]
MORE_SCATTERS = [
    *[(op, *s) for op in ("multiply", "min", "max") for s in ((7, 500, 3), (6, 20, 4))],
    ("add", 6, 20, 4), ("set", 6, 20, 5), ("add", 2, 9000, 1), ("add", 1, 8192, 3), ("set", 3, 4100, 1),
    ("add", 900, 300, 5), ("add", 2, 9000, 20), ("min", 5, 1000, 33),
]  # fmt: skip


def check_scatter(op, slots, count, width, dtype=np.float32):
    table, updates = normal(slots, width).astype(dtype), normal(count, width, seed=1).astype(dtype)
    check_on_host(scatter(op), table, updates, targets(slots, count))


@pytest.mark.parametrize("case", SCATTERS, ids=str)
def test_scatter(case):
    check_scatter(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_SCATTERS, ids=str)
def test_more_scatters(case):
    check_scatter(*case)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", dtypes.bfloat16, "float64", "int8", "int32"], ids=str)
def test_scatter_of_each_kind_of_dtype(dtype):
    check_scatter("add", 7, 200, 4, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "count"), [(20, 500), (300, 5000)])
def test_many_updates_are_sorted_by_digits(monkeypatch, slots, count):
    monkeypatch.setattr(steps, "QUADRATIC", 100)
    check_scatter("add", slots, count, 2)
    batched = normal(2, slots, 2), normal(2, count, 2), np.stack([targets(slots, count, i) for i in (1, 2)])
    check_on_host(volta.vmap(scatter("add")), *batched, orders=("shuffled",))


@pytest.mark.parametrize(("slots", "count"), [(3, 9000), (300, 5000)])
def test_numbers_that_are_sorted_with_their_targets_have_the_same_sums(monkeypatch, slots, count):
    monkeypatch.setattr(steps, "QUADRATIC", 100)
    check_scatter("add", slots, count, 1)
    check_scatter("min", slots, count, 1, np.int32)


@pytest.mark.parametrize(
    ("slots", "digits"), [(255, [8]), (256, [9]), (511, [9]), (512, [8, 8]), (65536, [9, 9]), (100_000, [9, 9])]
)
def test_slots_are_sorted_in_as_few_passes_as_digits_of_nine_bits_leave(slots, digits):
    """Updates that are dropped come last: all bits of theirs are set."""
    args = normal(20_000), targets(slots, 20_000)

    def f(x, at):
        return volta.nn.segment_sum(x, at, slots)

    check_on_host(f, *args, orders=("shuffled",))
    plan, _ = build_plan(volta.make_jaxpr(f)(*args), scheduler=Schedule())
    names = [x.source.name for x in kernels.launches_of(plan) if "sort_count" in x.source.name]
    assert [int(name.split("_")[-1]) for name in names] == digits


@pytest.mark.parametrize(("count", "width"), [(100, 8), (5000, 768), (3, 5), (7, 1540)])
def test_every_update_and_column_has_a_thread(count, width):
    for lanes in (1, 4):
        if width % lanes == 0:
            groups = width // lanes
            for each in (1, indexing.columns_each(groups, scattering.GROUPS)):
                share = -(-groups // each)
                shift = indexing.tile_of(share)
                blocks = indexing.blocks_of(count, width, lanes, shift, each)
                along = 1 << shift
                assert blocks * indexing.TILE_THREADS // along * along * each >= count * groups
                assert along <= max(share * 2, 32) and (along >= 32 or along >= share)


def test_columns_are_shared_out_so_that_few_threads_idle():
    found = {groups: indexing.columns_each(groups, 4) for groups in (1, 2, 32, 192, 256, 320, 1024)}
    assert found == {1: 1, 2: 2, 32: 4, 192: 3, 256: 4, 320: 2, 1024: 4}


def test_wide_accesses_are_aligned():
    spec = ScatterSpec("add", np.dtype(np.float32))
    assert [scattering.columns_at_once(spec, w, (0, at)) for w, at in ((8, 0), (6, 0), (8, 16), (8, 8))] == [4, 1, 4, 1]
    assert scattering.columns_at_once(ScatterSpec("set", np.dtype(np.float64)), 6, (0,)) == 2


def test_runs_within_a_block_of_a_sum_take_no_kernel_that_combines_blocks():
    def names(count, width):
        args = np.zeros((5, width), np.float32), np.zeros((count, width), np.float32), np.zeros(count, np.int32)
        plan, _ = build_plan(volta.make_jaxpr(scatter("add"))(*args), scheduler=Schedule())
        return {x.source.name.split("_")[2] for x in kernels.launches_of(plan) if "scatter" in x.source.name}

    assert names(20, 40) == {"few"}
    for count in (4096, 16384):  # a few blocks are not worth one
        assert names(count, 40) == {"rank", "wide"}
    assert names(16385, 40) == {"edges", "wide", "finish"}
    assert names(4096, 4) == {"rank", "narrow"}
    assert names(4097, 4) == {"rank", "narrow", "finish"}


@pytest.mark.parametrize(("op", "width", "dtype", "carried"), [
    ("add", 1, "float32", True), ("max", 1, "int32", True), ("add", 2, "float32", False), ("set", 1, "float32", False),
    ("add", 1, "float64", False), ("add", 1, "float16", False),
])  # fmt: skip
def test_many_single_numbers_are_sorted_with_their_targets(op, width, dtype, carried):
    args = np.zeros((5, width), dtype), np.zeros((20_000, width), dtype), np.zeros(20_000, np.int32)
    plan, _ = build_plan(volta.make_jaxpr(scatter(op))(*args), scheduler=Schedule())
    launches = kernels.launches_of(plan)
    assert any("carried" in x.source.name for x in launches if "move" in x.source.name) == carried
    assert any("narrow_carried" in x.source.name for x in launches) == carried


SORTS = [("float32", (20, 30)), ("int8", (3, 300))]


@pytest.mark.parametrize(("dtype", "shape"), SORTS, ids=str)
def test_sort(dtype, shape):
    check_on_host(lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1)), awkward(dtype, *shape), orders=("shuffled",))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 7), (2, 4096), (1, 9000)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", dtypes.bfloat16, "float64", "bool", "uint16", "int64"], ids=str)
def test_sort_of_each_kind_of_dtype(dtype, shape):
    check_on_host(lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1)), awkward(dtype, *shape), orders=("shuffled",))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(30, 64), (2, 5000)], ids=str)
def test_sort_by_several_keys(shape):
    keys = [awkward(d, *shape) for d in ("float32", "int8", "float64", "bool")]
    check_on_host(lambda *k: lax.sort(k, 1, num_keys=3), *keys, orders=("shuffled",))


@sampled("shape", [(30, 64), (2, 5000)], quick=[(30, 64)], ids=str)
def test_positions_are_not_read_but_known(shape):
    """The first operand behind the keys that holds them; others like it, and what only looks like it, are read."""

    def f(x, y):
        def iota(dtype, axis=1):
            return lax.broadcasted_iota(dtype, shape, axis)

        places = iota(np.int32), iota(np.uint32), iota(np.int64), iota(np.float32), iota(np.int32, 0)
        by_place = lax.sort((lax.rev(places[0], (1,)), x), 1)
        odd = lax.sort((y, places[1]), 1)  # of a key of one digit
        return lax.sort((x, y, *places), 1, num_keys=2), lax.sort((x, places[4]), 1), by_place, odd

    check_on_host(f, awkward("float32", *shape), awkward("int8", *shape), orders=("shuffled",))


def test_an_argsort_stores_no_positions_but_its_result():
    plan, _ = build_plan(volta.make_jaxpr(vnp.argsort)(np.zeros(9000, np.float32)))
    assert {x.source.name.split("_")[2] for x in kernels.launches_of(plan)} == {"count", "offsets", "move"}


SCANS = [("cumsum", 70, 64, False), ("cumsum", 2, 9000, True), ("cumsum", 9, 1024, False)]
MORE_SCANS = [
    (kind, rows, n, n % 2 == 0) for kind in ("cumprod", "cummax", "cummin") for rows, n in ((3, 1000), (5, 8193))
]
MORE_SCANS += [("cumsum", *s) for s in ((1, 1, False), (33, 256, True), (9, 257, False), (1, 8192, False))]
MORE_SCANS += [("cumsum", *s) for s in ((40, 1024, True), (3, 8192, True), (8, 16384, False))]  # whole blocks
MORE_SCANS += [(kind, 2, 70_000, False) for kind in ("cumsum", "cummin")]


@pytest.mark.parametrize("case", SCANS, ids=str)
def test_scan(case):
    kind, rows, length, reverse = case
    check_on_host(lambda x: getattr(lax, kind)(x, 1, reverse=reverse), normal(rows, length))


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_SCANS, ids=str)
def test_more_scans(case):
    test_scan(case)


@sampled("rows, blocks, rest, reverse", [(1, 812, 77, False), (2, 512, 5, True)], quick=[(1, 812, 77, False)])
def test_a_long_chain_is_traversed_piece_by_piece(rows, blocks, rest, reverse):
    check_on_host(lambda x: lax.cumsum(x, 1, reverse=reverse), normal(rows, 256 * blocks + rest), orders=("shuffled",))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float64", "int16"])
def test_scan_of_each_kind_of_dtype(dtype):
    x = awkward(dtype, 3, 9000)
    check_on_host(lambda x: (lax.cumsum(x, 1), lax.cummax(x, 1, reverse=True)), x, orders=("shuffled",))
