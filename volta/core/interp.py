"""Binding: how an operation on values reaches the interpreter that is active.

There is one *current trace* per thread. ``bind`` hands every operation to it. A transform makes its own
:class:`Trace`, which keeps its parent (the trace that was current when it began) and interprets each operation in
terms of operations on the parent; the outermost trace evaluates. (The stackless design of JAX's autodidax2.)

The evaluating trace is set once, by the runtime (:func:`set_eval_trace`): that is the only upward hook in the house.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, UnexpectedTracerError, VoltaError
from volta.core.source import at_user_line


class Trace:
    """An interpreter of operations."""

    # The function that runs on the parent at present, which has derivative rules of its own: no value of this trace
    # may come in but by its arguments.
    hidden_from: str | None = None

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Interpret one operation. Returns a value, or a list of them when ``primitive.multiple_results``."""
        raise NotImplementedError(f"{type(self).__name__} must say how to process {primitive.name}")

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        """Interpret a call of a function that has derivative rules of its own (a ``volta.trace.custom.CustomCall``)."""
        raise NotImplementedError(f"{type(self).__name__} must say how to process custom derivatives")


class Tracer(Array):
    """A value that stands for an array while a transform runs."""

    __slots__ = ("_trace",)
    _trace: Trace

    def leak_error(self) -> VoltaError:
        """The error for a use of this value after its transform has ended."""
        return UnexpectedTracerError(
            at_user_line(f"a traced value {self.aval} is used outside of its trace, which has ended")
        )


class _State(threading.local):
    trace: Trace | None = None


_state = _State()
_eval_trace: Trace | None = None


def set_eval_trace(trace: Trace) -> None:
    """Install the trace that evaluates operations on concrete arrays (called once, by the runtime)."""
    global _eval_trace
    _eval_trace = trace


def eval_trace() -> Trace:
    if _eval_trace is None:
        raise RuntimeError("no runtime is installed: `import volta` before using volta.core by itself")
    return _eval_trace


def current_trace() -> Trace:
    return _state.trace or eval_trace()


@contextmanager
def use_trace(trace: Trace) -> Iterator[None]:
    """Make ``trace`` current inside the block."""
    previous = _state.trace
    _state.trace = trace
    try:
        yield
    finally:
        _state.trace = previous


def bind(primitive: Any, *args: Any, **params: Any) -> Any:
    """Apply ``primitive`` to values under the current trace."""
    return (_state.trace or eval_trace()).process_primitive(primitive, args, params)


def get_aval(x: Any) -> ShapedArray:
    """The abstract value of anything that may be an operand.

    That is a tracer, an array, a NumPy array or scalar, or a Python number.

    Raises:
        DTypeError: for anything else (a list, a string).
    """
    if isinstance(x, Array):
        return x.aval
    if isinstance(x, (np.ndarray, np.generic)):
        return ShapedArray(x.shape, dtypes.canonicalize(x.dtype))
    dtype = dtypes.of_python_scalar(x)
    if dtype is None:
        raise DTypeError(at_user_line(f"a value of type {type(x).__name__} is not a valid operand: {x!r:.80}"))
    return ShapedArray((), dtype, type(x) is not bool)
