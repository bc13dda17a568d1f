"""What a public function cannot take is an error of Volta's, never one from its inside.

A function says itself what is wrong with a shape, a dtype or an axis. What it did not foresee (a string where a number
belongs, a size of which no memory has the bytes) fails somewhere within, in Volta's code or in NumPy's, with words that
tell a user nothing. Such an error gets the function's name, the arguments and the user's line; what failed within stays
with it, as its cause. Errors that Volta raises on purpose pass, and so do those of the user's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.errors import ArgumentError, MemoryBudgetError, VoltaError
from volta.core.source import at_user_line, is_own

_KINDS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)


def is_internal(error: BaseException) -> bool:
    """Whether an error that has reached a public function came from within Volta, and not on purpose."""
    if not isinstance(error, _KINDS) or isinstance(error, VoltaError) or "\n  at " in str(error):  # has the user's line
        return False
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    if frames is None:  # the call itself does not fit the function's parameters, and Python says how
        return False
    while frames is not None:
        if not is_own(frames.tb_frame.f_code.co_filename):
            return False  # a user's function, called back
        frames = frames.tb_next
    return True


def named(name: str, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> VoltaError:
    """The error to raise from an unforeseen one."""
    shown = ", ".join([*map(_shown, args), *(f"{k}={_shown(v)}" for k, v in kwargs.items())])
    if isinstance(error, MemoryError):
        return MemoryBudgetError(at_user_line(f"{name}({shown}) needs more memory than there is"))
    said = " ".join(str(error).split()) or type(error).__name__
    return ArgumentError(at_user_line(f"{name} cannot take these arguments, {name}({shown}): {said:.300}"))


def _shown(x: Any) -> str:
    """An argument in a few words."""
    if hasattr(x, "aval"):
        return str(x.aval)
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{list(x.shape)}"
    if callable(x):
        return str(getattr(x, "__name__", type(x).__name__))
    try:
        return f"{x!r:.60}"
    except Exception:
        return type(x).__name__
