"""Tridiagonal equations: small residuals also where pivots vanish, the same bits in batches, derivatives, errors."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal

SOLVE = lax.linalg.tridiagonal_solve
RNG = np.random.default_rng(0)


def drawn(n, k=2, dtype="f8", batch=()):
    parts = [RNG.standard_normal((*batch, n)).astype(dtype) for _ in range(3)]
    return (*parts, RNG.standard_normal((*batch, n, k)).astype(dtype))


def whole(dl, d, du):
    n = len(d)
    return np.diag(d) + np.diag(dl[1:], -1) + np.diag(du[: n - 1], 1)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_residuals_are_small_multiples_of_lapacks(n, dtype):
    for zeroed in (False, True):
        dl, d, du, b = drawn(n, dtype=dtype)
        if zeroed and n % 2 == 0:
            d = d * 0  # only exchanges of rows help
        a = whole(dl, d, du).astype("f8")
        x = np.asarray(SOLVE(dl, d, du, b)).astype("f8")
        theirs = np.linalg.solve(a.astype(dtype), b).astype("f8")
        scale = np.abs(a) @ np.abs(x) + np.abs(b)
        assert np.max(np.abs(a @ x - b) / scale) <= 8 * np.finfo(dtype).eps
        assert np.max(np.abs(a @ x - b)) <= 20 * np.max(np.abs(a @ theirs - b)) + 8 * np.finfo(dtype).eps * scale.max()


def test_batches_and_transforms_have_the_same_bits():
    given = drawn(7, batch=(3,), dtype="f4")
    out = SOLVE(*given)
    for f in (volta.jit(SOLVE), volta.vmap(SOLVE)):
        assert_bits_equal(f(*given), out)
    assert_bits_equal(SOLVE(*(x[1] for x in given)), out[1])


def test_derivatives_are_those_of_the_whole_matrix():
    dl, d, du, b = drawn(6)
    banded = lambda d, b: vnp.sum(SOLVE(dl, d, du, b) ** 2)  # noqa: E731
    whole_matrix = whole(dl, np.zeros(6), du)
    dense = lambda d, b: vnp.sum(vnp.linalg.solve(vnp.diag(d) + whole_matrix, b) ** 2)  # noqa: E731
    d, b = vnp.asarray(d), vnp.asarray(b)
    for i in (0, 1):
        np.testing.assert_allclose(volta.grad(banded, i)(d, b), volta.grad(dense, i)(d, b), rtol=1e-8, atol=1e-10)


def test_what_does_not_fit():
    dl, d, du, b = drawn(4)
    for given in ((dl, d, du, b[:3]), (dl, d, du[:3], b), (dl, d, du, b[:, 0]), (dl[:0], d[:0], du[:0], b[:0])):
        with pytest.raises(ShapeError, match="tridiagonal_solve: takes three diagonals"):
            SOLVE(*given)
    with pytest.raises(DTypeError, match="tridiagonal_solve"):
        SOLVE(*(x.astype(int) for x in (dl, d, du, b)))
    assert not np.any(np.isfinite(np.asarray(SOLVE(dl * 0, d * 0, du * 0, b + 5))))
