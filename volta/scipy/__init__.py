"""Functions under the names of ``jax.scipy``: cosine transforms, linear algebra, special functions, and more."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy import cluster, fft, integrate, interpolate, linalg, ndimage, optimize, signal, sparse, special, stats

__all__ = [
    "cluster",
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "special",
    "stats",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
