"""Functions under the names of ``jax.scipy``: cosine transforms, linear algebra, special functions, distributions."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy import fft, linalg, special, stats

__all__ = ["fft", "linalg", "special", "stats"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
