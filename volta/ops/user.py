"""Kernels of the user's own: what they are called, what they give for given operands, and their rules.

What a kernel computes stands in functions of Numba's, which this record carries and never looks into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.pytrees import TreeSpec


@attrs.frozen
class Results:
    """What a kernel gives: its results' avals, and the pytree that users see them in."""

    avals: tuple[ShapedArray, ...]
    tree: TreeSpec


@attrs.frozen(eq=False)
class GpuFunction:
    """A kernel's function for a GPU, and from its operands' avals the blocks of its grid and the threads of a block."""

    function: Any
    grid: Callable[[Sequence[ShapedArray]], tuple[int, ...]]
    block: Callable[[Sequence[ShapedArray]], tuple[int, ...]]


@attrs.frozen(eq=False, repr=False)
class UserKernel:
    """A kernel: its function for the CPU (None: it has none), what it gives for operands of given avals, its rules by
    name, and its functions for GPUs by backend.

    Two kernels are the same only if they are one object. ``fast`` says that its function may be compiled to other
    arithmetic than is written in it (Numba's ``fastmath``), which level strict refuses. ``rules`` may have ``jvp``,
    ``vjp`` and ``batch``; users add them after the kernel is made.
    """

    name: str
    results: Callable[[tuple[ShapedArray, ...]], Results]
    cpu: Any
    fast: bool = False
    rules: dict[str, Callable[..., Any]] = attrs.field(factory=dict)
    gpu: dict[str, GpuFunction] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return self.name
