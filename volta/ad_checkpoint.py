"""Recomputation, under the names of ``jax.ad_checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta.api.checkpointing import checkpoint, checkpoint_name, checkpoint_policies, remat
from volta.core.absent import namespace as _namespace

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies", "remat"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
