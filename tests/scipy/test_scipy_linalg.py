"""Linear algebra beside SciPy's."""

from __future__ import annotations

import numpy as np
import pytest

import volta
from volta.core.errors import ShapeError

pytestmark = pytest.mark.turns(6)

scipy_linalg = pytest.importorskip("scipy.linalg")

RNG = np.random.default_rng(1)
A = RNG.standard_normal((4, 4))
S = A @ A.T + np.eye(4)
B = RNG.standard_normal((4, 2))
COMPLEX = A + 1j * RNG.standard_normal((4, 4))
GENERAL = {"real": A, "complex": COMPLEX}
DEFINITE = {"real": S, "complex": COMPLEX @ COMPLEX.conj().T + np.eye(4)}


def close(x: object, y: object) -> None:
    np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("of", DEFINITE)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_factors_and_what_they_solve(lower: bool, of: str) -> None:
    ours, a = volta.scipy.linalg, DEFINITE[of]
    close(ours.cholesky(a, lower=lower), scipy_linalg.cholesky(a, lower=lower))
    close(ours.cho_solve(ours.cho_factor(a, lower), B), scipy_linalg.solve(a, B))
    close(ours.solve(a, B[:, 0], lower=lower, assume_a="pos"), scipy_linalg.solve(a, B[:, 0]))


@pytest.mark.parametrize("of", GENERAL)
@pytest.mark.parametrize("trans", [0, "T", "C"])
def test_equations(trans: object, of: str) -> None:
    ours, a = volta.scipy.linalg, GENERAL[of]
    number = {0: 0, "T": 1, "C": 2}[trans]
    close(ours.lu_solve(ours.lu_factor(a), B, trans), scipy_linalg.lu_solve(scipy_linalg.lu_factor(a), B, number))
    want = scipy_linalg.solve_triangular(a, B[:, 0], trans, lower=True, unit_diagonal=True)
    close(ours.solve_triangular(a, B[:, 0], trans, True, True), want)
    with pytest.raises(ValueError, match="trans is 0, 1, 2"):
        ours.lu_solve(ours.lu_factor(A), B, 3)
    with pytest.raises(ShapeError, match="solve_triangular: a of shape .* does not fit"):
        ours.solve_triangular(A, B[:3])
    with pytest.raises(ValueError, match="assume_a is 'gen'"):
        ours.solve(A, B, assume_a="banded")


def test_lu_of_any_shape() -> None:
    for x in (A, A[:3], A[:, :3]):
        for got, want in zip(volta.scipy.linalg.lu(x), scipy_linalg.lu(x), strict=True):
            close(got, want)
    close(volta.scipy.linalg.lu(A, permute_l=True)[0], scipy_linalg.lu(A, permute_l=True)[0])
    close(volta.scipy.linalg.det(A), scipy_linalg.det(A))
    close(volta.scipy.linalg.inv(A), scipy_linalg.inv(A))


def test_qr_and_spectra() -> None:
    ours = volta.scipy.linalg
    close(ours.expm(COMPLEX), scipy_linalg.expm(COMPLEX))
    for mode in ("full", "economic", "r"):
        for got, want in zip(ours.qr(B, mode=mode), scipy_linalg.qr(B, mode=mode), strict=True):
            close(got, want)
    close(ours.svd(B, compute_uv=False), scipy_linalg.svdvals(B))
    for a in GENERAL.values():  # of a complex one the other triangle and the imaginary diagonal count as they must
        for lower in (False, True):
            close(ours.eigh(a, lower=lower, eigvals_only=True), scipy_linalg.eigh(a, lower=lower, eigvals_only=True))
    w, v = ours.eigh(S)
    close(S @ np.asarray(v), np.asarray(v) * np.asarray(w))
    with pytest.raises(ValueError, match="mode is 'full'"):
        ours.qr(A, mode="raw")
    with pytest.raises(ValueError, match="b, eigvals and type are not there"):
        ours.eigh(A, S)


def test_matrices_from_parts() -> None:
    ours = volta.scipy.linalg
    parts = (np.ones((2, 1)), np.float64([3, 4]), np.float64(5))
    close(ours.block_diag(*parts), scipy_linalg.block_diag(*parts))
    close(ours.toeplitz(B[:, 0], A[0]), scipy_linalg.toeplitz(B[:, 0], A[0]))
    close(ours.toeplitz(B[:, 0]), scipy_linalg.toeplitz(B[:, 0]))
    assert ours.toeplitz(np.complex64([1, 2 + 1j])).tolist() == [[1, 2 - 1j], [2 + 1j, 1]]  # Hermitian
    assert ours.toeplitz(np.int32([1, 2])).dtype == "int32"
    with pytest.raises(ShapeError, match="block_diag: takes arrays of at most two axes"):
        ours.block_diag(np.ones((1, 1, 1)))
