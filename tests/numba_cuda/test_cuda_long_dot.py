"""Products of several blocks of k on the host runner: however work is shared out, blocks are joined in pairs."""

import itertools
from contextlib import contextmanager

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_cuda_dot import KINDS, TABLES, compute_serially, operands, product, slice_chunks
from tests.sampling import sampled
from volta import nn
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import Regions
from volta.numba_cuda.products import dot, dot_blocks, dot_choice, dot_split
from volta.offline import plan_on_cuda
from volta.testing import fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.dot import BLOCK, CHUNKS

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
LONG = (BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1, 5 * BLOCK + 700)
WAYS = (
    "whole",
    "turns",
    "halves",
    *(f"parts of {per}" for per in (1, 4, 16, 32)),
    "apart 3",
    "apart 15",
    *(f"{n} groups" for n in (2, 8)),
)


def run_in(monkeypatch, kind, way):
    """Have every product run in small tiles, in one way."""
    table, choose = TABLES.get(kind, "_FMA"), dot.choose
    monkeypatch.setattr(
        dot_choice, table, dict([next(x for x in getattr(dot_choice, table).items() if x[0].rows == 32)])
    )
    if way == "turns" or way == "halves":
        compute_serially(monkeypatch, way == "halves")
    elif way.startswith("parts"):
        per = int(way.split()[-1])
        monkeypatch.setattr(dot_choice, "_cut", lambda *args: (0.0, 1, per))
        monkeypatch.setattr(dot_choice, "_slices", lambda *args: [])
    elif way.endswith("groups"):
        slice_chunks(monkeypatch, int(way.split()[0]))
    else:
        apart = way.startswith("apart")

        def chosen(problem, capability):
            variant = attrs.evolve(
                choose(problem, capability).variant, slices=1, split=apart, apart=apart, serial=False, halves=False,
                least_shared=0,
            )  # fmt: skip
            if apart:
                return dot_choice.DotChoice(variant, 1, int(way.split()[-1]))
            return dot_choice.DotChoice(variant, dot.blocks_of(variant.tile, problem.dot))

        monkeypatch.setattr(dot, "choose", chosen)


