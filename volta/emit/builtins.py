"""Native functions as Python callables, by CPython's own protocol: a call does not go through ctypes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

METH_NOARGS, METH_O, METH_FASTCALL = 0x04, 0x08, 0x80
"""CPython's calling conventions, as ``methodobject.h`` numbers them."""


class MethodDef(ctypes.Structure):
    """``PyMethodDef``: the name, address, calling convention and docstring of a native function.

    It keeps ``code``, the owner of the machine code, alive.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    def __init__(self, name: bytes, function: int, flags: int, doc: bytes, code: object = None) -> None:
        super().__init__(name, function, flags, doc)
        self.code = code


@functools.cache
def _new() -> Callable[..., Any]:
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


def new_function(method: MethodDef, own: int, keep: object) -> Callable[..., Any]:
    """A callable whose ``self`` is the integer ``own``; ``method`` and ``keep``, in its module slot, live as it does.

    (Threads that come first at one time may each make a method, of which a cache keeps one.)
    """
    function: Callable[..., Any] = _new()(ctypes.addressof(method), own, (method, keep))
    return function


def python_symbols(names: tuple[str, ...]) -> dict[str, int]:
    """Addresses of functions of Python's C interface, for code that calls them."""
    return {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names}
