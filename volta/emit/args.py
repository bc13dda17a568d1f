"""Args blocks as a schedule states them: words that are numbers, and accesses, whose addresses are filled in later.

Loops have the same words on every backend, which `bodies.BodyEmitter` reads; a backend's own stand behind them.
"""

from __future__ import annotations

from collections.abc import Iterable

from volta.xla_like.kernels import Access, GivenValue, IndexValue, KernelCall, Load, LoopKernel

Word = Access | int

Address = tuple[int, int, int]
"""A word that is an address: its position, a buffer, and how many bytes into that."""


def laid_out(words: Iterable[Word]) -> tuple[tuple[int, ...], tuple[Address, ...]]:
    """Words as numbers (0 for an address that is filled in), and those that are addresses."""
    numbers: list[int] = []
    addresses: list[Address] = []
    for word in words:
        if isinstance(word, int):
            numbers.append(word)
        elif word.buffer is None:
            numbers.append(word.offset)
        else:
            addresses.append((len(numbers), word.buffer, word.offset))
            numbers.append(0)
    return tuple(numbers), tuple(addresses)


def loop_words(call: KernelCall) -> list[Word]:
    """Of a loop or a combine kernel: sizes, then each access with its strides, and the stride and largest index of its
    terms."""
    words: list[Word] = [*call.sizes]
    for access in call.accesses:
        words += [access, *access.strides, *(n for term in access.terms for n in term)]
    return words


def given_words(kernel: LoopKernel) -> list[int]:
    """Where `loop_words` has the constants that a call gives to its kernel."""
    dims = kernel.rank + (kernel.mode != "map")
    found, at = [], dims
    for x in kernel.body:
        if isinstance(x, GivenValue):
            found.append(at)
        if isinstance(x, (Load, IndexValue)):
            at += 1 + dims + (2 * len(x.terms) if isinstance(x, Load) else 0)
    return found
