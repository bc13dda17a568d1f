"""Fusion: patterns that must be one kernel are; groups never form a cycle; what must stay apart does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import volta
import volta.numpy as vnp
from tests.xla_like.xla_support import kernels, plan_of, program_of, struct
from volta import nn, optim
from volta.ops import lax
from volta.testing import assert_bits_equal, fill
from volta.testing.strategies import programs
from volta.xla_like.compile import CompileOptions
from volta.xla_like.fusion import MAX_NODES, fuse
from volta.xla_like.lowering import lower_to_nodes
from volta.xla_like.nodes import Ref
from volta.xla_like.passes import optimize

pytestmark = pytest.mark.turns(6)

X, W, B = struct(64, 300), struct(300, 50), struct(300)


def sums_of_rows(x):
    return vnp.sum(x, 1), vnp.max(x, 1), vnp.argmax(x, 1)


ONE_KERNEL = {
    "softmax": (nn.softmax, X),
    "log softmax": (nn.log_softmax, X),
    "layer norm": (nn.layer_norm, X, B, B),
    "rms norm": (nn.rms_norm, X, B),
    "gelu": (nn.gelu, X),
    "a long elementwise chain": (lambda x: vnp.tanh(vnp.exp(x) * 2 + vnp.sin(x)) / (1 + x * x), X),
    "mean and variance": (lambda x: (vnp.mean(x, 1), vnp.var(x, 1)), X),
    "transposed operand": (lambda x, y: x + y.T, X, struct(300, 64)),
    "slices": (lambda x: x[:, 1:] - x[:, :-1], X),
    "reshape between": (lambda x: vnp.reshape(vnp.reshape(x, (8, 8, 300)) + 1, (64, 300)) * 2, X),
    "gradient of softmax": (volta.grad(lambda x: vnp.sum(nn.softmax(x) ** 2)), X),
    "column sums": (lambda x: vnp.sum(vnp.exp(x), 0), X),
    "embedding": (lambda t, i: lax.gather(t, [i], (0,)) * 2 + 1, X, struct(7, dtype=np.int32)),
    "a full sum": (lambda x: vnp.sum(x * x), struct(30, 40)),
    "several sums of one row": (lambda x: sums_of_rows(vnp.exp(x)), X),
}


TABLES_OF_ONE = {
    "a row": (lambda x, i: vnp.exp(x).at[i].get(mode="fill"), vnp.ones((1, 6)), vnp.array([0])),
    "a sum": (lambda x, i: vnp.sum(x, keepdims=True).at[i].get(mode="fill") * x, vnp.ones(6), vnp.arange(6) // 4),
}


@pytest.mark.parametrize("name", TABLES_OF_ONE)
def test_a_table_is_complete_before_it_is_read(name) -> None:
    """Also where its only element is read by the strides that the loop has for it anyway."""
    f, *args = TABLES_OF_ONE[name]
    assert_bits_equal(volta.jit(f)(*args), f(*args))


ROWS_ELSEWHERE = {
    "reversed": lambda x: vnp.exp(vnp.sum(x, 1))[::-1] * 2,
    "reversed, beside themselves": lambda x: vnp.sum(x, 1)[::-1] + vnp.sum(x, 1),
    "one of them": lambda x: vnp.broadcast_to(vnp.sum(x, 1)[:1], (6,)) * 3 + vnp.sum(x, 1),
}


@pytest.mark.parametrize("name", ROWS_ELSEWHERE)
def test_results_of_other_rows_are_read_when_they_are_there(name) -> None:
    x, f = fill("normal", (6, 40)), ROWS_ELSEWHERE[name]
    assert_bits_equal(volta.jit(f)(x), f(vnp.asarray(x)))


def test_indices_are_computed_where_they_are_used() -> None:
    assert kernels(lambda t, i: t[vnp.minimum(i * 2, 5)], B, struct(40, dtype=np.int32)) == ["map"]


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name) -> None:
    f, *args = ONE_KERNEL[name]
    assert len(plan_of(f, *args).calls) == 1, plan_of(f, *args)


def test_an_adam_step_is_one_kernel_a_leaf() -> None:
    """And one more for the scalars that all leaves share."""
    optimizer = optim.adam(1e-3)

    def step(params, gradients, state):
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

    for leaves in (1, 3):
        params = [vnp.zeros((4 + i, 5)) for i in range(leaves)]
        assert kernels(step, params, params, optimizer.init(params)) == ["map"] * (1 + leaves)


def test_a_dense_layer_adds_one_call_to_its_product() -> None:
    found = kernels(lambda x, w, b: nn.relu(x @ w + b), X, W, struct(50))
    assert len(found) <= 3 and "dot" in " ".join(found)


def test_few_long_rows_are_cut_into_blocks() -> None:
    assert kernels(lambda x: vnp.sum(x), struct(1 << 20)) == ["row", "combine"]
    assert kernels(lambda x: vnp.sum(x, 0), struct(1 << 20, 2))[-1] == "combine"
    assert kernels(lambda x: vnp.sum(x, 1), struct(64, 1 << 15)) == ["row"]


@pytest.mark.parametrize(
    "f, shape, found",
    [
        (lambda x: x - vnp.sum(x), (1 << 16,), ["row", "combine", "map"]),
        (lambda x: vnp.exp(vnp.sum(x, 1)), (2, 1 << 16), ["row", "combine", "map"]),
        (lambda x: x * vnp.sum(x, 1, keepdims=True), (8, 64, 2), ["col", "map"]),
        (lambda x: vnp.exp(vnp.sum(x, 1)), (8, 64, 2), ["col"]),
    ],
    ids=["blocks", "of rows", "across", "of rows, across"],
)
def test_what_follows_a_reduction_waits_where_rows_are_no_whole_tasks(f, shape, found) -> None:
    assert kernels(f, struct(*shape)) == found
    x = fill("normal", shape)
    assert_bits_equal(volta.jit(f)(x), f(vnp.asarray(x)))


def test_the_joint_gradient_of_a_layer_norm_stores_nothing_an_element() -> None:
    """What both kinds of sums need is computed again in each: mean and factor of a row are all that lies between."""

    def loss(x, scale, bias, weights):
        return vnp.sum(volta.nn.layer_norm(x, scale, bias) * weights)

    x, vector = struct(8192, 768), struct(768)
    plan = plan_of(volta.grad(loss, argnums=(0, 1, 2)), x, vector, vector, x)
    assert [c.kernel.mode for c in plan.calls] == ["row", "row", "col"]
    assert {b.aval.shape for b in plan.buffers if b.kind == "temp"} == {(8192,)}


def test_an_optimization_barrier_ends_a_kernel() -> None:
    assert len(kernels(lambda x: vnp.exp(lax.optimization_barrier(vnp.sin(x))[0]), X)) == 2
    assert len(kernels(lambda x: vnp.exp(vnp.sin(x)), X)) == 1


def test_movement_costs_no_kernel() -> None:
    def f(x):
        y = vnp.broadcast_to(vnp.flip(vnp.swapaxes(x, 0, 1)[3:9, ::2], 1)[None], (2, 6, 32))
        return vnp.sum(y, 2)

    assert len(kernels(f, X)) == 1


def test_a_table_that_is_computed_is_finished_before_it_is_read() -> None:
    found = plan_of(lambda t, i: lax.gather(vnp.exp(t), [i], (0,)), X, struct(64, dtype=np.int32))
    assert len(found.calls) == 2


def test_kernels_are_bounded() -> None:
    def f(x):
        for _ in range(MAX_NODES):
            x = vnp.sin(x) * 2
        return x

    assert len(kernels(f, X)) == 2


def test_without_fusion_every_operation_is_a_kernel() -> None:
    assert len(kernels(nn.gelu, X, options=CompileOptions(fusion=False))) > 3


@given(programs(max_steps=12))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_groups_form_no_cycle(p) -> None:
    args = [struct(*shape, dtype=vnp.dtype(dtype)) for shape, dtype in p.inputs]
    lowered = lower_to_nodes(optimize(program_of(p, *args)).jaxpr)
    _, groups = fuse(lowered, True)
    made = {*lowered.inputs, *lowered.consts}
    for group in groups:
        inside = {v for n in group.nodes for v in n.outputs}
        for node in group.nodes:
            for x in node.operands:
                if isinstance(x, Ref) and x.val.size:
                    assert x.val in made or x.val in inside
        made |= inside
    nodes = [n for g in groups for n in g.nodes]
    assert len(nodes) == len({id(n) for n in nodes}), "a node is in two groups"


def by_row_sums(x):
    a = vnp.exp(x)
    s = vnp.sum(a, 1)
    return a / s[:, None] + vnp.sin(a.T / s[None, :])


ELSEWHERE = {
    "transposed": lambda a: a + vnp.sin(a.T),
    "flipped": lambda a: a + vnp.sin(vnp.flip(a, 0)),
    "summed": lambda a: vnp.sum(a + vnp.sin(a.T), 1),
    "row sums along columns": lambda a: a / vnp.sum(a, 1)[:, None] + vnp.sin(a / vnp.sum(a, 1)[None, :]),
    "both ways": by_row_sums,
    "behind a barrier": lambda a: a + vnp.sin(lax.optimization_barrier(a)[0]),
    "looked up": lambda a: a + vnp.sin(lax.gather(a, [vnp.arange(4)[::-1]], (0,))),
    "scattered and looked up": lambda a: volta.grad(lambda v: vnp.sum(vnp.tanh(v.at[vnp.arange(4)].add(v))))(a),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_value_that_meets_itself_elsewhere(name) -> None:
    """Two kernels that a third operation joins are one only where each reads the other's values in place."""

    def f(x):
        return ELSEWHERE[name](vnp.exp(x))

    x = vnp.asarray(fill("normal", (4, 4)))
    assert_bits_equal(volta.jit(f)(x), f(x))
    assert len(plan_of(f, struct(4, 4)).calls) > 1


