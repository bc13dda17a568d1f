"""Derivative and transpose rules, each by itself: against finite differences, and against each other."""

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from tests.reference import REFERENCE
from volta.core import dtypes
from volta.core.errors import NotDifferentiableError
from volta.core.interp import get_aval
from volta.ops.base import instantiate, linear_jvp  # noqa: F401
from volta.ops.primitive import Linear, NoDerivative, Zero
from volta.testing.cases import NO_DERIVATIVE_BY, NO_DERIVATIVE_OF, float_cases, rng_of

CASES = [c for c in float_cases() if not isinstance(c.primitive.jvp, NoDerivative)]
LINEAR = [(c, which) for c in CASES for which in c.linear]
STEP = 1e-5


def as_list(primitive, x):
    return list(x) if primitive.multiple_results else [x]


def directions(case, seed="t"):
    """A tangent for each float operand; a symbolic zero for the others."""
    rng = rng_of(str(case) + seed)
    frozen = NO_DERIVATIVE_BY.get((case.primitive.name, case.params.get("op")), ())
    return [
        rng.uniform(-1, 1, a.shape) if dtypes.is_float(a.dtype) and i not in frozen else Zero(get_aval(a))
        for i, a in enumerate(case.args)
    ]


def finite_difference(case, tangents):
    def at(step):
        moved = [a if isinstance(t, Zero) else a + step * t for a, t in zip(case.args, tangents, strict=True)]
        return as_list(case.primitive, REFERENCE[case.primitive.name](*moved, **case.params))

    high, low = at(STEP), at(-STEP)
    return [
        (np.asarray(h, np.float64) - np.asarray(low_, np.float64)) / (2 * STEP)
        for h, low_ in zip(high, low, strict=True)
    ]


