"""NumPy's elementwise functions of Volta's arrays: ``np.sin(x)`` is ``volta.numpy.sin(x)``.

NumPy asks an operand's ``__array_ufunc__`` what one of its ufuncs means, so such a call stays inside of the bit
contract, and works in traced functions. Other functions of NumPy's (``np.linalg.svd``, ``np.interp``) see an array's
elements through ``np.asarray``, and give NumPy arrays that NumPy has computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core.array import Array
from volta.core.source import at_user_line
from volta.numpy.creation import asarray

_PEERS = (("numpy", "volta.numpy"), ("scipy.special", "volta.scipy.special"))
"""Where ufuncs come from, and where their counterparts are."""


def array_ufunc(self: Array, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **settings: Any) -> Any:
    """What ``ufunc(*inputs)`` means where an operand is an Array: Volta's function of the same name.

    ``out`` may be NumPy arrays, as in ``host += x``: they get what Volta has computed. ``dtype`` is what operands are
    converted to, and what the result has.

    Raises:
        TypeError: the function, its method or a setting has no counterpart. Says how to compute with NumPy.
    """
    if any(_has_rules_of_its_own(x) for x in inputs):
        return NotImplemented
    function = _counterpart(ufunc)
    if function is not None and method != "__call__":
        function = getattr(function, method, None)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if function is None:
        raise _no_counterpart(f"{name} has no counterpart in Volta")
    if method == "__call__":
        dtype = settings.pop("dtype", None)
        if dtype is not None:
            inputs = tuple(asarray(x, dtype) for x in inputs)
        given = [word for word, value in settings.items() if not (word == "where" and value is True)]
        if given:
            words = ", ".join(f"{word}=" for word in given)
            raise _no_counterpart(f"{name} of a volta.Array takes no {words} (volta.numpy.where does)")
        settings = {}
    result = function(*inputs, **settings)
    if method == "__call__" and dtype is not None and getattr(result, "dtype", None) != inputs[0].dtype:
        raise _no_counterpart(f"{name} of a volta.Array gives no {inputs[0].dtype} where dtype= asks for it")
    return result if out is None else _written(name, result, out if isinstance(out, tuple) else (out,))


def _no_counterpart(what: str) -> TypeError:
    return TypeError(
        at_user_line(f"{what}: convert first, with numpy.asarray(x), and NumPy computes, outside of the bit contract")
    )


def _counterpart(ufunc: np.ufunc) -> Callable[..., Any] | None:
    name = ufunc.__name__
    for theirs, ours in _PEERS:
        if getattr(sys.modules.get(theirs), name, None) is ufunc:
            found: Callable[..., Any] | None = getattr(sys.modules.get(ours), name, None)
            return found
    return None


def _has_rules_of_its_own(x: Any) -> bool:
    """Whether an operand is of a class that answers such calls itself, a column of a table for one."""
    if isinstance(x, (Array, np.ndarray, np.generic)):
        return False
    return getattr(type(x), "__array_ufunc__", None) is not None


def _written(name: str, result: Any, out: tuple[Any, ...]) -> Any:
    """``out``, after the results have been written to it."""
    results = result if isinstance(result, tuple) else (result,)
    for value, target in zip(results, out, strict=True):
        if isinstance(target, Array):
            raise TypeError(at_user_line(f"{name}: arrays are immutable, so there is no out=; use what is returned"))
        if target is not None:
            np.copyto(target, np.asarray(value), casting="same_kind")
    written = tuple(value if target is None else target for value, target in zip(results, out, strict=True))
    return written if isinstance(result, tuple) else written[0]
