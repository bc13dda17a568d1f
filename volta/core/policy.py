"""Determinism as an explicit policy: the level of a run, and the precision of its products."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
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


@attrs.frozen
class DotAlgorithm:
    """How a product is computed, in the words of ``jax.lax.DotAlgorithm``: as a precision of products.

    Those of :class:`DotAlgorithmPreset` that Volta computes are accepted, others are refused where they are used.

    >>> import numpy as np
    >>> lax.DotAlgorithm(np.float32, np.float32, np.float32) == lax.DotAlgorithmPreset.F32_F32_F32.algorithm
    True
    """

    lhs_precision_type: np.dtype = attrs.field(converter=np.dtype)
    rhs_precision_type: np.dtype = attrs.field(converter=np.dtype)
    accumulation_type: np.dtype = attrs.field(converter=np.dtype)
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(enum.Enum):
    """Algorithms of products, under JAX's names (operand, operand, accumulation). Those that Volta computes:

    F32_F32_F32: chains of float32, for float32 and narrower; F16_F16_F32 and BF16_BF16_F32 of operands of these dtypes
    are that too. F64_F64_F64: float64. TF32_TF32_F32, and BF16_BF16_F32 of float32: tensor cores, below strict. The
    others are refused by the product that names one.

    >>> x = np.ones(3, np.float16)
    >>> lax.dot(x, x, lax.DotAlgorithmPreset.F16_F16_F32)
    Array(3., dtype=float16)
    """

    DEFAULT = "default"
    F16_F16_F32 = "f16"
    BF16_BF16_F32 = "bf16"
    TF32_TF32_F32 = "tf32"
    F32_F32_F32 = "f32"
    F64_F64_F64 = "f64"
    ANY_F8_ANY_F8_F32 = "f8"
    ANY_F8_ANY_F8_F32_FAST_ACCUM = "f8 fast"
    ANY_F8_ANY_F8_ANY = "f8 any"
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = "f8 any fast"
    F16_F16_F16 = "f16 f16"
    BF16_BF16_BF16 = "bf16 bf16"
    BF16_BF16_F32_X3 = "bf16 x3"
    BF16_BF16_F32_X6 = "bf16 x6"
    BF16_BF16_F32_X9 = "bf16 x9"
    TF32_TF32_F32_X3 = "tf32 x3"

    @property
    def algorithm(self) -> DotAlgorithm | None:
        """The parts of it; None of those that NumPy has no dtype for."""
        parts = _PARTS.get(self.name)
        return None if parts is None else DotAlgorithm(*parts)


_PARTS = {
    "F16_F16_F32": (np.float16, np.float16, np.float32),
    "BF16_BF16_F32": (dtypes.bfloat16, dtypes.bfloat16, np.float32),
    "F32_F32_F32": (np.float32,) * 3,
    "F64_F64_F64": (np.float64,) * 3,
}
_ALGORITHMS: dict[str, dict[str, str | None]] = {
    "F16_F16_F32": {"float16": None},
    "BF16_BF16_F32": {"bfloat16": None, "float32": "bf16"},
    "TF32_TF32_F32": {"float32": "tf32"},
    "F32_F32_F32": {"float32": None, "float16": None, "bfloat16": None},
    "F64_F64_F64": {"float64": None},
}
"""Algorithm -> dtype of the operands -> what `product_precision` gives."""

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


def _of_algorithm(name: str, algorithm: str, dtype: np.dtype | None) -> str | None:
    """The precision of products that an algorithm is, of operands of a dtype (None: of float32)."""
    known = _ALGORITHMS[algorithm]
    operands = "float32" if dtype is None else dtype.name
    if operands not in known:
        raise DTypeError(
            at_user_line(
                f"{name}: the algorithm {algorithm} multiplies {' or '.join(known)}, and the operands are "
                f"{operands}; convert them by astype, or name another precision."
            )
        )
    return known[operands]


def _algorithm_name(precision: Any) -> str | None:
    """The name of the algorithm that a precision names, if it names one."""
    if isinstance(precision, DotAlgorithm):
        return next((n for n, parts in _PARTS.items() if precision == DotAlgorithm(*parts)), None)
    name = precision.name if isinstance(precision, DotAlgorithmPreset) else precision
    return name.upper() if isinstance(name, str) and name.upper() in _ALGORITHMS else None


def product_precision(name: str, precision: Any, dtype: np.dtype | None = None) -> str | None:
    """A precision as users write it, as one of None (float32 chains), "highest", "exact", "tf32" and "bf16".

    None is the default of the context; a pair must be of one precision for both operands. ``dtype`` is that of the
    operands, for what algorithms of products ask of them. Raises DTypeError for what is no precision.
    """
    if precision is None:
        return default_precision()
    if isinstance(precision, tuple) and len(precision) == 2 and precision[0] == precision[1]:
        precision = precision[0]
        if precision is None:
            return default_precision()
    algorithm = _algorithm_name(precision)
    if algorithm is not None:
        return _of_algorithm(name, algorithm, dtype)
    text = precision.name if isinstance(precision, enum.Enum) else precision
    if not isinstance(text, str) or text.lower() not in _PRECISIONS:
        raise DTypeError(
            at_user_line(
                f"{name}: no precision {precision!r}. There are None, 'default' or 'float32' (chains of float32), "
                "'highest' (accumulated in float64), 'exact' (integers, which add in any order), and below strict "
                f"'tf32' and 'bf16' (tensor cores). Of JAX's algorithms there are {', '.join(_ALGORITHMS)}."
            )
        )
    return _PRECISIONS[text.lower()]
