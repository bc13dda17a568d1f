"""Which loops join their product in a plan for CUDA, which move up to it, and what is stored."""

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.core.errors import VerificationError
from volta.numba_cuda.schedule import Schedule
from volta.ops import lax
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.verify import verify_schedule


def struct(*shape):
    return volta.ShapeDtypeStruct(shape, np.dtype("float32"))


def plan_of(f, *args, donated=(), **options):
    options = CompileOptions(**options)
    return build_plan(volta.make_jaxpr(f)(*args), options=options, donated=donated, scheduler=Schedule())[0]


X, W, V, B = struct(64, 300), struct(300, 48), struct(64, 48), struct(48)


def apart(x):
    """The same, in a kernel of its own."""
    (same,) = lax.optimization_barrier(x)
    return same


def described(f, *args, **options):
    """Each call as the kinds of its parts."""
    calls = plan_of(f, *args, **options).calls
    return ["+".join(getattr(p.kernel, "mode", "") or p.kernel.name for p in c.each()) for c in calls]


PLANS = {
    "bias and activation": (lambda x, w, b: nn.gelu(x @ w + b), (X, W, B), ["dot+map"]),
    "two loops": (
        lambda x, w, b: (apart(vnp.tanh(x @ w)), vnp.exp(x @ w)), (X, W, B), ["dot+map+map"],
    ),
    "rows that are reduced": (lambda x, w, b: nn.softmax(x @ w), (X, W, B), ["dot", "row"]),
    "columns that are reduced": (lambda x, w, b: vnp.sum(vnp.exp(x @ w), 0), (X, W, B), ["dot", "col"]),
    "turned": (lambda x, w, t: (x @ w).T + t, (X, W, struct(48, 64)), ["dot+map"]),
    "turned with the other": (lambda x, w, v: (x @ w).T + v.T, (X, W, V), ["dot", "map"]),
    "turned operand": (lambda x, w, t: x @ w + t.T, (X, W, struct(48, 64)), ["dot", "map"]),
    "mirrored operand": (lambda x, w, v: x @ w + v[:, ::-1], (X, W, V), ["dot+map"]),
    "a part of it": (lambda x, w, b: (x @ w)[:, :16] * 2, (X, W, B), ["dot", "map"]),
    "repeated": (lambda x, w, v: (x @ w)[None] * vnp.stack([v, v]), (X, W, V), ["dot", "map"]),
    "a product of an epilogue": (lambda x, w, b: vnp.tanh(x @ w) @ w.T + 1, (X, W, B), ["dot+map", "dot+map"]),
    "a vector": (lambda x, w, b: vnp.abs(x[0] @ w) + b, (X, W, B), ["dot+map"]),
    "nothing": (lambda x, w, b: x @ w, (X, W, B), ["dot"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_what_reads_a_product_element_by_element_joins_it(name):
    f, args, wanted = PLANS[name]
    assert described(f, *args) == wanted
    assert not any("+" in call for call in described(f, *args, epilogues=False))
    assert not any("+" in call for call in described(f, *args, fusion=False))


def step(x, w):
    """Of w both an update by the gradient and, after the product of that gradient, another use."""
    y = vnp.sin(x @ w)
    gradient = x.T @ y
    return w - gradient, apart(y) @ w.T


def test_a_loop_does_not_move_before_a_call_that_reads_what_it_writes_over():
    """The update is in place, so it waits for the last product that reads the weights, and then runs by itself."""
    plan = plan_of(step, X, W, donated=(1,))
    assert [b.alias for b in plan.buffers if b.kind == "output"].count(1) == 1
    writes = next(i for i, c in enumerate(plan.calls) if plan.outputs[0] in c.writes)
    assert all(plan.inputs[1] not in c.reads for c in plan.calls[writes + 1 :])


def test_a_product_that_is_a_result_is_stored():
    plan = plan_of(lambda x, w: (x @ w, vnp.tanh(x @ w)), X, W)
    (call,) = plan.calls
    assert len(call.parts) == 2 and call.writes == plan.outputs
    assert [b.kind for b in plan.buffers] == ["input", "input", "output", "output"]


def test_a_product_that_nobody_else_reads_has_no_memory():
    plan = plan_of(lambda x, w, b: nn.gelu(x @ w + b), X, W, B)
    (product,) = (b for b in plan.buffers if b.kind == "unstored")
    assert product.offset is None and plan.arena_bytes == 0
    assert f"b{product.id}: f32[64,48] registers" in str(plan)
    assert plan.peak_live_bytes == sum(plan.bytes_by_class().values()) == sum(plan.bytes_by_placement().values())


def test_another_call_may_not_read_what_is_in_registers():
    plan = plan_of(lambda x, w, b: apart(nn.gelu(x @ w + b)) * 2, X, W, B)
    verify_schedule(plan)
    first, second = plan.calls
    (product,) = (b.id for b in plan.buffers if b.kind == "unstored")
    reads = attrs.evolve(second, accesses=(attrs.evolve(second.accesses[0], buffer=product), *second.accesses[1:]))
    with pytest.raises(VerificationError, match="in registers"):
        verify_schedule(attrs.evolve(plan, calls=(first, reads)))
    alone = attrs.evolve(first, parts=first.parts[1:])
    with pytest.raises(VerificationError, match="in registers"):
        verify_schedule(attrs.evolve(plan, calls=(alone, second)))


def test_epilogues_of_a_training_step_leave_less_to_store():
    def loss(w, x):
        return vnp.sum(nn.gelu(nn.gelu(x @ w) @ w.T) ** 2)

    f = volta.value_and_grad(loss)
    fused, apart = (plan_of(f, W, X, epilogues=e) for e in (True, False))
    assert len(fused.calls) < len(apart.calls)
    assert fused.arena_bytes <= apart.arena_bytes
    assert np.dtype("float32") == fused.out_avals[0].dtype
