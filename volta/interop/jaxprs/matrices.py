"""Decompositions of matrices, under JAX's names."""

from __future__ import annotations

from typing import Any

from volta import lax
from volta.interop.jaxprs.equations import Equation, Rule


def _triangular_solve(e: Equation, a: Any, b: Any) -> Any:
    words = "left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"
    return lax.linalg.triangular_solve(a, b, **{word: e.params[word] for word in words})


def _qr(e: Equation, x: Any) -> Any:
    return lax.linalg.qr(x, pivoting=e.params.get("pivoting", False), full_matrices=e.params["full_matrices"])


def _eig(e: Equation, x: Any) -> Any:
    words = "compute_left_eigenvectors", "compute_right_eigenvectors"
    return lax.linalg.eig(x, **{word: e.params[word] for word in words})


def _eigh(e: Equation, x: Any) -> Any:
    return lax.linalg.eigh(
        x,
        lower=e.params["lower"],
        symmetrize_input=False,
        sort_eigenvalues=e.params.get("sort_eigenvalues", True),
        subset_by_index=e.params.get("subset_by_index"),
    )


def _svd(e: Equation, x: Any) -> Any:
    vectors = e.params["compute_uv"]
    found = lax.linalg.svd(
        x,
        full_matrices=e.params["full_matrices"],
        compute_uv=vectors,
        subset_by_index=e.params.get("subset_by_index"),
    )
    return (found[1], found[0], found[2]) if vectors else [found]


def _lu_pivots(e: Equation, pivots: Any) -> Any:
    return lax.linalg.lu_pivots_to_permutation(pivots, e.params["permutation_size"])


def _ormqr(e: Equation, a: Any, taus: Any, c: Any) -> Any:
    return lax.linalg.ormqr(a, taus, c, left=e.params["left"], transpose=e.params["transpose"])


def _symmetric_product(e: Equation, a: Any, c: Any) -> Any:
    return lax.linalg.symmetric_product(a, c, alpha=e.params["alpha"], beta=e.params["beta"])


RULES: dict[str, Rule] = {
    "cholesky": lambda e, x: lax.linalg.cholesky(x, symmetrize_input=False),
    "cholesky_update": lambda e, r, w: lax.linalg.cholesky_update(r, w),
    "eig": _eig,
    "eigh": _eigh,
    "householder_product": lambda e, a, taus: lax.linalg.householder_product(a, taus),
    "lu": lambda e, x: lax.linalg.lu(x),
    "lu_pivots_to_permutation": _lu_pivots,
    "ormqr": _ormqr,
    "qr": _qr,
    "svd": _svd,
    "symmetric_product": _symmetric_product,
    "triangular_solve": _triangular_solve,
}
