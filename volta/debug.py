"""Looking at values inside of programs, under the names of ``jax.debug``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta.api.callbacks import debug_breakpoint as breakpoint  # noqa: A004 - jax.debug's name
from volta.api.callbacks import debug_callback as callback
from volta.api.callbacks import debug_print as print  # noqa: A004 - jax.debug's name
from volta.core.absent import namespace as _namespace

__all__ = ["breakpoint", "callback", "print"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
