"""Clusters, under the names of ``jax.scipy.cluster``."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy.cluster import vq

__all__ = ["vq"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
