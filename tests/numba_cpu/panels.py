"""Panels for tests: matrices that are awkward for elimination, and the functions that have kernels for panels."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta
import volta.numpy as vnp
from volta import lax


def triangle(**settings: bool) -> Any:
    return lambda a: [lax.linalg.triangular_solve(a, a[..., : max(1, a.shape[-1] // 2)], left_side=True, **settings)]


FUNCTIONS: dict[str, Any] = {
    "cholesky": lambda a: [lax.linalg.cholesky(a)],
    "cholesky of lower triangles": lambda a: [lax.linalg.cholesky(a, symmetrize_input=False)],
    "lower": triangle(lower=True),
    "upper, of ones": triangle(lower=False, unit_diagonal=True),
    "lu": lambda a: list(lax.linalg.lu(a)),
    "lu of tall ones": lambda a: list(lax.linalg.lu(a[..., : max(1, a.shape[-1] // 3)])),
    "qr": lambda a: list(vnp.linalg.qr(a)),
    "qr of tall ones": lambda a: list(vnp.linalg.qr(a[..., : max(1, a.shape[-1] // 3)], mode="complete")),
    "solve": lambda a: [vnp.linalg.solve(a, a[..., :1])],
}

ROTATED: dict[str, Any] = {
    "eigh": lambda a: list(vnp.linalg.eigh(a + vnp.swapaxes(a, -1, -2))),
    "svd": lambda a: list(vnp.linalg.svd(a)),
    "svd of tall ones": lambda a: list(vnp.linalg.svd(a[..., : max(1, a.shape[-1] // 2)], full_matrices=False)),
}


def real_schur(a: Any) -> Any:
    return list(volta.scipy.linalg.schur(a, "real"))


def matrices(n: int, dtype: str) -> Any:
    """Definite; of few small integers, so that pivots tie and vanish; with subnormal numbers; with NaN and infinity."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    few = rng.integers(-1, 2, (n, n)).astype(dtype)
    small = (a * float(np.finfo(dtype).tiny)).astype(dtype)
    broken = a.astype(dtype)
    broken.flat[:: n + 2] = np.nan
    broken.flat[n // 2 :: n + 1] = -np.inf
    return np.stack([(a @ a.T + np.eye(n)).astype(dtype), few, small, broken, np.zeros((n, n), dtype)])
