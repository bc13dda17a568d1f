"""For how many multiprocessors work is shared out: what the choices of variants go by, and what no strict bit does.

Choices know what keeps the multiprocessors of an H200 busy: blocks of threads, rows, elements. `filling` turns such a
number into one for the multiprocessors that a plan names (`CompileOptions.processors`). Few of them ask for large
pieces of work, many for small ones, so tests run every kernel in other variants, on grids of other sizes, and compare
bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

H200 = 132
"""Multiprocessors of the GPU that the choices were measured on."""

_current: ContextVar[int | None] = ContextVar("volta_cuda_processors", default=None)


@contextmanager
def shared_out_for(processors: int | None) -> Iterator[None]:
    """Choices inside the block are made for so many multiprocessors (None: as they were measured)."""
    token = _current.set(processors)
    try:
        yield
    finally:
        _current.reset(token)


def filling(amount: int) -> int:
    """As much work for the multiprocessors of now as ``amount`` is for those of an H200."""
    processors = _current.get()
    return amount if processors is None else max(1, amount * processors // H200)
