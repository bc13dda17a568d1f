"""Python's collector of cyclic garbage waits while programs are compiled.

What a compilation makes, equations, calls, the instructions of kernels, lives until it is done. As so many objects are
made, collections set in that look at each of them, and at every other object of the process: 10 to 20 in a second, of
which each may take a tenth of one (seen: a third of the time without LLVM's).
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from threading import get_ident
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_waits_for: int | None = None
"""The thread that has made the collector wait."""


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """A function during whose calls nothing is collected; afterwards the collector is on, or off, as it was.

    An interrupt may come at any step: whoever switches the collector off is already where it is switched on again. Of
    calls in several threads the first that ends switches it on, which costs the others time and nothing else.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        global _waits_for
        if not gc.isenabled():
            return function(*args, **kwargs)
        try:
            _waits_for = get_ident()
            gc.disable()
            return function(*args, **kwargs)
        finally:
            _waits_for = None
            gc.enable()

    return call


def _in_child() -> None:
    """A forked child does not have the thread that would have switched the collector on again."""
    global _waits_for
    if _waits_for not in (None, get_ident()):
        _waits_for = None
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
