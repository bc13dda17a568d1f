"""Functions under the names of ``jax.scipy``: so far those of ``volta.scipy.special`` that Volta has primitives for."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy import special

__all__ = ["special"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
