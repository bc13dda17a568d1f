"""Types for annotations of users' programs, under the names of ``jax.typing``."""

from numpy.typing import DTypeLike

from volta.core.array import Array
from volta.core.array import ArrayOperand as ArrayLike

__all__ = ["Array", "ArrayLike", "DTypeLike"]
