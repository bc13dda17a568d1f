"""Equations whose matrix is a function, solved by iterations, under the names of ``jax.scipy.sparse.linalg``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import volta.numpy as vnp
from volta import lax
from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import ShapeError, TreeError
from volta.core.source import at_user_line
from volta.flatten_util import ravel_pytree
from volta.numpy.promotion import promote_floats

__all__ = ["bicgstab", "cg", "gmres"]

Vectors = Callable[[Any], Any]


def _on_vectors(name: str, a: Any, unravel: Callable[[Any], Any], like: Any) -> Vectors:
    """The product with a matrix, or a function of pytrees, as one of vectors."""
    if not callable(a):
        matrix = vnp.asarray(a)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(at_user_line(f"{name}: the matrix must be square, got shape {matrix.shape}"))
        return lambda x: vnp.matmul(matrix, x)

    def product(x: Any) -> Any:
        out = a(unravel(x))
        if pytrees.structure(out) != pytrees.structure(like):
            text = f"{name}: the function must give {pytrees.structure(like)}, not {pytrees.structure(out)}"
            raise TreeError(at_user_line(text))
        return ravel_pytree(out)[0]

    return product


def _solve(name: str, solver: Any, a: Any, b: Any, x0: Any, maxiter: Any, m: Any, symmetric: bool) -> tuple[Any, None]:
    flat, unravel = ravel_pytree(b)
    flat = promote_floats(name, flat)[0]
    start = vnp.zeros_like(flat) if x0 is None else ravel_pytree(x0)[0].astype(flat.dtype)
    if start.shape != flat.shape:
        raise ShapeError(at_user_line(f"{name}: x0 has {start.size} numbers, b {flat.size}"))
    product = _on_vectors(name, a, unravel, b)
    before = (lambda x: x) if m is None else _on_vectors(name, m, unravel, b)
    most = 10 * flat.size if maxiter is None else maxiter
    solve = lambda matvec, right: solver(matvec, right, start, before, most)  # noqa: E731
    if symmetric and not vnp.iscomplexobj(flat):  # of a Hermitian matrix the transpose is the conjugate
        out = lax.custom_linear_solve(product, flat, solve=solve, symmetric=True)
    else:
        out = lax.custom_linear_solve(product, flat, solve=solve, transpose_solve=solve)
    return unravel(out), None


def _goal(b: Any, tol: float, atol: float) -> Any:
    """The square of the length that a residual may have."""
    return vnp.maximum(tol**2 * vnp.vdot(b, b).real, vnp.asarray(atol**2, b.dtype).real)


def cg(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """``A x = b`` by conjugate gradients, for symmetric positive definite ``A``.

    Args:
        A: (n, n), or a linear function of pytrees like ``b``.
        b: a vector, or a pytree of arrays.
        x0: where to begin; zeros by default.
        tol, atol: the residual's length at the end is at most max(tol * |b|, atol).
        maxiter: of iterations; 10 n by default.
        M: a preconditioner, near the inverse of ``A``: a matrix or a function.

    Returns:
        The solution, in ``b``'s structure, and None. Derivatives are solutions too, by both A and b.

    Raises:
        ShapeError: shapes that do not fit.
        TreeError: ``A`` gives another structure.

    >>> x, _ = cg(vnp.asarray([[4.0, 1.0], [1.0, 3.0]]), vnp.asarray([1.0, 2.0]))
    >>> [round(v, 4) for v in x.tolist()]
    [0.0909, 0.6364]
    """

    def solver(product: Vectors, right: Any, start: Any, before: Vectors, most: int) -> Any:
        goal = _goal(right, tol, atol)
        residual = right - product(start)
        direction = before(residual)

        def going(s: Any) -> Any:
            return (vnp.vdot(s[1], s[1]).real > goal) & (s[4] < most)

        def iterate(s: Any) -> Any:
            x, r, p, gamma, k = s
            image = product(p)
            step = gamma / vnp.vdot(p, image).real.astype(p.dtype)
            x, r = x + step * p, r - step * image
            z = before(r)
            after = vnp.vdot(r, z).real.astype(p.dtype)
            return x, r, z + after / gamma * p, after, k + 1

        gamma = vnp.vdot(residual, direction).real.astype(right.dtype)
        return lax.while_loop(going, iterate, (start, residual, direction, gamma, 0))[0]

    return _solve("cg", solver, A, b, x0, maxiter, M, symmetric=True)


def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """``A x = b`` by biconjugate gradients, stabilized, for any regular ``A``: arguments as :func:`cg`.

    >>> bicgstab(vnp.asarray([[4.0, 1.0], [0.0, 2.0]]), vnp.asarray([1.0, 2.0]))[0].round(4).tolist()
    [0.0, 1.0]
    """

    def solver(product: Vectors, right: Any, start: Any, before: Vectors, most: int) -> Any:
        goal = _goal(right, tol, atol)
        shadow = right - product(start)
        one = vnp.ones((), right.dtype)

        def nonzero(x: Any) -> Any:
            return vnp.where(x == 0, one, x)

        def going(s: Any) -> Any:
            return (vnp.vdot(s[1], s[1]).real > goal) & (s[-1] < most) & (s[-1] >= 0)

        def iterate(s: Any) -> Any:
            x, r, p, q, alpha, omega, rho, k = s
            after = vnp.vdot(shadow, r)
            p = r + after / nonzero(rho) * alpha / nonzero(omega) * (p - omega * q)
            direction = before(p)
            q = product(direction)
            below = vnp.vdot(shadow, q)
            alpha = after / nonzero(below)
            middle = r - alpha * q
            turned = before(middle)
            t = product(turned)
            omega = vnp.vdot(t, middle) / nonzero(vnp.vdot(t, t))
            x = x + alpha * direction + omega * turned
            broken = (below == 0) | (after == 0) | (omega == 0) & (vnp.vdot(middle, middle).real > goal)
            return x, middle - omega * t, p, q, alpha, omega, after, vnp.where(broken, -1, k + 1)

        zero = vnp.zeros_like(right)
        begin = (start, shadow, zero, zero, one, one, one, vnp.int32(0))
        return lax.while_loop(going, iterate, begin)[0]

    return _solve("bicgstab", solver, A, b, x0, maxiter, M, symmetric=False)


def gmres(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None, solve_method: str = "batched",
) -> tuple[Any, None]:  # fmt: skip
    """``A x = b`` by least residuals over Krylov spaces of ``restart`` vectors, for any regular ``A``.

    Arguments as :func:`cg`; ``maxiter`` counts restarts. ``solve_method`` is accepted for JAX's sake.

    >>> gmres(vnp.asarray([[4.0, 1.0], [0.0, 2.0]]), vnp.asarray([1.0, 2.0]))[0].round(4).tolist()
    [0.0, 1.0]
    """
    if solve_method not in ("batched", "incremental"):
        raise ValueError(at_user_line(f"gmres: solve_method is 'batched' or 'incremental', not {solve_method!r}"))

    def solver(product: Vectors, right: Any, start: Any, before: Vectors, most: int) -> Any:
        goal, size = _goal(right, tol, atol), min(restart, right.size)

        def cycle(s: Any) -> Any:
            x, r, k = s
            head = before(r)
            length = vnp.linalg.norm(head)
            first = head / vnp.where(length == 0, 1, length).astype(right.dtype)
            basis = vnp.zeros((size + 1, right.size), right.dtype).at[0].set(first)
            images = vnp.zeros((size, right.size), right.dtype)

            def extend(j: Any, both: Any) -> Any:
                basis, images = both
                image = before(product(basis[j]))
                images = images.at[j].set(image)
                for _ in range(2):  # once more, so that rounding does not bend the basis
                    image = image - vnp.matmul(vnp.matmul(vnp.conj(basis), image), basis)
                norm = vnp.linalg.norm(image)
                small = norm <= 1e-30
                image = vnp.where(small, 0, image / vnp.where(small, 1, norm).astype(right.dtype))
                return basis.at[j + 1].set(image), images

            basis, images = lax.fori_loop(0, size, extend, (basis, images))
            coefficients = vnp.linalg.lstsq(images.T, head)[0]
            x = x + vnp.matmul(coefficients, basis[:size])
            return x, right - product(x), k + 1

        def going(s: Any) -> Any:
            return (vnp.vdot(s[1], s[1]).real > goal) & (s[2] < most)

        return lax.while_loop(going, cycle, (start, right - product(start), 0))[0]

    return _solve("gmres", solver, A, b, x0, maxiter, M, symmetric=False)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
