"""Abstract values: what the tracer knows of an array without its data."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from volta.core import dtypes

Shape = tuple[int, ...]


@attrs.frozen(slots=True, cache_hash=True)
class ShapedArray:
    """Shape, dtype and whether the dtype is weak (came from a Python scalar)."""

    shape: Shape
    dtype: np.dtype
    weak_type: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def update(self, **changes: Any) -> ShapedArray:
        return attrs.evolve(self, **changes)

    def strip_weak(self) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def short(self) -> str:
        """``f32[3,4]``; a weak type carries a star, ``f32*[]``."""
        star = "*" if self.weak_type else ""
        return f"{dtypes.short_name(self.dtype)}{star}[{','.join(map(str, self.shape))}]"

    __str__ = short
