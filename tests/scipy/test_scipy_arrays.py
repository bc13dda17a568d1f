"""Functions of arrays under SciPy's and JAX's names: images, convolutions, interpolation, clusters."""

import doctest
import importlib

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.interpolate
import scipy.ndimage
import scipy.signal

import volta
import volta.numpy as vnp
from volta import dlpack, dtypes, image
from volta.core.errors import ConcretizationTypeError, ShapeError
from volta.scipy import cluster, interpolate, ndimage, signal
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

R = np.random.default_rng(7)
METHODS = ["nearest", "linear", "cubic", "lanczos3", "lanczos5", "cubic-pytorch", "area"]


@pytest.mark.few(2)
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(3, 9, 2), (11, 4, 2)])
@pytest.mark.parametrize("method", METHODS)
def test_resize_as_jax(method, shape, antialias):
    jax = pytest.importorskip("jax")
    x = np.float32(R.normal(size=(6, 7, 2)))
    f = lambda x: image.resize(x, shape, method, antialias)  # noqa: E731
    np.testing.assert_allclose(f(x), jax.image.resize(x, shape, method, antialias), rtol=2e-5, atol=2e-6)
    assert_bits_equal(volta.jit(f)(x), f(x))
    slope = volta.grad(lambda x: vnp.sum(f(x) ** 2))(x)
    np.testing.assert_allclose(slope, jax.grad(lambda x: (jax.image.resize(x, shape, method, antialias) ** 2).sum())(x),
                               rtol=2e-4, atol=2e-5)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS[1:])
def test_scale_and_translate_as_jax(method):
    jax = pytest.importorskip("jax")
    x, scale, shift = np.float32(R.normal(size=(5, 6))), np.float32([1.5, 0.6]), np.float32([0.3, -1.0])
    for axes, s, t in (((0, 1), scale, shift), ((1,), scale[1:], shift[1:])):
        shape = (8, 4) if len(axes) == 2 else (5, 4)
        got = image.scale_and_translate(x, shape, axes, s, t, method)
        np.testing.assert_allclose(
            got, jax.image.scale_and_translate(x, shape, axes, s, t, method), rtol=2e-5, atol=2e-6
        )


def test_images_of_integers_and_what_is_refused():
    x = np.arange(6, dtype="uint8").reshape(2, 3)
    assert image.resize(x, (4, 3), "nearest").dtype == "uint8" and image.resize(x, (4, 3), "linear").dtype == "float32"
    assert image.resize(x, (2, 3), "cubic").tolist() == x.tolist() and image.resize(x, (2, 0), "linear").shape == (2, 0)
    for call, error, words in (
        (lambda: image.resize(x, (4,), "linear"), ShapeError, "as many axes as the image"),
        (lambda: image.resize(x, (4, 3), "best"), ValueError, "there is no method 'best'"),
        (
            lambda: image.scale_and_translate(x, (4, 4), (0,), np.ones(1), np.ones(1), "linear"),
            ShapeError,
            "keep their",
        ),
        (
            lambda: image.scale_and_translate(x, (4, 3), (0,), np.ones(2), np.ones(1), "linear"),
            ShapeError,
            "do not fit",
        ),
        (
            lambda: image.scale_and_translate(x, (4, 3), (0,), np.ones(1), np.ones(1), "nearest"),
            ValueError,
            "resize only",
        ),
    ):
        with pytest.raises(error, match=words):
            call()


SCIPY_MODES = {"constant": "grid-constant", "wrap": "grid-wrap"}


@pytest.mark.few(4)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest", "wrap", "mirror", "reflect"])
def test_map_coordinates(mode, order):
    x = np.float32(R.normal(size=(5, 6)))
    places = [R.uniform(-8, 12, (3, 7)), R.uniform(-8, 12, (3, 7))]
    f = lambda x: ndimage.map_coordinates(x, places, order, mode, cval=2.5)  # noqa: E731
    want = scipy.ndimage.map_coordinates(x, places, order=order, mode=SCIPY_MODES.get(mode, mode), cval=2.5)
    np.testing.assert_allclose(f(x), want, rtol=1e-5, atol=1e-5)
    assert_bits_equal(volta.jit(f)(x), f(x))
    whole = ndimage.map_coordinates(np.arange(10), [np.float32([0.4, 1.5, 20.0])], order, mode)
    assert whole.dtype == "int64"


def test_map_coordinates_refuses():
    for call, error, words in (
        (lambda: ndimage.map_coordinates(vnp.ones(3), [], 1), ShapeError, "one an axis is needed"),
        (lambda: ndimage.map_coordinates(vnp.ones(3), [vnp.ones(2)], 3), NotImplementedError, "order must be 0 or 1"),
        (lambda: ndimage.map_coordinates(vnp.ones(3), [vnp.ones(2)], 1, "far"), NotImplementedError, "no mode 'far'"),
    ):
        with pytest.raises(error, match=words):
            call()


