"""Functions beside NumPy's, over what their arguments may be: families that JAX's own tests draw from."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn

RNG = np.random.default_rng(5)
EDGES = (
    "ab,b->a",
    "ab->a",
    "aa->a",
    "aa->",
    "a,a->",
    "ab,bc->ac",
    "ab,bc->a",
    "ab,b->",
    "...a->...",
    "a...a->...",
    "ba,b->",
    "ab,cd->",
)


def draw(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    x = RNG.standard_normal(shape) * 5
    return (
        (x + 1j * RNG.standard_normal(shape)).astype(dtype)
        if np.issubdtype(dtype, np.complexfloating)
        else x.astype(dtype)
    )


def near(got: Any, want: Any) -> None:
    """Equal shapes, places of NaN, and numbers but for float32's rounding."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", ["matvec", "vecmat", "vecdot", "matmul"])
def test_products_take_conjugates_where_numpy_does(name: str, dtype: Any) -> None:
    shapes = {"matvec": ((2, 1, 3, 4), (5, 4)), "vecmat": ((2, 1, 3), (5, 3, 4)), "vecdot": ((2, 1, 4), (5, 4))}
    a, b = (draw(shape, dtype) for shape in shapes.get(name, ((2, 1, 3, 4), (5, 4, 2))))
    near(getattr(vnp, name)(a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("conditions, functions", list(itertools.product((1, 2, 3), (0, 1))))
def test_of_conditions_that_overlap_the_last_one_counts(conditions: int, functions: int) -> None:
    x = draw((4, 6))
    where = [x > level for level in (0, 2, -1)[:conditions]]
    made = [lambda v, k=k: v * k for k in range(2, 2 + conditions + functions)]
    near(vnp.piecewise(x, where, made), np.piecewise(x, where, made))


@pytest.mark.parametrize("size, ddof", list(itertools.product((0, 1, 3), (0, 1, 3, 4))))
def test_without_freedom_left_there_is_no_variance(size: int, ddof: int) -> None:
    x = draw((2, size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near(vnp.cov(x, ddof=ddof), np.cov(x, ddof=ddof))
        want = np.var(x, 1, ddof=ddof) if size > ddof else np.full(2, np.nan)  # as the array API says; NumPy: infinite
    near(vnp.var(x, 1, ddof=ddof), want)
    near(vnp.std(x, 1, correction=ddof), np.sqrt(want))
    if size:
        near(vnp.var(x, 1, ddof=ddof, where=np.ones_like(x, bool)), want)


@pytest.mark.parametrize("edges", EDGES)
def test_einsum_of_booleans_is_of_booleans(edges: str) -> None:
    xs = [RNG.random((3,) * len(term.replace("...", "x"))) < 0.4 for term in edges.split("->")[0].split(",")]
    got, want = vnp.einsum(edges, *xs), np.einsum(edges, *xs)
    assert got.dtype == want.dtype == np.bool_
    np.testing.assert_array_equal(np.asarray(got), want)


def test_einsum_of_small_integers_keeps_their_dtype() -> None:
    x = np.arange(6, dtype=np.int8).reshape(2, 3)
    for edges in ("ab->a", "ab->"):
        got, want = vnp.einsum(edges, x), np.einsum(edges, x)
        assert got.dtype == want.dtype == np.int8
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("n, axis", list(itertools.product((0, 1, 2), (0, 1))))
def test_differences_with_values_around(n: int, axis: int) -> None:
    x = draw((3, 4))
    for around in ({}, {"prepend": 1.0}, {"prepend": 1.0, "append": x}):
        near(vnp.diff(x, n, axis, **around), np.diff(x, n, axis, **around))


@pytest.mark.parametrize("dtype, period", list(itertools.product((np.int16, np.int32, np.float32), (3, 4, 6.5))))
def test_phases_of_integers(dtype: Any, period: float) -> None:
    x = draw((5, 7), dtype)
    for discont in (None, 1, 3):
        got, want = vnp.unwrap(x, discont, 0, period), np.unwrap(x, discont, 0, period=period)
        assert (got.dtype.kind, got.shape) == (want.dtype.kind, want.shape)
        near(got, want)


@pytest.mark.parametrize("shape, axis", [((2, 3, 10), 0), ((2, 3, 10), -2), ((2, 3, 10), 2)])
def test_points_and_distances_of_trapezoids_broadcast(shape: tuple[int, ...], axis: int) -> None:
    y, size = draw(shape), shape[axis]
    near(vnp.trapezoid(y, draw((size,)) * 0 + np.arange(size), axis=axis), np.trapezoid(y, np.arange(size), axis=axis))
    x = np.sort(draw(shape), axis)
    near(vnp.trapezoid(y, x, axis=axis), np.trapezoid(y, x, axis=axis))
    if axis == -2:
        near(vnp.trapezoid(y, x[0], axis=axis), np.trapezoid(y, x[0], axis=axis))
    dx = draw(tuple(n - 1 if i == axis % 3 else n for i, n in enumerate(shape)))
    near(vnp.trapezoid(y, dx=dx, axis=axis), np.trapezoid(y, dx=dx, axis=axis))


@pytest.mark.parametrize("axis", [(0, 2), (2, 0), (1,), 1, (2, 0, 1)])
def test_weights_of_several_axes(axis: Any) -> None:
    x = draw((2, 3, 4))
    weights = np.abs(draw(tuple(x.shape[i] for i in (axis if isinstance(axis, tuple) else (axis,))))) + 1
    near(vnp.average(x, axis, weights), np.average(x, axis, weights))
    with pytest.raises(volta.errors.ShapeError, match=r"weights of shape \(7,\) do not fit"):
        vnp.average(x, axis, np.ones(7, np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_coordinates_have_the_dtype_of_positions_and_are_clipped(dtype: Any) -> None:
    low = -24 if np.issubdtype(dtype, np.signedinteger) else 0
    flat = np.arange(low, 24).astype(dtype)
    for got, want in zip(vnp.unravel_index(flat, (2, 3, 4)), np.unravel_index(flat % 24, (2, 3, 4)), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), want)
    beyond = vnp.unravel_index(np.array([100, -100], np.int32), (2, 3))
    np.testing.assert_array_equal(np.asarray(beyond), [[1, 0], [2, 0]])
    with pytest.raises(volta.errors.DTypeError, match="indices must be integers"):
        vnp.unravel_index(np.float32([1]), (2, 3))
    assert vnp.ravel_multi_index((flat % 2, flat % 3), (2, 3), dtype=np.int16).dtype == np.int16


@pytest.mark.parametrize("mode", [None, "fill", "clip", "wrap"])
def test_positions_along_an_axis_count_from_the_end(mode: str | None) -> None:
    x, places = np.arange(10, dtype=np.float32), np.array([-11, -10, -1, 0, 9, 10])
    if mode == "clip":
        want = np.float32([0, 0, 9, 0, 9, 9])
    else:
        want = np.float32([9, 0, 9, 0, 9, 0] if mode == "wrap" else [np.nan, 0, 9, 0, 9, np.nan])
    for given in (places, vnp.asarray(places)):
        near(vnp.take_along_axis(x, given, 0, mode), want)
        if mode != "wrap":  # negative ones are out of bounds where nobody wraps them
            plain = np.where(places < 0, 0 if mode == "clip" else np.nan, want)
            near(vnp.take_along_axis(x, given, 0, mode, wrap_negative_indices=False), plain)


@pytest.mark.parametrize("include_initial", [False, True])
def test_running_totals_as_booleans(include_initial: bool) -> None:
    x = np.array([[0, 0, 3, 0], [1, 0, 0, 2]], np.int8)
    for name, start in (("sum", 0), ("prod", 1)):
        got = getattr(vnp, f"cumulative_{name}")(x, axis=1, dtype=bool, include_initial=include_initial)
        run = np.logical_or if name == "sum" else np.logical_and
        want = run.accumulate(x, 1)
        want = np.concatenate([np.full((2, 1), bool(start)), want], 1) if include_initial else want
        assert got.dtype == np.bool_
        np.testing.assert_array_equal(np.asarray(got), want)


def test_totals_of_small_integers_in_their_own_dtype() -> None:
    x = np.array([100, 100, 3], np.int8)
    for name in ("sum", "prod"):
        got = getattr(vnp, name)(x, promote_integers=False)
        assert got.dtype == np.int8
        assert got == getattr(np, name)(x, dtype=np.int8)
        assert getattr(vnp, name)(x).dtype == np.int32


def test_distinct_values_of_every_float_have_one_nan() -> None:
    for dtype in (vnp.bfloat16, np.float16, np.float32, np.complex64):
        x = np.array([np.nan, 1, np.nan, 2]).astype(dtype)
        assert vnp.unique(x).shape == (3,)
        assert vnp.unique(x, equal_nan=False).shape == (4,)


def test_statistics_in_a_dtype_and_about_a_known_mean() -> None:
    x = np.float32([[1, 2, np.nan, 6], [4, 0, 1, 9]])
    for name in ("nanvar", "nanstd"):
        mean = np.nanmean(x, 1, keepdims=True)
        near(getattr(vnp, name)(x, 1, mean=mean), getattr(np, name)(x, 1, mean=mean))
    for name in ("cov", "corrcoef"):
        got = getattr(vnp, name)(x[:, [0, 1, 3]].astype(np.float64), dtype=np.float32)
        assert got.dtype == np.float32
        near(got, getattr(np, name)(x[:, [0, 1, 3]]))


def test_what_a_mask_leaves_out_has_no_part_in_derivatives() -> None:
    for left_out in (np.nan, np.inf, -np.inf, 3.0):
        x, mask = np.float32([0, 0, 0, 0, left_out]), np.array([1, 1, 1, 1, 0], bool)
        value, slope = volta.value_and_grad(lambda v, kept=mask: nn.logsumexp(v, where=kept))(x)
        near(value, np.log(4))
        near(slope, [0.25] * 4 + [0])


def test_linspace_of_nothing_has_no_step() -> None:
    for num, endpoint in ((0, True), (0, False), (1, True)):
        got, step = vnp.linspace(np.float32(0), np.ones((2, 2), np.float32), num, endpoint, retstep=True)
        want, known = np.linspace(np.float32(0), np.ones((2, 2), np.float32), num, endpoint, retstep=True)
        assert (got.shape, step.shape) == (want.shape, np.shape(known))
        assert np.isnan(known).all() and np.isnan(np.asarray(step)).all()


def test_a_variance_is_complex_where_its_dtype_is():
    x, z = np.float32([1, 2, 4]), np.complex64([1, 2j, 3])
    for name in ("var", "std"):
        theirs, ours = getattr(np, name), getattr(vnp, name)
        assert ours(x, dtype="c8").dtype == theirs(x, dtype="c8").dtype == np.complex64
        assert ours(z, dtype="c8").dtype == np.complex64 and ours(z).dtype == np.float32
        np.testing.assert_allclose(ours(x, dtype="c8"), theirs(x, dtype="c8"), rtol=1e-6)
        assert getattr(vnp, f"nan{name}")(x, dtype="c8").dtype == np.complex64
