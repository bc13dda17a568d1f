"""``jax.test_util``: derivatives checked against differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.arguments import value_of
from volta.api.autodiff import vjp
from volta.api.forward import jvp
from volta.core import pytrees
from volta.core.errors import DTypeError
from volta.core.source import at_user_line

MODES = "fwd", "rev"


def _random_like(draw: np.random.Generator, tree: Any) -> Any:
    return pytrees.map(lambda x: value_of(np.asarray(draw.standard_normal(np.shape(x)), value_of(x).dtype)), tree)


def _plus(tree: Any, step: float, tangents: Any) -> Any:
    return pytrees.map(lambda x, t: x + value_of(np.asarray(step, value_of(x).dtype)) * t, tree, tangents)


def _close(what: str, args: Any, got: Any, want: Any, atol: float | None, rtol: float | None) -> None:
    default = _BY_DTYPE[_narrowest(args)][1]
    for x, y in zip(pytrees.leaves(got), pytrees.leaves(want), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64),
            atol=default if atol is None else atol, rtol=default if rtol is None else rtol, err_msg=what,
        )  # fmt: skip


_BY_DTYPE = {"float64": (1e-6, 1e-5), "float32": (1e-2, 2e-3), "float16": (2.0**-5, 1e-1), "bfloat16": (0.1, 0.3)}
"""The step of differences, and the tolerance that goes with it."""


def _narrowest(args: Any) -> str:
    return min((value_of(x).dtype for x in pytrees.leaves(args)), key=lambda d: (d.itemsize, d.name)).name


def _real(what: str, *trees: Any) -> None:
    """An error where a leaf is no float: its differences are not those of a float."""
    for x in pytrees.leaves(trees):
        if (dtype := value_of(x).dtype).name not in _BY_DTYPE:
            raise DTypeError(
                at_user_line(
                    f"{what}: arguments and results must be floats, got {dtype.name}; check a function of their real "
                    "and imaginary parts, or with integers held from outside"
                )
            )


def _difference(f: Callable[..., Any], args: Any, tangents: Any, eps: float) -> Any:
    ahead, behind = f(*_plus(args, eps / 2, tangents)), f(*_plus(args, -eps / 2, tangents))
    return pytrees.map(lambda a, b: (np.asarray(a, np.float64) - np.asarray(b, np.float64)) / eps, ahead, behind)


def _step(args: Any, eps: float | None) -> float:
    return eps or _BY_DTYPE[_narrowest(args)][0]


def check_jvp(
    f: Callable[..., Any], f_jvp: Callable[..., Any], args: Sequence[Any], atol: float | None = None,
    rtol: float | None = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Assert that ``f_jvp(args, tangents)`` gives ``f`` and its differences along random tangents."""
    args = tuple(args)
    _real("check_jvp", args)
    tangents = _random_like(np.random.default_rng(0), args)
    out, found = f_jvp(args, tangents)
    _real("check_jvp", out)
    _close(f"jvp's output {err_msg}", args, out, f(*args), atol, rtol)
    _close(f"jvp's tangent {err_msg}", args, found, _difference(f, args, tangents, _step(args, eps)), atol, rtol)


def check_vjp(
    f: Callable[..., Any], f_vjp: Callable[..., Any], args: Sequence[Any], atol: float | None = None,
    rtol: float | None = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Assert that ``f_vjp(*args)`` gives ``f`` and what its differences along random tangents give, transposed."""
    args, draw = tuple(args), np.random.default_rng(0)
    _real("check_vjp", args)
    out, pull = f_vjp(*args)
    _real("check_vjp", out)
    _close(f"vjp's output {err_msg}", args, out, f(*args), atol, rtol)
    tangents, cts = _random_like(draw, args), _random_like(draw, out)
    along = _difference(f, args, tangents, _step(args, eps))
    _close(f"vjp {err_msg}", args, _inner(pull(cts), tangents), _inner(cts, along), atol, rtol)


def _inner(a: Any, b: Any) -> np.ndarray:
    pairs = zip(pytrees.leaves(a), pytrees.leaves(b), strict=True)
    return np.asarray(sum(np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs))


def check_grads(
    f: Callable[..., Any], args: Sequence[Any], order: int, modes: Sequence[str] = MODES, atol: float | None = None,
    rtol: float | None = None, eps: float | None = None,
) -> None:  # fmt: skip
    """Assert that derivatives to this order, forwards and backwards, are those of differences."""
    args = tuple(args)
    if "fwd" in modes:
        check_jvp(f, lambda xs, ts: jvp(f, xs, ts), args, atol, rtol, eps, f"of order {order}")
        if order > 1:
            along = _random_like(np.random.default_rng(1), args)
            check_grads(lambda *xs: jvp(f, xs, along)[1], args, order - 1, modes, atol, rtol, eps)
    if "rev" in modes:
        check_vjp(f, lambda *xs: vjp(f, *xs), args, atol, rtol, eps, f"of order {order}")
        if order > 1:

            def pulled(*xs: Any) -> Any:
                out, pull = vjp(f, *xs)
                return pull(_random_like(np.random.default_rng(2), out))

            check_grads(pulled, args, order - 1, modes, atol, rtol, eps)


NAMES: dict[str, Any] = {"check_grads": check_grads, "check_jvp": check_jvp, "check_vjp": check_vjp}