@sampled(
    "kind, way, k",
    itertools.product((*KINDS, "int32"), WAYS, LONG),
    quick=lambda x: (
        x[0] == "float32"
        and (x[1:] == ("halves", 5 * BLOCK + 700) or x[1:] in (("parts of 4", BLOCK + 1), ("apart 3", BLOCK + 1)))
    ),
)
def test_blocks_of_k_are_joined_in_pairs_in_every_way(monkeypatch, kind, way, k):
    run_in(monkeypatch, kind, way)
    if way.endswith("groups"):
        k = -(-k // 2048) * 2048  # they have whole chunks, as many each
    if way.startswith("apart"):
        k = -(-k // BLOCK) * BLOCK - k % 2  # blocks have all their chunks, of which the last may be shorter
    args = operands(kind, 40, k, 70)
    check_on_host(product("NN", kind), *args, orders=("shuffled",), kernels=KERNELS)
    (call,) = plan_on_cuda(volta.make_jaxpr(product("NN", kind))(*args))[0].calls
    v = dot.planned(call, Regions(), "9.0")[-1].variant
    apart = way.startswith("apart")
    assert v.long and (v.serial, v.halves, v.split, v.apart, v.slices > 1) == (
        way in ("turns", "halves"), way == "halves", apart or way.startswith("parts"), apart, way.endswith("groups"),
    )  # fmt: skip


def test_a_gpu_that_exchanges_two_nodes_of_the_tree_is_caught(monkeypatch):
    """Of four blocks, the last joins the node of two before that of one."""
    real = dot_blocks.joined_levels

    @contextmanager
    def exchanged(b, number, last):
        with real(b, number, last) as level:
            both = b.and_(last, b.icmp_unsigned("==", number, number.type(3)))
            yield b.select(both, b.sub(number.type(1), level), level)

    run_in(monkeypatch, "float32", "whole")
    a, b = fill("ladder", (33, 3 * BLOCK + 9), "float32", 1), fill("normal", (3 * BLOCK + 9, 40), "float32", 2)
    check_on_host(product("NN", "float32"), a, b, orders=("shuffled",), kernels=HostKernels())
    monkeypatch.setattr(dot_blocks, "joined_levels", exchanged)
    with pytest.raises(AssertionError, match="differs"):
        check_on_host(product("NN", "float32"), a, b, orders=("shuffled",), kernels=HostKernels())


@sampled("way", WAYS, quick=["halves"])
def test_epilogues_of_long_products(monkeypatch, way):
    run_in(monkeypatch, "float32", way)
    whole = {"groups": 3 * 2048, "apart": 2 * BLOCK}  # where k must be so many whole chunks
    k = next((size for word, size in whole.items() if word in way), BLOCK + 70)
    a, b = operands("float32", 40, k, 70)
    c = fill("normal", (70,), "float32", 3)
    check_on_host(lambda a, b, c: vnp.tanh(a @ b * 1e-3 + c), a, b, c, orders=("shuffled",), kernels=KERNELS)


@sampled("kind, rows", itertools.product((*KINDS, "int32"), (1, 3)), quick=[("float32", 1)])
def test_few_rows_times_a_long_matrix(kind, rows):
    for k in LONG[-1:] if rows == 1 else LONG:
        a, b = operands(kind, rows, k, 40)
        check_on_host(product("NN", kind), a, b, orders=("shuffled",), kernels=KERNELS)
        check_on_host(product("NT", kind), a, b.T.copy(), orders=("shuffled",), kernels=KERNELS)


def test_sums_of_few_rows_wait_in_shared_memory():
    """Levels have places there, for so many k that few kernels are enough; scratch memory is far away."""
    structs = [[volta.ShapeDtypeStruct(x, np.float32) for x in ((4, k), (k, 4096))] for k in (512, 8192, 65536, 65537)]
    plans = [plan_on_cuda(volta.make_jaxpr(lambda a, b: a @ b)(*x))[0] for x in structs]
    assert not any(x.scratch for plan in plans for x in launches_of(plan))
    found = [dot.planned(plan.calls[0], Regions(), "9.0")[0].variant for plan in plans]
    assert [v.levels for v in found] == [0, 4, 4, 8]


@sampled("kind", KINDS, quick=["float32"])
def test_tiles_before_those_in_series_share_slots_of_the_tree(monkeypatch, kind):
    """All tiles of a long product, several of them in the same room one after the other, none taken by halves."""
    run_in(monkeypatch, kind, "halves")
    taken = dot.choose

    def chosen(problem, capability):
        found = taken(problem, capability)
        return attrs.evolve(found, whole=dot.blocks_of(found.variant.tile, problem.dot), tree_slots=2)

    monkeypatch.setattr(dot, "choose", chosen)
    args = operands(kind, 80, 2 * BLOCK + 300, 70)
    check_on_host(product("NN", kind), *args, kernels=KERNELS)


def test_memory_for_blocks_of_k_is_bounded():
    """Many tiles share rooms: that of a product with 4,096 tiles is no larger than that of a few waves of them."""
    shapes = [((m, 65536), (65536, m)) for m in (4096, 8192, 16384)]
    structs = [[volta.ShapeDtypeStruct(x, np.float32) for x in pair] for pair in shapes]
    plans = [plan_on_cuda(volta.make_jaxpr(lambda a, b: a @ b)(*x))[0] for x in structs]
    scratch = [max(x.scratch for x in launches_of(plan)) for plan in plans]
    assert max(scratch) < 300 << 20 and scratch[2] < scratch[1] * 1.1


def test_parts_of_several_blocks_lie_within_a_block_or_are_whole_ones():
    for chunks in (17, 32, 33, 100, 256, 4097):
        found = list(dot_split.part_sizes(chunks))
        assert found and all(per in (1, 2, 4, 8) or per % CHUNKS == 0 for per in found), found
        assert max(found) < -(-chunks // CHUNKS) * CHUNKS


@pytest.mark.slow
def test_gradients_of_attention_over_many_queries_have_the_cpus_bits():
    q, k, v = (fill("normal", shape, "float32", i) for i, shape in enumerate([(1, 4100, 2, 8), *[(1, 5, 1, 8)] * 2]))

    def loss(q, k, v):
        return vnp.sum(nn.dot_product_attention(q, k, v, is_causal=True) ** 2)

    check_on_host(volta.grad(loss, (0, 1, 2)), q, k, v, orders=("shuffled",), kernels=KERNELS)


def test_single_chunks_fill_what_blocks_of_k_leave():
    """A weight's gradient: 108 tiles of two blocks of k are 216 first parts for 264 places at once, and 13 chunks of
    each are as many as every place has of all."""
    structs = [volta.ShapeDtypeStruct(x, np.float32) for x in ((8192, 768), (8192, 2304))]
    plan = plan_on_cuda(volta.make_jaxpr(lambda x, dy: x.T @ dy)(*structs))[0]
    first, join = dot.planned(plan.calls[0], Regions(), "9.0")
    assert first.variant.apart and first.grid == 216 * (1 + 3) and join.kernel == "dot_join"
