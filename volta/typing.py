"""Types for annotations of users' programs, under the names of ``jax.typing``."""

from volta.core.array import Array
from volta.core.array import ArrayOperand as ArrayLike

__all__ = ["Array", "ArrayLike"]
