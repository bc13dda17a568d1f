"""The tree of adjacent pairs over blocks that come in ascending order, where a sum has no registers to wait in.

Behind block n, the sums of the levels that n's lowest bits name are joined, as many as are 1 without a 0 between them;
what that gives waits at the next level. Behind the last block all that wait are joined, the lowest level first: they
are the levels of n's bits. So an odd block, or half of a pair, waits for the next level of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from volta.emit.loops import I1, if_else, if_then, loop


def level_of(b: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """The level at which a sum waits that ends with block ``number``, which is not the last."""
    return b.cttz(b.not_(number), I1(0))


def joined(b: ir.IRBuilder, number: ir.Value, last: ir.Value) -> ir.Value:
    """The levels, as bits, whose sums that of block ``number`` is added to; ``last``: no block comes behind it."""
    ones = b.and_(number, b.not_(b.add(number, number.type(1))))
    return b.select(last, number, ones)


def _behind(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """The position behind the highest 1."""
    return b.sub(bits.type(bits.type.width), b.ctlz(bits, I1(0)))


def _has(b: ir.IRBuilder, bits: ir.Value, position: ir.Value) -> ir.Value:
    return b.trunc(b.lshr(bits, position), I1)


@contextmanager
def joined_levels(b: ir.IRBuilder, number: ir.Value, last: ir.Value) -> Iterator[ir.Value]:
    """The levels of `joined`, one after the other, the lowest first."""
    kind, bits = number.type, joined(b, number, last)
    with loop(b, kind(0), _behind(b, bits), kind(1)) as it, if_then(b, _has(b, bits, it.index)):
        yield it.index


def join_block(
    b: ir.IRBuilder,
    sums: Sequence[ir.Value],
    number: ir.Value,
    last: ir.Value,
    read: Callable[[ir.Value], Sequence[ir.Value]],
    leave: Callable[[ir.Value, Sequence[ir.Value]], None],
    add: Callable[[ir.Value, ir.Value], ir.Value],
) -> list[ir.Value]:
    """The sums of block ``number`` joined with those that wait: behind the last block, the sums of all.

    ``read(level)`` gives the sums that wait at a level, ``leave(level, sums)`` has others wait there.
    """
    kind, bits = number.type, joined(b, number, last)
    with loop(b, kind(0), _behind(b, bits), kind(1), sums) as it:
        with if_else(b, _has(b, bits, it.index)) as branch:
            with branch.then():
                branch.give(*(add(x, y) for x, y in zip(read(it.index), it.values, strict=True)))
            with branch.otherwise():
                branch.give(*it.values)
        it.advance(*branch.results)
    with if_then(b, b.not_(last)):
        leave(level_of(b, number), it.results)
    return it.results
