"""Lists of which only some have a value: tangents that are not zero, inputs that are linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.ops.primitive import Zero

Mask = tuple[bool, ...]


def spread(mask: Sequence[bool], live: Sequence[Any], otherwise: Callable[[int], Any]) -> list[Any]:
    """``live`` at the places that ``mask`` marks, ``otherwise(i)`` at the rest."""
    it = iter(live)
    return [next(it) if m else otherwise(i) for i, m in enumerate(mask)]


def zeros(avals: Sequence[ShapedArray]) -> Callable[[int], Zero]:
    return lambda i: Zero(avals[i].strip_weak())


def nonzero(values: Sequence[Any]) -> Mask:
    return tuple(not isinstance(x, Zero) for x in values)


def live(values: Sequence[Any]) -> list[Any]:
    return [x for x in values if not isinstance(x, Zero)]


def parts(items: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """A sequence in pieces of these sizes, and the rest."""
    found, at = [], 0
    for size in sizes:
        found.append(list(items[at : at + size]))
        at += size
    return [*found, list(items[at:])]
