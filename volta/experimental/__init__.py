"""What JAX has in ``jax.experimental``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta.api.callbacks import io_callback, pure_callback
from volta.core.absent import namespace as _namespace
from volta.experimental import checkify, jet, ode

__all__ = ["checkify", "io_callback", "jet", "ode", "pure_callback"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
