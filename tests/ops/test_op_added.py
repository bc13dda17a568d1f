"""A primitive that is added at run time has everything that follows from its record, without another line anywhere."""

import math

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.ops.test_op_batching import bits
from volta.api.arguments import ShapeDtypeStruct
from volta.core import dtypes
from volta.core.errors import DTypeError, ShapeError
from volta.numba_cpu.host_plan import host_plan
from volta.numba_cpu.loop_schedule import VectorLoop
from volta.numba_cpu.schedule import Schedule
from volta.ops import lax, scalar
from volta.ops.elementwise import elementwise
from volta.ops.primitive import FUNCTION, REGISTRY, Reduction
from volta.ops.reduction import reduction
from volta.runtime import capabilities, eager, gateway
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import fill
from volta.testing.cases import cases
from volta.testing.host_grid import check_on_host
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import Compute
from volta.xla_like.phases import is_expensive

X = fill("normal", (5, 67), "float32", 1)


def matrix():
    """The rows of docs/governance/capability_matrix.md."""
    return capabilities.matrix_rows((gateway.cpu_capabilities(), gateway.cuda_capabilities()))


@pytest.fixture
def vocabulary():
    """The registry, which is as it was when the test ends; so are the caches that may remember the primitive."""
    before = dict(REGISTRY)
    yield REGISTRY
    REGISTRY.clear()
    REGISTRY.update(before)
    PLAN_CACHE.clear()
    eager._executables.clear()


@pytest.fixture
def bell(vocabulary):
    """exp(-x * x): one record, and no other line."""
    return elementwise(
        "added_bell",
        "Elementwise exp(-x * x).",
        lambda t, ans, x: lax.mul(t, lax.mul(ans, lax.mul(x, -2.0))),
        low=-3.0,
        high=3.0,
        emit=lambda b, x: scalar.exp(b, -(x * x)),
        cost=FUNCTION,
    )


@pytest.fixture
def peak(vocabulary):
    """The largest value over axes, and the least of the dtype over no elements."""
    return reduction(
        "added_peak",
        "Largest value over axes.",
        REGISTRY["reduce_max"].jvp,
        ("float", "int"),
        Reduction("max", dtypes.lowest),
    )


def test_an_elementwise_primitive_has_its_shape_rule(bell):
    assert bell(np.zeros((2, 3), np.float64)).shape == (2, 3)
    assert volta.eval_shape(bell, ShapeDtypeStruct((4,), np.dtype(np.float16))).dtype == np.float16
    with pytest.raises(DTypeError, match=r"added_bell\(i32\[2\]\): takes float operands"):
        bell(np.zeros(2, np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_it_has_its_meaning_eager_and_jitted(bell, dtype):
    x = X.astype(dtypes.canonicalize(dtype))
    steps = lax.exp(lax.neg(lax.mul(x, x))) if dtype in ("float32", "float64") else None
    assert bits(bell(x)) == bits(volta.jit(bell)(x))
    if steps is not None:  # a half float is rounded once, not thrice
        assert bits(bell(x)) == bits(steps)
    np.testing.assert_allclose(
        np.asarray(bell(x), np.float64), np.exp(-(np.asarray(x, np.float64) ** 2)), rtol=1e-2, atol=1e-3
    )


def test_it_has_derivatives_of_any_order(bell):
    x = 0.7
    value = math.exp(-x * x)
    first, second = -2 * x * value, (4 * x * x - 2) * value
    derivative = volta.grad(bell)
    assert float(derivative(np.float64(x))) == pytest.approx(first, rel=1e-14)
    assert float(volta.grad(derivative)(np.float64(x))) == pytest.approx(second, rel=1e-14)
    assert float(volta.jvp(bell, (np.float64(x),), (np.float64(1),))[1]) == float(derivative(np.float64(x)))


def test_it_has_batching(bell):
    assert bits(volta.vmap(bell, in_axes=1, out_axes=1)(X)) == bits(bell(X))
    assert bits(volta.vmap(volta.grad(lambda row: bell(row).sum()))(X)) == bits(volta.grad(lambda x: bell(x).sum())(X))


def test_it_has_the_same_bits_on_both_backends(bell):
    def f(x):
        y = bell(x)
        return y, volta.grad(lambda x: (bell(x) * x).sum())(x), vnp.sum(y / vnp.sum(y, 1, keepdims=True), 0)

    check_on_host(f, X, orders=("shuffled",))


def test_it_has_its_text_its_examples_and_its_row_in_the_docs(bell):
    program = str(volta.make_jaxpr(bell)(X))
    assert "added_bell" in program
    plan, _ = build_plan(volta.make_jaxpr(lambda x: bell(x) + 1)(X))
    (kernel,) = (call.kernel for call in plan.calls)
    assert "added_bell" in kernel.text()
    assert [str(c) for c in cases(REGISTRY["added_bell"], np.dtype(np.float32))] == ["added_bell-f322x3"]
    assert ("added_bell", "elementwise", "strict", "strict") in matrix()
    assert "lax.added_bell(np.ones((2, 3), np.float32)).shape" in bell.__doc__


def test_its_cost_decides_what_is_kept_and_what_is_computed_again(bell):
    """Two passes over a row read it: it is kept between them, as it costs more than a plain operation."""
    plan, _ = build_plan(volta.make_jaxpr(lambda x: bell(x) / vnp.sum(bell(x), 1, keepdims=True))(X))
    (kernel,) = (x.kernel for x in host_plan(plan, Schedule(512)).all_launches())
    assert isinstance(kernel, VectorLoop)
    (added,) = (i for i, x in enumerate(kernel.body) if isinstance(x, Compute) and x.name == "added_bell")
    assert is_expensive(kernel.body[added]) and kernel.spills == (added,)


def test_a_reduction_has_all_of_it(peak):
    for axes in ((0,), (1,), (0, 1)):
        assert bits(peak(X, axes)) == bits(volta.jit(lambda x, a=axes: peak(x, a))(X)) == bits(X.max(axes))
    assert float(peak(np.zeros((0,), np.float32), (0,))) == -np.inf
    assert int(peak(np.zeros((0,), np.int8), (0,))) == -128
    assert bits(volta.vmap(lambda row: peak(row, (0,)))(X)) == bits(X.max(1))
    assert bits(volta.grad(lambda x: peak(x, (1,)).sum())(X)) == bits(volta.grad(lambda x: x.max(1).sum())(X))
    assert "added_peak" in str(volta.make_jaxpr(lambda x: peak(x, (0,)))(X))
    assert ("added_peak", "reduction", "strict", "strict") in matrix()
    with pytest.raises(ShapeError, match="axis 2 is out of range"):
        peak(X, (2,))
    check_on_host(lambda x: (peak(x, (1,)), peak(x * 2, (0,))), X, orders=("shuffled",))
