"""What a complex value is where programs are compiled: two real arrays.

Programs are traced, differentiated and batched over complex values as they are; then
``volta/xla_like/complex_pairs.py`` rewrites them to programs over pairs, by the rule that each primitive's record has
for that. So kernels, backends and passes know real numbers only, and what a complex operation computes, and in which
order, stands in these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from volta.core.avals import Shape
from volta.ops import lax as _lax  # noqa: F401 (all records are there before their rules are)
from volta.ops.base import bind_named, shape_of
from volta.ops.primitive import REGISTRY, Rule, complete


@attrs.frozen(eq=False)
class Pair:
    """A complex value: its real and its imaginary part, of one shape and dtype."""

    re: Any
    im: Any

    @property
    def shape(self) -> Shape:
        return shape_of(self.re)


def means(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as what primitives mean for pairs."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            complete(REGISTRY[name], pairs=rule)
        return rule

    return enter


def by_parts(*names: str) -> None:
    """Primitives that mean for pairs the same for each part: movement, and what is linear with real factors."""
    for name in names:
        complete(REGISTRY[name], pairs=_each_part(name))


def _each_part(name: str) -> Rule:
    def rule(*operands: Any, **params: Any) -> Any:
        re, im = (
            bind_named(name, *(getattr(x, part) if isinstance(x, Pair) else x for x in operands), **params)
            for part in ("re", "im")
        )
        return [Pair(*parts) for parts in zip(re, im, strict=True)] if REGISTRY[name].multiple_results else Pair(re, im)

    return rule


def turned(z: Pair) -> Pair:
    """i z."""
    return Pair(bind_named("neg", z.im), z.re)


def turned_back(z: Pair) -> Pair:
    """-i z."""
    return Pair(z.im, bind_named("neg", z.re))
