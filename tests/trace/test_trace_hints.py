"""What an error tells a user to do can be done where the error arises: inside of jit, vmap, loops and branches."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.errors import TracerError

X = np.float32([1, 2, 3])


def _grad_in_scan(f):
    return lax.scan(lambda c, x: (c, volta.grad(lambda y: f(y) * 1.0)(x)), 0.0, X)


# How each transform calls a function of one number that it traces.
TRACED = {
    "jit": lambda f: volta.jit(f)(2.0),
    "checkpoint": lambda f: volta.checkpoint(f)(2.0),
    "make_jaxpr": lambda f: volta.make_jaxpr(f)(2.0),
    "eval_shape": lambda f: volta.eval_shape(f, 2.0),
    "vmap": lambda f: volta.vmap(f)(X),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), 0.0, X),
    "map": lambda f: lax.map(f, X),
    "fori_loop": lambda f: lax.fori_loop(0, 3, lambda i, x: f(x), np.float32(1)),
    "while_loop": lambda f: lax.while_loop(lambda x: False & (x < 5), f, np.float32(1)),
    "cond": lambda f: lax.cond(True, f, f, 2.0),
    "switch": lambda f: lax.switch(0, [f, f], 2.0),
    "scan in jit": lambda f: volta.jit(lambda xs: lax.scan(lambda c, x: (c, f(x)), 0.0, xs))(X),
    "vmap in jit": lambda f: volta.jit(volta.vmap(f))(X),
    "jit in scan": lambda f: lax.scan(lambda c, x: (c, volta.jit(f)(x)), 0.0, X),
    "grad in jit": lambda f: volta.jit(volta.grad(lambda x: f(x) * 1.0))(2.0),
    "grad in scan": _grad_in_scan,
}
STATIC = {"jit", "checkpoint", "make_jaxpr", "jit in scan", "grad in jit"}
UNMAPPED = {"vmap", "vmap in jit"}

# What a user does to a number that is not known, and the same as the error says it. The first takes settings.
WRONG = {
    "if": lambda x, n: x if x > n else -x,
    "and": lambda x, n: x * (x > n and x < 5),
    "range": lambda x, n: sum(x for _ in range(x.astype(int))),
    "index": lambda x, n: [1.0, 2.0, 3.0, 4.0, 5.0][x.astype(int)],
    "float": lambda x, n: x * float(x),
    "item": lambda x, n: x * x.item(),
    "numpy": lambda x, n: x * np.interp(x, [0, 1], [0, 1]),
    "hash": lambda x, n: {x: 1.0}[x],
    "arange": lambda x, n: vnp.arange(x).sum(),
    "delete": lambda x, n: vnp.delete(vnp.ones(3), x.astype(int)).sum(),
}


@pytest.mark.parametrize("use", WRONG)
@pytest.mark.parametrize("name", TRACED)
def test_the_setting_is_handed_over_as_this_transform_can(name, use):
    with pytest.raises((TracerError, TypeError)) as caught:
        TRACED[name](lambda x: WRONG[use](x, 1))
    text = str(caught.value)
    assert "if it is a setting and no data" in text
    assert ("static_argnums" in text) == (name in STATIC)
    assert ("in_axes=(0, None)" in text) == (name in UNMAPPED)
    assert ("a closure" in text) == (name not in STATIC | UNMAPPED)
    transform = {"jit in scan": "jit", "grad in jit": "jit"}.get(name, name)
    assert name not in STATIC or f"volta.{transform}(f, static_argnums=...)" in text


# The ways out that the errors name, each as a function of one number.
RIGHT = {
    "where": lambda x: vnp.where(x > 1, x, -x),
    "cond": lambda x: lax.cond(x > 1, lambda x: x, lambda x: -x, x),
    "&": lambda x: x * ((x > 1) & (x < 5)),
    "astype": lambda x: x.astype("int32").astype(x.dtype),
    "volta.numpy": lambda x: vnp.interp(x, X, X).astype(x.dtype),
    "x[i] of an array": lambda x: vnp.asarray([1.0, 2.0, 3.0, 4.0, 5.0])[x.astype(int)],
    "a closure": lambda x: x * float(X.shape[0]) * sum(range(int(X[1]))),
    "where=mask": lambda x: vnp.sum(vnp.asarray(X), where=vnp.asarray(X) > x),
    "nonzero(size)": lambda x: vnp.nonzero(vnp.asarray(X) > x, size=2)[0].sum().astype(x.dtype),
    "dynamic_slice": lambda x: lax.dynamic_slice(vnp.asarray(X), (x.astype(int),), (1,))[0],
    "total_repeat_length": lambda x: vnp.repeat(vnp.asarray(X), x.astype(int), total_repeat_length=4).sum(),
    "stop_gradient": lambda x: lax.stop_gradient(vnp.round(x)) * x,
    "x.at": lambda x: vnp.asarray(X).at[vnp.asarray(X) > x].set(0).sum(),
    "roll": lambda x: vnp.roll(vnp.asarray(X), x.astype(int))[0],
}


@pytest.mark.parametrize("way", RIGHT)
@pytest.mark.parametrize("name", TRACED)
@pytest.mark.turns(6)
def test_the_ways_out_work_there(name, way):
    """Traced into one program, and not run, which is what other tests are for."""
    volta.make_jaxpr(lambda: (TRACED[name](RIGHT[way]), ())[1])()


def test_a_setting_that_vmap_does_not_map_and_a_static_argument_are_plain():
    power = lambda x, n: x * sum(range(int(n)))  # noqa: E731
    assert volta.vmap(power, in_axes=(0, None))(vnp.ones(2), 3).tolist() == [3.0, 3.0]
    assert float(volta.jit(power, static_argnums=1)(1.0, 3)) == 3.0


def test_numbers_are_shown_under_grad_and_vmap_where_jit_is_disabled():
    shown = []

    @volta.jit
    def f(x):
        y = x * 2.0
        shown.append((repr(y), f"{y}"))
        return y * y

    with volta.disable_jit():
        volta.grad(f)(X[2])
        volta.vmap(f)(X)
        volta.vmap(volta.grad(f))(X)
        volta.jvp(f, (X[2],), (X[0],))
        lax.scan(lambda c, x: (c + volta.grad(f)(x), x), X[0], X[:1])
    assert [text for text, _ in shown] == [
        "Traced<f32[]>(grad differentiates `f`: Array(6., dtype=float32))",
        "Traced<f32[]>(vmap maps `f`: each along axis 0 of Array([2., 4., 6.], dtype=float32))",
        "Traced<f32[]>(grad differentiates `f`: each along axis 0 of Array([2., 4., 6.], dtype=float32))",
        "Traced<f32[]>(jvp differentiates `f`: Array(6., dtype=float32))",
        "Traced<f32[]>(grad differentiates `f`: Array(2., dtype=float32))",
    ]
    assert shown[0][1] == "6.0"
    shown.clear()
    volta.jit(volta.grad(f))(X[2])
    assert shown[0][0] == "Traced<f32[]>(jit traces `f`)"
