"""Numbers of the host are converted in the standard floating-point environment.

Another library may have left another rounding mode on, or flush-to-zero; ``0.1`` as a float32, or ``1e-40`` as anything
at all, would then have other bits. Kernels see to themselves (``volta/numba_cpu/fpenv.py``); what Python and NumPy
convert and compute for Volta runs inside of `standard`, and so does the import of Volta, which computes constants.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Written in hexadecimal: Python itself rounds decimal literals, and folds powers, as the environment says.
_LEAST, _HALF, _HUGE, _MOST, _LESS, _NEXT = map(
    float.fromhex, ("0x1p-1022", "0x1p-1", "0x1p1023", "0x3p-54", "0x1p-54", "0x1.0000000000001p0")
)


def is_standard() -> bool:
    """Whether this thread rounds to nearest and keeps subnormals, found out by arithmetic (60 ns).

    The products are 1, by way of a subnormal. Three quarters of what separates 1 from the next number are rounded up to
    that number, but by truncation; a quarter more changes nothing, but where all is rounded up.
    """
    return _LEAST * _HALF * _HUGE + _MOST + _LESS == _NEXT


_library = ctypes.CDLL(None)  # C's <fenv.h>
_BYTES = 256  # more than any fenv_t has


def _default() -> int:
    """FE_DFL_ENV."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(_library, "_FE_DFL_ENV"))  # macOS
    except ValueError:
        return -1  # glibc, musl


def _enter() -> Any:
    before = ctypes.create_string_buffer(_BYTES)
    _library.fegetenv(before)
    _library.fesetenv(ctypes.c_void_p(_default()))
    return before


def in_standard(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in the standard environment; afterwards the environment is what it was."""
    before = _enter()
    try:
        return function(*args, **kwargs)
    finally:
        _library.fesetenv(before)


def standard(function: F) -> F:
    """A function that runs in the standard environment."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_standard() else in_standard(function, *args, **kwargs)

    return cast(F, inside)


_before_import = None if is_standard() else _enter()


def imported() -> None:
    """All modules are there: the environment is from now on what it was before."""
    global _before_import
    if _before_import is not None:
        _library.fesetenv(_before_import)
        _before_import = None
