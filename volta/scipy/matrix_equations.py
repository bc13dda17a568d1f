"""Functions of matrices from others of them: the exponential's derivative, and what follows from Schur's form and from
singular values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.api.forward import jvp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax import linalg as decompositions
from volta.lax.loops import fori_loop
from volta.numpy import binary, complexes, creation, shaping, ufuncs
from volta.numpy.contractions import matmul as product
from volta.numpy.decompositions import svd
from volta.numpy.linear_systems import square
from volta.numpy.promotion import broadcast_array, broadcast_shapes_of, promote_floats
from volta.numpy.taking import where as choose
from volta.scipy.matrix_functions import expm
from volta.trace.decomposition import part_dtype

__all__ = ["expm_frechet", "funm", "polar", "rsf2csf", "solve_sylvester"]


def _adjoint(x: Any) -> Array:
    return complexes.conjugate(shaping.matrix_transpose(x))


def expm_frechet(
    A: ArrayLike,  # noqa: N803 - SciPy's name
    E: ArrayLike,  # noqa: N803 - SciPy's name
    *,
    method: str | None = None,
    compute_expm: bool = True,
) -> Any:
    """The exponentials of ``A`` (unless ``compute_expm`` is False) and their derivatives in the directions ``E``.

    ``method`` means nothing: it is the derivative in forward mode.

    >>> a, e = np.float32([[0, 0], [0, 0]]), np.float32([[1, 2], [3, 4]])
    >>> volta.scipy.linalg.expm_frechet(a, e, compute_expm=False).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    a, e = promote_floats("expm_frechet", A, E)
    a, e = square("expm_frechet", a), square("expm_frechet", e)
    front = broadcast_shapes_of("expm_frechet", [get_aval(x).shape[:-2] for x in (a, e)])
    a, e = (broadcast_array(x, (*front, *get_aval(x).shape[-2:])) for x in (a, e))
    value, derivative = jvp(expm, (a,), (e,))
    return (value, derivative) if compute_expm else derivative


def polar(
    a: ArrayLike, side: str = "right", *, method: str = "qdwh", eps: Any = None, max_iterations: Any = None
) -> tuple[Array, Array]:
    """Unitary U and positive semidefinite P with ``a = U P`` (``side`` 'right') or ``a = P U`` ('left').

    Both come from singular values; ``method`` ('qdwh' or 'svd'), ``eps`` and ``max_iterations`` mean nothing.

    >>> volta.scipy.linalg.polar(np.float32([[0, -2], [3, 0]]))[1].tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """
    if side not in ("right", "left"):
        raise ValueError(at_user_line(f"polar: side is 'right' or 'left', not {side!r}"))
    if method not in ("qdwh", "svd"):
        raise ValueError(at_user_line(f"polar: method is 'qdwh' or 'svd', not {method!r}"))
    u, s, v = svd(a, full_matrices=False)
    other = _adjoint(v) if side == "right" else u
    scaled = binary.multiply(other, shaping.expand_dims(s, -2))
    return product(u, v), product(scaled, _adjoint(other))


