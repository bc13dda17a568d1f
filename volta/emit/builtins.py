"""Native functions as Python callables, by CPython's own protocol: a call does not go through ctypes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

METH_NOARGS, METH_FASTCALL = 0x04, 0x80
"""CPython's calling conventions, as ``methodobject.h`` numbers them."""


class MethodDef(ctypes.Structure):
    """``PyMethodDef``: the name, address, calling convention and docstring of a native function.

    It must live as long as the callables made of it.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _new() -> Callable[..., Any]:
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


def new_function(method: MethodDef, own: int, keep: object) -> Callable[..., Any]:
    """A callable whose ``self`` is the integer ``own``; ``keep``, in its module slot, lives as long as it does."""
    function: Callable[..., Any] = _new()(ctypes.addressof(method), own, keep)
    return function
