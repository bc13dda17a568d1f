"""NumPy's functions of complex arrays: values beside NumPy's, equations and factors beside JAX's derivatives."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn, optim
from volta.core.errors import DTypeError
from volta.testing.data import fill

pytestmark = pytest.mark.turns(6)

Z = fill("normal", (7,), "complex128")
A = fill("normal", (4, 4), "complex128", 1)
H = A @ A.conj().T + np.eye(4)

VALUES = {
    "real": lambda np: (np.real(Z), np.imag(Z), np.conj(Z), np.angle(Z), np.angle(Z, deg=True), np.real(Z.real)),
    "moments": lambda np: (np.mean(A, 0), np.var(A, 1), np.std(A), np.average(Z, weights=abs(Z)), np.nansum(Z)),
    "products": lambda np: (np.vdot(Z, Z[::-1]), np.dot(A, A), np.outer(Z, Z), np.kron(A, A), np.prod(A, 1)),
    "slides": lambda np: (np.convolve(Z, Z[:3]), np.correlate(Z, Z[:3], "full"), np.correlate(Z[:3], Z, "full")),
    "ranges": lambda np: (np.linspace(0, 1 + 2j, 5), np.geomspace(1 + 0j, 1j, 4), np.arange(3, dtype="complex128")),
    "order": lambda np: (np.sort(A, 1), np.argsort(Z), np.sort_complex(np.array([2.0, 1.0])), np.unique(A)),
    "nans": lambda np: (np.nan_to_num(Z / 0), np.isnan(Z / 0), np.isinf(Z / 0), np.isfinite(Z)),
    "near": lambda np: (np.isclose(Z, Z + 1e-9), np.allclose(Z, Z + 1), np.array_equal(Z, Z), np.iscomplex(Z)),
    "polynomials": lambda np: (np.polyval(Z, 1j), np.poly(Z), np.polymul(Z, Z[:2])),
    "rounding": lambda np: (np.round(Z, 1), np.rint(Z), np.square(Z), np.reciprocal(Z), np.sign(Z), np.positive(Z)),
    "powers": lambda np: (np.power(Z, 3), np.power(Z, 0.5), np.power(Z, Z), 2.0**Z),
    "norms": lambda np: tuple(np.linalg.norm(A, ord) for ord in (None, "fro", 1, -1, np.inf)) + (np.linalg.norm(Z, 3),),
    "matrices": lambda np: (np.linalg.matrix_power(A, -3), np.trace(A), np.diag(A), np.tril(A)),
}  # fmt: skip


class Theirs:
    """NumPy, with arrays of its own."""

    def __getattr__(self, name):
        return getattr(np, name)


@sampled("name", VALUES, quick=("real", "moments", "slides", "ranges", "order"))
@pytest.mark.turns(6)
def test_values_are_numpys(name):
    with np.errstate(all="ignore"):
        want = VALUES[name](Theirs())
        found = VALUES[name](vnp)
    for ours, theirs in zip(found, want, strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape and ours.dtype.kind == theirs.dtype.kind
        tolerance = 1e-5 if ours.dtype != theirs.dtype else 1e-12  # of the default dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_asking_whether_values_are_complex():
    assert vnp.iscomplexobj(vnp.asarray(1j)) and vnp.iscomplexobj(1j) and vnp.isrealobj(vnp.ones(2))
    assert vnp.isdtype(vnp.complex64, "complex floating") and vnp.isdtype("complex128", "numeric")
    assert vnp.finfo("complex128").dtype == np.float64 and vnp.finfo(vnp.complex64).eps == np.finfo(np.float32).eps


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "max", "argmax", "nanmedian", "cummax", "less", "mod"])
def test_what_has_no_meaning_is_refused(name):
    function = getattr(vnp, name, None) or (lambda z: lax.cummax(z, 0))
    with pytest.raises(DTypeError, match="has no meaning for complex numbers"):
        function(*[vnp.asarray(Z)] * (2 if name in ("less", "mod") else 1))


def test_indexed_updates():
    z = vnp.asarray(Z)
    np.testing.assert_array_equal(np.asarray(z.at[1].power(2))[2:], Z[2:])
    np.testing.assert_allclose(np.asarray(z.at[1].multiply(2j))[1], Z[1] * 2j)
    np.testing.assert_array_equal(np.asarray(vnp.ones(2).at[0].set(3)), [3, 1])
    with pytest.raises(DTypeError, match="do not fit an array of dtype float32"):
        vnp.ones(2).at[0].set(1j)


SOLVED = {
    "solve": (lambda np, a: np.linalg.solve(a, Z[:4]), A),
    "inv": (lambda np, a: np.linalg.inv(a), A),
    "det": (lambda np, a: np.linalg.det(a), A),
    "sign": (lambda np, a: np.linalg.slogdet(a)[0], A),
    "logdet": (lambda np, a: np.linalg.slogdet(a)[1], A),
    "cholesky": (lambda np, a: np.linalg.cholesky(a), H),
}


@sampled("name", SOLVED, quick=("cholesky",))
def test_equations_and_factors_are_jaxs_and_so_are_their_derivatives(name):
    jax = pytest.importorskip("jax")
    f, a = SOLVED[name]
    with jax.enable_x64(True):
        want, theirs = jax.vjp(lambda a: f(jax.numpy, a), a)
        got, ours = volta.vjp(lambda a: f(vnp, a), a)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12, atol=1e-13)
        ct = np.asarray(want) * (1 + 0.5j if np.iscomplexobj(want) else 1)
        np.testing.assert_allclose(np.asarray(ours(ct)[0]), theirs(ct)[0], rtol=1e-10, atol=1e-12)


@sampled("n", (1, 3, 33, 70, 300), quick=(3,))
def test_equations_of_any_size_are_solved_in_batches_with_the_same_bits(n):
    a, b = fill("normal", (2, n, n), "complex64", 3), fill("normal", (2, n, 2), "complex64", 4)
    h = a @ a.conj().swapaxes(1, 2) + n * np.eye(n, dtype="complex64")
    x, factor = np.asarray(vnp.linalg.solve(h, b)), np.asarray(vnp.linalg.cholesky(h))
    assert np.abs(h @ x - b).max() < 1e-5 and np.abs(factor @ factor.conj().swapaxes(1, 2) - h).max() < 1e-3 * n
    for i in range(2):
        assert np.array_equal(np.asarray(vnp.linalg.solve(h[i], b[i])), x[i])
        assert np.array_equal(np.asarray(vnp.linalg.cholesky(h[i])), factor[i])
    assert np.isnan(np.asarray(vnp.linalg.cholesky(-h))).any()


def test_triangular_equations_of_conjugates():
    found = lax.linalg.triangular_solve(A, Z[:4], left_side=True, lower=True, transpose_a=True, conjugate_a=True)
    np.testing.assert_allclose(np.tril(A).conj().T @ np.asarray(found), Z[:4], rtol=1e-12)


def test_running_squares_of_optimizers_are_real():
    """The size of Adam's first step is the rate, in the direction of the gradient."""
    update, _ = (adam := optim.adam(1e-2)).update(Z, adam.init(Z), Z)
    np.testing.assert_allclose(np.asarray(update), -1e-2 * Z / abs(Z), rtol=1e-5)


