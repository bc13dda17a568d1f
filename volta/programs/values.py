"""Parameters of operations as JSON, and back: what a file may say, and nothing else.

None, bools, integers and texts stand for themselves, a list is a tuple. Everything else is an object of one member that
names its kind: ``{"float": "0x1p-1"}``. No kind runs code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.errors import FormatError, UnsupportedOperationError
from volta.core.ir import ClosedJaxpr
from volta.core.policy import Precision
from volta.core.source import Source


def encode(value: Any, program: Callable[[ClosedJaxpr], Any], what: str, source: Source | None) -> Any:
    """A parameter as JSON; ``program`` encodes the programs in it.

    Raises:
        UnsupportedOperationError: for a value that a file cannot hold; ``what`` names operation and parameter.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Precision):
        return {"precision": value.value}
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [encode(x, program, what, source) for x in value]
    if isinstance(value, ClosedJaxpr):
        return {"program": program(value)}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    where = f"\n{source.pointer()}" if source is not None else ""
    raise UnsupportedOperationError(
        f"export: {what} is a {type(value).__name__}, which is of this process alone; what a program in a file does "
        f"must follow from its operations{where}"
    )


def decode(stored: Any, program: Callable[[Any], ClosedJaxpr]) -> Any:
    """A parameter from JSON.

    Raises:
        FormatError: for what `encode` never gives.
    """
    if stored is None or isinstance(stored, (bool, str, int)):
        return stored
    if isinstance(stored, list):
        return tuple([decode(x, program) for x in stored])
    if isinstance(stored, dict) and len(stored) == 1:
        ((kind, content),) = stored.items()
        if kind == "program":
            return program(content)
        if isinstance(content, str) and kind in _KINDS:
            try:
                return _KINDS[kind](content)
            except (ValueError, OverflowError):
                pass
    raise FormatError(f"corrupt: {stored!r:.80} is no parameter")


def dtype_of(name: Any) -> np.dtype:
    """A dtype by its name. Raises ValueError where Volta has none of it."""
    try:
        return dtypes.BY_NAME[name]
    except (KeyError, TypeError):
        raise ValueError(name) from None


_KINDS: dict[str, Callable[[str], Any]] = {"float": float.fromhex, "dtype": dtype_of, "precision": Precision}
