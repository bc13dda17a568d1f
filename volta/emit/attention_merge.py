"""How a block of keys joins those before it in attention, in the vocabulary: all kernels say it with these."""

from __future__ import annotations

from collections.abc import Callable

from volta.emit.builder import Builder, Value

Exp = Callable[[Value], Value]
"""exp of numbers that are not above 0."""


def factors(b: Builder, top: Value, block_top: Value, both: Value, exp: Exp) -> tuple[Value, Value]:
    """The factors of sums before (0 if there was nothing) and of the block's own, by the largest score of these, of
    those, and of both (their MAX)."""
    return b.select(top == float("-inf"), 0.0, exp(top - both)), exp(block_top - both)


def merged(b: Builder, before: Value, keep: Value, own: Value, take: Value) -> Value:
    """A sum before a block and the block's own, by their factors: one rounding of the product, one of the rest."""
    return b.fma(before, keep, own * take)