def test_parts_of_a_concatenation_may_be_counted():
    np.testing.assert_array_equal(volta.jit(lambda: vnp.concatenate([vnp.arange(3), vnp.arange(2)]))(), [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(
        volta.jit(lambda: lax.pad(lax.iota(np.int32, 2), np.int32(7), [(1, 1, 0)]))(), [7, 0, 1, 7]
    )


_ODD = np.array([1 + 2j, 1 - 1j, 0.5j, 3, complex(np.nan, 1), complex(1, np.nan), complex(np.nan, np.nan), 1 + 2j])


@pytest.mark.parametrize("side", ["left", "right"])
def test_complex_places_in_order(side):
    ordered = np.sort(_ODD)
    for dtype in (np.complex64, np.complex128):
        want = np.searchsorted(ordered.astype(dtype), _ODD.astype(dtype), side)
        assert vnp.searchsorted(ordered.astype(dtype), _ODD.astype(dtype), side).tolist() == want.tolist()
        got = volta.jit(lambda a, v: vnp.searchsorted(a, v, side))(ordered.astype(dtype), _ODD.astype(dtype))
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("shape", [(3, 5), (4, 2), (1, 1)])
def test_complex_medians(shape, axis):
    rng = np.random.default_rng(3)
    x = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    for keepdims in (False, True):
        got, want = (np.asarray(of.median(x, axis, keepdims=keepdims)) for of in (vnp, np))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-14)
    x[0, 0] = np.nan
    assert np.isnan(vnp.median(x))


def test_complex_logsumexp_and_softmax():
    special = pytest.importorskip("scipy.special")
    rng = np.random.default_rng(4)
    x = 300 * rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))
    b = rng.normal(size=(3, 4))
    for axis in (None, 0, 1):
        np.testing.assert_allclose(nn.logsumexp(x, axis), special.logsumexp(x, axis), 1e-12)
        np.testing.assert_allclose(nn.logsumexp(x, axis, b), special.logsumexp(x, axis, b), 1e-12)
        got, want = (f(x, axis, return_sign=True) for f in (nn.logsumexp, special.logsumexp))
        np.testing.assert_allclose(got[0], want[0], 1e-12)
        np.testing.assert_allclose(got[1], want[1], 1e-12)
    np.testing.assert_allclose(nn.softmax(x, 0), special.softmax(x, 0), 1e-12)
    np.testing.assert_allclose(vnp.exp(nn.log_softmax(x, 0)), special.softmax(x, 0), 1e-12)
    small = x / 300
    got = volta.grad(lambda x: nn.logsumexp(x), holomorphic=True)(small)
    np.testing.assert_allclose(got, special.softmax(small), 1e-12)
