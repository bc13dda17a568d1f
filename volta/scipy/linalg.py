"""Linear algebra under the names of ``scipy.linalg``, as ``jax.scipy.linalg`` has it: matrices are the last two axes.

What SciPy has for memory and checks (``overwrite_a``, ``check_finite``, …) is taken and means nothing.

>>> from volta.scipy.linalg import cho_factor, cho_solve
>>> cho_solve(cho_factor(np.float32([[4, 0], [0, 2]])), np.float32([4, 4])).tolist()
[1.0, 2.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax import linalg as decompositions
from volta.numpy import complexes, creation, linear_systems, shaping
from volta.numpy import decompositions as spectral
from volta.numpy.linear_systems import square
from volta.numpy.promotion import aval_of, broadcast_array, broadcast_shapes_of, promote_dtypes, promote_floats
from volta.numpy.shaping import matrix_transpose
from volta.ops import lax
from volta.scipy.matrix_functions import expm, sqrtm
from volta.trace import schur as schur_forms
from volta.trace.decomposition import adjoint, conjugated, eye, matmul, tril, triu
from volta.trace.factors import lu_substitute, rows_in_order

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "det", "eigh", "expm", "hessenberg", "inv", "lu", "lu_factor",
    "lu_solve", "qr", "schur", "solve", "solve_triangular", "sqrtm", "svd", "toeplitz",
]  # fmt: skip


def cholesky(a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The factor U with ``a = Uᴴ U``, or L with ``a = L Lᴴ`` where ``lower``; NaN where there is none.

    >>> volta.scipy.linalg.cholesky(np.float32([[4, 2], [2, 5]])).tolist()
    [[2.0, 1.0], [0.0, 2.0]]
    """
    return linear_systems.cholesky(a, upper=not lower)


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """The factor of :func:`cholesky`, and ``lower``, for :func:`cho_solve`."""
    return cholesky(a, lower), lower


