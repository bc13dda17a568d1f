"""Looking for NaN: where a result has one, the program is run again, equation by equation, to name the first that did.

The equations have the bits of the whole, so what is found is what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.errors import NotFiniteError
from volta.core.interp import eval_trace, use_trace
from volta.core.ir import ClosedJaxpr, Eqn
from volta.core.source import at_user_line
from volta.runtime.array import ConcreteArray
from volta.runtime.context import current_context, use_context
from volta.runtime.devices import fetch
from volta.runtime.parts import Compile, prepared

_TESTS: dict[str, Callable[[np.ndarray], Any]] = {"NaN": np.isnan, "inf": np.isinf}


@contextmanager
def debug_nans(enabled: bool = True) -> Iterator[None]:
    """Inside the block an operation, or a jitted call, whose result has a NaN is an error that names the first
    operation that made one, its operands and the user's line. Results are looked at after each call: it takes time.

    Raises:
        NotFiniteError: a result has a NaN; a FloatingPointError too.

    >>> import volta
    >>> with volta.debug_nans():
    ...     float(volta.numpy.sqrt(4.0))
    2.0
    """
    with _looking_for("NaN", enabled):
        yield


@contextmanager
def debug_infs(enabled: bool = True) -> Iterator[None]:
    """As :func:`debug_nans`, for infinities.

    >>> import volta
    >>> with volta.debug_infs():
    ...     float(volta.numpy.sqrt(4.0))
    2.0
    """
    with _looking_for("inf", enabled):
        yield


@contextmanager
def _looking_for(kind: str, enabled: bool) -> Iterator[None]:
    context = current_context()
    others = tuple(k for k in context.refused if k != kind)
    with use_context(attrs.evolve(context, refused=(*others, kind) if enabled else others)):
        yield


def _kind(x: Any, refused: Sequence[str]) -> str | None:
    """What of ``refused`` an array has."""
    if not isinstance(x, ConcreteArray) or not dtypes.is_inexact(x.aval.dtype):
        return None
    elements = fetch(x).numpy()
    if elements.dtype.itemsize == 2:  # bfloat16 is no dtype of NumPy's own
        elements = elements.astype(np.float32)
    return next((kind for kind in refused if _TESTS[kind](elements).any()), None)


class Watched:
    """An executable whose results are looked at."""

    def __init__(self, executable: Any, program: ClosedJaxpr, name: str, refused: tuple[str, ...], parts: Compile):
        self.executable, self.program, self.name = executable, program, name
        self._refused, self._parts = refused, parts

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        outs: list[Any] = self.executable(arrays)
        if any(_kind(x, self._refused) for x in outs):
            self._blame(arrays)
        return outs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executable, name)

    def _blame(self, arrays: Sequence[Any]) -> None:
        given = [kind for kind in (_kind(x, self._refused) for x in arrays) if kind]

        def look(eqn: Eqn, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            found = next((kind for kind in (_kind(x, self._refused) for x in outputs) if kind), None)
            if found is not None:
                raise self._error(eqn, found, inputs)

        with use_trace(eval_trace()):
            prepared(self.program, self._parts, look)(arrays)
        raise NotFiniteError(at_user_line(f"`{self.name}` hands on {given[0]}, which an argument has"))

    def _error(self, eqn: Eqn, kind: str, inputs: Sequence[Any]) -> NotFiniteError:
        had = any(_kind(x, self._refused) == kind for x in inputs)
        shown = ", ".join(" ".join(str(fetch(x).numpy()).split())[:60] for x in inputs)
        verb = f"gave {kind}, which an operand had already" if had else f"made the first {kind}"
        text = f"`{eqn.primitive.name}` {verb} in `{self.name}`, of {shown or 'no operands'}"
        if eqn.source is None:
            return NotFiniteError(at_user_line(text))
        backwards = " (in the backward pass of this line)" if eqn.source.gradient else ""
        return NotFiniteError(f"{text}{backwards}\n{eqn.source.pointer()}")
