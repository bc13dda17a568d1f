"""Levels below strict, and the precisions of products: who refuses what, and how a precision travels."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.thread_support import run_threads
from volta import errors, lax
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.schedule import Schedule
from volta.runtime import gateway
from volta.runtime.capabilities import matrix_rows
from volta.testing.bits import assert_bits_equal
from volta.xla_like.compile import build_plan
from volta.xla_like.dot import Dot

RNG = np.random.default_rng(5)
X, W = RNG.standard_normal((6, 20)).astype(np.float32), RNG.standard_normal((20, 5)).astype(np.float32)


def product(x, w, precision="bf16"):
    return vnp.matmul(x, w, precision=precision)


ASKING = {
    "matmul": lambda x, w: product(x, w),
    "tf32": lambda x, w: product(x, w, "tf32"),
    "dot_general": lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ())), "tensorfloat32"),
    "einsum": lambda x, w: vnp.einsum("ij,jk->ik", x, w, precision="bfloat16"),
    "tensordot": lambda x, w: vnp.tensordot(x, w, 1, precision="BF16"),
    "jit": volta.jit(product),
    "half operands": lambda x, w: product(x.astype("bfloat16"), w.astype("bfloat16")),
}


def precisions(f, *args):
    """The precision of each product in a function's program, outermost first."""

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                yield eqn.params["precision"]
            for value in eqn.params.values():
                if hasattr(value, "eqns"):
                    yield from walk(value)

    return list(walk(volta.make_jaxpr(f)(*args)))


@pytest.mark.parametrize("name", ASKING)
def test_strict_refuses_precisions_of_tensor_cores(name):
    with pytest.raises(errors.UnsupportedOperationError) as refusal:
        ASKING[name](X, W)
    text = str(refusal.value)
    for part in (
        "dot_general",
        "'tf32'" if name in ("tf32", "dot_general") else "'bf16'",
        "'strict'",
        'level="device"',
    ):
        assert part in text
    assert "test_levels.py" in text


@pytest.mark.parametrize("level", ["device", "relaxed"])
@pytest.mark.parametrize("name", ASKING)
def test_below_strict_the_cpu_keeps_the_stronger_promise(name, level):
    with volta.execution_context(level=level):
        found = ASKING[name](X, W)
    x, w = (X, W) if name != "half operands" else (vnp.asarray(X, "bfloat16"), vnp.asarray(W, "bfloat16"))
    assert_bits_equal(found, x @ w)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("default", None), ("float32", None), ("high", None), ("highest", "highest"), ("HIGHEST", "highest"),
        (lax.Precision.DEFAULT, None), (lax.Precision.HIGHEST, "highest"), (("bf16", "bf16"), "bf16"),
        ("exact", "exact"), ("Exact", "exact"),
        ("tf32", "tf32"), ("tensorfloat32", "tf32"), ("bf16", "bf16"), ("bfloat16", "bf16"), (None, None),
    ],
)  # fmt: skip
def test_names_of_precisions(name, means):
    assert precisions(lambda x, w: product(x, w, name), X, W) == [means]


@pytest.mark.parametrize("name", ["low", 3, ("bf16", "tf32"), "tf64"])
def test_what_is_no_precision_is_refused(name):
    with pytest.raises(errors.DTypeError, match="no precision.*'highest'"):
        product(X, W, name)
    with pytest.raises(errors.DTypeError, match="no precision"), volta.default_matmul_precision(name):
        pass


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_float64_and_integers_have_one_precision(dtype):
    x, w = X.astype(dtype), W.astype(dtype)
    assert precisions(lambda x, w: product(x, w), x, w) == [None]
    assert_bits_equal(product(x, w), x @ vnp.asarray(w))
    wide = lax.dot(X, W, "tf32", preferred_element_type="float64")
    assert_bits_equal(wide, lax.dot(X, W, preferred_element_type="float64"))


def test_the_default_counts_where_a_function_is_traced():
    assert precisions(lambda x, w: x @ w, X, W) == [None]
    with volta.default_matmul_precision("bfloat16"):
        assert volta.current_context().matmul_precision == "bf16"
        assert precisions(lambda x, w: x @ w, X, W) == ["bf16"]
        assert precisions(lambda x, w: product(x, w, "float32"), X, W) == [None]
        with volta.default_matmul_precision(None):
            assert precisions(lambda x, w: x @ w, X, W) == [None]
        assert precisions(lambda x, w: x @ w, X, W) == ["bf16"]
    assert precisions(lambda x, w: x @ w, X, W) == [None]