SHAPES = [((9,), (4,)), ((4,), (9,)), ((6, 7), (3, 2)), ((3, 4, 5), (2, 3, 1)), ((5, 2), (2, 2))]


@pytest.mark.few(6)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolutions(name, shapes, mode):
    x, y = (np.float32(R.normal(size=s)) for s in shapes)
    got, want = getattr(signal, name)(x, y, mode), getattr(scipy.signal, name)(x, y, mode)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    if x.ndim == 2:
        np.testing.assert_allclose(getattr(signal, name + "2d")(x, y, mode),
                                   getattr(scipy.signal, name + "2d")(x, y, mode), rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("how", [{"type": "constant"}, {}, {"axis": 0}, {"bp": [3]}])
def test_detrend(how):
    x = np.float32(R.normal(size=(4, 8)).cumsum(1))
    how = {**how, "bp": [2]} if how.get("axis") == 0 else how
    np.testing.assert_allclose(signal.detrend(x, **how), scipy.signal.detrend(x, **how), rtol=1e-3, atol=2e-5)


def test_signals_that_are_refused():
    a, b = vnp.ones((2, 5)), vnp.ones((3, 4))
    for call, error, words in (
        (lambda: signal.convolve(a, b, "valid"), ShapeError, "not shorter along any axis"),
        (lambda: signal.convolve(a, vnp.ones(2)), ShapeError, "as many axes"),
        (lambda: signal.convolve(a, b, "most"), ValueError, "the mode must be"),
        (lambda: signal.convolve(a, b, method="sum"), ValueError, "the method must be 'auto'"),
        (lambda: signal.convolve(a, vnp.ones((0, 2))), ShapeError, "have no elements"),
        (lambda: signal.convolve2d(a, b, boundary="wrap"), NotImplementedError, "pad the image first"),
        (lambda: signal.correlate2d(a, vnp.ones(2)), ShapeError, "two matrices"),
        (lambda: signal.detrend(a, type="curved"), ValueError, "'linear' or 'constant'"),
        (lambda: signal.detrend(a, bp=9), ValueError, "between 0 and 5"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("fill", [np.nan, 1.5, None])
def test_interpolation_on_grids(method, fill):
    grid = (np.float32([0, 1, 2.5, 4]), np.float32([-1, 0, 3]))
    values, points = np.float32(R.normal(size=(4, 3, 2))), np.float32(R.uniform(-1.5, 4.5, (5, 6, 2)))
    got = interpolate.RegularGridInterpolator(grid, values, method, fill_value=fill)(points)
    want = scipy.interpolate.RegularGridInterpolator(grid, values, method, bounds_error=False, fill_value=fill)(points)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_interpolators_that_are_refused():
    grid, values = (np.float32([0, 1, 2]),), np.float32([1, 2, 3])
    f = interpolate.RegularGridInterpolator(grid, values, bounds_error=True)
    assert f((vnp.asarray([0.5]),)).tolist() == [1.5]
    for call, error, words in (
        (lambda: f(vnp.asarray([[7.0]])), ValueError, "a point is outside"),
        (lambda: f(vnp.ones((2, 2))), ShapeError, "points"),
        (lambda: volta.jit(f)(vnp.ones((2, 1))), ConcretizationTypeError, "leave it off"),
        (lambda: interpolate.RegularGridInterpolator(grid, values[:2]), ShapeError, "axis 0 has points"),
        (lambda: interpolate.RegularGridInterpolator(grid * 2, values), ShapeError, "2 axes for values"),
        (lambda: interpolate.RegularGridInterpolator((values[::-1],), values), ValueError, "must ascend"),
        (lambda: interpolate.RegularGridInterpolator(grid, values, "cubic"), ValueError, "'linear' or 'nearest'"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_nearest_vectors():
    obs, book = np.float32(R.normal(size=(20, 3))), np.float32(R.normal(size=(4, 3)))
    for o, b in ((obs, book), (obs[:, 0], book[:, 0])):
        got, want = cluster.vq.vq(o, b), scipy.cluster.vq.vq(o, b)
        assert np.array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    with pytest.raises(ShapeError, match="not of one length"):
        cluster.vq.vq(obs, book[:, :2])


def test_dtypes_under_their_names():
    assert dtypes.scalar_type_of(vnp.ones(1, "bfloat16")) is float and dtypes.scalar_type_of(True) is bool
    assert dtypes.canonicalize_dtype("float64") == "float64" and dtypes.itemsize_bits("int16") == 16
    assert dtypes.issubdtype("bfloat16", np.floating) and dlpack.is_supported_dtype(np.int8)


MODULES = """image dtypes dlpack scipy.ndimage scipy.signal scipy.interpolate scipy.integrate scipy.cluster.vq
    scipy.optimize scipy.sparse.linalg experimental.ode"""


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MODULES.split())
def test_examples(name):
    module = importlib.import_module(f"volta.{name}")
    done = doctest.testmod(module, extraglobs={"volta": volta, "vnp": vnp, "np": np})
    assert done.attempted and not done.failed
