"""Tracebacks that show the user's frames: between their program and an error, Volta's own are left out.

A function that calls the user's functions, or that the user calls, is under :func:`boundary` (or has its ``try`` in
itself, where a frame more would cost). ``VOLTA_TRACEBACKS=all`` in the environment keeps every frame; it is read when
an error passes, so it may be set in a running program.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import FunctionType, ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

from volta.core.errors import VerificationError, VoltaError
from volta.core.internal_errors import is_internal, named
from volta.core.source import is_own

P = ParamSpec("P")
R = TypeVar("R")


_BOUNDED: dict[Any, Any] = {}
"""Functions under a boundary, by themselves and by what they were: a name and its aliases stay one function."""


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, whose errors carry no frames of Volta's, and none of which is one that Volta did not foresee."""

    @functools.wraps(function)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if is_internal(error):
                try:
                    raise named(function.__name__, error, args, kwargs) from error
                except VoltaError as said:
                    hide_own_frames(said)
                    raise
            hide_own_frames(error)
            raise  # by itself: that adds no frame

    return bounded


def bound_namespace(module: ModuleType) -> None:
    """Put the public functions of a namespace under boundaries. Volta's own modules go on using them as they are."""
    public = vars(module)
    for name in public.get("__all__", ()):
        if name in public:
            bind(module, name, public[name])


def bind(module: ModuleType, name: str, value: object) -> None:
    """Make a value public in a namespace by its name: a function under a boundary."""
    if isinstance(value, FunctionType):
        bounded = _BOUNDED.get(value)
        if bounded is None:
            bounded = _BOUNDED[value] = boundary(value)
            _BOUNDED[bounded] = bounded
            bounded.__module__, bounded.__qualname__ = module.__name__, name  # where pickle finds it
        value = bounded
    setattr(module, name, value)


def hide_own_frames(error: BaseException) -> None:
    """Take Volta's own frames out of the traceback of an error that is passing, and of those it came from.

    What a bug of Volta's may be keeps its last frame; a plan that is refused by Volta's own checks keeps all.
    """
    if os.environ.get("VOLTA_TRACEBACKS", "user") == "all" or isinstance(error, VerificationError):
        return
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        on_purpose = isinstance(current, VoltaError)
        current.__traceback__ = _without_own(current.__traceback__, on_purpose)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _without_own(traceback: TracebackType | None, on_purpose: bool) -> TracebackType | None:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    last = len(frames) - 1
    kept: TracebackType | None = None
    for i, frame in reversed(list(enumerate(frames))):
        if not is_own(frame.tb_frame.f_code.co_filename) or (i == last and not on_purpose):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept
