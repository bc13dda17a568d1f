"""Windows reduced to one value: beside JAX's, in SUM's order, batched and differentiated."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core.errors import ShapeError
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(0)

WINDOWS: list[tuple[Any, ...]] = [
    ((1, 2, 2, 1), (1, 2, 2, 1), "VALID", None, None),
    ((1, 3, 3, 1), (1, 2, 1, 1), "SAME", None, None),
    ((1, 9, 9, 1), (1, 1, 1, 1), "SAME", None, None),  # more than 64 elements: gathered
    ((2, 3, 2, 2), (1, 2, 3, 1), [(1, 0), (2, 1), (0, -1), (1, 1)], (1, 2, 1, 1), (1, 1, 2, 1)),
]
KINDS = {"add": 0.0, "max": -np.inf, "min": np.inf}


def given(shape: tuple[int, ...] = (2, 10, 11, 3)) -> Any:
    x = RNG.standard_normal(shape)
    x[:, 1:4] = np.round(x[:, 1:4])  # ties
    return x


@pytest.mark.parametrize(
    ("kind", "windows"),
    [
        pytest.param(k, w, marks=() if (k, i) in (("add", 0), ("max", 1)) else pytest.mark.slow)
        for k in KINDS
        for i, w in enumerate(WINDOWS)
    ],
)
def test_pooling_and_its_derivatives_are_those_of_jax(windows: Any, kind: str) -> None:
    x = given()

    def f(x):
        return lax.reduce_window(x, KINDS[kind], getattr(lax, kind), *windows)

    def g(x):
        return jax.lax.reduce_window(x, KINDS[kind], getattr(jax.lax, kind), *windows)

    out = f(x)
    with jax.enable_x64(True):
        want = np.asarray(g(x))
        ct = RNG.standard_normal(want.shape)
        once = twice = None
        if kind == "add" or windows[-1] is None:  # JAX has no derivative of dilated windows' extremes

            def inner(x):
                return (jax.numpy.sin(g(x)) * ct).sum()

            once = jax.jit(jax.grad(inner))(x)
            twice = jax.jit(jax.grad(lambda x: (jax.grad(inner)(x) ** 2).sum()))(x)
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    assert_bits_equal(volta.jit(f)(x), out)

    def ours(x):
        return (vnp.sin(f(x)) * ct).sum()

    if once is not None:
        np.testing.assert_allclose(volta.grad(ours)(x), once, rtol=1e-10, atol=1e-10)
        found = volta.grad(lambda x: (volta.grad(ours)(x) ** 2).sum())(x)
        np.testing.assert_allclose(found, twice, rtol=1e-9, atol=1e-9 * np.abs(twice).max())
    along = volta.jvp(ours, (x,), (ct_like := given(),))[1]
    np.testing.assert_allclose(along, vnp.sum(volta.grad(ours)(x) * ct_like), rtol=1e-9)
    assert_bits_equal(volta.vmap(f, in_axes=1)(np.stack([x, -x], 1))[0], out)


@pytest.mark.parametrize("size", [1, 3, 7, 33, 64, 65, 200])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_window_s_sum_is_the_sum_of_its_elements(size: int, dtype: str) -> None:
    x = (RNG.standard_normal(210) * 100).astype(dtype)
    out = lax.reduce_window(x, np.zeros((), dtype), lax.add, (size,))
    for i in (0, 5, 10):
        assert_bits_equal(out[i], vnp.sum(x[i : i + size], dtype=dtype))


def test_extremes_of_nan_and_zeros() -> None:
    x = np.float32([1, np.nan, 2, -0.0, 0.0, -np.inf])
    assert_bits_equal(lax.reduce_window(x, -np.inf, lax.max, (2,)), np.float32([np.nan, np.nan, 2, 0, 0]))
    assert_bits_equal(lax.reduce_window(x, np.inf, lax.min, (2,)), np.float32([np.nan, np.nan, -0.0, -0.0, -np.inf]))


def test_the_derivative_goes_to_the_first_of_equal_elements() -> None:
    g = volta.grad(lambda x: vnp.sum(lax.reduce_window(x, -np.inf, lax.max, (3,), (3,))))
    assert_bits_equal(g(np.float32([1, 1, 1, 0, 2, 2])), np.float32([1, 0, 0, 0, 1, 0]))


@pytest.mark.parametrize("start", [2.0, 0.0])
def test_any_function_of_two_values(start: float) -> None:
    x = given((6, 5)).astype("f4")
    args = ((3, 2), (2, 1), "SAME")
    for ours, theirs in [
        (lax.add, jax.lax.add),
        (operator.add, operator.add),
        (lax.mul, jax.lax.mul),
        (lambda a, b: -lax.max(-a, -b), lambda a, b: -jax.lax.max(-a, -b)),
    ]:
        found = lax.reduce_window(x, np.float32(start), ours, *args)
        np.testing.assert_allclose(
            found, jax.lax.reduce_window(x, np.float32(start), theirs, *args), rtol=1e-5, atol=1e-6
        )
    assert_bits_equal(lax.reduce_window(x, 0.0, vnp.add, *args), lax.reduce_window(x, 0.0, lax.add, *args))


def test_a_function_s_name_says_nothing() -> None:
    def add(a: Any, b: Any) -> Any:
        return a - b

    assert_bits_equal(lax.reduce_window(np.float32([1, 2, 4]), 0.0, add, (2,)), np.float32([-3, -6]))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_extremes_of_other_dtypes(dtype: str) -> None:
    x = RNG.integers(0, 2, (3, 8)).astype(dtype)
    for name, start in (("max", vnp.zeros((), dtype)), ("min", np.ones((), dtype))):
        found = lax.reduce_window(x, start, getattr(lax, name), (1, 3))
        want = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)
        np.testing.assert_array_equal(found, getattr(want, name)(-1))


def test_what_does_not_fit_is_said() -> None:
    x = np.ones((4, 4), "f4")
    for args, says in [
        (((2,),), "window_dimensions has to be 2"),
        (((2, 2), (1,)), "window_strides has to be 2"),
        (((2, 2), (1, 1), [(0, 0)]), "a pair"),
        (((2, 2), (1, 1), [(-5, 0), (0, 0)]), "takes away more"),
    ]:
        with pytest.raises(ShapeError, match=says):
            lax.reduce_window(x, 0.0, lax.add, *args)
