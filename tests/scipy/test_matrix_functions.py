"""Exponentials of matrices beside SciPy's and JAX's."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.core.errors import ShapeError
from volta.testing import assert_bits_equal

scipy_linalg = pytest.importorskip("scipy.linalg")
jax = pytest.importorskip("jax")

RNG = np.random.default_rng(2)
A = RNG.standard_normal((3, 5, 5)) * np.float64([1e-3, 1.0, 30.0])[:, None, None]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.turns(2)
def test_exponentials_of_small_and_large_matrices(dtype: str) -> None:
    a = A.astype(dtype)
    found = np.asarray(volta.scipy.linalg.expm(a))
    for x, y in zip(a, found, strict=True):
        want = scipy_linalg.expm(x.astype("f8"))
        assert np.abs(y - want).max() <= 2000 * np.finfo(dtype).eps * np.abs(want).max()
        assert_bits_equal(volta.scipy.linalg.expm(x), y)
    upper = volta.scipy.linalg.expm(a[1], upper_triangular=True)
    np.testing.assert_allclose(upper, scipy_linalg.expm(np.triu(a[1])), rtol=1e-4, atol=1e-5)


@sampled("order", [1, 2], [1])
@pytest.mark.turns(6)
def test_derivatives_are_those_of_jax(order: int) -> None:
    def f(m, n):
        return lambda a: n.sin(m.scipy.linalg.expm(a)).sum()

    def g(m, n):
        return m.grad(f(m, n)) if order == 1 else m.grad(lambda a: (m.grad(f(m, n))(a) ** 2).sum())

    with jax.enable_x64(True):
        want = np.asarray(g(jax, jax.numpy)(A[1]))
    np.testing.assert_allclose(volta.jit(g(volta, vnp))(A[1]), want, rtol=1e-7, atol=1e-9 * np.abs(want).max())


def test_what_has_no_exponential() -> None:
    assert np.isnan(np.asarray(volta.scipy.linalg.expm(A[2], max_squarings=0))).all()
    assert volta.scipy.linalg.expm(np.zeros((2, 0, 0), "f4")).shape == (2, 0, 0)
    with pytest.raises(ShapeError, match="expm: needs square matrices"):
        volta.scipy.linalg.expm(np.ones(3, "f4"))
    with pytest.raises(ShapeError, match="max_squarings must not be negative"):
        volta.scipy.linalg.expm(A[0], max_squarings=-1)


def test_one_form_and_several_bases_are_broadcast():
    t = np.float64([[0, -1], [1, 0]])
    z = np.stack([np.eye(2), t])
    for first, second in ((t, z), (np.stack([t, t]), z[0])):
        found, basis = volta.scipy.linalg.rsf2csf(first, second)
        assert found.shape == basis.shape == (2, 2, 2)
        whole = np.asarray(basis) @ np.asarray(found) @ np.asarray(basis).conj().transpose(0, 2, 1)
        np.testing.assert_allclose(whole, second @ first @ np.swapaxes(second, -1, -2), atol=1e-12)
