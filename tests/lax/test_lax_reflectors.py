"""Products of reflectors: LAPACK's, on both sides, batched with the same bits, with derivatives; and their errors."""

import numpy as np
import pytest
import scipy.linalg

import volta
from volta import lax
from volta.core.errors import DTypeError, ShapeError
from volta.testing.bits import assert_bits_equal

R = np.random.default_rng(5)


def factored(m, n, dtype="float64"):
    a = R.standard_normal((m, n)).astype(dtype)
    if a.dtype.kind == "c":
        a = a + 1j * R.standard_normal((m, n)).astype(dtype)
    (packed, taus), _ = scipy.linalg.qr(a, mode="raw")
    return np.ascontiguousarray(packed), taus, scipy.linalg.qr(a)[0]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 5)])
def test_all_sides(shape, dtype):
    packed, taus, q = factored(*shape, dtype)
    m = shape[0]
    c = R.standard_normal((m, 2)).astype(dtype)
    for transpose, own in ((False, q), (True, q.conj().T)):
        np.testing.assert_allclose(lax.linalg.ormqr(packed, taus, c, transpose=transpose), own @ c, atol=1e-13)
        right = lax.linalg.ormqr(packed, taus, c.T, left=False, transpose=transpose)
        np.testing.assert_allclose(right, c.T @ own, atol=1e-13)
    if shape[0] >= shape[1]:
        np.testing.assert_allclose(lax.linalg.householder_product(packed, taus), q[:, : shape[1]], atol=1e-13)


def test_batches_and_programs_have_the_same_bits():
    several = [factored(4, 3) for _ in range(3)]
    packed, taus = (np.stack([f[i] for f in several]) for i in range(2))
    at_once = lax.linalg.householder_product(packed, taus)
    assert_bits_equal(at_once, volta.vmap(lax.linalg.householder_product)(packed, taus))
    assert_bits_equal(at_once, volta.jit(lax.linalg.householder_product)(packed, taus))
    assert_bits_equal(at_once[1], lax.linalg.householder_product(packed[1], taus[1]))


def test_derivatives():
    packed, taus, _ = factored(4, 3)
    f = lambda taus: lax.linalg.householder_product(packed, taus).sum()  # noqa: E731
    got, h = volta.grad(f)(taus), 1e-6
    want = [(f(taus + h * e) - f(taus - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(got, want, rtol=1e-7)


def test_symmetric_product():
    a, c = R.standard_normal((2, 4, 3)), R.standard_normal((2, 4, 4))
    got = np.asarray(lax.linalg.symmetric_product(a, c, alpha=2.0, beta=0.5, symmetrize_output=True))
    full = 2 * a @ a.swapaxes(1, 2) + 0.5 * c
    np.testing.assert_allclose(np.tril(got), np.tril(full), atol=1e-13)
    assert (got == got.swapaxes(1, 2)).all()


def test_errors():
    with pytest.raises(ShapeError, match="at most as many factors as rows and columns"):
        lax.linalg.ormqr(np.ones((3, 2)), np.ones(3), np.ones((3, 1)))
    with pytest.raises(ShapeError, match="c has the rows of Q"):
        lax.linalg.ormqr(np.ones((3, 2)), np.ones(2), np.ones((4, 1)))
    with pytest.raises(ShapeError, match="batched alike"):
        lax.linalg.ormqr(np.ones((3, 2)), np.ones((1, 2)), np.ones((3, 1)))
    with pytest.raises(ShapeError, match="symmetric_product: c must have shape"):
        lax.linalg.symmetric_product(np.ones((3, 2)), np.ones((2, 2)))
    with pytest.raises(DTypeError, match="ormqr"):
        lax.linalg.ormqr(np.ones((3, 2), np.int32), np.ones(2), np.ones((3, 1)))
    with pytest.raises(ShapeError, match="householder_product: there are at most"):
        lax.linalg.householder_product(np.ones((3, 2)), np.ones(3))
