"""What a Python function means that Numba compiles: its code, and every value that the compiler freezes into it.

These are closure cells, defaults, and globals, those of functions that it calls too, at any depth. Equal digests mean
equal code; where something is met whose meaning cannot be told (an object of the user's own class), there is none.
"""

from __future__ import annotations

import enum
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class _UnknownMeaning(Exception):
    """A value was met that has no text which says all of it."""


def is_dispatcher(x: Any) -> bool:
    """Whether ``x`` is a function that Numba compiles: what ``@njit`` or ``@cuda.jit`` gives."""
    return callable(x) and hasattr(x, "py_func") and hasattr(x, "targetoptions")


def called(function: Any) -> list[Any]:
    """The function and all functions that it calls by name, directly or not: dispatchers, and plain functions."""
    found: dict[int, Any] = {}

    def visit(x: Any) -> None:
        if id(x) not in found and (is_dispatcher(x) or isinstance(x, types.FunctionType)):
            found[id(x)] = x
            for _, value in _frozen(x.py_func if is_dispatcher(x) else x):
                visit(value)

    visit(function)
    return list(found.values())


def digest_of(function: Any) -> str | None:
    """A digest of all that decides what a function is compiled to, its types and compiler aside; None: not known."""
    state = _Digest()
    try:
        state.add(function)
    except _UnknownMeaning:
        return None
    return state.hash.hexdigest()


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _names(const)
    return found


def _frozen(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The values that a function's code refers to, each with the way to it. Of modules: what is read of them."""
    names = sorted(_names(function.__code__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"cell {name}", cell.cell_contents
        except ValueError:
            yield f"cell {name}", None  # not filled yet
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default {i}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default {name}", value
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            yield f"global {name}", value
            if isinstance(value, types.ModuleType) and not _is_library(value):
                for inner in names:
                    if hasattr(value, inner):
                        yield f"global {name}.{inner}", getattr(value, inner)


_LIBRARIES = ("numpy", "numba", "math", "cmath", "operator", "builtins", "llvmlite")
"""Modules that Numba knows: what they give follows from their versions, which are part of the environment."""


def _is_library(module: types.ModuleType) -> bool:
    return module.__name__.split(".")[0] in _LIBRARIES


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, int] = {}

    def _text(self, *parts: Any) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            self.hash.update(len(data).to_bytes(8, "little"))
            self.hash.update(data)

    def add(self, x: Any) -> None:
        if hasattr(x, "volta_text"):  # one of Volta's own: what it means follows from Volta's source
            self._text("volta", x.volta_text)
            return
        for kinds, add in _RULES:
            if isinstance(x, kinds):
                add(self, x)
                return
        if is_dispatcher(x):
            options = {k: v for k, v in x.targetoptions.items() if k != "cache"}
            self._once("dispatcher", x, lambda: self.sequence((options, x.py_func)))
        elif getattr(type(x), "__module__", "").startswith(("numba.", "numpy")) and hasattr(x, "__name__"):
            self._text("library", type(x).__name__, x.__name__)
        else:
            raise _UnknownMeaning(x)

    def _once(self, kind: str, x: Any, add: Callable[[], Any]) -> None:
        """Functions may call each other: the second time one is met, it is named by its number."""
        first = len(self._seen)
        number = self._seen.setdefault(id(x), first)
        self._text(kind, number)
        if number == first:
            add()

    def function(self, x: types.FunctionType) -> None:
        def body() -> None:
            self.code(x.__code__)
            for way, value in _frozen(x):
                self._text(way)
                self.add(value)

        self._once("function", x, body)

    def code(self, x: types.CodeType) -> None:
        self._text(
            "code", x.co_code, x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars, x.co_argcount, x.co_flags
        )
        self._text(getattr(x, "co_exceptiontable", b""))
        self.sequence(x.co_consts)

    def sequence(self, x: Any) -> None:
        self._text(type(x).__qualname__, len(x))
        for value in x:
            self.add(value)

    def mapping(self, x: Any) -> None:
        self._text(type(x).__qualname__, len(x))
        for key, value in x.items():
            self.add(key)
            self.add(value)

    def array(self, x: np.ndarray) -> None:
        if x.dtype.hasobject:
            raise _UnknownMeaning(x)
        self._text("array", x.dtype.str, x.shape, x.flags.c_contiguous, x.flags.writeable, x.tobytes())

    def member(self, x: enum.Enum) -> None:
        self._text("enum", type(x).__qualname__, x.name)
        self.add(x.value)

    def number(self, x: Any) -> None:
        self._text(type(x).__name__, x.hex() if isinstance(x, float) else repr(x))

    def module(self, x: types.ModuleType) -> None:
        self._text("module", x.__name__)

    def named(self, x: Any) -> None:
        module = getattr(x, "__module__", None) or ""
        if module.split(".")[0] not in _LIBRARIES:
            raise _UnknownMeaning(x)
        self._text("named", module, x.__qualname__ if hasattr(x, "__qualname__") else x.__name__)


_RULES: tuple[tuple[Any, Callable[[_Digest, Any], None]], ...] = (
    (enum.Enum, _Digest.member),
    ((bool, int, float, complex, str, bytes, type(None), type(Ellipsis)), _Digest.number),
    ((tuple, list, frozenset), _Digest.sequence),
    (dict, _Digest.mapping),
    (np.ndarray, _Digest.array),
    (np.generic, lambda d, x: d.array(np.asarray(x))),
    (np.dtype, lambda d, x: d._text("dtype", x.str)),
    (types.CodeType, _Digest.code),
    (types.FunctionType, _Digest.function),
    (types.ModuleType, _Digest.module),
    ((type, types.BuiltinFunctionType, np.ufunc), _Digest.named),
)
"""The first that fits says how a value is told."""
