"""Batch rules of one's own, under the names of ``jax.custom_batching``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.lax.custom_batching import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
