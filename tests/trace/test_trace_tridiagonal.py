"""Larger symmetric matrices, by the tridiagonal form: hard matrices, batches, both backends, derivatives."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.testing import assert_bits_equal
from volta.testing.host_grid import HostKernels, check_on_host
from volta.trace import spectra
from volta.trace.tridiagonal import tridiagonal_eigh
from volta.xla_like.panels import ROWS

RNG = np.random.default_rng(0)
EIGH = volta.jit(vnp.linalg.eigh)
SVD = volta.jit(vnp.linalg.svd, static_argnums=1)
DIVIDED = volta.jit(lambda d, e: tridiagonal_eigh(d, e, spectra._rotated_eigh))
KERNELS = HostKernels()

pytestmark = pytest.mark.turns(3)


def normal(shape: tuple[int, ...], dtype: str) -> Any:
    x = RNG.standard_normal(shape)
    return (x + 1j * RNG.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)


def wide(x: Any) -> Any:
    return x.astype(np.result_type(x.dtype, "f8"))


def errors(a: Any, w: Any, v: Any) -> tuple[float, float]:
    """Of A V = V W and of Vᴴ V = 1, in units of rounding."""
    a, v = wide(a), wide(v)
    eps, size = float(np.finfo(w.dtype).eps), float(np.abs(a).sum(-1).max()) or 1.0
    return np.abs(a @ v - v * w).max() / eps / size, np.abs(v.conj().T @ v - np.eye(len(a))).max() / eps


def tridiagonals(n: int) -> dict[str, tuple[Any, Any]]:
    """Those on which divisions in two have failed: equal eigenvalues, nothing beside the diagonal, glued parts."""
    steps = 10.0 ** -np.linspace(0, 14, n)
    glued = np.where(np.arange(n - 1) % 16 == 15, 1e-6, 1.0)
    return {
        "random": (RNG.standard_normal(n), RNG.standard_normal(n - 1)),
        "of differences": (np.full(n, 2.0), np.full(n - 1, -1.0)),
        "Wilkinson's": (np.abs(np.arange(n) - n // 2) * 1.0, np.ones(n - 1)),
        "glued": (np.tile(np.abs(np.arange(16) - 8.0), n // 16 + 1)[:n], glued),
        "graded down": (steps, steps[1:] / 2),
        "graded up": (steps[::-1], steps[:-1][::-1] / 2),
        "no diagonal": (np.zeros(n), np.ones(n - 1)),
        "almost none beside": (np.round(RNG.standard_normal(n)), np.full(n - 1, 1e-12)),
        "one": (np.ones(n), np.zeros(n - 1)),
        "nothing": (np.zeros(n), np.zeros(n - 1)),
        "a single element": (np.zeros(n), (np.arange(n - 1) == n // 3) * 1.0),
    }


@sampled("dtype,n", [(t, n) for t in ("f4", "f8") for n in (17, 50, 64, 100, 130)], [("f4", 50), ("f8", 50)])
def test_hard_tridiagonal_matrices_have_orthogonal_eigenvectors(dtype: str, n: int) -> None:
    for name, (d, e) in tridiagonals(n).items():
        size = (np.abs(d) + np.r_[np.abs(e), 0] + np.r_[0, np.abs(e)]).max() or 1.0
        size = 2.0 ** np.floor(np.log2(size))
        d, e = (d / size).astype(dtype), (e / size).astype(dtype)
        w, v = (np.asarray(x)[0] for x in DIVIDED(d[None], e[None]))
        residual, angle = errors(np.diag(d) + np.diag(e, 1) + np.diag(e, -1), w, v)
        assert residual <= 8 and angle <= 20, (name, residual, angle)
        assert (np.diff(w) >= 0).all(), name


def matrices(n: int, dtype: str) -> dict[str, Any]:
    q = np.linalg.qr(normal((n, n), dtype))[0]
    place = np.arange(n)
    spectra = {
        "plain": np.linspace(-1, 2, n),
        "graded": 10.0 ** -np.linspace(0, 14, n),
        "clustered": np.where(place < n // 2, 1.0, 1.0 + 1e-7),
        "two values": np.where(place < n // 2, 1.0, -1.0),
        "of rank one": (place == 0) * 3.0,
        "large": np.linspace(1, 2, n) * 1e30,
        "small": np.linspace(1, 2, n) * 1e-30,
    }
    found = {name: ((q * s) @ q.conj().T).astype(dtype) for name, s in spectra.items()}
    found |= {"nothing": np.zeros((n, n), dtype), "one": np.eye(n, dtype=dtype), "ones": np.ones((n, n), dtype)}
    return {name: ((a + a.conj().T) / 2).astype(dtype) for name, a in found.items()}


@sampled("dtype,n", [(t, n) for t in ("f4", "f8", "c8", "c16") for n in (ROWS + 1, 80, 200)], [("f4", ROWS + 1)])
def test_residuals_of_larger_matrices_are_small(dtype: str, n: int) -> None:
    bound = 12 + 3 * n**0.5
    for name, a in matrices(n, dtype).items():
        w, v = map(np.asarray, EIGH(a))
        residual, angle = errors(a, w, v)
        assert residual <= bound and angle <= max(bound, n / 2), (name, residual, angle)  # ones: chains of equal terms
        assert (np.diff(w) >= 0).all() and w.dtype == np.empty(0, dtype).real.dtype


@sampled(
    "dtype,m,n,full",
    [(t, m, n, f) for t in ("f4", "c8") for m, n in ((60, ROWS + 1), (80, 80), (60, 100)) for f in (False, True)],
    [("f4", 60, ROWS + 1, True)],
)
def test_singular_values_in_single_precision_are_rounded_ones(dtype: str, m: int, n: int, full: bool) -> None:
    """Those of double precision, so that errors are of rounding alone, small values included."""
    k = min(m, n)
    left, right = (np.linalg.qr(normal((x, x), dtype))[0][:, :k] for x in (m, n))
    place = np.arange(k)
    for s in (np.linspace(1, 2, k), 10.0 ** -np.linspace(0, 12, k), (place < k // 2) * 3.0, np.zeros(k), np.ones(k)):
        a = ((left * s) @ right.conj().T).astype(dtype)
        u, found, vh = map(np.asarray, SVD(a, full))
        assert [x.shape for x in (u, vh)] == [x.shape for x in np.linalg.svd(a, full)[::2]]
        exact = np.linalg.svd(wide(a), compute_uv=False)
        eps, size = float(np.finfo(dtype).eps), float(exact[0]) or 1.0
        assert np.abs(found - exact).max() <= eps * size
        assert np.abs((wide(u)[:, :k] * found) @ wide(vh)[:k] - wide(a)).max() <= 2 * eps * size
        for q in (u, vh.conj().T):
            assert np.abs(wide(q).conj().T @ wide(q) - np.eye(q.shape[1])).max() <= 2 * eps
        assert (np.diff(found) <= 0).all() and found.dtype == np.float32
    relative = 10.0 ** -np.linspace(0, 4, k)
    a = ((left * relative) @ right.conj().T).astype(dtype)
    exact = np.linalg.svd(wide(a), compute_uv=False)
    assert np.abs(np.asarray(SVD(a, full)[1]) / exact - 1).max() <= 4 * np.finfo(dtype).eps


def test_eigenvalues_beside_exact_ones() -> None:
    """Those of the matrix of second differences, in 40 digits."""
    n = 96
    a = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    with mpmath.workdps(40):
        exact = [4 * mpmath.sin(mpmath.pi * k / (2 * (n + 1))) ** 2 for k in range(1, n + 1)]
        found = np.asarray(EIGH(a)[0])
        assert max(abs(mpmath.mpf(float(x)) - y) for x, y in zip(found, exact, strict=True)) < 4e-15


def mixed(dtype: str) -> Any:
    a = normal((4, ROWS + 2, ROWS + 2), dtype)
    a = a + a.conj().swapaxes(1, 2)
    a[1] = np.eye(ROWS + 2)
    a[2] *= 1e-3 ** np.arange(ROWS + 2)[:, None] * 1e-3 ** np.arange(ROWS + 2)
    a[3, 0, 0] = np.nan
    return a


@sampled("name,dtype", [(f, t) for f in ("eigh", "svd") for t in ("f4", "c8")], [("eigh", "f4")])
def test_a_batch_has_the_bits_of_single_matrices(name: str, dtype: str) -> None:
    """Roots that are found stay, while others of the batch are looked for; NaN stays in its matrix."""
    a = mixed(dtype)
    f = {"eigh": vnp.linalg.eigh, "svd": vnp.linalg.svd}[name]
    whole = volta.jit(f)(a)
    for i in range(4):
        for x, y in zip(volta.jit(f)(a[i]), whole, strict=True):
            assert_bits_equal(x, y[i])
            assert np.isnan(np.asarray(x)).all() == (i == 3)


@sampled("name,dtype", [(f, t) for f in ("eigh", "svd") for t in ("f4", "c8")], [("eigh", "f4")])
def test_cuda_kernels_have_the_bits_of_the_cpu(name: str, dtype: str) -> None:
    f = {"eigh": vnp.linalg.eigh, "svd": vnp.linalg.svd}[name]
    check_on_host(lambda a: list(f(a)), mixed(dtype)[:2], orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_derivatives_are_those_of_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    a = normal((ROWS + 2, ROWS + 2), dtype)
    a = a + a.conj().T
    ct = RNG.standard_normal(ROWS + 2)

    def value(xnp: Any) -> Any:
        def f(a: Any) -> Any:
            w, v = xnp.linalg.eigh(a)
            return (w * ct).sum() + (abs(v) ** 2 * ct).sum()

        return f

    with jax.enable_x64(True):
        wanted = np.asarray(jax.jit(jax.grad(value(jax.numpy)))(a))
    found = np.asarray(volta.jit(volta.grad(value(vnp)))(a))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8 * np.abs(wanted).max())


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(17, 90), st.sampled_from(["f4", "f8"]), st.integers(0, 20))
def test_any_tridiagonal_matrix(seed: int, n: int, dtype: str, digits: int) -> None:
    """Elements of all sizes, many of them equal or 0."""
    random = np.random.default_rng(seed)
    few = random.choice([0.0, 1.0, 0.5, random.standard_normal()], 2 * n - 1)
    x = few * 10.0 ** -random.integers(0, digits + 1, 2 * n - 1)
    d, e = (x[:n] * 0.6).astype(dtype), (x[n:] * 0.3).astype(dtype)
    if (size := np.abs(x).max()) and np.finfo(dtype).tiny < size * 1e-3:
        scale = 2.0 ** -np.floor(np.log2(np.abs(d).max(initial=0) + 2 * np.abs(e).max(initial=0) or 1.0))
        d, e = (d * scale / 2).astype(dtype), (e * scale / 2).astype(dtype)
    w, v = (np.asarray(y)[0] for y in DIVIDED(d[None], e[None]))
    residual, angle = errors(np.diag(d) + np.diag(e, 1) + np.diag(e, -1) + np.zeros((n, n)), w, v)
    eps = np.finfo(dtype).eps
    assert np.abs((np.diag(d) + np.diag(e, 1) + np.diag(e, -1)).astype("f8") @ v - v * w).max() <= 16 * eps
    assert angle <= 30 and (np.diff(w) >= 0).all(), (residual, angle)
