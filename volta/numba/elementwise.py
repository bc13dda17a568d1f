"""Elementwise functions of floats: one for each primitive that has one, written by the primitive's own meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import extending, types
from numba.core.errors import TypingError

from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, ShapeError
from volta.core.source import at_user_line
from volta.emit.builder import Builder
from volta.ops import lax  # noqa: F401 - all of the vocabulary
from volta.ops.primitive import REGISTRY, Family, Primitive

OPTIONS = {"fastmath": False, "error_model": "numpy"}
"""How these functions are compiled, whatever their caller is compiled with: nothing is reordered or contracted."""

intrinsic: Any = extending.intrinsic


def compiled_by(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate what gives the implementation of a function for arguments of given Numba types."""
    overload: Any = extending.overload
    decorate: Callable[[Any], Any] = overload(function, jit_options=OPTIONS, target="cpu")
    return decorate


_OPERATORS = frozenset("add sub mul div neg eq ne lt le gt ge copy stop_gradient select_n".split())
"""What Python writes as an operator, or what does nothing: the bits are Numba's own already."""

KINDS = {types.float32: "float32", types.float64: "float64"}
_TYPES: dict[str, Any] = {"float32": types.float32, "float64": types.float64, "bool": types.boolean}


def arity(primitive: Primitive) -> int | None:
    """How many floats a primitive's meaning takes; None if it is not a function of floats alone."""
    if primitive.family is not Family.ELEMENTWISE or "float" not in primitive.domain.kinds:  # type: ignore[union-attr]
        return None
    _, *parameters = inspect.signature(primitive.emit).parameters.values()  # type: ignore[arg-type]
    if primitive.name in _OPERATORS or any(p.kind is p.KEYWORD_ONLY for p in parameters):
        return None
    try:
        _result(primitive, "float64", len(parameters))
    except (DTypeError, ShapeError):  # an operand is an integer, or what it means is said of its parts (complex)
        return None
    return len(parameters)


def _result(primitive: Primitive, dtype: str, count: int) -> str:
    name: str = primitive.abstract(*[ShapedArray((), np.dtype(dtype))] * count).dtype.name
    return name


def _typed(primitive: Primitive, *given: Any) -> Any:
    """The signature for arguments of these Numba types, and what writes the operation."""
    name, known = primitive.public, {types.unliteral(x) for x in given}
    if len(known) != 1 or not known <= KINDS.keys():
        raise TypingError(
            f"volta.numba.{name} takes numbers of one dtype, float32 or float64, got {', '.join(map(str, given))}: "
            "convert with np.float32(x) or np.float64(x)"
        )
    (kind,) = known
    dtype = KINDS[kind]

    emit: Any = primitive.emit

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        builder = Builder(b)
        return emit(builder, *[builder.value(x, dtype) for x in args]).ir

    return _TYPES[_result(primitive, dtype, len(given))](*[kind] * len(given)), generate


def _in_python(primitive: Primitive, *given: Any) -> Any:
    """What Python calls: the same operation, computed by Volta's own kernels."""
    values = [np.asarray(x) for x in given]
    dtypes = {x.dtype.name for x in values}
    if len(dtypes) != 1 or not dtypes <= set(KINDS.values()):
        shown = ", ".join(x.dtype.name for x in values)
        raise DTypeError(
            at_user_line(f"volta.numba.{primitive.public} takes numbers of one dtype, float32 or float64, got {shown}")
        )
    return np.asarray(primitive.bind(*values))[()]


def _of_one(primitive: Primitive) -> Callable[..., Any]:
    @intrinsic
    def operation(typingctx: Any, x: Any) -> Any:
        return _typed(primitive, x)

    def function(x: Any) -> Any:
        return _in_python(primitive, x)

    compiled_by(function)(lambda x: lambda x: operation(x))
    return function


def _of_two(primitive: Primitive) -> Callable[..., Any]:
    @intrinsic
    def operation(typingctx: Any, x: Any, y: Any) -> Any:
        return _typed(primitive, x, y)

    def function(x: Any, y: Any) -> Any:
        return _in_python(primitive, x, y)

    compiled_by(function)(lambda x, y: lambda x, y: operation(x, y))
    return function


def _of_three(primitive: Primitive) -> Callable[..., Any]:
    @intrinsic
    def operation(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
        return _typed(primitive, x, y, z)

    def function(x: Any, y: Any, z: Any) -> Any:
        return _in_python(primitive, x, y, z)

    compiled_by(function)(lambda x, y, z: lambda x, y, z: operation(x, y, z))
    return function


def function_of(primitive: Primitive, count: int) -> Callable[..., Any]:
    """The function of a primitive of so many operands."""
    made = (_of_one, _of_two, _of_three)[count - 1](primitive)
    made.__name__ = made.__qualname__ = primitive.public
    made.__module__ = "volta.numba"
    made.__doc__ = f"{primitive.doc}\n\nOf numbers of one dtype, float32 or float64."
    if _result(primitive, "float64", count) == "float64":  # in @cuda.jit functions too: volta.numba_cuda
        made.volta_primitive = (primitive.public, count)  # type: ignore[attr-defined]
    made.volta_text = f"volta.numba.{primitive.public}"  # type: ignore[attr-defined]  # see volta.emit.functions
    return made


FUNCTIONS: dict[str, Callable[..., Any]] = {
    p.public: function_of(p, count) for p in REGISTRY.values() if (count := arity(p)) is not None
}
"""The functions by name."""
