"""Affine views: how movement operations disappear into index maps.

A view reads element ``offset + sum(stride[d] * index[d])`` of a row-major buffer, so transposes, broadcasts, slices,
reversals and most reshapes cost nothing: they only change the strides that a kernel is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import attrs

Ints = tuple[int, ...]

prod: Callable[[Iterable[int]], int] = math.prod

remembered = lru_cache(1 << 13)
"""For functions of shapes and strides: a program has few of them, and asks for the same again and again."""


@remembered
def row_major(shape: Ints) -> Ints:
    """Strides, in elements, of a contiguous array."""
    strides: list[int] = []
    step = 1
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


@attrs.frozen(slots=True)
class View:
    """Shape, strides and offset in elements of an underlying row-major buffer."""

    shape: Ints
    strides: Ints
    offset: int = 0

    @staticmethod
    def of(shape: Ints) -> View:
        return View(shape, row_major(shape))

    @property
    def is_linear(self) -> bool:
        """Whether element i (row-major) of the view is element i of the buffer, as far as the view reaches."""
        return not self.offset and _in_order(self.shape, self.strides)

    def transpose(self, permutation: Ints) -> View:
        return View(tuple(self.shape[p] for p in permutation), tuple(self.strides[p] for p in permutation), self.offset)

    def broadcast(self, shape: Ints, dims: Ints) -> View:
        strides = [0] * len(shape)
        for d, n, s in zip(dims, self.shape, self.strides, strict=True):
            strides[d] = 0 if n == 1 else s
        return View(shape, tuple(strides), self.offset)

    def slice(self, start: Ints, limit: Ints, steps: Ints | None) -> View:
        steps = steps or (1,) * len(start)
        shape = tuple(max(0, -(-(b - a) // k)) for a, b, k in zip(start, limit, steps, strict=True))
        offset = self.offset + sum(a * s for a, s in zip(start, self.strides, strict=True))
        return View(shape, tuple(s * k for s, k in zip(self.strides, steps, strict=True)), offset)

    def rev(self, dims: Ints) -> View:
        offset = self.offset + sum((self.shape[d] - 1) * self.strides[d] for d in dims if self.shape[d])
        return View(self.shape, tuple(-s if d in dims else s for d, s in enumerate(self.strides)), offset)

    def reshape(self, shape: Ints) -> View | None:
        """The reshaped view, or None where no strides can express it (the data must be copied)."""
        if shape == self.shape:
            return self
        strides = _reshaped(self.shape, self.strides, shape)
        return None if strides is None else View(shape, strides, self.offset)


@remembered
def _in_order(shape: Ints, strides: Ints) -> bool:
    return all(n == 1 or s == r for n, s, r in zip(shape, strides, row_major(shape), strict=True))


@remembered
def _reshaped(shape: Ints, strides: Ints, to: Ints) -> Ints | None:
    if prod(to) == 0 or prod(to) == 1:
        return (0,) * len(to) if prod(to) else row_major(to)
    dims, (steps,) = merge(shape, (strides,))
    parts = split(dims, to)
    return None if parts is None else tuple(0 if n == 1 else steps[d] * k for (d, k), n in zip(parts, to, strict=True))


def merge(shape: Ints, strides: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Collapse neighbouring dimensions wherever every array's strides allow it; drops dimensions of size 1."""
    dims: list[int] = []
    out: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if dims and all(o[-1] == s[d] * n for o, s in zip(out, strides, strict=True)):
            dims[-1] *= n
            for o, s in zip(out, strides, strict=True):
                o[-1] = s[d]
        else:
            dims.append(n)
            for o, s in zip(out, strides, strict=True):
                o.append(s[d])
    return tuple(dims), [tuple(o) for o in out]


def split(dims: Ints, shape: Ints) -> list[tuple[int, int]] | None:
    """Express each dimension of ``shape`` as (index of the dim it is part of, multiple of that dim's stride).

    None where a dimension of ``shape`` would straddle two of ``dims``.
    """
    out: list[tuple[int, int]] = []
    d, left = len(dims) - 1, dims[-1] if dims else 1
    inner = 1
    for n in reversed(shape):
        if n == 1:
            out.append((0, 0))
            continue
        if left == 1:
            d -= 1
            left, inner = dims[d], 1
        if d < 0 or left % n:
            return None
        out.append((d, inner))
        inner *= n
        left //= n
    return out[::-1]


@remembered
def refine(a: Ints, b: Ints) -> Ints | None:
    """The coarsest dims that both factorizations of one linear space split into, or None.

    >>> refine((6, 4), (2, 12))
    (2, 3, 4)
    """
    cuts_a, cuts_b = _cuts(a), _cuts(b)
    cuts = sorted({*cuts_a, *cuts_b})
    if any(high % low for low, high in zip(cuts, cuts[1:], strict=False)):
        return None
    return tuple(high // low for low, high in zip(cuts, cuts[1:], strict=False))[::-1]


def _cuts(dims: Ints) -> list[int]:
    cuts, n = [1], 1
    for d in reversed(dims):
        if d != 1:
            n *= d
            cuts.append(n)
    return cuts


def strides_over(view: View, dims: Ints) -> Ints:
    """The view's strides over refined ``dims`` (its own shape must be coarser than or equal to them)."""
    return _refined(view.shape, view.strides, dims)


@remembered
def _refined(shape: Ints, strides: Ints, dims: Ints) -> Ints:
    steps = [s for n, s in zip(shape, strides, strict=True) if n != 1]
    parts = split(tuple(n for n in shape if n != 1), dims)
    if parts is None:
        raise AssertionError(f"{dims} does not refine {shape}")
    return tuple(steps[d] * k if n != 1 else 0 for (d, k), n in zip(parts, dims, strict=True))


@remembered
def walked(shape: Ints, strides: Ints, dims: Ints, mask: tuple[bool, ...]) -> bool:
    """Whether one stride walks those of ``dims`` that are in the mask, in a view of this shape and these strides."""
    chosen = tuple(d for d, m in zip(dims, mask, strict=True) if m)
    steps = tuple(s for s, m in zip(_refined(shape, strides, dims), mask, strict=True) if m)
    return len(merge(chosen, [steps])[0]) <= 1
