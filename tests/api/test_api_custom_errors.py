"""What is said of derivative rules that return something else than they should, and of values they cannot see."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors

X = np.ones(3, np.float32)


def forward(rule, **settings):
    def f(x):
        return x * 2

    made = volta.custom_jvp(f)
    made.defjvp(rule, **settings)
    return made


def reverse(fwd, bwd):
    def f(x):
        return x * 2

    made = volta.custom_vjp(f)
    made.defvjp(fwd, bwd)
    return made


def fwd(x):
    return x * 2, None


def bwd(kept, ct):
    return (ct * 2,)


@pytest.mark.parametrize(
    ("rule", "error", "said"),
    [
        (lambda p, d: None, errors.TreeError, "must return a pair, the output and its tangent, but it returned None"),
        (lambda p, d: (p[0],), errors.TreeError, "tuple of length 1"),
        (lambda p, d: (p[0], (d[0],)), errors.TreeError, "one structure"),
        (lambda p, d: (p[0], d[0].sum()), errors.ShapeError, "the tangent of f32[3] must be f32[3], but it is f32[]"),
        (lambda p, d: (p[0], d[0].astype("float16")), errors.DTypeError, "but it is f16[3]"),
        (lambda p, d: (p[0], np.zeros(3, volta.float0)), errors.DTypeError, "but it is float0[3]"),
        (lambda p, d: (vnp.int32(1) * np.ones(3, np.int32), d[0]), errors.DTypeError, "must be float0[3]"),
    ],
)
def test_forward_rules(rule, error, said) -> None:
    for f in (forward(rule), volta.jit(forward(rule))):
        with pytest.raises(error) as caught:
            volta.jvp(f, (X,), (X,))
        assert "rule `<lambda>` of `f`" in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "error", "said"),
    [
        (lambda p, d: ((p[0],), (d[0],)), errors.TreeError, "which has the structure"),
        (lambda p, d: (p[0][:1], d[0][:1]), errors.ShapeError, "which is f32[3], but it returned f32[1]"),
        (lambda p, d: (p[0].astype("int8"), np.zeros(3, volta.float0)), errors.DTypeError, "returned i8[3]"),
    ],
)
def test_outputs_of_rules_are_the_functions(rule, error, said) -> None:
    with pytest.raises(error, match="of `f`") as caught:
        volta.jvp(volta.jit(forward(rule)), (X,), (X,))
    assert said in str(caught.value)
    with pytest.raises(error, match="the fwd rule `<lambda>` of `f` must return first the output of `f`"):
        volta.vjp(volta.jit(reverse(lambda x: (rule((x,), (x,))[0], None), bwd)), X)


@pytest.mark.parametrize(
    ("rules", "error", "said"),
    [
        ((lambda x: None, bwd), errors.TreeError, "must return a pair, the output of `f` and residuals"),
        ((lambda x: (x, "a"), bwd), errors.DTypeError, "of `f`: residuals is 'a' of type str"),
        ((fwd, lambda r, ct: None), errors.TreeError, "must return a tuple with a cotangent an argument"),
        ((fwd, lambda r, ct: ct), errors.TreeError, "PyTreeDef((*,))"),
        ((fwd, lambda r, ct: (ct, ct)), errors.TreeError, "PyTreeDef((*, *))"),
        ((fwd, lambda r, ct: ((ct,),)), errors.TreeError, "PyTreeDef(((*,),))"),
        ((fwd, lambda r, ct: (ct.sum(),)), errors.ShapeError, "output[0] is f32[], and the argument f32[3]"),
        ((fwd, lambda r, ct: (np.zeros(3, volta.float0),)), errors.DTypeError, "output[0] is float0[3]"),
    ],
)
def test_reverse_rules(rules, error, said) -> None:
    for f in (reverse(*rules), volta.jit(reverse(*rules))):
        with pytest.raises(error) as caught:
            volta.vjp(f, X)[1](X)
        assert said in str(caught.value) and "`f`" in str(caught.value)


def test_a_function_without_rules() -> None:
    with pytest.raises(AttributeError, match="custom_jvp: `abs` has no rule yet"):
        volta.custom_jvp(abs)(1.0)
    with pytest.raises(AttributeError, match="custom_vjp: `abs` has no rules yet"):
        volta.custom_vjp(abs)(1.0)
    with pytest.raises(TypeError, match="takes a function"):
        volta.custom_jvp(3)
    with pytest.raises(TypeError, match="nondiff_argnums give one rule"):
        volta.custom_jvp(lambda x, y: x, nondiff_argnums=(0,)).defjvps(None)
    with pytest.raises(errors.StaticArgumentError, match="nondiff_argnums: .* no number 2"):
        volta.custom_jvp(lambda x, y: x, nondiff_argnums=(2,))
    with pytest.raises(errors.ArgumentError, match="optimize_remat"):
        volta.custom_vjp(abs).defvjp(fwd, bwd, symbolic_zeros=True, optimize_remat=True)


def test_arguments_that_have_no_position() -> None:
    def f(x, *, scale=1.0):
        return x * scale

    made = volta.custom_jvp(f)
    made.defjvp(lambda p, d: (made(*p), d[0]))
    assert float(made(2.0)) == 2.0
    with pytest.raises(TypeError, match="of `f` scale can only be passed by name"):
        made(2.0, scale=3.0)
    with pytest.raises(TypeError, match="`f` cannot be called so: .*'factor'"):
        made(2.0, factor=3.0)


def test_differentiated_values_from_around_a_function() -> None:
    def outer(x):
        def g(y):
            return x * y  # reads x

        made = volta.custom_jvp(g)
        made.defjvp(lambda p, d: (made(*p), d[0]))
        return made(1.0)

    for f in (
        lambda: volta.grad(outer)(3.0),
        lambda: volta.jvp(outer, (3.0,), (1.0,)),
        lambda: volta.jit(volta.grad(outer))(3.0),
        lambda: volta.grad(volta.jit(outer))(3.0),
        lambda: volta.grad(lambda x: volta.vmap(lambda v: outer(x) * v)(X).sum())(3.0),
    ):
        with pytest.raises(errors.NotDifferentiableError, match="`g` has a derivative rule of its own and reads"):
            f()
    assert float(volta.grad(lambda x: outer(volta.lax.stop_gradient(x)) * x)(3.0)) == 3.0


def test_forward_derivatives_of_reverse_rules() -> None:
    f = reverse(fwd, bwd)
    _, pushforward = volta.linearize(f, X)
    for derivative in (
        lambda: volta.jvp(f, (X,), (X,)),
        lambda: volta.jvp(volta.jit(f), (X,), (X,)),
        lambda: pushforward(X),
        lambda: volta.jit(pushforward)(X),
        lambda: volta.jacfwd(f)(X),
    ):
        with pytest.raises(errors.NotDifferentiableError, match="of `f` are not known: it is a custom_vjp"):
            derivative()


def test_traced_values_where_no_data_belongs() -> None:
    f = volta.custom_vjp(lambda s, x: x * s, nondiff_argnums=(0,))
    f.defvjp(lambda s, x: (x * s, None), lambda s, kept, ct: (ct * s,))
    with pytest.raises(errors.UnexpectedTracerError, match="nondiff_argnums names is traced, f32"):
        volta.jit(f)(X, X)


def test_converted_closures_and_gradients() -> None:
    converted, consts = volta.closure_convert(lambda x: x["a"] * 2, {"a": 1.0})
    assert consts == [] and float(converted({"a": 3.0})) == 6.0
    with pytest.raises(errors.TreeError, match="was converted for arguments of the structure"):
        converted(3.0)
    with pytest.raises(errors.TreeError, match="must return a pair, its output and a function"):
        volta.custom_gradient(lambda x: x)(1.0)
    with pytest.raises(TypeError, match="a leaf is no CustomVJPPrimal but float"):
        volta.custom_derivatives.custom_vjp_primal_tree_values([1.0])
