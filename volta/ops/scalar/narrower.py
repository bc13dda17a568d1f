"""Functions in fewer instructions, with the same bits, where the operation behind their operand tells its range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta.ops.scalar.exponential import exp_of_negative
from volta.ops.scalar.logarithm import log1p_of_part
from volta.ops.scalar.parts import Value

NARROWER: dict[tuple[str, ...], Callable[..., Value]] = {
    ("exp", "neg", "abs"): exp_of_negative,
    ("log1p", "exp", "neg", "abs"): log1p_of_part,
}
"""By the names of an operation on float32, of what its only operand comes from, and so on."""

DEPTH = max(map(len, NARROWER))


def narrower(chain: Sequence[str]) -> Callable[..., Value] | None:
    """What computes the last of a chain of float32 operations (named first), if that is not its general meaning."""
    return next((f for names, f in NARROWER.items() if tuple(chain[: len(names)]) == names), None)
