"""What ``jax.scipy.sparse`` has: equations whose matrix is a function."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy.sparse import linalg

__all__ = ["linalg"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
