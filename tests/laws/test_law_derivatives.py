"""Derivatives are right to third order also where functions have kinks, ties, zeros, ones, branch points and ends.

Right is the limit, from every side that there is, computed with many digits. Where limits differ, a derivative lies
between them: a convention, which is JAX's unless the list of differences says why not.
"""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
import pytest

import volta
import volta.nn
import volta.numpy as vnp
import volta.scipy.special
from tests.derivative_differences import FROM_JAX, FROM_LIMITS
from tests.derivative_limits import limits
from tests.derivative_rows import COMMON, COMPOSITES, PAIRS, PRIMITIVES, Row
from tests.sampling import sampled
from volta.core.errors import NotDifferentiableError
from volta.ops.primitive import REGISTRY, Family, NoDerivative
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

ROWS = PRIMITIVES + COMPOSITES
QUICK = ("numpy.hypot", "nn.softplus", "cbrt", "special.entr")
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
ORDERS = {
    1: [(0,), (0, 0), (0, 0, 0)],
    2: [(0,), (1,), (0, 0), (0, 1), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)],
}
each = sampled("row", ROWS, lambda row: row.name in QUICK, ids=str)


def points_of(row: Row, dtype: str) -> list[tuple[float, ...]]:
    points = row.only or (PAIRS if row.arity == 2 else COMMON) + row.points
    rounded = [float(np.dtype(dtype).type(p)) for p in points]
    return list(itertools.product(rounded, repeat=row.arity))


def orders_of(row: Row) -> list[tuple[int, ...]]:
    return [by for by in ORDERS[row.arity] if all(by.count(i) <= most for i, most in enumerate(row.most))]


def arrays_of(row: Row, dtype: str) -> list[np.ndarray]:
    return [np.array(x, dtype) for x in zip(*points_of(row, dtype), strict=True)]


def partial(f, by, lib=volta, numpy=vnp):
    """The partial derivative of an elementwise function, forwards."""
    for i in by:

        def derivative(*xs, f=f, i=i):
            alone = lambda x: f(*xs[:i], x, *xs[i + 1 :])  # noqa: E731
            return lib.jvp(alone, (xs[i],), (numpy.ones_like(xs[i]),))[1]

        f = derivative
    return f


def backwards(f, by):
    """The same in reverse: the gradient of the sum of the gradient of the sum …"""
    for i in by:
        f = volta.grad(lambda *xs, f=f: vnp.sum(f(*xs)), i)
    return f


def is_right(found: float, expected: list[float], row: Row, point: tuple[float, ...], dtype: str) -> bool:
    with np.errstate(over="ignore"):
        rounded = [float(np.dtype(dtype).type(x)) for x in expected]
    tolerance = TOLERANCE[dtype]
    low, high = min(rounded), max(rounded)
    if math.isfinite(low) and math.isfinite(high):
        return low - tolerance * (abs(low) + 0.1) <= found <= high + tolerance * (abs(high) + 0.1)
    if low != high:
        return True  # there is no derivative, nor anything between the limits
    if found == low:
        return True
    # of a pole, and of -0, which lies at no end of a domain, no more is asked than not to look harmless
    pole = any(math.isinf(x) for x in limits(row.exact, point, (0,) * row.arity))
    return not math.isfinite(found) and (pole or any(x == 0 and math.copysign(1, x) < 0 for x in point))


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_are_the_limits(row, dtype):
    if dtype not in row.dtypes:
        pytest.skip("not computed in this dtype")
    declared, stale = FROM_LIMITS.get(row.name), True
    for by in orders_of(row):
        found = np.asarray(partial(row.volta, by)(*arrays_of(row, dtype)))
        for point, value in zip(points_of(row, dtype), found.tolist(), strict=True):
            expected = limits(row.exact, point, tuple(by.count(i) for i in range(row.arity)))
            if not expected or is_right(value, expected, row, point, dtype):
                continue
            stale = False
            assert declared and declared.where(point, by), f"{row} by {by} at {point}: {value}, not {expected}"
    assert not (declared and stale), f"{row} is right everywhere: its difference need not be declared any more"


@pytest.mark.parametrize("row", [row for row in ROWS if row.most != (3, 3)], ids=str)
def test_what_has_no_further_derivative_says_so(row):
    for by in set(ORDERS[row.arity]) - set(orders_of(row)):
        with pytest.raises(NotDifferentiableError, match="no derivative with respect to a, a second time"):
            partial(row.volta, by)(*arrays_of(row, "float64"))


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_ways_to_differentiate_agree(row, dtype):
    """Compiled, mapped and eager derivatives are the same bits; forwards and backwards the same numbers."""
    if dtype not in row.dtypes:
        pytest.skip("not computed in this dtype")
    declared, xs = FROM_LIMITS.get(row.name), arrays_of(row, dtype)
    for by in [(0,), (0, 0), (0, 0, 0)] if row.arity == 1 else [(0,), (1,), (0, 1), (0, 1, 1)]:
        forwards, reverse = partial(row.volta, by), backwards(row.volta, by)
        eager, back = forwards(*xs), reverse(*xs)
        assert_bits_equal(volta.jit(forwards)(*xs), eager)
        assert_bits_equal(volta.vmap(forwards)(*xs), eager)
        assert_bits_equal(volta.jit(reverse)(*xs), back)
        assert_bits_equal(volta.vmap(volta.grad(row.volta, by[0]) if len(by) == 1 else reverse_of(row, by))(*xs), back)
        values = [limits(row.exact, point, (0,) * row.arity) for point in points_of(row, dtype)]
        inside = np.array([bool(value) and all(map(math.isfinite, value)) for value in values])  # nor at a pole
        if declared:  # nor where there is none, and one of the ways comes by an infinity
            none = np.array([declared.where(point, by) for point in points_of(row, dtype)])
            inside &= ~none | (np.isfinite(np.asarray(back)) & np.isfinite(np.asarray(eager)))
        np.testing.assert_allclose(np.asarray(back)[inside], np.asarray(eager)[inside], rtol=1e-4, atol=1e-4)


