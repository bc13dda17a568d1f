"""Determinism as an explicit policy: the level of a run, and the precision of its products."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from volta.core.errors import DTypeError
from volta.core.source import at_user_line


class DeterminismLevel(enum.Enum):
    """How much a run promises.

    STRICT: the same bits everywhere (docs/determinism.md). DEVICE: the same bits from run to run and batch to batch on
    one architecture; products may run on tensor cores where their precision says so. RELAXED: at least what DEVICE runs
    today, but no promise.
    """

    STRICT = "strict"
    DEVICE = "device"
    RELAXED = "relaxed"


class Precision(enum.Enum):
    """How exactly a product of float32 (or narrower) arrays is computed, under the names of ``jax.lax.Precision``.

    DEFAULT and HIGH: products in chains of float32 FMAs, what a precision of None is. HIGHEST: accumulated in float64.

    >>> lax.dot(np.ones(2, "float32"), np.ones(2, "float32"), lax.Precision.HIGHEST)
    Array(2., dtype=float32)
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


TENSOR_PRECISIONS = ("tf32", "bf16")
"""Precisions of tensor cores, which add in an order of their own: for levels below strict."""

_PRECISIONS = {
    "default": None, "float32": None, "high": None, "highest": "highest", "exact": "exact",
    "tf32": "tf32", "tensorfloat32": "tf32", "bf16": "bf16", "bfloat16": "bf16",
}  # fmt: skip

_default: ContextVar[str | None] = ContextVar("volta_matmul_precision", default=None)


def default_precision() -> str | None:
    """The precision of products in this thread that name none."""
    return _default.get()


@contextmanager
def use_precision(precision: str | None) -> Iterator[None]:
    """Give products inside the block that name no precision this one (a value of `product_precision`)."""
    token = _default.set(precision)
    try:
        yield
    finally:
        _default.reset(token)


def product_precision(name: str, precision: Any) -> str | None:
    """A precision as users write it, as one of None (float32 chains), "highest", "exact", "tf32" and "bf16".

    None is the default of the context; a pair must be of one precision for both operands. Raises DTypeError for what is
    no precision.
    """
    if precision is None:
        return default_precision()
    if isinstance(precision, tuple) and len(precision) == 2 and precision[0] == precision[1]:
        precision = precision[0]
        if precision is None:
            return default_precision()
    text = precision.name if isinstance(precision, enum.Enum) else precision
    if not isinstance(text, str) or text.lower() not in _PRECISIONS:
        raise DTypeError(
            at_user_line(
                f"{name}: no precision {precision!r}. There are None, 'default' or 'float32' (chains of float32), "
                "'highest' (accumulated in float64), 'exact' (integers, which add in any order), and below strict "
                "'tf32' and 'bf16' (tensor cores)."
            )
        )
    return _PRECISIONS[text.lower()]
