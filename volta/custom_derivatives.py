"""Derivative rules of one's own, under the names of ``jax.custom_derivatives``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta.api.closures import closure_convert, custom_gradient
from volta.api.custom_derivatives import custom_jvp, custom_vjp
from volta.api.custom_rules import CustomVJPPrimal, SymbolicZero, custom_vjp_primal_tree_values, zero_from_primal
from volta.core.absent import namespace as _namespace

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "zero_from_primal",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
