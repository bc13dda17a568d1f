"""Launches on the CPU: rows of the table that the native loop walks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from volta.xla_like.kernels import Access, Kernel, KernelCall, LibraryKernel, describe, kernel_name

Address = tuple[int, int, int]
"""A word that is an address: its position, a buffer, and how many bytes into that."""


@attrs.frozen
class Launch:
    """A kernel of a call, its args block, and its tasks, each of which any thread may run.

    ``scratch_bytes`` is the memory that each thread needs for itself. ``functions`` are words that are addresses of
    kernels which this one runs: (position, the launch that it would be by itself).
    """

    kernel: Kernel
    call: KernelCall
    words: tuple[int, ...]
    addresses: tuple[Address, ...]
    tasks: int
    scratch_bytes: int = 0
    functions: tuple[tuple[int, Launch], ...] = ()

    def each(self) -> tuple[Launch, ...]:
        """The launch, and those whose kernels it runs."""
        return (self, *(other for _, other in self.functions))

    def text(self) -> str:
        """The launch in a line, for reports."""
        behind = "".join(f" → {describe(other.kernel)}" for _, other in self.functions)
        scratch = f" scratch={self.scratch_bytes}" if self.scratch_bytes else ""
        return f"{describe(self.kernel)}{behind} tasks={self.tasks}{scratch} {kernel_name(self.kernel)}"


class _Words:
    def __init__(self) -> None:
        self.words: list[int] = []
        self.addresses: list[Address] = []

    def address(self, access: Access) -> None:
        if access.buffer is None:
            self.words.append(access.offset)
        else:
            self.addresses.append((len(self.words), access.buffer, access.offset))
            self.words.append(0)

    def found(self) -> tuple[tuple[int, ...], tuple[Address, ...]]:
        return tuple(self.words), tuple(self.addresses)


def operand_words(accesses: Iterable[Access], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[Address, ...]]:
    """The args block of a library kernel: addresses, then integers."""
    w = _Words()
    for access in accesses:
        w.address(access)
    w.words.extend(sizes)
    return w.found()


def loop_words(call: KernelCall) -> tuple[tuple[int, ...], tuple[Address, ...]]:
    """The args block of a loop or combine kernel: sizes, then each access with its strides and terms."""
    w = _Words()
    w.words.extend(call.sizes)
    for access in call.accesses:
        w.address(access)
        w.words.extend(access.strides)
        for stride, largest in access.terms:
            w.words.extend((stride, largest))
    return w.found()


def plain(call: KernelCall) -> Launch:
    """The launch of a call that one kernel runs as it is."""
    words = operand_words(call.accesses, call.sizes) if isinstance(call.kernel, LibraryKernel) else loop_words(call)
    return Launch(call.kernel, call, *words, call.tasks)
