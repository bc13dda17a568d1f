"""Distributions of vectors and matrices, by decompositions."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ArgumentError, ShapeError
from volta.core.source import at_user_line
from volta.random.distributions import normal
from volta.random.keys import check_key, check_shape
from volta.random.samplers import _float_dtype, batch_shape, dtype_or

_METHODS = ("cholesky", "eigh", "svd")


def multivariate_normal(
    key: Any, mean: ArrayLike, cov: ArrayLike, shape: Any = None, dtype: Any = np.float32, method: str = "cholesky"
) -> Array:
    """Normal vectors of a mean and a covariance.

    Args:
        key: a key.
        mean: shape (…, n).
        cov: shape (…, n, n), symmetric and positive semidefinite; positive definite for ``'cholesky'``.
        shape: the result's without its last axis; defaults to what the batch axes of both broadcast to.
        dtype: float32 or float64.
        method: by which factor of ``cov`` standard normal values are multiplied: 'cholesky', 'eigh' or 'svd'.

    Raises:
        ShapeError: for shapes that do not fit.
        ArgumentError: for another method.

    >>> import volta.numpy as vnp
    >>> from volta import random
    >>> random.multivariate_normal(random.key(0), vnp.zeros(2), vnp.eye(2), (5,)).shape
    (5, 2)
    """
    dtype = _float_dtype("multivariate_normal", dtype)
    mean, cov = vnp.asarray(mean, dtype), vnp.asarray(cov, dtype)
    if method not in _METHODS:
        raise ArgumentError(at_user_line(f"random.multivariate_normal: method is one of {_METHODS}, not {method!r}"))
    if mean.ndim < 1 or cov.ndim < 2 or cov.shape[-2:] != (mean.shape[-1],) * 2:
        raise ShapeError(
            at_user_line(
                f"random.multivariate_normal: wanted a mean (…, n) and a covariance (…, n, n), got {mean.shape} and "
                f"{cov.shape}"
            )
        )
    shape = batch_shape("multivariate_normal", shape, mean.shape[:-1], cov.shape[:-2])
    if method == "cholesky":
        factor = vnp.linalg.cholesky(cov)
    else:
        if method == "eigh":
            values, vectors = vnp.linalg.eigh(cov)
        else:
            vectors, values, _ = vnp.linalg.svd(cov)
        factor = vectors * vnp.sqrt(values[..., None, :])
    drawn = normal(check_key("multivariate_normal", key), (*shape, mean.shape[-1]), dtype)
    return mean + vnp.einsum("...ij,...j->...i", factor, drawn)


def orthogonal(key: Any, n: int, shape: Any = (), dtype: Any = np.float32, m: int | None = None) -> Array:
    """Matrices (…, n, m) with orthonormal columns (rows, if there are fewer), uniformly distributed; ``m`` is ``n``.
    Of a complex dtype they are unitary.

    The factor Q of normal values, with the signs that make R's diagonal positive (Mezzadri, arXiv:math-ph/0609050).

    >>> import volta.numpy as vnp
    >>> from volta import random
    >>> q = random.orthogonal(random.key(0), 3)
    >>> bool(vnp.allclose(q @ q.T, vnp.eye(3), atol=1e-5))
    True
    """
    shape, dtype = check_shape("orthogonal", shape), dtype_or(np.float32, dtype)
    dtype = dtype if dtypes.is_complex(dtype) else _float_dtype("orthogonal", dtype)
    m = n if m is None else m
    drawn = normal(check_key("orthogonal", key), (*shape, max(n, m), min(n, m)), dtype)
    q, r = vnp.linalg.qr(drawn)
    signs = vnp.sign(vnp.diagonal(r, axis1=-2, axis2=-1))
    q = q * signs[..., None, :]
    return q if n >= m else vnp.swapaxes(q, -1, -2)
