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

from volta.core.avals import ShapedArray


class Trace:
    """An interpreter of operations."""

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Interpret one operation. Returns a value, or a list of them when ``primitive.multiple_results``."""
        raise NotImplementedError(f"{type(self).__name__} must say how to process {primitive.name}")


class Value:
    """Base of :class:`Tracer` and of ``volta.Array``: what operators, methods and indexing are installed on.

    Subclasses have ``aval``. The operators are installed once by ``volta.numpy`` (see ``volta/numpy/methods.py``).
    """

    __slots__ = ()
    aval: ShapedArray

    # NumPy must not take over `np_array + value`; our __radd__ does.
    __array_priority__ = 1000

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type


class Tracer(Value):
    """A value that stands for an array while a transform runs."""

    __slots__ = ("_trace",)
    _trace: Trace


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