def check_jvp(case, tangents):
    outs, derivatives = case.primitive.jvp(case.args, tangents, **case.params)
    expected = finite_difference(case, tangents)
    values = as_list(case.primitive, REFERENCE[case.primitive.name](*case.args, **case.params))
    constant = NO_DERIVATIVE_OF.get(case.primitive.name, ())
    for i, (out, value, t, e) in enumerate(
        zip(as_list(case.primitive, outs), values, as_list(case.primitive, derivatives), expected, strict=True)
    ):
        np.testing.assert_allclose(np.asarray(out), value, rtol=1e-13, atol=1e-13)
        if i in constant or not dtypes.is_float(get_aval(out).dtype):
            assert isinstance(t, Zero)
            continue
        t = np.asarray(instantiate(t))
        assert t.shape == np.shape(value) and t.dtype == np.asarray(value).dtype
        np.testing.assert_allclose(t, e, rtol=1e-5, atol=1e-6 if t.dtype == np.float64 else 1e-1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(4, each=True)
def test_jvp_against_finite_differences(case):
    check_jvp(case, directions(case))


@pytest.mark.parametrize("case", [c for c in CASES if len(c.args) > 1], ids=str)
@pytest.mark.turns(4, each=True)
def test_jvp_by_one_operand(case):
    tangents = directions(case)
    for i, tangent in enumerate(tangents):
        if not isinstance(tangent, Zero):
            only = [t if j == i else Zero(get_aval(case.args[j])) for j, t in enumerate(tangents)]
            check_jvp(case, only)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_symbolic_zero_tangents_give_zero(case):
    outs, derivatives = case.primitive.jvp(case.args, [Zero(get_aval(a)) for a in case.args], **case.params)
    for out, t in zip(as_list(case.primitive, outs), as_list(case.primitive, derivatives), strict=True):
        assert isinstance(t, Zero) and t.aval == get_aval(out).strip_weak()


def test_every_zero_derivative_says_why():
    for case in float_cases():
        if isinstance(case.primitive.jvp, NoDerivative):
            assert case.primitive.jvp.zero and case.primitive.jvp.reason


@pytest.mark.parametrize("case,which", LINEAR, ids=lambda v: str(v).replace(", ", ","))
@pytest.mark.turns(4, each=True)
def test_transpose_is_the_adjoint(case, which):
    """<ct, f(x)> == <f'(ct), x> for the function of the linear operands alone (the others held, or zero)."""
    primitive = case.primitive
    zeroed = [
        np.zeros_like(a) if dtypes.is_float(a.dtype) and i not in which and _affine(primitive.name, i) else a
        for i, a in enumerate(case.args)
    ]
    outs = as_list(primitive, primitive.bind(*zeroed, **case.params))
    rng = rng_of(str(case) + "ct")
    cts = [rng.uniform(-1, 1, get_aval(o).shape).astype(get_aval(o).dtype) for o in outs]
    marked = [Linear(get_aval(a)) if i in which else a for i, a in enumerate(zeroed)]
    given = primitive.transpose(cts if primitive.multiple_results else cts[0], *marked, **case.params)
    assert len(given) == len(case.args)
    left = sum(np.vdot(c, np.asarray(o)) for c, o in zip(cts, outs, strict=True))
    right = 0.0
    for i, (ct, a) in enumerate(zip(given, zeroed, strict=True)):
        if i in which:
            assert ct is not None
            assert get_aval(ct).shape == a.shape and get_aval(ct).dtype == a.dtype
            right += np.vdot(np.asarray(ct), a)
        else:
            assert ct is None
    np.testing.assert_allclose(left, right, rtol=1e-6 if outs and get_aval(outs[0]).dtype != np.float64 else 1e-12)


def _affine(name, i):
    """Whether the operand is an addend, so that the rest is linear only where it is zero."""
    addends = {
        "add",
        "sub",
        "select_n",
        "pad",
        "concatenate",
        "dynamic_update_slice",
        "scatter",
        "optimization_barrier",
    }
    return name in addends or (name == "fma" and i == 2)


@pytest.mark.parametrize("case,which", LINEAR, ids=lambda v: str(v).replace(", ", ","))
def test_transpose_of_zero(case, which):
    marked = [Linear(get_aval(a)) if i in which else a for i, a in enumerate(case.args)]
    outs = case.primitive.abstract(*map(get_aval, case.args), **case.params)
    cts = [Zero(o) for o in outs] if case.primitive.multiple_results else Zero(outs)
    assert all(ct is None for ct in case.primitive.transpose(cts, *marked, **case.params))


def test_ties_share_the_derivative():
    from volta.ops import REGISTRY

    x, t = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), np.array([[5.0, 1.0, 2.0], [3.0, 6.0, 9.0]])
    _, dx = REGISTRY["reduce_max"].jvp((x,), (t,), axes=(1,))
    np.testing.assert_allclose(np.asarray(dx), [1.5, 6.0])
    _, dx = REGISTRY["max"].jvp((np.ones(2), np.ones(2)), (np.array([1.0, 2.0]), np.array([3.0, 0.0])))
    np.testing.assert_allclose(np.asarray(dx), [2.0, 1.0])


def test_products_of_zeros():
    from volta.ops import REGISTRY

    x, t = np.array([2.0, 0.0, 3.0, 5.0]), np.ones(4)
    _, dx = REGISTRY["reduce_prod"].jvp((x,), (t,), axes=(0,))
    np.testing.assert_allclose(np.asarray(dx), 30.0)
    _, dx = REGISTRY["cumprod"].jvp((x,), (t,), axis=0, reverse=False)
    np.testing.assert_allclose(np.asarray(dx), [1.0, 2.0, 6.0, 30.0])


def test_scatter_mul_refuses_its_updates():
    from volta.ops import REGISTRY

    x, u, i = np.ones(3), np.ones(2), np.array([0, 1], np.int32)
    params = {"axes": (0,), "batch_dims": 0, "mode": "drop", "op": "mul"}
    with pytest.raises(NotDifferentiableError, match="updates"):
        REGISTRY["scatter"].jvp((x, u, i), (Zero(get_aval(x)), u, Zero(get_aval(i))), **params)
