"""What NumPy's and JAX's users reach for beyond the basics: each expression gives what NumPy gives."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numpy.vnp_compare import assert_same, floats, ints, rng, same_as_numpy
from volta.core.array import Array
from volta.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.numpy import methods

pytestmark = pytest.mark.turns(6)

V = floats(7)
M = floats(4, 5)
C = floats(3, 4, 5)
N = ints(7, low=0, high=5)
K = ints(4, 6, low=0, high=9)
HOLES = np.where(rng().uniform(size=(4, 5)) < 0.3, np.nan, M).astype(np.float32)
ONE_HOLE = np.float32([1, np.nan, 3, 2])
BITS = (rng().uniform(size=(3, 19)) < 0.5).astype(np.int32)

EXPRESSIONS = {
    # sets
    "unique": lambda np: np.unique(N, return_index=True, return_inverse=True, return_counts=True),
    "unique_2d": lambda np: np.unique(K, return_inverse=True),
    "unique_axis": lambda np: np.unique(BITS[:, :2], axis=0, return_index=True, return_counts=True),
    "unique_nan": lambda np: np.unique(HOLES),
    "unique_all": lambda np: tuple(np.unique_all(N)),
    "unique_counts": lambda np: tuple(np.unique_counts(N)),
    "unique_inverse": lambda np: tuple(np.unique_inverse(N)),
    "unique_values": lambda np: np.sort(np.unique_values(N)),
    "union1d": lambda np: np.union1d(N, K),
    "intersect1d": lambda np: np.intersect1d(N, K, return_indices=True),
    "setdiff1d": lambda np: np.setdiff1d(K, N),
    "setdiff1d_as_is": lambda np: np.setdiff1d(K.ravel(), N, assume_unique=True),
    "setxor1d": lambda np: np.setxor1d(N, K),
    "isin": lambda np: np.isin(K, N),
    "isin_many": lambda np: np.isin(K, ints(100), invert=True),
    # statistics
    "histogram": lambda np: np.histogram(V, bins=4),
    "histogram_range": lambda np: np.histogram(V, bins=5, range=(-1, 1), weights=V),
    "histogram_density": lambda np: np.histogram(V, bins=V[:1] * 0 + np.asarray([-3.0, 0.0, 3.0]), density=True),
    "histogram2d": lambda np: np.histogram2d(V, V[::-1], bins=3),
    "histogramdd": lambda np: np.histogramdd(M.T, bins=(2, 3, 2, 2))[0],
    "bin_edges": lambda np: np.histogram_bin_edges(V, 6),
    "bincount": lambda np: np.bincount(N, minlength=9),
    "digitize_down": lambda np: np.digitize(V, np.asarray([2.0, 0.0, -1.0])),
    "searchsorted_sorter": lambda np: np.searchsorted(V, np.asarray([0.5]), sorter=np.argsort(V)),
    "cov": lambda np: np.cov(M, M[::-1]),
    "cov_weights": lambda np: np.cov(M, fweights=N[:5], aweights=np.abs(V[:5]), bias=True),
    "corrcoef": lambda np: np.corrcoef(M),
    "corrcoef_two": lambda np: np.corrcoef(V, V[::-1]),
    "nanquantile": lambda np: np.nanquantile(HOLES, np.asarray([0.2, 0.7]), axis=1),
    "nanpercentile": lambda np: np.nanpercentile(HOLES, 30, axis=0, keepdims=True),
    "nanmedian": lambda np: np.nanmedian(HOLES),
    "median_axes": lambda np: np.median(C, axis=(0, 2)),
    "quantile_weights": lambda np: np.quantile(V, 0.4, weights=np.abs(V), method="inverted_cdf"),
    "average_returned": lambda np: np.average(M, 1, np.abs(V[:5]), True),
    "nansum_where": lambda np: np.nansum(HOLES, 0, where=M > 0, initial=2),
    "nanmax_where": lambda np: np.nanmax(HOLES, 0, where=M > 0, initial=-9),
    "nanmean_where": lambda np: np.nanmean(HOLES, where=M > 0),
    "cumulative_sum": lambda np: np.cumulative_sum(M, axis=1, include_initial=True),
    "cumulative_prod": lambda np: np.cumulative_prod(V),
    # curves
    "diff": lambda np: np.diff(M, 2, 0, prepend=1, append=M[:1]),
    "ediff1d": lambda np: np.ediff1d(M, to_begin=np.asarray([1.0, 2.0]), to_end=5.0),
    "gradient": lambda np: np.gradient(M),
    "gradient_axis": lambda np: np.gradient(C, 0.5, axis=1),
    "gradient_points": lambda np: np.gradient(V, np.asarray([0.0, 1, 2.5, 3, 4, 6, 7])),
    "unwrap": lambda np: np.unwrap(V * 4),
    "unwrap_period": lambda np: np.unwrap(C * 4, discont=4, axis=0, period=5),
    "interp_period": lambda np: np.interp(V, np.asarray([1.0, 0.2, 2.5]), np.asarray([3.0, 4.0, 5.0]), period=3),
    "interp_ends": lambda np: np.interp(V, np.asarray([-1.0, 0.0, 1.0]), np.asarray([3.0, 4.0, 5.0]), left=-7, right=9),
    "trapezoid": lambda np: np.trapezoid(M, V[:5], axis=1),
    # polynomials
    "polyval": lambda np: np.polyval(V[:3], M),
    "polyadd": lambda np: np.polyadd(V[:3], V),
    "polysub": lambda np: np.polysub(V[:3], V),
    "polymul": lambda np: np.polymul(V[:3], V),
    "polyder": lambda np: np.polyder(V, 2),
    "polyint": lambda np: np.polyint(V, 2, [3.0, 4.0]),
    "poly": lambda np: np.poly(V[:4]),
    "trim_zeros": lambda np: np.trim_zeros(np.asarray([0, 0, 3, 0, 1, 0])),
    # editing
    "insert": lambda np: np.insert(M, 2, 9.0, axis=1),
    "insert_row": lambda np: np.insert(M, 1, V[:5], axis=0),
    "insert_many": lambda np: np.insert(V, [5, 0, 5], [1.0, 2.0, 3.0]),
    "insert_slice": lambda np: np.insert(V, slice(0, 6, 2), 0),
    "insert_flat": lambda np: np.insert(M, -3, [4.0, 5.0]),
    "choose": lambda np: np.choose(N[:5] % 2, [M, M * 10]),
    "choose_wrap": lambda np: np.choose(N, [V, V + 10, V + 20], mode="wrap"),
    "block": lambda np: np.block([[M, M], [np.ones((2, 10))]]),
    "block_vectors": lambda np: np.block([V, V]),
    "resize": lambda np: np.resize(V, (3, 5)),
    "compress": lambda np: np.compress([True, False, True], M, axis=1),
    "extract": lambda np: np.extract(M > 0, M),
    "packbits": lambda np: np.packbits(BITS, axis=1),
    "packbits_little": lambda np: np.packbits(BITS, bitorder="little"),
    "unpackbits": lambda np: np.unpackbits(K.astype("uint8"), axis=0, count=-3),
    "pad_ramp": lambda np: np.pad(M, ((2, 1), (0, 3)), mode="linear_ramp", end_values=4),
    "pad_mean": lambda np: np.pad(M, 2, mode="mean"),
    "pad_maximum": lambda np: np.pad(M, ((1, 0), (2, 2)), mode="maximum", stat_length=2),
    "pad_median": lambda np: np.pad(M, 1, mode="median"),
    "partition_rank": lambda np: np.partition(V, 3)[3],
    "argwhere_scalar": lambda np: np.argwhere(np.asarray(1)),
    # grids
    "mgrid": lambda np: np.mgrid[0:3, 1:4],
    "mgrid_one": lambda np: np.mgrid[0:1:5j],
    "ogrid": lambda np: list(np.ogrid[0:3, 1:4]),
    "r_": lambda np: np.r_[1:4, 0, 4, np.asarray([7, 8])],
    "c_": lambda np: np.c_[V, V],
    "ix_": lambda np: M[tuple(np.asarray(i) for i in np.ix_([0, 2], [1, 3]))] + np.zeros(1),
    "diag_indices": lambda np: np.diag_indices(3, 3),
    "tril_indices_from": lambda np: np.tril_indices_from(M, 1),
    "triu_indices_from": lambda np: np.triu_indices_from(M, -1),
    "mask_indices": lambda np: np.mask_indices(3, np.triu, 1),
    "unravel": lambda np: np.unravel_index(N, (2, 3, 4)),
    "ravel_multi": lambda np: np.ravel_multi_index((N, N[::-1]), (5, 6)),
    "geomspace": lambda np: np.geomspace(1, 256, 9),
    "geomspace_down": lambda np: np.geomspace(-8, -1, 4, endpoint=False),
    "linspace_whole": lambda np: np.linspace(0, 25, 6),
    # numbers
    "gcd": lambda np: np.gcd(K, N[:6] * 4),
    "gcd_fibonacci": lambda np: np.gcd(np.asarray(1134903170), np.asarray(1836311903)),
    "lcm": lambda np: np.lcm(K, N[:6]),
    "frexp": lambda np: np.frexp(np.asarray(EDGES)),
    "spacing": lambda np: np.spacing(np.asarray(EDGES[:6])),
    "angle": lambda np: np.angle(V, deg=True),
    "windows": lambda np: [np.hanning(7), np.hamming(7), np.blackman(7), np.bartlett(7), np.kaiser(7, 4.0)],
    "i0": lambda np: np.i0(np.linspace(-20, 20, 41)),
    "rint": lambda np: np.rint(K),
    # products and pieces
    "matvec": lambda np: np.matvec(C, V[:5]),
    "vecmat": lambda np: np.vecmat(V[:4], C),
    "unstack": lambda np: np.unstack(C, axis=1),
    "dsplit": lambda np: np.dsplit(C, [2]),
    "einsum_numbers": lambda np: np.einsum(M, (0, 1), M, (2, 1), (0, 2)),
    "diagonal": lambda np: np.linalg.diagonal(C, offset=1),
    "trace": lambda np: np.linalg.trace(C),
    # functions of functions, and methods of functions
    "apply_along_axis": lambda np: np.apply_along_axis(lambda x: x[:2] * x[-1], 1, C),
    "apply_over_axes": lambda np: np.apply_over_axes(np.sum, C, [0, 2]),
    "vectorize": lambda np: np.vectorize(lambda x, y: x * y + 1)(M, V[:5]),
    "vectorize_core": lambda np: np.vectorize(lambda x, y: x @ y, signature="(m,n),(n)->(m)")(C, M[:1, :5]),
    "fromfunction": lambda np: np.fromfunction(lambda i, j: i * 10 + j, (3, 4)),
    "add_reduce": lambda np: np.add.reduce(C),
    "maximum_accumulate": lambda np: np.maximum.accumulate(M, axis=1),
    "subtract_outer": lambda np: np.subtract.outer(V, M),
}
EDGES = np.float32([1.0, -0.75, 3e38, 1e-40, -1.4e-45, 0.0, -0.0, np.inf, -np.inf])


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.few(10)
def test_as_in_numpy(name):
    with np.errstate(all="ignore"):
        want = EXPRESSIONS[name](np)
    assert_same(EXPRESSIONS[name](vnp), want, rtol=3e-5, atol=3e-6)


def test_ranges_of_whole_numbers_are_exact():
    for stop, num in ((25, 6), (70, 8), (9, 10), (-49, 8)):
        np.testing.assert_array_equal(vnp.linspace(0, stop, num), np.linspace(0, stop, num).astype(np.float32))
    assert vnp.linspace(0, 1000, 1001, dtype="float16")[-2] == 999


def test_polydiv():
    q, r = vnp.polydiv(V, V[:3])
    want_q, want_r = np.polydiv(V, V[:3])
    assert_same(q, want_q, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(r[-2:], want_r[-2:], rtol=1e-3, atol=1e-3)


def test_sizes_make_them_traceable():
    f = volta.jit(lambda x: vnp.unique(x, return_counts=True, size=6, fill_value=-1))
    values, counts = f(N)
    want, want_counts = np.unique(N, return_counts=True)
    n = len(want)
    np.testing.assert_array_equal(values, [*want, *[-1] * (6 - n)])
    np.testing.assert_array_equal(counts, [*want_counts, *[0] * (6 - n)])
    for name in ("intersect1d", "setdiff1d", "setxor1d", "union1d"):
        want = getattr(np, name)(K, N)
        got = volta.jit(lambda a, b, name=name: getattr(vnp, name)(a, b, size=12, fill_value=-5))(K, N)
        np.testing.assert_array_equal(got, [*want, *[-5] * (12 - len(want))])
    got = volta.jit(lambda m, x: vnp.compress(m, x, size=4, fill_value=9))(N > 1, V)
    np.testing.assert_array_equal(got, [*V[N > 1], *[9] * 4][:4])
    got = volta.jit(lambda r: vnp.repeat(vnp.arange(3), r, total_repeat_length=5))(np.int32([2, 0, 2]))
    np.testing.assert_array_equal(got, [0, 0, 2, 2, 2])
    got = volta.jit(lambda x: vnp.histogram(x, bins=4)[0])(V)
    np.testing.assert_array_equal(got, np.histogram(V, bins=4)[0])


def test_not_in_place():
    np.testing.assert_array_equal(vnp.put(N, [0, 9], [7, 8], mode="wrap", inplace=False)[:3], [7, N[1], 8])
    want = M.copy()
    np.place(want, M > 0, [1.0, 2.0, 3.0])
    assert_same(vnp.place(M, M > 0, [1.0, 2.0, 3.0], inplace=False), want)
    want = M.copy()
    np.fill_diagonal(want, [5.0, 6.0])
    assert_same(vnp.fill_diagonal(M, [5.0, 6.0], inplace=False), want)
    assert_same(vnp.add.at(vnp.zeros(3), vnp.array([0, 0, 2]), 1.0, inplace=False), np.float32([2, 0, 1]))
    for f in (lambda: vnp.put(V, 0, 1), lambda: vnp.place(V, V > 0, 1), lambda: vnp.fill_diagonal(M, 1)):
        with pytest.raises(ValueError, match="immutable; pass inplace=False"):
            f()


def test_errors():
    with pytest.raises(ConcretizationTypeError, match="size=n"):
        volta.jit(vnp.unique)(N)
    with pytest.raises(ConcretizationTypeError, match="positions"):
        volta.jit(lambda i: vnp.delete(V, i))(vnp.array([1]))
    for kind in (np.int8, np.uint8):  # all pairs, the least integer among them
        a, b = np.meshgrid(*[np.arange(np.iinfo(kind).min, np.iinfo(kind).max + 1).astype(kind)] * 2)
        for name in ("gcd", "lcm"):
            np.testing.assert_array_equal(getattr(vnp, name)(a, b), getattr(np, name)(a, b))
    least = np.iinfo(np.int64).min
    assert vnp.gcd(np.int64(least + 1), np.int64(least)) == 1 and vnp.gcd(np.int64(least), np.int64(12)) == 4
    with pytest.raises(DTypeError, match="gcd: needs integers"):
        vnp.gcd(V, 2)
    with pytest.raises(DTypeError, match="float32 only"):
        vnp.i0(V.astype("float64"))
    with pytest.raises(ShapeError, match="core axis 'n' has the sizes 5 and 7"):
        vnp.vectorize(lambda x, y: x @ y, signature="(m,n),(n)->(m)")(M, V)
    with pytest.raises(ValueError, match="not a signature"):
        vnp.vectorize(lambda x: x, signature="(m")
    with pytest.raises(ValueError, match="out of the bounds"):
        vnp.choose(vnp.array([3]), [1, 2])
    with pytest.raises(ValueError, match="do not broadcast"):  # shape errors are ValueErrors too
        vnp.ones(3) + vnp.ones(4)
    with pytest.raises(ShapeError, match="digitize: the bins must be a vector"):
        vnp.digitize(V, M)


def test_vectorized_functions_differentiate():
    f = vnp.vectorize(lambda x, v: vnp.sum(x * v), signature="(n),(n)->()")
    g = volta.grad(lambda v: vnp.sum(f(M, v)))(vnp.array(V[:5]))
    np.testing.assert_allclose(g, M.sum(0), rtol=1e-5)
    assert vnp.vectorize(lambda x, k: x * k, excluded={1})(vnp.ones(3), 2).shape == (3,)


def test_text_files_and_buffers(tmp_path):
    vnp.save(tmp_path / "x.npy", vnp.array(V))
    assert_same(vnp.load(tmp_path / "x.npy"), V)
    half = vnp.ones(3, vnp.bfloat16)
    np.save(tmp_path / "h.npy", np.asarray(half))
    assert vnp.load(tmp_path / "h.npy").dtype == vnp.bfloat16
    assert_same(vnp.frombuffer(V.tobytes(), "float32"), V)
    assert_same(vnp.from_dlpack(V), V)
    with vnp.printoptions(precision=2, suppress=True):
        assert repr(vnp.array([1 / 3])) == "Array([0.33], dtype=float32)"
    same_as_numpy(lambda np, x: np.positive(x), V)


NUMPYS = {
    "sum": lambda x: np.sum(x, axis=1),
    "sum_dtype": lambda x: np.sum(x, dtype="float64", keepdims=True),
    "prod": np.prod,
    "mean": lambda x: np.mean(x, axis=(0, 1)),
    "std": lambda x: np.std(x, axis=0, ddof=1),
    "var": np.var,
    "max": lambda x: np.max(x, axis=0, initial=0.5),
    "min": np.min,
    "all": lambda x: np.all(x > 0),
    "any": lambda x: np.any(x > 0, axis=1),
    "argmax": lambda x: np.argmax(x, axis=1),
    "argmin": np.argmin,
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "cumprod": np.cumprod,
    "round": lambda x: np.round(x, 1),
    "clip": lambda x: np.clip(x, 0, 1),
    "compress": lambda x: np.compress([True, False, True], x, axis=0),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_own_functions_stay_in_volta(name):
    """NumPy hands its reductions to a method of the operand, with ``out=None``: eager and traced alike."""
    function = NUMPYS[name]
    got = function(vnp.asarray(M))
    assert isinstance(got, volta.Array)
    assert_same(got, volta.jit(function)(M))
    np.testing.assert_allclose(got, function(M), rtol=1e-5)


CALLS = {
    "reshape": lambda x: x.reshape(5, -1),
    "transpose": lambda x: x.transpose(1, 0),
    "view": lambda x: x.view(np.int32),
    "astype": lambda x: x.astype(np.float16),
    "copy": lambda x: x.copy(),
    "conj": lambda x: x.conj(),
    "conjugate": lambda x: x.conjugate(),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "squeeze": lambda x: x[:1].squeeze(0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "to_device": lambda x: x if isinstance(x, np.ndarray) else x.to_device("cpu"),
    "repeat": lambda x: x.repeat(2, 1),
    "nonzero": lambda x: (x + 9).nonzero()[0] if isinstance(x, np.ndarray) else (x + 9).nonzero(size=20)[0],
    "diagonal": lambda x: x.diagonal(1),
    "dot": lambda x: x.dot(M.T),
    "sort": lambda x: x.sort() or x if isinstance(x, np.ndarray) else x.sort(),
    "argsort": lambda x: x.argsort(1),
    "searchsorted": lambda x: (x[0] * 0 + 1).cumsum().searchsorted(np.float32([1.5, 3])),
    "round": lambda x: x.round(1),
    "take": lambda x: x.take(np.int32([0, 2]), axis=1),
    "compress": lambda x: x.compress([True, False, True], axis=0),
    "trace": lambda x: x.trace(),
    "clip": lambda x: x.clip(0, 1),
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(keepdims=True),
    "var": lambda x: x.var(0, ddof=1),
    "std": lambda x: x.std(1),
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(),
    "ptp": lambda x: x.max(1) - x.min(1) if isinstance(x, np.ndarray) else x.ptp(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(),
    "all": lambda x: (x > 0).all(1),
    "any": lambda x: (x > 0).any(),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
}


@pytest.mark.parametrize("name", [*methods.METHODS, *methods.METHODS_WITH_OUT])
def test_methods(name):
    """Every method, eager, compiled and batched: NumPy's result, and one result."""
    if name in ("item", "tolist"):
        pytest.skip("gives Python numbers")
    call = CALLS[name]
    x = vnp.asarray(M)
    got = call(x)
    np.testing.assert_allclose(got, call(M.copy()), rtol=1e-5)
    np.testing.assert_array_equal(volta.jit(call)(x), got)
    np.testing.assert_array_equal(volta.vmap(call)(x[None])[0], got)


