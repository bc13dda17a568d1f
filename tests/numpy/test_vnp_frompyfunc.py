"""Functions of elements with NumPy's methods, and polynomials through points, beside NumPy's."""

import operator

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.errors import ShapeError

X = np.array([[3.0, -1, 2, 5, 4], [0.5, 2, -2, 1, 7]])


def weave(x, y):
    return 2 * x + y  # not associative: the order shows


OURS = vnp.frompyfunc(weave, 2, 1, identity=0)
THEIRS = np.frompyfunc(weave, 2, 1, identity=0)


def same(got, want):
    assert np.asarray(got).tolist() == np.asarray(want, float).tolist()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_methods_go_from_the_first_to_the_last(axis):
    same(OURS(X, X[:1]), THEIRS(X, X[:1]))
    same(OURS.outer(X, X[0]), THEIRS.outer(X, X[0]))
    same(OURS.reduce(X, axis), THEIRS.reduce(X, axis))
    same(OURS.reduce(X, axis, keepdims=True), THEIRS.reduce(X, axis, keepdims=True))
    same(OURS.accumulate(X, axis), THEIRS.accumulate(X, axis))
    for starts in ([0, 1], [1, 0, 1], [0]):
        same(OURS.reduceat(X, starts, axis), THEIRS.reduceat(X, starts, axis))
        same(vnp.add.reduceat(X, starts, axis), np.add.reduceat(X, starts, axis))
        same(np.maximum.reduceat(vnp.asarray(X), starts, axis), np.maximum.reduceat(X, starts, axis))
    same(volta.jit(lambda x, i: OURS.reduceat(x, i, axis))(X, np.int32([1, 0])), THEIRS.reduceat(X, [1, 0], axis))


def test_reductions_of_all_and_of_none():
    same(OURS.reduce(X, None), THEIRS.reduce(X.ravel()))
    assert OURS.reduce(X, None, keepdims=True).shape == (1, 1)
    assert OURS.reduce(np.zeros((0, 2))).tolist() == [0, 0] and OURS.accumulate(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(ShapeError, match="weave.reduce: of no elements there is no result"):
        vnp.frompyfunc(weave, 2, 1).reduce(np.zeros(0))


def test_updates_one_after_the_other():
    want = X.copy().astype(object)
    THEIRS.at(want, (0, [1, 1, 3]), 10.0)
    same(OURS.at(X, (0, np.array([1, 1, 3])), 10.0, inplace=False), want)
    assert vnp.frompyfunc(operator.neg, 1, 1).at(X[0], 0, inplace=False).tolist() == [-3, -1, 2, 5, 4]
    with pytest.raises(ValueError, match="weave.at: arrays are immutable"):
        OURS.at(X, 0, 1.0)


def test_what_it_is():
    assert (OURS.nin, OURS.nout, OURS.nargs, OURS.identity) == (2, 1, 3, 0) and "weave" in repr(OURS)
    assert isinstance(OURS, vnp.ufunc) and isinstance(vnp.add, vnp.ufunc) and not isinstance(vnp.sum, vnp.ufunc)
    assert volta.grad(lambda x: OURS.reduce(x))(X[0]).tolist() == [16, 8, 4, 2, 1]
    two = vnp.frompyfunc(divmod, 2, 2)
    assert [v.tolist() for v in two(np.int32([7, 8]), np.int32(3))] == [[2, 2], [1, 2]]
    for call, match in (
        (lambda: two.reduce(X), "divmod.reduce: only functions of two arrays with one result have it"),
        (lambda: two.reduceat(X, [0]), "divmod.reduceat: only"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match="weave: takes 2 arrays, got 1"):
        OURS(X)


POINTS = np.linspace(-1, 2, 9)
VALUES = np.stack([np.sin(POINTS), POINTS**3 - POINTS], 1)


@pytest.mark.parametrize("y", [VALUES[:, 0], VALUES], ids=["one", "many"])
@pytest.mark.turns(2)
def test_polynomials_through_points(y):
    weights = np.linspace(1, 3, 9)
    for settings in ({}, {"w": weights}):
        np.testing.assert_allclose(
            vnp.polyfit(POINTS, y, 3, **settings), np.polyfit(POINTS, y, 3, **settings), atol=1e-9
        )
        for cov in (True, "unscaled"):
            got, want = (np_.polyfit(POINTS, y, 2, cov=cov, **settings) for np_ in (vnp, np))
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        got, want = (np_.polyfit(POINTS, y, 2, full=True, **settings) for np_ in (vnp, np))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(np.ravel(a), np.ravel(b), rtol=1e-9, atol=1e-12)
    assert vnp.array_equal(volta.jit(lambda x, y: vnp.polyfit(x, y, 3))(POINTS, y), vnp.polyfit(POINTS, y, 3))


def test_points_that_fit_no_polynomial():
    for call in (
        lambda: vnp.polyfit(VALUES, VALUES, 1),
        lambda: vnp.polyfit(POINTS, POINTS[1:], 1),
        lambda: vnp.polyfit(POINTS[:0], POINTS[:0], 1),
        lambda: vnp.polyfit(POINTS, POINTS, 1, w=POINTS[1:]),
    ):
        with pytest.raises(ShapeError, match="polyfit: takes"):
            call()
    with pytest.raises(ValueError, match="the degree must not be negative"):
        vnp.polyfit(POINTS, POINTS, -1)
    with pytest.raises(ValueError, match="3 points leave nothing"):
        vnp.polyfit(POINTS[:3], POINTS[:3], 2, cov=True)
