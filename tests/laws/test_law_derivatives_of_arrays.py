"""Derivatives of functions that mix elements, at ties, zeros and infinities, to third order: as JAX's, or declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

import volta
import volta.nn
import volta.numpy as vnp
import volta.scipy.special
from tests.sampling import sampled
from volta import lax

jax = pytest.importorskip("jax")

TIES = np.array([3.0, 1.0, 3.0, 0.0, 0.0, -2.0])
EQUAL = np.full(4, 2.0)
ZEROS = np.zeros(4)
SOME_ZEROS = np.array([2.0, 0.0, 3.0, 0.0])
ONE_ZERO = np.array([2.0, 0.0, 3.0, 5.0])
MASKED = np.array([1.0, -np.inf, 2.0])
HOLES = np.array([1.0, np.nan, 1.0, 2.0])
MASK = np.array([True, False, True, True])
PLACES = np.array([0, 0, 1])

_SLOPE_OF_ABS = "the slope of abs at 0 is 0, between -1 and 1; in JAX it is 1"
_NAN = "JAX has NaN"


@attrs.frozen
class Library:
    """Volta or JAX: array functions, nn, special functions, lax."""

    np: Any
    nn: Any
    special: Any
    lax: Any
    jvp: Callable[..., Any]
    jit: Callable[..., Any]


@attrs.frozen
class Case:
    name: str
    function: Callable[[Library, Any], Any]
    at: tuple[np.ndarray, ...]
    differs: str = ""  # why from JAX, where it does

    def __str__(self) -> str:
        return self.name


def _scaled(m: Library, x: Any) -> Any:
    return m.np.sort(x) * np.arange(x.shape[0])


CASES = (
    Case("max", lambda m, x: m.np.max(x), (TIES, EQUAL)),
    Case("min", lambda m, x: m.np.min(x), (TIES, EQUAL)),
    Case("ptp", lambda m, x: m.np.ptp(x), (TIES, EQUAL)),
    Case("max of some", lambda m, x: m.np.max(x, where=MASK, initial=2.0), (EQUAL, SOME_ZEROS)),
    Case("prod", lambda m, x: m.np.prod(x), (SOME_ZEROS, ONE_ZERO, ZEROS)),
    Case("cumprod", lambda m, x: m.np.cumprod(x), (SOME_ZEROS, ONE_ZERO, ZEROS)),
    Case("cummax", lambda m, x: m.lax.cummax(x, 0), (TIES, EQUAL), "the first of equal values has all of the slope"),
    Case("sort", _scaled, (TIES, EQUAL)),
    Case("top_k", lambda m, x: m.lax.top_k(x, 2)[0], (TIES, EQUAL)),
    Case("median", lambda m, x: m.np.median(x), (TIES, EQUAL, ONE_ZERO)),
    Case("quantile", lambda m, x: m.np.quantile(x, 0.3), (TIES, EQUAL, ONE_ZERO)),
    Case("quantile by share", lambda m, q: m.np.quantile(EQUAL + PLACES[0], q), (np.array([0.0, 1.0, 0.3, 0.5]),)),
    Case("nanmedian", lambda m, x: m.np.nanmedian(x), (HOLES,)),
    Case("nanmax", lambda m, x: m.np.nanmax(x), (HOLES, TIES)),
    Case("nanprod", lambda m, x: m.np.nanprod(x), (np.array([0.0, np.nan, 2.0]),)),
    Case("norm", lambda m, x: m.np.linalg.norm(x), (TIES, SOME_ZEROS)),
    Case("norm of zeros", lambda m, x: m.np.linalg.norm(x), (ZEROS,), _NAN),
    Case("norm 1", lambda m, x: m.np.linalg.norm(x, 1), (TIES,), _SLOPE_OF_ABS),
    Case("norm 3", lambda m, x: m.np.linalg.norm(x, 3), (TIES,), _SLOPE_OF_ABS),
    Case("norm 3 of zeros", lambda m, x: m.np.linalg.norm(x, 3), (ZEROS,), _NAN),
    Case("norm inf", lambda m, x: m.np.linalg.norm(x, np.inf), (TIES, EQUAL)),
    Case("var", lambda m, x: m.np.var(x), (EQUAL, TIES)),
    Case("std", lambda m, x: m.np.std(x), (TIES,)),
    Case("std of equals", lambda m, x: m.np.std(x), (EQUAL,), _NAN),
    Case("softmax", lambda m, x: m.nn.softmax(x), (TIES, EQUAL, MASKED)),
    Case("log_softmax", lambda m, x: m.nn.log_softmax(x), (TIES, EQUAL)),
    Case("softmax of some", lambda m, x: m.nn.softmax(x, where=MASK), (EQUAL,)),
    Case("logsumexp", lambda m, x: m.special.logsumexp(x), (TIES, EQUAL, MASKED)),
    Case("logsumexp of some", lambda m, x: m.special.logsumexp(x, where=MASK), (EQUAL,)),
    Case("standardize", lambda m, x: m.nn.standardize(x), (TIES,)),
    Case(
        "standardize equals", lambda m, x: m.nn.standardize(x), (EQUAL,), "JAX takes the maximum of the variance and 0"
    ),
    Case(
        "interp", lambda m, x: m.np.interp(x, np.arange(3.0), np.array([5.0, 7.0, 8.0])), (np.array([0.5, -1.0, 3.0]),)
    ),
    Case("average", lambda m, w: m.np.average(EQUAL, weights=w), (EQUAL, SOME_ZEROS)),
    Case("cov", lambda m, x: m.np.cov(x.reshape(2, 2)), (EQUAL, SOME_ZEROS)),
    Case("polyval", lambda m, x: m.np.polyval(np.arange(3.0), x), (ZEROS,)),
    Case("vander", lambda m, x: m.np.vander(x), (SOME_ZEROS,), _NAN),
    Case("clip", lambda m, x: m.np.clip(x, np.array([0.0, 1, 2, 0]), np.array([2.0, 1, 3, 0])), (SOME_ZEROS, EQUAL)),
    Case("clip by bounds", lambda m, x: m.np.clip(EQUAL, x, 3.0), (EQUAL,)),
    Case("select", lambda m, x: m.np.select([x > 1, x > 0], [x**2, x**3], -x), (TIES,)),
    Case("scatter max", lambda m, x: m.np.asarray(EQUAL).at[PLACES].max(x), (np.array([2.0, 2.0, 3.0]),)),
    Case("scatter min", lambda m, x: m.np.asarray(x).at[PLACES].min(2.0), (SOME_ZEROS, EQUAL)),
    Case("cube", lambda m, x: x**3, (SOME_ZEROS,)),
    Case("powers", lambda m, x: x ** np.arange(4.0), (EQUAL,)),
    Case("powers of zeros", lambda m, x: x ** np.arange(4.0), (ZEROS,), _NAN),
    Case("powers of 2", lambda m, x: 2.0**x, (SOME_ZEROS,)),
    Case("remainder", lambda m, x: x % 1.0, (SOME_ZEROS, np.array([0.5, 1.5, -0.5]))),
    Case("associative_scan", lambda m, x: m.lax.associative_scan(lambda a, b: a * b, x), (SOME_ZEROS,)),
    Case("pairs' maxima", lambda m, x: m.np.maximum(x[:, None], x[None]), (EQUAL, TIES)),
    Case("sums of exponentials", lambda m, x: m.np.logaddexp(x[0], m.np.logaddexp(x[1], x[2])), (EQUAL, TIES)),
)
QUICK = ("prod", "median", "norm of zeros")


def all_orders(m: Library, f: Callable[[Any], Any], x: np.ndarray) -> list[np.ndarray]:
    """The derivatives of orders 1 to 3 along three directions, as one program."""
    rng = np.random.default_rng(0)
    directions = [rng.uniform(0.5, 1.5, x.shape) for _ in range(3)]

    def run(x: Any) -> Any:
        found, g = [], f
        for v in directions:
            g = lambda x, g=g, v=v: m.jvp(g, (x,), (m.np.asarray(v),))[1]  # noqa: E731
            found.append(g(x))
        return found

    return [np.asarray(d) for d in m.jit(run)(m.np.asarray(x))]


@sampled("case", CASES, lambda case: case.name in QUICK, ids=str)
@pytest.mark.turns(3)
def test_derivatives_at_ties_and_zeros(case):
    import jax.scipy.special  # noqa: F401

    ours = Library(vnp, volta.nn, volta.scipy.special, lax, volta.jvp, volta.jit)
    with jax.enable_x64(True):
        theirs = Library(jax.numpy, jax.nn, jax.scipy.special, jax.lax, jax.jvp, jax.jit)
        same = True
        for x in case.at:
            found = all_orders(ours, lambda x: case.function(ours, x), x)
            expected = all_orders(theirs, lambda x: case.function(theirs, x), x)
            for order, (a, b) in enumerate(zip(found, expected, strict=True), 1):
                assert np.isfinite(a).all(), f"order {order} at {x}: {a}"
                if not np.allclose(a, b, rtol=1e-8, atol=1e-8):
                    same = False
                    assert case.differs, f"order {order} at {x}: {a}, in JAX {b}"
    assert not (case.differs and same), "it agrees with JAX: its difference need not be declared any more"


@sampled("case", CASES, lambda case: case.name in QUICK, ids=str)
def test_reverse_derivatives_are_the_forward_ones(case):
    ours = Library(vnp, volta.nn, volta.scipy.special, lax, volta.jvp, volta.jit)
    for x in case.at:
        forwards, backwards = two_sums(lambda x: vnp.sum(case.function(ours, x) ** 2), x)
        np.testing.assert_allclose(backwards, forwards, rtol=1e-8, atol=1e-8)


def two_sums(f: Callable[[Any], Any], x: np.ndarray) -> tuple[list[Any], list[Any]]:
    """The sums of the gradient of ``f`` and of its Hessian: along a vector of ones, and of what reverse mode gives."""
    ones, gradient = np.ones_like(x), volta.grad(f)

    def slope(x: Any) -> Any:
        return volta.jvp(f, (x,), (ones,))[1]

    curved = volta.jvp(slope, (x,), (ones,))[1]
    back = volta.grad(lambda x: vnp.sum(gradient(x)))(x)
    return [float(slope(x)), float(curved)], [float(vnp.sum(gradient(x))), float(vnp.sum(back))]