def test_a_product_that_is_only_used_transposed_is_computed_that_way() -> None:
    """The gradient of x @ w by w has no copy behind its product, and the same bits."""
    x, w, g = (vnp.asarray(fill("normal", s, "float32", 1)) for s in ((5, 3), (3, 4), (5, 4)))

    def pullback(w, g):
        return volta.vjp(lambda w: x @ w, w)[1](g)[0]

    plan = volta.jit(pullback).lower(w, g).compile().plan
    assert [call.describe() for call in plan.calls] == ["dot"]
    assert_bits_equal(volta.jit(pullback)(w, g), pullback(w, g))


REDUCTIONS_APART = {
    "of pairs, and across them": lambda y: (vnp.sum(y, 1), vnp.sum(y, 0)),
    "across pairs, and of them": lambda y: (vnp.sum(y, 0), vnp.sum(y, 1)),
    "over other factors of the space": lambda y: vnp.sum(vnp.reshape(y, (3, -1)), 1),
}


@pytest.mark.parametrize("shape", [(6, 2), (2, 6), (6, 4)])
@pytest.mark.parametrize("name", REDUCTIONS_APART)
def test_a_reduction_joins_where_the_space_has_its_factors(name, shape) -> None:
    """An operand that is transposed gives the space factors of its own; a reduction over others runs by itself."""

    def f(x, y):
        return REDUCTIONS_APART[name](vnp.exp(x.T) * y)

    x, y = vnp.asarray(fill("normal", shape[::-1])), vnp.asarray(fill("normal", shape, seed=1))
    for found, want in zip(*(v if isinstance(v, tuple) else (v,) for v in (volta.jit(f)(x, y), f(x, y))), strict=True):
        assert_bits_equal(found, want)


@pytest.mark.parametrize(
    "f, args, pairs",
    [
        (lambda x: vnp.sin(x) * 2, [B], 1),
        (lambda x: vnp.sin(x[:200]), [B], 0),  # of another size
        (lambda x: vnp.sin(x).astype(np.float64), [struct()], 0),  # of another item size
        (lambda x: x[::-1] + x, [B], 0),  # read elsewhere, too
        (lambda x, r: vnp.sum(x * r[:, None], 1), [X, struct(64)], 0),  # a row's operand is read for each element
    ],
    ids=["whole", "a part", "narrower", "reversed", "rows"],
)
def test_results_take_the_place_of_what_is_read_only_there(f, args, pairs) -> None:
    assert sum(len(call.inplace) for call in plan_of(f, *args).calls) == pairs
