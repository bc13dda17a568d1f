"""Reductions, scans, creation, shapes and order, against NumPy."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numpy.vnp_compare import assert_same, floats, ints, same_as_numpy
from volta.api.tracing import make_jaxpr
from volta.errors import ConcretizationTypeError, DTypeError, ShapeError

pytestmark = pytest.mark.turns(6)

X = floats(3, 4, 5)
N = ints(3, 4, 5)
B = X > 0
HOLES = X.copy()
HOLES[0, 1, 2] = HOLES[2, 3] = np.nan
AXES = (None, 0, 1, -1, (0, 2), (1, 0), ())


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", "sum prod mean var std max min any all amax count_nonzero".split())
@pytest.mark.turns(6)
def test_reductions(name, axis):
    for keepdims in (False, True):
        same_as_numpy(lambda np, x: getattr(np, name)(x, axis=axis, keepdims=keepdims), X, rtol=2e-5, atol=2e-6)  # noqa: B023
        same_as_numpy(lambda np, x: getattr(np, name)(x, axis=axis, keepdims=keepdims), N, rtol=2e-5)  # noqa: B023


@pytest.mark.parametrize("axis", (None, 0, 1, -1), ids=str)
@pytest.mark.parametrize("name", "argmax argmin ptp cumsum cumprod".split())
def test_along_one_axis(name, axis):
    same_as_numpy(lambda np, x: getattr(np, name)(x, axis=axis), X, rtol=2e-4, atol=1e-5)
    if name.startswith("arg"):
        same_as_numpy(lambda np, x: getattr(np, name)(x, axis=axis, keepdims=True), X)


@pytest.mark.filterwarnings("ignore:All-NaN|Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("axis", (None, 1, 2), ids=str)
@pytest.mark.parametrize("name", "nansum nanprod nanmax nanmin nanmean nanvar nanstd nancumsum nancumprod".split())
def test_ignoring_nan(name, axis):
    same_as_numpy(lambda np, x: getattr(np, name)(x, axis=axis), HOLES, rtol=1e-4, atol=1e-5)


def test_nan_positions():
    x = np.float32([[np.nan, 1, 5], [2, np.nan, -1]])
    same_as_numpy(lambda np, x: np.nanargmax(x, 1), x)
    same_as_numpy(lambda np, x: np.nanargmin(x, 1), x)
    same_as_numpy(lambda np, x: np.argmax(x, 1), x)


def test_masks_initial_values_and_dtypes():
    same_as_numpy(lambda np, x, b: np.sum(x, 1, where=b, initial=3), X, B, rtol=1e-5)
    same_as_numpy(lambda np, x, b: np.prod(x, 1, where=b), X, B, rtol=1e-5)
    same_as_numpy(lambda np, x, b: np.max(x, 1, where=b, initial=-9), X, B)
    same_as_numpy(lambda np, x, b: np.mean(x, (0, 2), where=b), X, B, rtol=1e-5)
    same_as_numpy(lambda np, x, b: np.var(x, (0, 2), where=b, ddof=1), X, B, rtol=1e-4)
    same_as_numpy(lambda np, x, b: np.any(x, 1, where=b), B, B)
    same_as_numpy(lambda np, x: np.var(x, ddof=1), X, rtol=1e-5)
    assert vnp.sum(vnp.asarray(N), dtype="float64").dtype == np.float64
    assert vnp.mean(vnp.asarray(X.astype(np.float16))).dtype == np.float16
    assert vnp.mean(X, dtype="float64").dtype == np.float64
    same_as_numpy(lambda np, x, w: np.average(x, 1, weights=w), X, np.float32([1, 2, 3, 4]), rtol=1e-5)
    same_as_numpy(lambda np, x: np.average(x), X, rtol=1e-5)


def test_empty():
    empty = np.zeros((0, 3), np.float32)
    same_as_numpy(lambda np, x: np.sum(x, 0), empty)
    same_as_numpy(lambda np, x: np.prod(x, 0), empty)
    same_as_numpy(lambda np, x: np.all(x), empty)
    same_as_numpy(lambda np, x: np.max(x, 1), empty)
    with pytest.raises(ShapeError, match="axis 0 of shape .0, 3. is empty.*give `initial`"):
        vnp.max(empty, 0)
    with pytest.raises(ShapeError, match="is empty"):
        vnp.argmax(empty, 0)
    for name in ("max", "min"):
        for x in (empty, empty.astype(np.int8), np.zeros((2, 0), np.float64)):
            same_as_numpy(lambda np, x, name=name: getattr(np, name)(x, 0, initial=-3), x)
            same_as_numpy(lambda np, x, name=name: getattr(np, name)(x, (0, 1), keepdims=True, initial=-3), x)


def test_reduction_errors():
    with pytest.raises(ShapeError, match="sum: axis 3 does not exist in an array of 3 dimensions"):
        vnp.sum(X, 3)
    with pytest.raises(ShapeError, match="names one axis twice"):
        vnp.sum(X, (0, -3))
    with pytest.raises(ValueError, match="needs `initial`"):
        vnp.max(X, where=B)
    with pytest.raises(DTypeError, match="float or complex dtype"):
        vnp.mean(X, dtype="int32")


def test_small_programs():
    def lines(f):
        return len(make_jaxpr(f)(X).eqns)

    assert lines(lambda x: x.sum()) == 1
    assert lines(lambda x: x.sum(())) == 0
    assert lines(lambda x: x.mean(0)) == 2
    assert lines(lambda x: x * 2.0 + 1) == 2
    assert lines(lambda x: x.reshape(3, 4, 5)) == 0
    assert lines(lambda x: x.transpose(0, 1, 2)) == 0
    assert lines(lambda x: x.astype("float32")) == 0
    assert lines(lambda x: x + x[0]) == 4
    assert "mul a 2.0:f32[]" in str(make_jaxpr(lambda x: x * 2.0)(X))


# -- creation ----------------------------------------------------------------------------------------------------------


CREATION = {
    "zeros": lambda np: np.zeros((2, 3)),
    "ones": lambda np: np.ones(3, np.int32),
    "full": lambda np: np.full((2, 2), 3.5),
    "full broadcast": lambda np: np.full((2, 2), np.array([1, 2])),
    "like": lambda np: (np.zeros_like(np.ones((2, 3))), np.ones_like(np.zeros(2)), np.full_like(np.ones(2), 4)),
    "arange": lambda np: np.arange(7),
    "arange 2": lambda np: np.arange(3, 20, 4),
    "arange down": lambda np: np.arange(9, 0, -2),
    "arange float": lambda np: np.arange(0.5, 3.0, 0.5),
    "arange empty": lambda np: np.arange(3, 1),
    "linspace": lambda np: np.linspace(-1, 2, 7),
    "linspace open": lambda np: np.linspace(-1, 2, 6, endpoint=False),
    "linspace one": lambda np: np.linspace(1, 2, 1),
    "linspace int": lambda np: np.linspace(0, 10, 5, dtype=np.int32),
    "linspace arrays": lambda np: np.linspace(np.array([1.0, 2.0]), 5, 4, axis=1),
    "linspace step": lambda np: np.linspace(0, 1, 5, retstep=True),
    "logspace": lambda np: np.logspace(0, 2, 4),
    "eye": lambda np: np.eye(3, 4, 1),
    "identity": lambda np: np.identity(3),
    "tri": lambda np: np.tri(3, 4, -1),
    "indices": lambda np: np.indices((2, 3)),
    "indices sparse": lambda np: np.indices((2, 3), sparse=True),
    "meshgrid": lambda np: np.meshgrid(np.arange(3), np.arange(4)),
    "meshgrid ij": lambda np: np.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing="ij"),
    "meshgrid sparse": lambda np: np.meshgrid(np.arange(3), np.arange(4), sparse=True),
    "tril_indices": lambda np: np.tril_indices(4, 1),
    "triu_indices": lambda np: np.triu_indices(4, -1, 3),
    "vander": lambda np: np.vander(np.array([1.0, 2.0, 3.0]), 4),
    "nested": lambda np: np.array([[1, 2], [3, 4]]),
    "nested arrays": lambda np: np.array([[np.array(1.0), 2], [3, np.array(4)]]),
    "ndmin": lambda np: np.array([1, 2], ndmin=3),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(name):
    assert_same(CREATION[name](vnp), CREATION[name](np), rtol=1e-5)


def test_creation_inside_a_trace():
    assert len(make_jaxpr(lambda: vnp.arange(5))().eqns) == 1
    assert len(make_jaxpr(lambda: vnp.zeros((2, 3)))().eqns) == 1
    assert len(make_jaxpr(lambda x: vnp.array([x, x * 2, 1.0]))(1.0).eqns) <= 7
    with pytest.raises(ConcretizationTypeError, match="arange: its arguments decide the shape"):
        make_jaxpr(vnp.arange)(5)


def test_creation_errors():
    with pytest.raises(ShapeError, match="no common shape"):
        vnp.array([[1, 2], [3]])
    with pytest.raises(DTypeError, match="cannot make an array of|not supported"):
        vnp.array("text")
    with pytest.raises(ShapeError, match="negative size"):
        vnp.zeros((2, -1))
    with pytest.raises(ShapeError, match="an int or a tuple of ints"):
        vnp.zeros(2.5)
    with pytest.raises(DTypeError, match="S3 is not supported|bytes24 is not supported"):
        vnp.zeros(2, "S3")


def test_triangles_and_diagonals():
    for k in (-2, 0, 1):
        same_as_numpy(lambda np, x, k=k: np.tril(x, k), X)
        same_as_numpy(lambda np, x, k=k: np.triu(x, k), X)
        same_as_numpy(lambda np, x, k=k: np.diag(x, k), X[0])
        same_as_numpy(lambda np, x, k=k: np.diag(x, k), X[0, 0])
        same_as_numpy(lambda np, x, k=k: np.diagonal(x, k, 2, 0), X)
        same_as_numpy(lambda np, x, k=k: np.trace(x, k, 1, 2), X, rtol=1e-5)
    same_as_numpy(lambda np, x: np.diagflat(x, 1), X[0, :2, :2])


# -- shapes ------------------------------------------------------------------------------------------------------------

SHAPES = {
    "reshape": lambda np, x: np.reshape(x, (4, -1)),
    "reshape F": lambda np, x: np.reshape(x, (5, 12), order="F"),
    "ravel": lambda np, x: np.ravel(x),
    "transpose": lambda np, x: np.transpose(x, (1, 2, 0)),
    "T": lambda np, x: x.T,
    "mT": lambda np, x: x.mT,
    "swapaxes": lambda np, x: np.swapaxes(x, 0, -1),
    "moveaxis": lambda np, x: np.moveaxis(x, (0, 1), (-1, 0)),
    "rollaxis": lambda np, x: np.rollaxis(x, 2, 1),
    "squeeze": lambda np, x: np.squeeze(x[:1, :, :1]),
    "squeeze axis": lambda np, x: np.squeeze(x[:1, :, :1], 2),
    "expand_dims": lambda np, x: np.expand_dims(x, (0, -1)),
    "broadcast_to": lambda np, x: np.broadcast_to(x[0], (2, 4, 5)),
    "broadcast_arrays": lambda np, x: np.broadcast_arrays(x, x[0], x[:, :1]),
    "concatenate": lambda np, x: np.concatenate([x, x[:, :2]], 1),
    "concatenate None": lambda np, x: np.concatenate([x, x[0]], None),
    "stack": lambda np, x: np.stack([x, x + 1], -1),
    "vstack": lambda np, x: np.vstack([x[0, 0], x[0]]),
    "hstack": lambda np, x: np.hstack([x[0, 0], x[0, 1]]),
    "dstack": lambda np, x: np.dstack([x[0], x[1]]),
    "column_stack": lambda np, x: np.column_stack([x[0, :, 0], x[0]]),
    "append": lambda np, x: np.append(x, x[0]),
    "split": lambda np, x: np.split(x, 2, 1),
    "split at": lambda np, x: np.split(x, [1, 3], 2),
    "array_split": lambda np, x: np.array_split(x, 3, 2),
    "hsplit": lambda np, x: np.hsplit(x, 2),
    "vsplit": lambda np, x: np.vsplit(x, 3),
    "tile": lambda np, x: np.tile(x, (2, 1, 3)),
    "tile more": lambda np, x: np.tile(x[0, 0], (2, 2)),
    "flip": lambda np, x: np.flip(x),
    "fliplr": lambda np, x: np.fliplr(x),
    "flipud": lambda np, x: np.flipud(x),
    "rot90": lambda np, x: [np.rot90(x, k, (1, 2)) for k in range(4)],
    "roll": lambda np, x: np.roll(x, 7),
    "roll axis": lambda np, x: np.roll(x, (1, -2), (0, 2)),
    "atleast": lambda np, x: [np.atleast_1d(3.0), np.atleast_2d(x[0, 0]), np.atleast_3d(x[0, 0]), np.atleast_3d(x[0])],
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    same_as_numpy(SHAPES[name], X)


def test_shape_errors():
    x = vnp.asarray(X)
    with pytest.raises(ShapeError, match=r"shape \(3, 4, 5\) has 60 elements, the new shape \(7, 2\) 14"):
        x.reshape(7, 2)
    with pytest.raises(ShapeError, match="does not fit"):
        x.reshape(7, -1)
    with pytest.raises(ShapeError, match="does not name each of the 3 axes once"):
        x.transpose(0, 0, 1)
    with pytest.raises(ShapeError, match="has size 3, not 1"):
        x.squeeze(0)
    with pytest.raises(ShapeError, match=r"shapes \(3, 4, 5\) and \(4, 5\) may differ only in axis 0"):
        vnp.concatenate([x, x[0]])
    with pytest.raises(ShapeError, match="all shapes must be equal"):
        vnp.stack([x, x[0]])
    with pytest.raises(ShapeError, match="use array_split"):
        vnp.split(x, 2)
    with pytest.raises(ShapeError, match=r"shape \(3, 4, 5\) does not expand to \(4, 5\)"):
        vnp.broadcast_to(x, (4, 5))
    with pytest.raises(ValueError, match="at least one array"):
        vnp.stack([])


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", (None, 0, 1, -1), ids=str)
def test_sorting(axis):
    x = np.round(HOLES)
    same_as_numpy(lambda np, x: np.sort(x, axis), x)
    same_as_numpy(lambda np, x: np.argsort(x, axis, stable=True), x)
    same_as_numpy(lambda np, x: np.argsort(x, axis, stable=True), N)
    assert_same(vnp.sort(N, axis, descending=True), np.flip(np.sort(N, axis), axis or 0))
    descending = vnp.argsort(N, axis, descending=True)
    assert_same(descending, np.argsort(-N, axis, stable=True))


def test_searching_and_counting():
    bins = np.float32([-2, -1, 0, 0, 1, 2.5])
    for side in ("left", "right"):
        same_as_numpy(lambda np, a, v, side=side: np.searchsorted(a, v, side), bins, X)
        same_as_numpy(
            lambda np, a, v, side=side: np.searchsorted(a, v, side),
            np.float32([1, 2, np.nan, np.nan]), np.float32([0, 2, 3, np.nan, np.inf]),
        )  # fmt: skip
    same_as_numpy(lambda np, x, b: np.digitize(x, b), X, bins)
    same_as_numpy(lambda np, x: np.bincount(x), np.abs(N).ravel())
    same_as_numpy(lambda np, x: np.bincount(x, np.ones(60), 12), np.abs(N).ravel())
    same_as_numpy(lambda np, x: np.unique(x), N)
    same_as_numpy(lambda np, x: np.unique(x), np.round(HOLES))
    same_as_numpy(lambda np, x, y: np.lexsort((x, y)), N[0, 0], N[0, 1] // 4)


@pytest.mark.parametrize("axis", (None, 1, (0, 2)), ids=str)
def test_quantiles(axis):
    same_as_numpy(lambda np, x: np.median(x, axis), X, rtol=1e-5)
    same_as_numpy(lambda np, x: np.median(x, axis), HOLES, rtol=1e-5)
    for method in ("linear", "lower", "higher", "nearest", "midpoint"):
        # half-way between two elements 'nearest' is the lower one, as in JAX; NumPy takes the even position
        q = np.float32([0.1, 0.52 if method == "nearest" else 0.5, 0.77])
        same_as_numpy(lambda np, x: np.quantile(x, q, axis, method=method), X, rtol=1e-4, atol=1e-5)  # noqa: B023
    same_as_numpy(lambda np, x: np.percentile(x, 30, axis, keepdims=True), X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_a_median_of_nothing_is_refused_by_its_own_name(name):
    with pytest.raises(ShapeError, match=f"^{name}: no elements along axis 1 of shape \\(2, 0\\)"):
        getattr(vnp, name)(np.zeros((2, 0), np.float32), 1)


@pytest.mark.parametrize("name", ["percentile", "nanpercentile"])
def test_shares_are_not_rounded_before_they_meet_the_array(name):
    """A Python number in percent is as exact as the array; and a half float's positions are not half floats."""
    x = np.random.default_rng(3).normal(size=1001)
    for q in (37.0, 0.1, [37.0, 99.9]):
        got = getattr(vnp, name)(x, q)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, getattr(np, name)(x, q), rtol=1e-13)
        np.testing.assert_array_equal(getattr(vnp, name)(x, np.asarray(q)), got)
    ladder = np.arange(5000).astype(np.float16)
    assert getattr(vnp, name)(ladder, 99.9) == np.float16(np.percentile(ladder.astype(np.float64), 99.9))
    assert volta.jit(lambda x, q: getattr(vnp, name)(x, q))(ladder, 99.9) == getattr(vnp, name)(ladder, 99.9)
    assert getattr(vnp, name)(np.arange(5), 50.0).dtype == np.float32


