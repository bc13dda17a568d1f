"""What all traced values share: conversions to Python values, and the errors that explain why there are none."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from volta.core.errors import (
    ConcretizationTypeError,
    NotDifferentiableError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
    VoltaError,
)
from volta.core.interp import Tracer, current_trace, eval_trace
from volta.core.source import Source, at_user_line, user_source

_WAYS = {
    TracerBoolConversionError: (
        "choose between two values with volta.numpy.where(condition, a, b), between two functions with volta.lax.cond",
        "combine conditions with &, | and ~ (or volta.numpy.logical_and, ...) instead of and, or, not",
    ),
    TracerIntegerConversionError: (
        "sizes and loop counts are known while tracing: use x.shape[0] or len(x)",
        "read x[i] at a traced index of an array by making x a volta.Array: volta.numpy.asarray(x)[i]",
    ),
    ConcretizationTypeError: (
        "convert with x.astype(dtype), which stays inside the program",
        "return the value, and convert it outside of the transformed function",
    ),
    TracerArrayConversionError: (
        "use the function of the same name in volta.numpy",
        "convert with x.astype(dtype): volta.numpy.float32 and its like are NumPy's own types",
        "return the value, and hand it to NumPy outside of the transformed function",
    ),
}

_STATIC = "if it is a setting and no data, mark the argument static: volta.{transform}(f, static_argnums=...)"
_CLOSURE = (
    "if it is a setting and no data, let the function read it from around it (a closure), where it is a plain number"
)
_UNMAPPED = "if it is a setting and no data, do not map it: volta.vmap(f, in_axes=(0, None)) hands it on as it is"
_SETTINGS = {"jit": _STATIC, "checkpoint": _STATIC, "make_jaxpr": _STATIC, "vmap": _UNMAPPED}
"""How a setting reaches a function as the number that it is, by the transform that would hide it."""


class TransformTracer(Tracer):
    """Base of the tracers of this package. ``source`` is the user's line that made the value."""

    __slots__ = ("aval", "source")
    source: Source | None

    def doing(self) -> str:
        """What is going on, in the words of error messages: ``jit traces `f```."""
        return self._trace.describe()  # type: ignore[attr-defined]

    def obstacle(self) -> str:
        """The transform that hides the elements, by its name: that of a value around which others are wrapped."""
        return self.doing().partition(" ")[0]

    def setting(self) -> str:
        """How the value would be known, if it is a setting and no data: a line of error messages."""
        transform = self.obstacle()
        return _SETTINGS.get(transform, _CLOSURE).format(transform=transform)

    def ways_out(self, error: type[TracerError]) -> str:
        """The last lines of an error message."""
        return "".join(f"\n  - {way}" for way in (*_WAYS[error], self.setting()))  # type: ignore[index]

    def origin(self) -> str:
        """Which arguments the value comes from, as a line of an error message; empty where that is unknown."""
        return ""

    def concrete(self) -> Any:
        """The array behind the value, or None where only its shape and dtype are known."""
        return None

    def _convert(self, error: type[TracerError], wanted: str, kind: Any) -> Any:
        value = self.concrete()
        if value is not None:
            return kind(value)
        self._refuse_leaked()
        made = "" if self.source in (None, user_source()) else f"\nit was made\n{self.source.pointer()}"
        raise error(
            at_user_line(
                f"{wanted} of a traced value {self.aval.short()} is needed here, but while {self.doing()} "
                "only shapes and dtypes are known"
            )
            + self.origin()
            + made
            + "\nthe way out:"
            + self.ways_out(error)
        )

    def __bool__(self) -> bool:
        return self._convert(TracerBoolConversionError, "the truth value", bool)

    def __int__(self) -> int:
        return self._convert(ConcretizationTypeError, "int()", int)

    def __float__(self) -> float:
        return self._convert(ConcretizationTypeError, "float()", float)

    def __complex__(self) -> complex:
        return self._convert(ConcretizationTypeError, "complex()", complex)

    def __index__(self) -> int:
        return self._convert(TracerIntegerConversionError, "the Python integer", lambda x: x.__index__())

    def item(self, *index: Any) -> Any:
        """The single element as a Python number, where it is known."""
        return self._convert(ConcretizationTypeError, ".item()", lambda x: x.item(*index))

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers, where they are known."""
        return self._convert(ConcretizationTypeError, ".tolist()", lambda x: x.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._refuse_array()

    def _refuse_leaked(self) -> None:
        """Outside of every transform a traced value has outlived its own: say that, not how to write the transform."""
        if current_trace() is eval_trace():
            raise self.leak_error()

    def _refuse_array(self) -> NoReturn:
        self._refuse_leaked()
        message = (
            f"NumPy asked for the elements of a traced value {self.aval.short()}, but while {self.doing()} "
            "NumPy would not see the operation"
        )
        raise TracerArrayConversionError(
            at_user_line(message) + "\nthe way out:" + self.ways_out(TracerArrayConversionError)
        )

    def __hash__(self) -> int:
        raise TypeError(
            at_user_line(
                f"a traced value {self.aval.short()} cannot be hashed (used as a dict key, in a set, or as a static "
                "argument); use its shape or dtype"
            )
            + f"\nthe way out:\n  - {self.setting()}"
        )

    def elements(self) -> str:
        """The elements as text, where they are known: always but inside of a program that is being recorded."""
        return ""

    def __repr__(self) -> str:
        elements = self.elements()
        return f"Traced<{self.aval.short()}>({self.doing()}{f': {elements}' if elements else ''})"

    def __format__(self, spec: str) -> str:
        value = self.concrete()
        return format(value, spec) if value is not None else repr(self)

    def __copy__(self) -> TransformTracer:
        return self

    def __deepcopy__(self, memo: Any) -> TransformTracer:
        return self

    def leak_error(self) -> VoltaError:
        """The error for a value that is used after its transform has ended, or where its derivative would be lost."""
        if self._trace.hidden_from is not None:
            return closed_over(self._trace.hidden_from, self.aval.short(), self.source)
        made = "" if self.source is None else f"\nit was made\n{self.source.pointer()}"
        return UnexpectedTracerError(
            at_user_line(f"a traced {self.aval.short()} is used outside of its trace, which has ended ({self.doing()})")
            + made
            + "\nThe value left its function through a global, a closure, an attribute or a list. "
            "Return it from the transformed function instead."
        )


def closed_over(function: str, shown: str, source: Source | None = None) -> NotDifferentiableError:
    """The error for a differentiated value that a function with derivative rules of its own reads from around it."""
    made = "" if source in (None, user_source()) else f"\nit was made\n{source.pointer()}"
    return NotDifferentiableError(
        at_user_line(
            f"`{function}` has a derivative rule of its own and reads a differentiated value {shown} from around it "
            "(a closure): the rule says nothing of that value. Pass it as an argument, or apply "
            "volta.lax.stop_gradient to it"
        )
        + made
    )


def concrete_of(x: Any) -> Any:
    """The concrete value behind an operand of any kind, or None."""
    return x.concrete() if isinstance(x, TransformTracer) else x


def elements_of(x: Any) -> str:
    """The elements behind an operand of any kind, as text; empty where they are not known."""
    return x.elements() if isinstance(x, TransformTracer) else repr(x)


def setting_of(x: Any) -> str:
    """The last line of an error that a traced ``x`` raises where a setting belongs: how it would be known."""
    return f"\nthe way out:\n  - {x.setting()}" if isinstance(x, TransformTracer) else ""