def test_a_compiled_function_is_compiled_for_each_default():
    inner = volta.jit(lambda x, w: x @ w)
    f = volta.jit(lambda x, w: inner(x, w) + 1)
    plain = f(X, W)
    with volta.default_matmul_precision("highest"):
        exact, eager = f(X, W), inner(X, W)
    want = (X.astype(np.float64) @ W.astype(np.float64)).astype(np.float32)
    assert_bits_equal(eager, vnp.matmul(X, W, precision="highest"))
    np.testing.assert_allclose(eager, want, rtol=1e-7)
    assert_bits_equal(exact, eager + 1)
    assert_bits_equal(f(X, W), plain)
    assert f.cache_size() == 2
    with volta.default_matmul_precision("tf32"), pytest.raises(errors.UnsupportedOperationError):
        f(X, W)


LEVELS = ("relaxed", "device", "strict")  # from the weakest promise


@pytest.mark.parametrize("called", LEVELS)
@pytest.mark.parametrize("compiled_for", LEVELS)
def test_what_is_compiled_for_a_level_is_refused_where_more_is_promised(compiled_for, called):
    """Even a program that would give the bits of strict: whether it does depends on the backend."""
    with volta.execution_context(level=compiled_for):
        kept = volta.jit(lambda x, w: x @ w).lower(X, W).compile()
    with volta.execution_context(level=called):
        if LEVELS.index(compiled_for) >= LEVELS.index(called):
            assert_bits_equal(kept(X, W), X @ vnp.asarray(W))
            return
        with pytest.raises(errors.ContextError) as refusal:
            kept(X, W)
    text = str(refusal.value)
    assert f"compiled for determinism level '{compiled_for}' and is called at level '{called}'" in text
    assert f'volta.execution_context(level="{compiled_for}")' in text and "test_levels.py" in text


def test_another_thread_has_a_level_of_its_own():
    """Contexts belong to threads, so a thread begins at strict and refuses what its starter compiled for less."""
    refused = []

    def call(kept):
        with pytest.raises(errors.ContextError):
            kept(X, W)
        refused.append(True)

    with volta.execution_context(level="device"):
        kept = volta.jit(product).lower(X, W).compile()
        run_threads(lambda _: call(kept), 1)
    assert refused


def test_a_precision_travels_through_transforms():
    loss = lambda x, w: vnp.sum(product(x, w) ** 2)  # noqa: E731
    assert precisions(volta.grad(loss, (0, 1)), X, W) == ["bf16"] * 3
    assert precisions(volta.vmap(product, (0, None)), np.stack([X, X]), W) == ["bf16"]
    assert precisions(volta.jit(volta.checkpoint(product)), X, W) == ["bf16"]
    assert precisions(lambda x, w: volta.jvp(product, (x, w), (x, w)), X, W) == ["bf16"] * 3


def classes(f, *args, level=DeterminismLevel.DEVICE):
    plan = build_plan(volta.make_jaxpr(f)(*args), level=level, scheduler=Schedule())[0]
    return plan, [c.kernel.name for c in plan.calls if isinstance(c.kernel, Dot)]


def test_plans_for_tensor_cores_round_operands_where_they_are_made():
    plan, found = classes(lambda x, w: product(vnp.tanh(x), w.T), X, W.T)
    assert found == ["dot_tc"]
    (call,) = (c for c in plan.calls if isinstance(c.kernel, Dot))
    assert (call.kernel.spec.lhs, call.kernel.spec.out, call.kernel.spec.precision) == ("bfloat16", "float32", "bf16")
    assert len(plan.calls) == 3, "tanh and rounding are one kernel, a transposed operand is rounded as it lies"
    plan, found = classes(lambda x, w: product(x, w, "tf32"), X, W)
    assert found == ["dot_tc"] and len(plan.calls) == 2, "the right operand is turned and rounded, the left one neither"
    assert classes(lambda x, w: x @ w, X, W)[1] == ["dot"]
    with pytest.raises(errors.UnsupportedOperationError, match="tensor cores"):
        classes(product, X, W, level=DeterminismLevel.STRICT)


def test_the_capability_records_know_the_level():
    cuda = gateway.cuda_capabilities()
    assert cuda.level_of("dot_tc") is DeterminismLevel.DEVICE
    assert gateway.cpu_capabilities().level_of("dot_tc") is None
    (row,) = (r for r in matrix_rows((gateway.cpu_capabilities(), cuda)) if r[0] == "dot_general")
    assert row[2:] == ("strict", "strict (precisions tf32 and bf16: device)")
