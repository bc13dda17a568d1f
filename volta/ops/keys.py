"""Random keys and the words that they are made of: the two operations between them.

Neither computes anything. What else is done with keys, other primitives do that move elements; numbers are drawn from
words (``volta.random``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.extended import KEY_TYPES, is_key
from volta.core.interp import bind
from volta.ops import base
from volta.ops.base import dtype_error, shape_error
from volta.ops.primitive import Family, NoDerivative, Primitive, register

__all__: list[str] = []  # their functions are volta.random.key_data and wrap_key_data

_TYPE_OF = {t.impl: t for t in KEY_TYPES}


def _unwrap_abstract(x: ShapedArray) -> ShapedArray:
    if not is_key(x.dtype):
        raise dtype_error("random_unwrap", (x,), "takes random keys")
    return ShapedArray((*x.shape, x.dtype.words), dtypes.uint32)  # type: ignore[attr-defined]


def _wrap_abstract(x: ShapedArray, *, impl: str) -> ShapedArray:
    kind = _TYPE_OF[impl]
    if x.dtype != dtypes.uint32:
        raise dtype_error("random_wrap", (x,), f"the words of {kind} are uint32")
    if x.shape[-1:] != (kind.words,):
        raise shape_error("random_wrap", (x,), f"a {kind} has {kind.words} words, along the last axis")
    return ShapedArray(x.shape[:-1], kind)


def _unwrap_batch(args: Sequence[Any], dims: Sequence[int | None], size: int) -> tuple[Any, int]:
    assert dims[0] is not None
    return bind(random_unwrap_p, args[0]), dims[0]


def _wrap_batch(args: Sequence[Any], dims: Sequence[int | None], size: int, *, impl: str) -> tuple[Any, int]:
    assert dims[0] is not None
    return bind(random_wrap_p, base.move_axis(args[0], dims[0], 0), impl=impl), 0


random_unwrap_p = register(
    Primitive(
        "random_unwrap",
        Family.KEYS,
        _unwrap_abstract,
        NoDerivative("keys are no numbers", zero=True),
        _unwrap_batch,
        doc="The uint32 words of random keys, along a last axis.",
    )
)
random_wrap_p = register(
    Primitive(
        "random_wrap",
        Family.KEYS,
        _wrap_abstract,
        NoDerivative("words of keys are no numbers", zero=True),
        _wrap_batch,
        doc="Random keys of uint32 words, which lie along the last axis.",
    )
)


def unwrap(keys: Any) -> Any:
    """The words of keys."""
    return bind(random_unwrap_p, keys)


def wrap(words: Any, impl: str) -> Any:
    """Keys of words, which lie along the last axis."""
    return bind(random_wrap_p, words, impl=impl)