def rsf2csf(T: ArrayLike, Z: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:  # noqa: N803 - SciPy's names
    """Schur's complex form of ``Z T Zᴴ``: T upper triangular and unitary Z, of T with blocks of two on its diagonal.

    >>> t, z = volta.scipy.linalg.rsf2csf(np.float32([[0, -1], [1, 0]]), np.eye(2, dtype=np.float32))
    >>> t.tolist()[1][0]
    0j
    """
    t, z = promote_floats("rsf2csf", T, Z)
    t, turned = decompositions.schur(square("rsf2csf", t))
    z = product(z, turned)
    return shaping.broadcast_to(t, z.shape), z


def funm(A: ArrayLike, func: Callable[[Array], Any], disp: bool = True) -> Any:  # noqa: N803 - SciPy's name
    """The function ``func`` of complex numbers of matrices (…, n, n), as complex matrices, by Parlett's recurrence.

    It divides by differences of eigenvalues: where some are near each other, nothing is left of the result's digits.
    Without ``disp`` an estimate of the error comes with it, which is NaN, as in JAX.

    >>> volta.scipy.linalg.funm(np.float32([[4, 0], [0, 9]]), volta.numpy.sqrt).tolist()
    [[(2+0j), 0j], [0j, (3+0j)]]
    """
    t, z = decompositions.schur(square("funm", A))
    n = t.shape[-1]
    own = np.eye(n, dtype=bool)
    diagonal = creation.asarray(t)[..., np.arange(n), np.arange(n)]
    f = creation.asarray(func(diagonal)).astype(t.dtype)
    f = binary.multiply(shaping.expand_dims(f, -1), own.astype(t.dtype))
    apart = binary.subtract(shaping.expand_dims(diagonal, -2), shaping.expand_dims(diagonal, -1))
    apart = choose(binary.equal(apart, 0), t.dtype.type(1), apart)
    for k in range(1, n):  # one diagonal after the other: of T F = F T there is one equation for each element
        found = binary.divide(binary.subtract(product(t, f), product(f, t)), apart)
        f = choose(np.eye(n, k=k, dtype=bool), found, f)
    out = product(product(z, f), _adjoint(z))
    return out if disp else (out, creation.full(t.shape[:-2], np.nan, part_dtype(t)))


def solve_sylvester(
    A: ArrayLike,  # noqa: N803 - SciPy's names
    B: ArrayLike,  # noqa: N803
    C: ArrayLike,  # noqa: N803
    *,
    method: str = "schur",
    tol: float = 1e-8,
) -> Array:
    """The X (…, m, n) of ``A X + X B = C``, from Schur's forms of A and B (Bartels, Stewart).

    ``method`` means nothing ('schur' or 'eigen'). Where an eigenvalue of A and one of B add to less than ``tol``, there
    is no solution, or none that is known well: NaN.

    >>> a, b, c = np.float32([[2]]), np.float32([[3]]), np.float32([[10]])
    >>> volta.scipy.linalg.solve_sylvester(a, b, c).tolist()
    [[2.0]]
    """
    if method not in ("schur", "eigen"):
        raise ValueError(at_user_line(f"solve_sylvester: method is 'schur' or 'eigen', not {method!r}"))
    a, b, c = promote_floats("solve_sylvester", A, B, C)
    a, b = square("solve_sylvester", a), square("solve_sylvester", b)
    m, n, shape = get_aval(a).shape[-1], get_aval(b).shape[-1], get_aval(c).shape
    if shape[-2:] != (m, n):
        raise ShapeError(at_user_line(f"solve_sylvester: C must have the shape (…, {m}, {n}), got {shape}"))
    front = broadcast_shapes_of("solve_sylvester", [get_aval(x).shape[:-2] for x in (a, b, c)])
    a, b, c = (broadcast_array(x, (*front, *get_aval(x).shape[-2:])) for x in (a, b, c))
    (r, u), (s, v) = decompositions.schur(a), decompositions.schur(b)
    right = product(product(_adjoint(u), c.astype(r.dtype)), v)
    places, one = np.arange(n), np.eye(m, dtype=r.dtype)
    shifts = creation.asarray(s)[..., places, places]
    sums = binary.add(creation.asarray(r)[..., np.arange(m), np.arange(m)][..., None], shifts[..., None, :])

    def column(k: Any, y: Any) -> Any:
        """The k-th column, of (R + s I) y = f less what the columns before it, the only ones that are not 0, give."""
        shifted = binary.add(r, binary.multiply(shifts[..., k, None, None], one))
        known = binary.subtract(right[..., :, k], product(y, s[..., :, k, None])[..., 0])
        found = decompositions.triangular_solve(shifted, known[..., None], left_side=True)
        return y.at[..., :, k].set(found[..., 0])

    y = fori_loop(0, n, column, creation.zeros_like(right)) if n else right
    near = (ufuncs.absolute(sums) < tol).any(axis=(-2, -1), keepdims=True)
    x = choose(near, np.nan, product(product(u, y), _adjoint(v)))
    return x if dtypes.is_complex(get_aval(c).dtype) else complexes.real(x)