@pytest.mark.parametrize("name", ["quantile", "nanquantile", "percentile", "nanpercentile"])
def test_what_is_no_share_is_refused(name):
    function, most = getattr(vnp, name), 100 if "percent" in name else 1
    for q in (most * 1.5, -0.1, [0.5, 2.0 * most], np.float32([np.nan])):
        for run in (lambda: function(X, q), lambda: volta.jit(lambda x: function(x, q))(X)):  # noqa: B023
            with pytest.raises(ValueError, match=f"{name}: q lies between 0 and {most}, got"):
                run()
    assert function(X, [0, vnp.asarray(most)]).tolist() == [X.min(), X.max()]
    assert function(X, vnp.asarray(2.0 * most)) == X.max(), "an array may be traced, so it is clamped"
    with pytest.raises(TypeError, match=f"{name}: arrays are immutable, so there is no out="):
        function(X, 0.5, out=np.zeros(()))


@pytest.mark.parametrize("shape, axis", [((2, 0), 0), ((0, 3), 1), ((3, 0, 2), 0), ((0, 2, 2), -1)])
def test_quantiles_of_no_rows_are_none(shape, axis):
    x = np.zeros(shape, np.float32)
    for q in (0.5, [0.2, 0.7], []):
        same_as_numpy(lambda np, x: np.quantile(x, q, axis), x)  # noqa: B023
        ignoring = vnp.nanquantile(x, q, axis, keepdims=True)  # of which NumPy forgets the shape of q
        assert ignoring.shape == np.quantile(x, q, axis, keepdims=True).shape
    same_as_numpy(lambda np, x: np.median(x, axis), x)
    weighted = vnp.quantile(x, [0.2, 0.7], axis, weights=x + 1, method="inverted_cdf")
    assert weighted.shape == np.quantile(x, [0.2, 0.7], axis).shape


