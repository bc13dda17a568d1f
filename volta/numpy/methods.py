"""Operators and methods of arrays and tracers: installed once on their common base class, so that both share them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.boundary import boundary, hide_own_frames
from volta.core.errors import ConcretizationTypeError
from volta.core.interp import _state
from volta.core.source import at_user_line
from volta.numpy import (
    among_numbers,
    binary,
    complexes,
    contractions,
    creation,
    division,
    indexing,
    matrices,
    placing,
    powers,
    reductions,
    scans,
    shaping,
    sorting,
    taking,
    ufuncs,
)
from volta.numpy.dispatch import array_ufunc
from volta.numpy.updates import IndexUpdateHelper
from volta.ops import lax
from volta.runtime.array import ConcreteArray
from volta.runtime.eager import operate

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
"""Those of the array API, of which each has what those before it have."""

_OPERANDS = (Array, np.ndarray, np.generic, bool, int, float, complex)


def _operator(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The operator and its reflected form; an operand that is none of ours is left to its own class."""

    def forward(self: Array, other: Any) -> Any:
        try:
            if type(self) is ConcreteArray is type(other) and _state.trace is None:
                if not (self.aval.weak_type or other.aval.weak_type):
                    return operate(function, self, other)
            if not isinstance(other, _OPERANDS):
                return _decline(function, other)
            return among_numbers.operate(function, self, other) if self.aval.weak_type else function(self, other)
        except Exception as error:
            hide_own_frames(error)
            raise

    def reflected(self: Array, other: Any) -> Any:
        try:
            if not isinstance(other, _OPERANDS):
                return _decline(function, other)
            return among_numbers.operate(function, other, self) if self.aval.weak_type else function(other, self)
        except Exception as error:
            hide_own_frames(error)
            raise

    forward.__doc__ = reflected.__doc__ = function.__doc__
    return forward, reflected


def _decline(function: Callable[..., Any], other: Any) -> Any:
    if isinstance(other, (list, tuple)):
        function(np.float32(0), other)  # raises, and says how to convert
    return NotImplemented


_BINARY = {
    "add": binary.add,
    "sub": binary.subtract,
    "mul": binary.multiply,
    "truediv": binary.true_divide,
    "floordiv": division.floor_divide,
    "mod": division.remainder,
    "divmod": division.divmod,
    "pow": powers.power,
    "matmul": contractions.matmul,
    "and": binary.bitwise_and,
    "or": binary.bitwise_or,
    "xor": binary.bitwise_xor,
    "lshift": binary.left_shift,
    "rshift": binary.right_shift,
}
_COMPARE = {
    "eq": binary.equal,
    "ne": binary.not_equal,
    "lt": binary.less,
    "le": binary.less_equal,
    "gt": binary.greater,
    "ge": binary.greater_equal,
}
_UNARY = {"neg": ufuncs.negative, "pos": ufuncs.positive, "abs": ufuncs.absolute, "invert": ufuncs.invert}


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: Array) -> Any:
        return among_numbers.operate(function, self) if self.aval.weak_type else function(self)

    method.__doc__ = function.__doc__
    return method


def _getitem(self: Array, index: Any) -> Any:
    """``x[index]`` with NumPy's basic and advanced indexing; see ``volta/numpy/indexing.py``."""
    return indexing.getitem(self, index)


def _setitem(self: Array, index: Any, value: Any) -> None:
    raise TypeError(
        at_user_line(
            "arrays are immutable, so x[i] = v is not possible. Write x = x.at[i].set(v) for an updated copy "
            "(and x.at[i].add(v) for x[i] += v)."
        )
    )


def _len(self: Array) -> int:
    if not self.aval.shape:
        raise TypeError(at_user_line("len() of a scalar array (shape ())"))
    return self.aval.shape[0]


def _iter(self: Array) -> Iterator[Any]:
    if not self.aval.shape:
        raise TypeError(at_user_line("iteration over a scalar array (shape ())"))
    return (indexing.getitem(self, i) for i in range(self.aval.shape[0]))


def _contains(self: Array, item: Any) -> Any:
    return bool(reductions.any(binary.equal(self, item)))


def _reshape(self: Array, *shape: Any, order: str = "C") -> Any:
    """``x.reshape(2, 3)`` or ``x.reshape((2, 3))``; one size may be -1."""
    return shaping.reshape(self, shape[0] if len(shape) == 1 else shape, order)


