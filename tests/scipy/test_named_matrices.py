"""Matrices with a name, and functions of matrices that follow from decompositions, beside SciPy's."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.errors import ShapeError

pytestmark = pytest.mark.turns(6)

scipy_linalg = pytest.importorskip("scipy.linalg")
OURS = volta.scipy.linalg

RNG = np.random.default_rng(2)
A = RNG.standard_normal((4, 4))
COMPLEX = A + 1j * RNG.standard_normal((4, 4))
VECTORS = {n: RNG.integers(1, 9, size=n).astype(np.int32) for n in range(1, 8)}


def close(x: object, y: object, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=atol)


def same(name: str, *args: object, **kwargs: object) -> None:
    got, want = (getattr(of, name)(*args, **kwargs) for of in (OURS, scipy_linalg))
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


@pytest.mark.parametrize("n", VECTORS)
def test_matrices_of_a_vector(n: int) -> None:
    v = VECTORS[n]
    for name in ("circulant", "hankel", "toeplitz", "fiedler"):
        same(name, v)
        assert getattr(OURS, name)(v).dtype == v.dtype
    same("hankel", v, VECTORS[3])
    same("toeplitz", v, VECTORS[3])
    assert OURS.fiedler_companion(v).shape == (n - 1, n - 1)
    if n > 1:
        same("fiedler_companion", v.astype(float))
        same("companion", v)
        same("leslie", v, v[1:])
    for mode in ("full", "same", "valid"):
        for m in (1, 3, 6):
            same("convolution_matrix", v, m, mode)
            x = np.arange(1, m + 1)
            got = np.asarray(OURS.convolution_matrix(v, m, mode)) @ x
            assert got.tolist() == np.convolve(v, x, mode).tolist()


def test_batches_of_vectors() -> None:
    many = np.stack([VECTORS[5], VECTORS[5][::-1]]).astype(float)
    for name in ("circulant", "hankel", "toeplitz", "fiedler", "companion", "fiedler_companion"):
        f = getattr(OURS, name)
        assert vnp.array_equal(f(many), vnp.stack([f(v) for v in many])), name
        assert vnp.array_equal(volta.jit(volta.vmap(f))(many), f(many)), name
    assert vnp.array_equal(OURS.leslie(many, VECTORS[4])[1], OURS.leslie(many[1], VECTORS[4]))
    assert OURS.convolution_matrix(many, 3).shape == (2, 7, 3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_matrices_of_a_size(n: int) -> None:
    for name in ("hilbert", "invhilbert", "pascal", "invpascal"):
        same(name, n)
        assert getattr(OURS, name)(n).dtype == "float32"
    for kind in ("lower", "upper"):
        same("pascal", n, kind)
        same("invpascal", n, kind)
    if n & (n - 1) == 0:
        same("hadamard", n)
    for full in (False, True):
        same("helmert", n, full)
    for scale in (None, "sqrtn", "n"):
        close(OURS.dft(n, scale, dtype="complex128"), scipy_linalg.dft(n, scale))
    assert OURS.dft(n).dtype == "complex64" and OURS.hadamard(4).dtype == "int32"
    assert OURS.hadamard(2, "float64").dtype == "float64"


def test_empty_and_large_sizes() -> None:
    for name in ("hilbert", "invhilbert", "pascal", "invpascal", "dft"):
        assert getattr(OURS, name)(0).shape == (0, 0)
    assert np.isposinf(OURS.invhilbert(60)).any() and not np.isnan(OURS.invhilbert(60)).any()


def test_what_makes_no_matrix() -> None:
    for call in (
        lambda: OURS.companion(np.float32([1])),
        lambda: OURS.leslie(np.float32([1, 2]), np.float32([1, 2])),
        lambda: OURS.convolution_matrix(np.float32([1]), 0),
        lambda: OURS.hadamard(6),
        lambda: OURS.hilbert(-1),
        lambda: OURS.eigh_tridiagonal(np.ones(3), np.ones(3)),
        lambda: OURS.solve_sylvester(A, A, A[:3]),
    ):
        with pytest.raises(ShapeError):
            call()
    for call, match in (
        (lambda: OURS.pascal(2, "left"), "kind is"),
        (lambda: OURS.dft(2, "half"), "scale is"),
        (lambda: OURS.convolution_matrix(np.ones(2), 2, "wrap"), "mode is"),
        (lambda: OURS.polar(A, "middle"), "side is"),
        (lambda: OURS.polar(A, method="newton"), "method is"),
        (lambda: OURS.qr_multiply(A, A, "middle"), "mode is"),
        (lambda: OURS.eigh_tridiagonal(np.ones(3), np.ones(2), select="v"), "select is"),
        (lambda: OURS.solve_sylvester(A, A, A, method="newton"), "method is"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize("of", [A, COMPLEX, A[:3], A[:, :3]], ids=["real", "complex", "wide", "tall"])
def test_polar(of: np.ndarray) -> None:
    for side in ("right", "left"):
        for got, want in zip(OURS.polar(of, side), scipy_linalg.polar(of, side), strict=True):
            close(got, want)


@pytest.mark.parametrize("of", [A[:, :3], COMPLEX[:, :3], A[:3]], ids=["tall", "complex", "wide"])
def test_products_with_q(of: np.ndarray) -> None:
    q, r = (np.asarray(x) for x in OURS.qr(of, mode="economic"))
    (m, k), c = q.shape, RNG.standard_normal((2, 4))
    for taken, way in ((q, False), (q.conj(), True)):
        close(OURS.qr_multiply(of, c[:, :m], conjugate=way)[0], c[:, :m] @ taken)
        close(OURS.qr_multiply(of, c[0, :m], conjugate=way)[0], c[0, :m] @ taken)
        close(OURS.qr_multiply(of, c[:, :k].T, "left", conjugate=way)[0], taken @ c[:, :k].T)
        close(OURS.qr_multiply(of, c[0, :k], "left", conjugate=way)[0], taken @ c[0, :k])
    close(OURS.qr_multiply(of, c[:, :m])[1], r)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_tridiagonal_matrices_of_complex_numbers_are_hermitian(dtype):
    rng = np.random.default_rng(4)
    d, e = rng.normal(size=(2, 5)).astype(dtype), (rng.normal(size=(2, 4)) + 1j * rng.normal(size=(2, 4))).astype(dtype)
    whole = np.stack([np.diag(x) + np.diag(y, 1) + np.diag(y.conj(), -1) for x, y in zip(d, e, strict=True)])
    w, v = OURS.eigh_tridiagonal(d, e)
    tolerance = 40 * np.finfo(dtype).eps
    np.testing.assert_allclose(w, np.linalg.eigvalsh(whole), atol=tolerance)
    np.testing.assert_allclose(whole @ np.asarray(v), np.asarray(v) * np.asarray(w)[:, None], atol=tolerance)


def test_tridiagonal_eigenvalues() -> None:
    d, e = RNG.standard_normal(5), RNG.standard_normal(4)
    w, v = OURS.eigh_tridiagonal(d, e)
    close(w, scipy_linalg.eigh_tridiagonal(d, e, eigvals_only=True))
    whole = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    close(whole @ np.asarray(v), np.asarray(v) * np.asarray(w), 1e-10)
    part = OURS.eigh_tridiagonal(d, e, eigvals_only=True, select="i", select_range=(1, 2))
    assert vnp.array_equal(part, w[1:3])
    assert OURS.eigh_tridiagonal(np.stack([d, d]), e, eigvals_only=True).shape == (2, 5)
    assert OURS.eigh_tridiagonal(np.ones(1), np.ones(0))[0].tolist() == [1]


@pytest.mark.parametrize("of", [A, COMPLEX], ids=["real", "complex"])
def test_functions_from_schurs_form(of: np.ndarray) -> None:
    close(OURS.funm(of, vnp.exp), scipy_linalg.expm(of), 1e-9)
    estimate = OURS.funm(of, vnp.exp, disp=False)[1]
    assert np.isnan(estimate)
    value, derivative = OURS.expm_frechet(of, A)
    want = scipy_linalg.expm_frechet(of, A.astype(of.dtype))
    close(value, want[0], 1e-10), close(derivative, want[1], 1e-9)
    assert vnp.array_equal(OURS.expm_frechet(of, A, compute_expm=False), derivative)
    t, z = scipy_linalg.schur(of)
    t, z = (np.asarray(x) for x in OURS.rsf2csf(t, z))
    assert not np.tril(t, -1).any()
    close(z @ t @ z.conj().T, of, 1e-10), close(z @ z.conj().T, np.eye(4))


@pytest.mark.parametrize("of", [A, COMPLEX], ids=["real", "complex"])
def test_sylvesters_equation(of: np.ndarray) -> None:
    b, c = RNG.standard_normal((3, 3)), RNG.standard_normal((4, 3))
    x = OURS.solve_sylvester(of, b, c)
    assert x.dtype == of.dtype
    close(x, scipy_linalg.solve_sylvester(of, b.astype(of.dtype), c.astype(of.dtype)), 1e-9)
    for f in (volta.jit(OURS.solve_sylvester), lambda *xs: OURS.solve_sylvester(*(x[None] for x in xs))[0]):
        assert vnp.array_equal(f(of, b, c), x)
    assert np.isnan(OURS.solve_sylvester(of, -of, A)).all()  # each eigenvalue has its opposite
    assert OURS.solve_sylvester(of, np.zeros((0, 0)), np.zeros((4, 0))).shape == (4, 0)
