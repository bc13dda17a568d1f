"""Least values of functions, under the names of ``jax.scipy.optimize``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import volta.numpy as vnp
from volta import lax
from volta.api.autodiff import value_and_grad
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.source import at_user_line
from volta.numpy.promotion import promote_floats

__all__ = ["OptimizeResults", "minimize"]


class OptimizeResults(NamedTuple):
    """What :func:`minimize` gives.

    ``status`` is 0 where it ended well, 1 after ``maxiter`` iterations, 3 where no step of a line brought it further.
    """

    x: Array
    success: Array
    status: Array
    fun: Array
    jac: Array
    hess_inv: Array
    nfev: Array
    njev: Array
    nit: Array


class _State(NamedTuple):
    x: Any
    f: Any
    g: Any
    inverse: Any  # of the Hessian, estimated
    calls: Any
    iterations: Any
    stuck: Any


def minimize(
    fun: Callable[..., Any],
    x0: ArrayLike,
    args: tuple[Any, ...] = (),
    *,
    method: str = "BFGS",
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A local minimum of ``fun(x, *args)``, by the quasi-Newton method of Broyden, Fletcher, Goldfarb and Shanno.

    Steps along a line satisfy Wolfe's conditions, found by bisection. It may be jitted and batched; a derivative goes
    through the iterations in forward mode only.

    Args:
        fun: gives a float of shape ().
        x0: (n,) where to begin.
        method: 'BFGS'.
        tol: the largest component that a gradient may have at the end; 1e-5 by default.
        options: ``gtol`` (the same), ``maxiter`` (200 n by default), ``line_search_maxiter`` (30), ``norm``.

    Raises:
        ShapeError: ``x0`` is no vector.
        DTypeError: ``fun`` gives something else than a float.
        ValueError: for other methods and options.

    >>> out = minimize(lambda x: vnp.sum((x - 3.0) ** 2), vnp.zeros(2))
    >>> out.success.item(), out.x.round(3).tolist()
    (True, [3.0, 3.0])
    """
    if method.lower() != "bfgs":
        raise ValueError(at_user_line(f"minimize: the method is 'BFGS', not {method!r}"))
    given = dict(options or {})
    gtol = given.pop("gtol", 1e-5 if tol is None else tol)
    norm = given.pop("norm", vnp.inf)
    x0 = promote_floats("minimize", x0)[0]
    if x0.ndim != 1:
        raise ShapeError(at_user_line(f"minimize: the start must be a vector, got shape {x0.shape}"))
    most = given.pop("maxiter", None)
    most = 200 * x0.shape[0] if most is None else most
    tries = given.pop("line_search_maxiter", 30)
    if given:
        known = "gtol, maxiter, line_search_maxiter and norm"
        raise ValueError(at_user_line(f"minimize: unknown options {', '.join(sorted(given))}; there are {known}"))
    gradient = value_and_grad(lambda x: _number(fun(x, *args)))
    f, g = gradient(x0)
    one = vnp.eye(x0.shape[0], dtype=x0.dtype)

    def going(s: _State) -> Any:
        far = vnp.linalg.norm(s.g, norm) > gtol
        return far & (s.iterations < most) & vnp.logical_not(s.stuck)

    def iterate(s: _State) -> _State:
        line = -vnp.matmul(s.inverse, s.g)
        descent = vnp.vdot(line, s.g)
        line = vnp.where(descent < 0, line, -s.g)  # rounding may have bent it upwards
        step, f, g, calls, found = _line_search(gradient, s.x, s.f, s.g, line, tries)
        change, turn = step * line, g - s.g
        product = vnp.vdot(turn, change)
        safe = vnp.where(product > 0, product, 1)
        left = one - vnp.outer(change, turn) / safe
        inverse = vnp.matmul(vnp.matmul(left, s.inverse), left.T) + vnp.outer(change, change) / safe
        inverse = vnp.where(product > 0, inverse, s.inverse)
        moved = _State(s.x + change, f, g, inverse, s.calls + calls, s.iterations + 1, vnp.logical_not(found))
        kept = s._replace(calls=s.calls + calls, iterations=s.iterations + 1, stuck=vnp.asarray(True))
        return _State(*(vnp.where(found, a, b) for a, b in zip(moved, kept, strict=True)))

    start = _State(x0, f, g, one, vnp.int32(1), vnp.int32(0), vnp.asarray(False))
    end = lax.while_loop(going, iterate, _State(*(vnp.asarray(v) for v in start)))
    good = vnp.linalg.norm(end.g, norm) <= gtol
    status = vnp.where(good, 0, vnp.where(end.stuck, 3, 1)).astype("int32")
    return OptimizeResults(end.x, good, status, end.f, end.g, end.inverse, end.calls, end.calls, end.iterations)


def _number(value: Any) -> Any:
    value = vnp.asarray(value)
    if value.shape or value.dtype.kind not in "fV":
        text = f"minimize: the function must give a float of shape (), not {value.dtype} of shape {value.shape}"
        raise DTypeError(at_user_line(text))
    return value


def _line_search(gradient: Any, x: Any, f: Any, g: Any, line: Any, tries: int) -> tuple[Any, ...]:
    """A step along ``line`` under Wolfe's conditions: f falls by 1e-4 of what the slope says, and the slope to 0.9.

    Between a step that is too short and one that is too long the middle is tried; without the latter, the double.
    """
    slope = vnp.vdot(line, g)
    zero = vnp.zeros_like(f)

    def going(carry: Any) -> Any:
        i, *_, found = carry
        return vnp.logical_not(found) & (i < tries)

    def attempt(carry: Any) -> Any:
        i, low, high, step, _, _, _ = carry
        value, slopes = gradient(x + step * line)
        high_enough = value <= f + 1e-4 * step * slope
        flat_enough = vnp.vdot(slopes, line) >= 0.9 * slope
        found = high_enough & flat_enough
        low = vnp.where(high_enough, step, low)
        high = vnp.where(high_enough, high, step)
        after = vnp.where(high < vnp.inf, (low + high) / 2, step * 2)
        return i + 1, low, high, vnp.where(found, step, after), value, slopes, found

    begin = (vnp.int32(0), zero, zero + vnp.inf, zero + 1, f, g, vnp.asarray(False))
    i, _, _, step, value, slopes, found = lax.while_loop(going, attempt, begin)
    return step, value, slopes, i, found


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
