"""Programs with derivative rules of their own, for JAX and for Volta: ``PROGRAMS[name](transforms, numpy)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

X = np.float32([0.5, -1.0, 2.0])
F = np.float32
ONE = F(1)
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {}


def program(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


def doubled_sine(t: Any, n: Any, kind: str) -> Any:
    """sin with twice its derivative, by either kind of rule."""
    if kind == "jvp":
        f = t.custom_jvp(lambda x: n.sin(x))
        f.defjvp(lambda p, d: (f(*p), 2 * n.cos(p[0]) * d[0]))
    else:
        f = t.custom_vjp(lambda x: n.sin(x))
        f.defvjp(lambda x: (f(x), n.cos(x)), lambda kept, ct: (2 * kept * ct,))
    return f


def product(t: Any, n: Any, kind: str) -> Any:
    if kind == "jvp":
        f = t.custom_jvp(lambda x, y: n.sin(x) * y)
        f.defjvp(lambda p, d: (f(*p), n.cos(p[0]) * d[0] * p[1] + n.sin(p[0]) * d[1]))
    else:
        f = t.custom_vjp(lambda x, y: n.sin(x) * y)
        f.defvjp(lambda x, y: (f(x, y), (n.cos(x), n.sin(x), y)), lambda r, ct: (r[0] * ct * r[2], r[1] * ct))
    return f


def _of_kinds(build: Callable[[Any, Any, str], Any], name: str) -> None:
    for kind in ("jvp", "vjp"):
        PROGRAMS[f"{name} ({kind})"] = lambda t, n, kind=kind: build(t, n, kind)


def _orders(t, n, kind):
    f = product(t, n, kind)
    third = t.grad(t.grad(t.grad(f)))
    return f(F(1), F(2)), t.grad(f, (0, 1))(F(1), F(2)), t.grad(t.grad(f), 1)(F(1), F(2)), third(F(1), F(2))


def _jitted(t, n, kind):
    f = product(t, n, kind)
    return t.jit(t.grad(f))(F(1), F(2)), t.grad(t.jit(f), 1)(F(1), F(2)), t.jit(t.grad(t.jit(t.grad(f))))(F(1), F(2))


def _mapped(t, n, kind):
    f = product(t, n, kind)
    mapped = t.vmap(f, (0, None))
    return (
        mapped(X, F(2)),
        t.vmap(t.grad(f), (0, None))(X, F(2)),
        t.grad(lambda x, y: n.sum(mapped(x, y)), (0, 1))(X, F(2)),
        t.grad(lambda x, y: n.sum(t.vmap(t.jit(f), (0, None))(x, y)), (0, 1))(X, F(2)),
        t.vmap(t.vmap(t.grad(f), (0, None)), (None, 0))(X, X),
        t.grad(lambda y: n.sum(t.vmap(t.grad(f), (0, None))(X, y)))(F(2)),
    )


def _scanned(t, n, kind):
    f = doubled_sine(t, n, kind)
    run = lambda x: t.lax.scan(lambda c, _: (f(c), c), x, None, 4)[0]  # noqa: E731
    return t.grad(run)(F(0.5)), t.vmap(t.grad(run))(X), t.jit(t.grad(run))(F(0.5))


def _fori(t, n, kind):
    f = doubled_sine(t, n, kind)
    run = lambda x: t.lax.fori_loop(0, 3, lambda i, c: f(c), x)  # noqa: E731
    return t.grad(run)(F(0.5)), t.jit(t.vmap(t.grad(run)))(X)


def _chosen(t, n, kind):
    f = doubled_sine(t, n, kind)
    run = lambda x: t.lax.cond(x > 0, f, lambda x: x * 3, x)  # noqa: E731
    return t.grad(run)(F(0.5)), t.grad(run)(F(-0.5)), t.vmap(t.grad(run))(X)


def _checkpointed(t, n, kind):
    f = doubled_sine(t, n, kind)
    run = t.checkpoint(lambda x: f(f(x)) * x)
    return t.grad(run)(F(0.5)), t.grad(t.grad(run))(F(0.5)), t.jit(t.grad(run))(F(0.5))


def _whiles(t, n, kind):
    f = doubled_sine(t, n, kind)
    return t.lax.while_loop(lambda c: c[1] < 3, lambda c: (f(c[0]), c[1] + 1), (F(0.5), np.int32(0)))


def _jacobians(t, n, kind):
    f = doubled_sine(t, n, kind)
    return t.jacrev(f)(X), t.vjp(f, X)[1](X)


for _build in (_orders, _jitted, _mapped, _scanned, _fori, _chosen, _checkpointed, _whiles, _jacobians):
    _of_kinds(_build, _build.__name__.strip("_"))


@program
def forward_modes(t, n):
    f = doubled_sine(t, n, "jvp")
    loop = lambda x: t.lax.while_loop(lambda c: c[1] < 3, lambda c: (f(c[0]), c[1] + 1), (x, 0))[0]  # noqa: E731
    return t.jacfwd(f)(X), t.hessian(lambda x: n.sum(f(x)))(X), t.linearize(f, X)[1](X), t.jvp(loop, (F(1),), (F(1),))


@program
def rules_look_at_values(t, n):
    f = t.custom_jvp(lambda x: n.sin(x) if x > 0 else n.cos(x))
    f.defjvp(lambda p, d: (f(*p), 2.0 * d[0] if p[0] > 0 else 3.0 * d[0]))
    g = t.custom_vjp(lambda x: n.sin(x) if x > 0 else n.cos(x))
    g.defvjp(lambda x: (g(x), x), lambda x, ct: ((2.0 * ct if x > 0 else 3.0 * ct),))
    return f(F(1)), f(F(-1)), t.grad(f)(F(1)), t.grad(f)(F(-1)), g(F(1)), t.grad(g)(F(1)), t.grad(g)(F(-1))


@program
def a_rule_that_differentiates_a_loop(t, n):
    inner = t.jit(lambda x: t.lax.fori_loop(0, 3, lambda i, c: n.sin(c), x))
    f = t.custom_jvp(inner)
    f.defjvp(lambda p, d: t.jvp(inner, p, d))
    return t.grad(f)(F(0.5)), t.grad(t.grad(f))(F(0.5)), t.jit(t.grad(f))(F(0.5)), t.vmap(t.grad(f))(X)


@program
def trees(t, n):
    f = t.custom_jvp(lambda x: {"b": n.sin(x["a"]), "n": None})
    f.defjvp(lambda p, d: (f(*p), {"b": 2 * n.cos(p[0]["a"]) * d[0]["a"], "n": None}))
    g = t.custom_vjp(lambda d, e: d["a"] * d["b"] * e)
    g.defvjp(lambda d, e: (g(d, e), (d, e)), lambda r, ct: ({"a": ct, "b": None}, None))
    h = t.custom_vjp(lambda d, e: d["a"] * d["b"])
    h.defvjp(lambda d, e: (h(d, e), (d,)), lambda r, ct: [None, None])
    return (
        t.jvp(f, ({"a": F(3)},), ({"a": F(2)},)),
        t.grad(lambda x: f(x)["b"])({"a": F(3)}),
        t.grad(g, (0, 1))({"a": F(1), "b": F(2)}, F(3)),
        t.grad(h)({"a": F(1), "b": F(2)}, None),
    )


@program
def keywords_and_defaults(t, n):
    f = t.custom_jvp(lambda x, y=ONE: x * y)
    f.defjvp(lambda p, d: (f(*p), d[0] * 3.0))
    return f(F(2)), f(F(2), y=F(3)), t.grad(f)(F(2), y=F(3)), t.grad(lambda x: f(y=F(3), x=x))(F(2))


@program
def arguments_that_are_no_data(t, n):
    f = partial(t.custom_jvp, nondiff_argnums=(0,))(lambda fn, x: fn(x))
    f.defjvp(lambda fn, p, d: (f(fn, *p), 2.0 * fn(d[0])))
    g = t.custom_jvp(lambda x, fn: fn(x), nondiff_argnames=("fn",))
    g.defjvp(lambda fn, p, d: (g(*p, fn), 2.0 * fn(d[0])))
    h = t.custom_jvp(lambda y, x: x * y, nondiff_argnums=(0,))
    h.defjvp(lambda y, p, d: (h(y, *p), d[0] * y))
    k = t.custom_vjp(lambda s, x: x * s, nondiff_argnums=0 if t.__name__ == "volta" else (0,))
    k.defvjp(lambda s, x: (k(s, x), None), lambda s, kept, ct: (ct * s,))
    five = lambda v: v * 5  # noqa: E731
    return (
        f(five, F(1)),
        t.grad(lambda x: f(five, x))(F(1)),
        t.grad(lambda x: g(x, fn=five))(F(1)),
        t.jit(h)(F(2), F(3)),
        t.grad(h, (0, 1))(F(2), F(3)),
        t.vmap(h)(X, X),
        t.grad(k, 1)(2.0, F(3)),
    )


@program
def integers(t, n):
    two, three = n.asarray(F(2)), n.asarray(np.int32(3))
    f = t.custom_jvp(lambda x, i: (x * i, i + 1))

    @f.defjvp
    def rule(p, d):
        assert d[1].dtype == t.float0
        return f(*p), (d[0] * p[1], np.zeros(np.shape(p[1]), t.float0))

    out = [t.jvp(lambda x: f(x, three), (two,), (two,))[0], t.grad(lambda x: f(x, three)[0])(two)]
    for given in (lambda i: None, lambda i: i, lambda i: np.zeros((), t.float0)):
        g = t.custom_vjp(lambda x, i: x * i)
        g.defvjp(lambda x, i, g=g: (g(x, i), i), lambda i, ct, given=given: (ct * i, given(i)))
        out.append(t.grad(g)(two, three))
    return out


@program
def a_rule_for_each_argument(t, n):
    f = t.custom_jvp(lambda x, y: n.sin(x) * y)
    f.defjvps(None, lambda d, out, x, y: n.sin(x) * d)
    return t.grad(f, (0, 1))(F(1), F(2)), t.jvp(f, (F(1), F(2)), (F(1), F(1)))


@program
def symbolic_zeros(t, n):
    seen = []
    zero = t.custom_derivatives.SymbolicZero
    f = t.custom_jvp(lambda x, y: x * y)

    def rule(p, d):
        seen.append([isinstance(x, zero) for x in d])
        return f(*p), (d[1] * p[0] if isinstance(d[0], zero) else d[0] * p[1])

    f.defjvp(rule, symbolic_zeros=True)
    g = t.custom_vjp(lambda x, y: (x * y, x))

    def fwd(x, y):
        seen.append([x.perturbed, y.perturbed])
        return (x.value * y.value, x.value), t.custom_derivatives.custom_vjp_primal_tree_values((x, y))

    def bwd(r, ct):
        seen.append([isinstance(c, zero) for c in ct])
        return ct[0] * r[1], None

    g.defvjp(fwd, bwd, symbolic_zeros=True)
    out = [t.jvp(lambda x: f(x, F(3)), (F(2),), (F(1),)), t.grad(lambda y: f(F(4), y))(F(2))]
    out += [t.grad(lambda x: g(x, F(3))[0])(F(2)), t.jit(t.grad(lambda x: g(x, F(3))[0]))(F(2))]
    return out, np.array(seen)


@program
def gradients_as_closures(t, n):
    f = t.custom_gradient(lambda x: (x**2, lambda ct: (ct * x,)))
    g = t.custom_gradient(lambda x, y: ((x * y, np.int32(3)), lambda ct: (ct[0] * y, x)))
    return (
        f(F(3)),
        t.grad(f)(F(3)),
        t.jit(t.grad(f))(F(3)),
        t.vmap(t.grad(f))(X),
        t.grad(lambda x: n.sum(t.vmap(f)(x)))(X),
        g(F(3), F(4)),
    )


@program
def closures_over_traced_values(t, n):
    def made(x):
        f = t.custom_vjp(lambda y: x * y)
        f.defvjp(lambda y: (f(y), None), lambda r, ct: (ct * 3,))
        return f

    return (
        t.vmap(lambda x: made(x)(F(2)))(X),
        t.vmap(lambda x: t.grad(made(x))(F(2)))(X),
        t.jit(lambda x: made(x)(F(2)))(F(3)),
        t.jit(lambda x: t.grad(made(x))(F(2)))(F(3)),
        t.vmap(t.jit(lambda x: t.grad(made(x))(F(2))))(X),
    )


@program
def closures_converted(t, n):
    closure_convert = t.closure_convert

    def minimum(objective, x0):
        converted, consts = closure_convert(objective, x0)
        return _minimum(converted, x0, *consts)

    @partial(t.custom_vjp, nondiff_argnums=(0,))
    def _minimum(objective, x0, *consts):
        x = x0
        for _ in range(30):
            x = x - 0.4 * t.grad(objective)(x, *consts)
        return x

    def fwd(objective, x0, *consts):
        x = _minimum(objective, x0, *consts)
        return x, (x, consts)

    def bwd(objective, kept, ct):
        x, consts = kept
        curvature = t.grad(t.grad(objective))(x, *consts)
        pull = t.vjp(lambda *c: t.grad(objective)(x, *c), *consts)[1]
        return (None, *pull(-ct / curvature))

    _minimum.defvjp(fwd, bwd)
    solve = lambda a: minimum(lambda x: (x - a) ** 2 + x * a, F(0))  # noqa: E731
    return solve(F(3)), t.grad(solve)(F(3)), t.jit(t.grad(solve))(F(3))


@program
def one_value_in_several_places(t, n):
    f = t.custom_vjp(lambda x, y: (x + y, x * y))
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda r, c: (c[0] + c[1] * r[1], c[0] + c[1] * r[0]))
    return t.grad(lambda x: f(x, x)[1])(F(3)), t.grad(lambda x: sum(f(x, 2 * x)))(F(3))


@program
def rules_that_apply_the_function_to_tangents(t, n):
    f = t.custom_jvp(lambda x: -x * 2)
    f.defjvp(lambda p, d: (f(*p), f(*d)))
    run = lambda x: t.lax.scan(lambda c, _: (f(c) + n.sin(c), None), x, None, 3)[0]  # noqa: E731
    return (
        t.grad(f)(F(1)), t.jit(t.grad(f))(F(1)), t.grad(t.jit(f))(F(1)), t.grad(run)(F(0.5)),
        t.jit(t.grad(run))(F(0.5)), t.vmap(t.grad(f))(X), t.grad(lambda x: n.sum(t.vmap(f)(x)))(X),
        t.jvp(f, (X,), (X,)), t.grad(t.grad(run))(F(0.5)),
        t.jit(t.grad(lambda x: n.sum(t.jit(f)(x) * x)))(X),
    )  # fmt: skip


@program
def arrays(t, n):
    f = t.custom_jvp(lambda x, w: n.sin(x) @ w)
    f.defjvp(lambda p, d: (f(*p), (n.cos(p[0]) * d[0]) @ p[1] + n.sin(p[0]) @ d[1]))
    w = np.arange(6, dtype=F).reshape(3, 2)
    loss = lambda x, w: n.sum(f(x, w) ** 2)  # noqa: E731
    return (
        t.grad(loss, (0, 1))(X, w), t.jit(t.grad(loss))(X, w), t.grad(t.jit(loss), 1)(X, w),
        t.vmap(t.grad(loss), (0, None))(np.stack([X, 2 * X]), w), t.jit(t.hessian(loss))(X, w),
        t.grad(lambda x: t.lax.scan(lambda c, _: (f(c, w @ w.T)[:3], None), x, None, 2)[0].sum())(X),
    )  # fmt: skip