def cho_solve(
    c_and_lower: tuple[ArrayLike, bool], b: ArrayLike, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """The x of ``a x = b`` from what :func:`cho_factor` gives for ``a``; ``b`` is (n,) or (…, n, m)."""
    factor, lower = c_and_lower
    first = solve_triangular(factor, b, trans=0 if lower else 2, lower=lower)
    return solve_triangular(factor, first, trans=2 if lower else 0, lower=lower)


def _operands(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Of one dtype and equal axes in front; a right side of one axis becomes a column."""
    a, b = promote_floats(name, a, b)
    a, vector = square(name, a), aval_of(name, b).ndim == 1
    b = lax.expand_dims(b, (-1,)) if vector else b
    if aval_of(name, b).ndim < 2 or aval_of(name, b).shape[-2] != aval_of(name, a).shape[-1]:
        shapes = f"a of shape {aval_of(name, a).shape} does not fit b of shape {aval_of(name, b).shape}"
        raise ShapeError(at_user_line(f"{name}: {shapes}"))
    front = broadcast_shapes_of(name, [aval_of(name, x).shape[:-2] for x in (a, b)])
    a, b = (broadcast_array(x, (*front, *aval_of(name, x).shape[-2:])) for x in (a, b))
    return a, b, vector


def _result(x: Any, vector: bool) -> Array:
    return lax.squeeze(x, (aval_of("", x).ndim - 1,)) if vector else x


_TRANSPOSED = {0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2}


def _operator(name: str, a: Any, trans: Any) -> tuple[Any, bool]:
    """The matrix as ``trans`` wants it but for being transposed, and whether it is to be."""
    if trans not in _TRANSPOSED:
        raise ValueError(at_user_line(f"{name}: trans is 0, 1, 2, 'N', 'T' or 'C', not {trans!r}"))
    kind = _TRANSPOSED[trans]
    return conjugated(a) if kind == 2 else a, kind > 0


def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """The x of ``a x = b`` with triangular ``a``, of ``aᵀ x = b`` where ``trans`` is 1 or 'T', of ``aᴴ x = b`` where it
    is 2 or 'C'.

    >>> volta.scipy.linalg.solve_triangular(np.float32([[2, 0], [1, 4]]), np.float32([2, 9]), lower=True).tolist()
    [1.0, 2.0]
    """
    a, b, vector = _operands("solve_triangular", a, b)
    a, turned = _operator("solve_triangular", a, trans)
    out = decompositions.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=turned, unit_diagonal=unit_diagonal
    )
    return _result(out, vector)


def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """The x of ``a x = b``; ``assume_a='pos'`` says that ``a`` is positive definite, of which one triangle is read.

    >>> volta.scipy.linalg.solve(np.float32([[4, 0], [0, 2]]), np.float32([4, 4]), assume_a="pos").tolist()
    [1.0, 2.0]
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ValueError(at_user_line(f"solve: assume_a is 'gen', 'sym', 'her' or 'pos', not {assume_a!r}"))
    a, b, vector = _operands("solve", a, b)
    if assume_a == "pos":
        factor = decompositions.cholesky(a if lower else adjoint(a), symmetrize_input=False)
        return _result(cho_solve((factor, True), b), vector)
    return _result(linear_systems.solve(a, b), vector)


def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """L and U in one matrix, and the row that changed places with row i in step i, for :func:`lu_solve`."""
    packed, pivots, _ = decompositions.lu(promote_floats("lu_factor", a)[0])
    return packed, pivots


def lu_solve(
    lu_and_piv: tuple[Array, ArrayLike],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """The x of ``a x = b`` (of ``aᵀ x = b`` for ``trans`` of 1, of ``aᴴ x = b`` for 2) from :func:`lu_factor`'s.

    >>> factors = volta.scipy.linalg.lu_factor(np.float32([[0, 2], [4, 0]]))
    >>> volta.scipy.linalg.lu_solve(factors, np.float32([4, 4])).tolist()
    [1.0, 2.0]
    """
    packed, pivots = lu_and_piv
    packed, b, vector = _operands("lu_solve", packed, b)
    front, n = aval_of("", packed).shape[:-2], aval_of("", packed).shape[-1]
    order = decompositions.lu_pivots_to_permutation(broadcast_array(pivots, (*front, n)), n)
    packed, turned = _operator("lu_solve", packed, trans)
    return _result(lu_substitute(packed, order, b, turned), vector)


def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, Array] | tuple[Array, Array, Array]:
    """P, L and U with ``a = P L U``, or P L and U where ``permute_l``.

    >>> p, l, u = volta.scipy.linalg.lu(np.float32([[0, 2], [4, 0]]))
    >>> p.tolist(), u.tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[4.0, 0.0], [0.0, 2.0]])
    """
    packed, _, order = decompositions.lu(promote_floats("lu", a)[0])
    aval = aval_of("lu", packed)
    *front, m, n = aval.shape
    k, last = min(m, n), aval.ndim - 1
    ones = tril(eye((*front, m, k), aval.dtype))
    left = lax.add(tril(lax.slice_in_dim(packed, 0, k, axis=last), -1), ones)
    right = triu(lax.slice_in_dim(packed, 0, k, axis=last - 1))
    turned = rows_in_order(eye((*front, m, m), aval.dtype), order)
    permutation = matrix_transpose(turned)
    return (matmul(permutation, left), right) if permute_l else (permutation, left, right)


def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """:func:`volta.numpy.linalg.det`."""
    return linear_systems.det(a)


def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """:func:`volta.numpy.linalg.inv`."""
    return linear_systems.inv(a)


def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    """Q and R with ``a = Q R``; ``mode`` 'full' (all columns of Q), 'economic' or 'r' (R alone, in a tuple).

    >>> volta.scipy.linalg.qr(np.float32([[3, 0], [4, 5]]))[1].tolist()
    [[-5.0, -4.0], [0.0, 3.0]]
    """
    if mode not in ("full", "economic", "r"):
        raise ValueError(at_user_line(f"qr: mode is 'full', 'economic' or 'r', not {mode!r}"))
    q, r = decompositions.qr(promote_floats("qr", a)[0], pivoting=pivoting, full_matrices=mode != "economic")
    return (r,) if mode == "r" else (q, r)


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """:func:`volta.numpy.linalg.svd`; ``lapack_driver`` means nothing."""
    return spectral.svd(a, full_matrices, compute_uv)


def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """T, upper triangular, and unitary Z with ``a = Z T Zᴴ``, as complex numbers: of real matrices with 'complex'.

    Raises ValueError for another ``output``, and for 'real' of a real matrix, whose T would have blocks of two.

    >>> volta.scipy.linalg.schur(np.float32([[2, 1], [0, 3]]), "complex")[0].tolist()
    [[(2+0j), (1+0j)], [0j, (3+0j)]]
    """
    if output not in ("real", "complex"):
        raise ValueError(at_user_line(f"schur: output is 'real' or 'complex', not {output!r}"))
    a = square("schur", a)
    if output == "real" and not dtypes.is_complex(aval_of("schur", a).dtype):
        raise ValueError(at_user_line("schur: the real form of a real matrix is not there; pass output='complex'"))
    return decompositions.schur(a)


def hessenberg(a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """H with zeros below its first lower diagonal, and with ``calc_q`` unitary Q: ``a = Q H Qᴴ``, by reflections.

    >>> np.tril(volta.scipy.linalg.hessenberg(np.float32([[1, 2, 3], [4, 5, 6], [0, 8, 9]])), -2).any()
    np.False_
    """
    h, q = schur_forms.hessenberg(square("hessenberg", a))
    return (h, q) if calc_q else h


def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,  # noqa: A002 - SciPy's name
    check_finite: bool = True,
) -> Any:
    """Eigenvalues, and eigenvectors unless ``eigvals_only``, from the triangle that ``lower`` names.

    Raises ValueError for generalized problems (``b``, ``type``) and subsets (``eigvals``), which JAX has not either.

    >>> volta.scipy.linalg.eigh(np.float32([[3, 0], [0, 2]]), eigvals_only=True).tolist()
    [2.0, 3.0]
    """
    if b is not None or type != 1 or eigvals is not None:
        raise ValueError(at_user_line("eigh: b, eigvals and type are not there; of a subset see volta.lax.linalg.eigh"))
    w, v = spectral.eigh(a, "L" if lower else "U", symmetrize_input=False)
    return w if eigvals_only else (w, v)


def block_diag(*arrs: ArrayLike) -> Array:
    """The matrices along the diagonal of one that is 0 elsewhere. Numbers and vectors count as rows.

    >>> volta.scipy.linalg.block_diag(np.float32([[1]]), np.float32([[2, 3]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 3.0]]
    """
    values = promote_dtypes("block_diag", *(arrs or (np.zeros((1, 0), "f4"),)))
    if any(aval_of("block_diag", x).ndim > 2 for x in values):
        raise ShapeError(at_user_line("block_diag: takes arrays of at most two axes"))
    blocks = [shaping.atleast_2d(x) for x in values]
    width, before, rows = sum(aval_of("", x).shape[1] for x in blocks), 0, []
    for x in blocks:
        own = aval_of("", x)
        rows.append(lax.pad(x, np.zeros((), own.dtype), [(0, 0, 0), (before, width - before - own.shape[1], 0)]))
        before += own.shape[1]
    return lax.concatenate(rows, 0)


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrices whose first column is ``c`` and first row ``r`` (``conj(c)`` by default), constant along diagonals.

    >>> volta.scipy.linalg.toeplitz(np.int32([1, 2]), np.int32([1, 5, 6])).tolist()
    [[1, 5, 6], [2, 1, 5]]
    """
    c, r = promote_dtypes("toeplitz", c, complexes.conjugate(c) if r is None else r)
    c, r = shaping.atleast_1d(c), shaping.atleast_1d(r)
    front = broadcast_shapes_of("toeplitz", [aval_of("", x).shape[:-1] for x in (c, r)])
    m, n = (aval_of("", x).shape[-1] for x in (c, r))
    c, r = broadcast_array(c, (*front, m)), broadcast_array(r, (*front, n))
    every = lax.concatenate([lax.rev(c, (len(front),)), lax.slice_in_dim(r, 1, n, axis=len(front))], len(front))
    at = m - 1 - np.arange(m)[:, None] + np.arange(n)
    return creation.asarray(every)[..., at]


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
