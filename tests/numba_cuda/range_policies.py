"""Allocators that cannot move blocks, in one range of addresses that grows: what the pool is compared with.

A free stretch is chosen by a policy, and the block lies at its beginning, or at its end where that is better known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

Gap = tuple[int, int]
"""A free stretch: where it begins, and its bytes."""

Policy = Callable[[Sequence[Gap], int], int]
"""Which of the stretches that are large enough takes so many bytes, by its position among them."""

POLICIES: dict[str, Policy] = {
    "first fit": lambda gaps, n: 0,
    "last fit": lambda gaps, n: len(gaps) - 1,
    "best fit": lambda gaps, n: min(range(len(gaps)), key=lambda i: (gaps[i][1], gaps[i][0])),
    "best fit, high": lambda gaps, n: min(range(len(gaps)), key=lambda i: (gaps[i][1], -gaps[i][0])),
    "worst fit": lambda gaps, n: max(range(len(gaps)), key=lambda i: (gaps[i][1], -gaps[i][0])),
    "half fit": lambda gaps, n: min(range(len(gaps)), key=lambda i: (gaps[i][1].bit_length(), gaps[i][0])),
}


class Range:
    """One range of addresses from 0 on; ``end`` is how far it has ever been used."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.end = policy, 0
        self._gaps: list[Gap] = []  # by address, none beside another

    def take(self, nbytes: int) -> Gap:
        fitting = [g for g in self._gaps if g[1] >= nbytes]
        if fitting:
            begin, size = fitting[self._policy(fitting, nbytes)]
            self._gaps.remove((begin, size))
            if size > nbytes:
                insort(self._gaps, (begin + nbytes, size - nbytes))
            return begin, nbytes
        begin = self.end
        if self._gaps and sum(self._gaps[-1]) == self.end:  # the last stretch grows
            begin, _ = self._gaps.pop()
        self.end = begin + nbytes
        return begin, nbytes

    def give(self, block: Gap) -> None:
        begin, size = block
        i = bisect_left(self._gaps, block)
        if i < len(self._gaps) and self._gaps[i][0] == begin + size:
            size += self._gaps.pop(i)[1]
        if i and sum(self._gaps[i - 1]) == begin:
            i -= 1
            begin, more = self._gaps.pop(i)
            size += more
        self._gaps.insert(i, (begin, size))