def _transpose(self: Array, *axes: Any) -> Any:
    """``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if not axes or axes == (None,):
        return shaping.transpose(self)
    return shaping.transpose(self, axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes)


def _view(self: Array, dtype: Any) -> Any:
    """The same bits as another dtype of the same size; every NaN has the bits of the one NaN. Complex numbers are
    viewed as their parts, along the last axis, and the other way round."""
    dtype = dtypes.canonicalize(dtype)
    if dtypes.is_complex(dtype) != dtypes.is_complex(self.aval.dtype):
        return complexes.viewed(self, dtype)
    return self if self.aval.dtype == dtype else lax.bitcast_convert_type(self, dtype)


def _round(self: Array, decimals: int | None = None) -> Any:
    """``round(x, decimals)``; of a traced Python number without decimals an integer, as Python has it."""
    rounded = among_numbers.operate(lambda x: ufuncs.round(x, decimals or 0), self)
    return among_numbers.to_integer(rounded) if decimals is None else rounded


def _as_numpy_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The method with NumPy's keyword ``out``: ``np.sum(x)`` is ``x.sum(axis=None, out=None)``, whatever ``x`` is."""

    @functools.wraps(function)
    def method(self: Array, *args: Any, out: None = None, **kwargs: Any) -> Any:
        if out is not None:
            raise TypeError(at_user_line(f"{name}: arrays are immutable, so there is no out=; use what is returned"))
        return function(self, *args, **kwargs)

    return method


def _to_device(self: Array, device: Any, /, *, stream: Any = None) -> Any:
    """The array on a device, by its name or a sharding, as the array API has it."""
    if stream is not None:
        raise ValueError(at_user_line("to_device: programs order themselves, there are no streams to give"))
    return placing.lying(self, device)


def _array_namespace(self: Array, /, *, api_version: str | None = None) -> Any:
    """``volta.numpy``, the namespace that has the array API's functions."""
    namespace = sys.modules["volta.numpy"]
    if api_version not in (None, *API_VERSIONS):
        raise ValueError(at_user_line(f"there is no version {api_version!r} of the array API here: {API_VERSIONS[-1]}"))
    return namespace


def _need_concrete(name: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any) -> Any:
        raise ConcretizationTypeError(
            at_user_line(
                f".{name}() needs a concrete value, but this one is traced ({self.aval.short()}). Return it from the "
                "transformed function and convert it outside."
            )
        )

    return method


METHODS: dict[str, Callable[..., Any]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "view": _view,
    "astype": ufuncs.astype,
    "copy": creation.copy,
    "conj": _unary(complexes.conjugate),
    "conjugate": _unary(complexes.conjugate),
    "flatten": shaping.ravel,
    "ravel": shaping.ravel,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "repeat": taking.repeat,
    "nonzero": taking.nonzero,
    "diagonal": matrices.diagonal,
    "dot": contractions.dot,
    "sort": sorting.sort,
    "argsort": sorting.argsort,
    "searchsorted": sorting.searchsorted,
    "to_device": _to_device,
    "item": _need_concrete("item"),
    "tolist": _need_concrete("tolist"),
}

METHODS_WITH_OUT: dict[str, Callable[..., Any]] = {
    "round": _round,
    "take": taking.take,
    "compress": lambda self, condition, axis=None: taking.compress(condition, self, axis),
    "trace": matrices.trace,
    "clip": binary.clip,
    "sum": reductions.sum,
    "prod": reductions.prod,
    "mean": reductions.mean,
    "var": reductions.var,
    "std": reductions.std,
    "max": reductions.max,
    "min": reductions.min,
    "ptp": reductions.ptp,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "all": reductions.all,
    "any": reductions.any,
    "cumsum": scans.cumsum,
    "cumprod": scans.cumprod,
}

_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "T": shaping.transpose,
    "mT": shaping.matrix_transpose,
    "at": lambda self: IndexUpdateHelper(self),
    "nbytes": lambda self: self.aval.nbytes,
    "itemsize": lambda self: self.aval.dtype.itemsize,
    "real": _unary(complexes.real),
    "imag": _unary(complexes.imag),
}


def install(cls: type) -> None:
    """Put the operators and methods on ``cls``. What subclasses define (``item``, ``__bool__``) stays theirs."""
    for name, function in _BINARY.items():
        forward, reflected = _operator(function)
        setattr(cls, f"__{name}__", forward)
        setattr(cls, f"__r{name}__", reflected)
    for name, function in _COMPARE.items():
        setattr(cls, f"__{name}__", _operator(function)[0])
    for name, unary in _UNARY.items():
        setattr(cls, f"__{name}__", boundary(_unary(unary)))
    methods: list[tuple[str, Callable[..., Any]]] = [
        ("__getitem__", _getitem),
        ("__setitem__", _setitem),
        ("__len__", _len),
        ("__iter__", _iter),
        ("__contains__", _contains),
        ("__round__", _round),
        ("__array_namespace__", _array_namespace),
        ("__array_ufunc__", array_ufunc),
        *METHODS.items(),
        *((name, _as_numpy_calls(name, function)) for name, function in METHODS_WITH_OUT.items()),
    ]
    for name, method in methods:
        setattr(cls, name, boundary(method))
    for name, getter in _PROPERTIES.items():
        setattr(cls, name, property(boundary(getter), doc=getter.__doc__))


install(Array)