def reverse_of(row, by):
    f = row.volta
    for i in by:
        f = volta.grad(f, i)
    return f


def test_every_differentiable_elementwise_primitive_has_a_row():
    wanted = {
        p.name
        for p in REGISTRY.values()
        if p.family is Family.ELEMENTWISE and "float" in p.domain.kinds and not isinstance(p.jvp, NoDerivative)
    }
    assert wanted == {row.name.split()[0] for row in PRIMITIVES}


def elementwise_functions():
    """The names of functions that treat each element of one or two float arrays alike, and have a derivative."""
    x = np.array([0.5, 0.25], np.float32)
    for where, module in (("numpy", vnp), ("nn", volta.nn), ("special", volta.scipy.special)):
        for name in sorted(module.__all__):
            f = getattr(module, name)
            if not callable(f) or inspect.isclass(f):
                continue
            for arity in (1, 2):
                try:
                    out, tangent = volta.jvp(f, (x,) * arity, (np.ones_like(x),) * arity)
                    turned, alone = f(*(x[::-1],) * arity), f(*(x[0],) * arity)
                except Exception:  # it takes something else
                    continue
                if getattr(out, "shape", None) != x.shape or not np.asarray(tangent).any():
                    continue
                moves = sorted(out.tolist()) == sorted(x.tolist())
                if not moves and turned.tolist() == out.tolist()[::-1] and alone.tolist() == out.tolist()[0]:
                    yield f"{where}.{name}", f
                    break


@pytest.mark.slow
def test_every_elementwise_function_has_a_row():
    rows = {row.name.split()[0] for row in COMPOSITES}
    same = [row.volta for row in ROWS]
    missing = [
        name
        for name, f in elementwise_functions()
        if name not in rows and f not in same and primitive_named(name) is None
    ]
    assert not missing


OTHER_NAMES = {
    "erfinv": "erf_inv",
    "gammaln": "lgamma",
    "psi": "digamma",
    "expit": "logistic",
    "sigmoid": "logistic",
    "maximum": "max",
    "minimum": "min",
    "divide": "div",
    "true_divide": "div",
    "float_power": "pow",
    "multiply": "mul",
    "negative": "neg",
}


def primitive_named(name: str):
    """The row of the primitive that a function of this name gives: ``numpy.arcsin`` is ``asin``."""
    short = name.split(".")[1].replace("arc", "a")
    return next((row for row in PRIMITIVES if row.name == OTHER_NAMES.get(short, short)), None)


@sampled("row", [row for row in ROWS if row.jax], lambda row: row.name == "nn.softplus", ids=str)
def test_derivatives_beside_jax(row):
    jax = pytest.importorskip("jax")
    declared, stale = FROM_JAX.get(row.name), True
    with jax.enable_x64("float64" in row.dtypes):
        theirs = jax_function(jax, row.name_in_jax)
        dtype = row.dtypes[-1]
        for by in [(), *orders_of(row)]:
            xs = arrays_of(row, dtype)
            ours = np.asarray(partial(row.volta, by)(*xs))
            other = np.asarray(partial(theirs, by, jax, jax.numpy)(*map(jax.numpy.asarray, xs)))
            for point, x, y in zip(points_of(row, dtype), ours.tolist(), other.tolist(), strict=True):
                close = abs(x - y) <= 10 * TOLERANCE[dtype] * (abs(y) + 0.1) if math.isfinite(y) else False
                outside = not limits(row.exact, point, (0,) * row.arity)
                if outside or close or x == y or (math.isnan(x) and math.isnan(y)):
                    continue
                stale = False
                assert declared and declared.where(point, by), f"{row} by {by} at {point}: {x}, in JAX {y}"
    assert not (declared and stale), f"{row} agrees with JAX: its difference need not be declared any more"


def jax_function(jax, name):
    special = {
        "clamp": lambda x: jax.lax.clamp(-1.0, x, 2.0),
        "clip": lambda x: jax.numpy.clip(x, -1, 2),
        "celu": lambda x: jax.nn.celu(x, 2.0),
        "frexp": lambda x: jax.numpy.frexp(x)[0],
    }
    f = special.get(name)
    if f is None:
        import jax.nn
        import jax.scipy.special  # noqa: F401

        f = jax
        for part in name.split("."):
            f = getattr(f, part)
    return f