def test_interpolation_and_covariance():
    xp, fp = np.float32([-2, -1, 0.5, 2]), np.float32([1, 3, -1, 0])
    same_as_numpy(lambda np, x: np.interp(x, xp, fp), X, rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.interp(x, xp, fp, left=-5, right=9), X, rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.cov(x), X[0], rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.cov(x, rowvar=False), X[0], rtol=1e-5, atol=1e-5)


def test_polynomials_integrals_membership_and_flat_positions():
    same_as_numpy(lambda np, x: np.polyval(np.array([2.0, -1.0, 0.5]), x), X, rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.trapezoid(x, dx=0.5, axis=1), X, rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.trapezoid(x, np.array([0.0, 1.0, 3.0, 4.5]), axis=1), X, rtol=1e-5, atol=1e-5)
    same_as_numpy(lambda np, x: np.isin(x, np.array([1, 5, -3])), N)
    same_as_numpy(lambda np, x: np.isin(x, np.array([1, 5, -3]), invert=True), N)
    same_as_numpy(lambda np, x: np.unravel_index(x, (4, 5, 6)), np.int32([[0, 119], [31, 7]]))
    same_as_numpy(lambda np, x, y: np.ravel_multi_index((x, y), (5, 6)), np.int32([0, 4, 2]), np.int32([5, 0, 3]))