def test_no_class_of_arrays_hides_a_method():
    """What arrays can do is installed on their base class; an attribute of the same name below would take its place."""

    def below(cls):
        return [cls, *(c for sub in cls.__subclasses__() for c in below(sub))]

    for cls in below(Array):
        for name in {*methods.METHODS, *methods.METHODS_WITH_OUT} - {"item", "tolist"}:  # those need a value
            assert getattr(cls, name) is getattr(Array, name), f"{cls.__name__}.{name}"


def test_a_mask_is_not_dropped():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for use in (
        lambda: vnp.asarray(masked),
        lambda: vnp.asarray(masked, "float32"),
        lambda: vnp.ones(2) + masked,
        lambda: vnp.sum(masked),
        lambda: volta.jit(vnp.sum)(masked),
        lambda: volta.jit(lambda x: x + masked)(vnp.ones(2)),
        lambda: volta.grad(vnp.sum)(masked),
    ):
        with pytest.raises(DTypeError, match=r"x.filled\(0\)"):
            use()
    assert vnp.asarray(masked.filled(0)).tolist() == [1.0, 0.0]


def test_arrays_of_ranges():
    assert_same(vnp.asarray(range(3)), np.arange(3, dtype=np.int32))
    assert_same(vnp.array([range(2), range(1, 3)], "float32"), np.float32([[0, 1], [1, 2]]))
    assert_same(vnp.array([range(2), [0.5, 3]]), np.float32([[0, 1], [0.5, 3]]))


def test_there_is_no_out():
    with pytest.raises(TypeError, match=r"sum: arrays are immutable, so there is no out="):
        np.sum(vnp.asarray(M), out=np.zeros(()))


def test_types_without_elements_are_enough_for_what_reads_types() -> None:
    kind = volta.ShapeDtypeStruct((2, 3), "float16")
    for like, value in ((vnp.zeros_like, 0), (vnp.ones_like, 1), (vnp.empty_like, 0)):
        out = like(kind)
        assert out.shape == (2, 3) and out.dtype == np.float16 and float(out[1, 2]) == value
    assert (vnp.shape(kind), vnp.ndim(kind), vnp.size(kind)) == ((2, 3), 2, 6)
    with pytest.raises(volta.errors.DTypeError, match="operands must be arrays or numbers, not ShapeDtypeStruct"):
        vnp.sin(kind)
