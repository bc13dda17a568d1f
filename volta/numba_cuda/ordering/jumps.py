"""Jumps along a chain of floats that are added one after the other, with the very bits of the chain.

A chain p, p + x1, (p + x1) + x2, … rounds at each step, so it seems that nobody can begin in its middle. But all
numbers of one binade (of one sign and exponent) are multiples of one unit, and rounding to a multiple of the unit, ties
to even multiples, commutes with a shift by an even number of units. So if a traversal of x1, …, xn from r stays inside
r's binade, and p, of the same binade, is an even number of units away, then that from p has the same steps, each
shifted by p - r, as long as the shifted ones are inside the binade as well. Inside means: behind its first number and
not beyond its last, so that what is rounded lies in the binade too.

So each thread traverses its neighbouring numbers, a leaf, from two guesses of what comes before them: one is an even,
the other an odd multiple of the unit. That gives two `_Jump`s: how far the leaf goes, and between which p. Jumps over
neighbouring leaves make one over them all. Where p is not between those (a sum that leaves its binade; a NaN), the leaf
is traversed. A guess may be as wrong as it likes: then there is more to traverse, and the bits are the same.

A warp's lanes have a leaf each. A record of their jumps holds, for each level (over the lane's own leaf, over those of
its group up to it, over those of the warp up to it) and parity, distances, least and largest p, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, item_size, scalar_type
from volta.emit.loops import I1, I32, I64, if_else, intrinsic, loop, offset
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import WARP, shuffle

LEAF = WARP
"""Numbers of a leaf."""

GROUP = 8
"""Leaves that are jumped over together where all of a warp's cannot be."""

OVER_LEAF, OVER_GROUP, OVER_ALL = range(3)

_FRACTION = {"float32": 23, "float64": 52}


def record_bytes(dtype: str) -> int:
    """Bytes of a warp's jumps."""
    return 3 * 2 * 3 * WARP * item_size(dtype)


@attrs.frozen
class _Jump:
    """From every p of some parity with low <= p <= high to p + distance, whose parity is odd (i1) or even."""

    distance: ir.Value
    low: ir.Value
    high: ir.Value
    odd: ir.Value


Jump = tuple[_Jump, _Jump]
"""From an even and from an odd p."""


class _Lane:
    """What a lane does with numbers of a dtype, and with jumps."""

    def __init__(self, b: ir.IRBuilder, dtype: str, lane: ir.Value, record: ir.Value) -> None:
        self.b, self.dtype, self.lane, self.record, self.one = b, dtype, lane, record, Builder(b, 1)
        self.kind, self.size = scalar_type(dtype), item_size(dtype)
        self.word = ir.IntType(8 * self.size)

    def of_lane(self, mode: str, x: ir.Value, by: ir.Value) -> ir.Value:
        """The number of another lane (`threads.shuffle`)."""
        return shuffle(self.b, mode, self.one.value(x, self.dtype), by).ir

    def either(self, condition: ir.Value, x: _Jump, y: _Jump) -> _Jump:
        """The first jump where the condition holds, the second where it does not."""
        select = self.b.select
        distance, low = select(condition, x.distance, y.distance), select(condition, x.low, y.low)
        return _Jump(distance, low, select(condition, x.high, y.high), select(condition, x.odd, y.odd))

    def line(self, level: int, odd: int, part: int) -> ir.Value:
        """Where the record has a number of a jump of each lane."""
        return offset(self.b, self.record, ((level * 2 + odd) * 3 + part) * WARP * self.size)

    def place(self, level: int, odd: int, part: int) -> ir.Value:
        """Where the record has a number of a jump of this lane."""
        own = self.b.mul(self.b.zext(self.lane, I64), I64(self.size))
        return offset(self.b, self.line(level, odd, part), own)


class Maker(_Lane):
    """Makes the jumps over a warp's leaves."""

    def make(self, numbers: Sequence[ir.Value], guess: ir.Value) -> None:
        """Of the lane's leaf, where about ``guess`` comes before it; writes the record of the warp."""
        b = self.b
        bits = b.and_(b.bitcast(guess, self.word), self.word(-2))
        even, odd = (self._over(numbers, b.bitcast(b.or_(bits, self.word(k)), self.kind)) for k in (0, 1))
        levels = [(even, odd)]
        within = b.and_(self.lane, I32(GROUP - 1))
        jump, d = levels[0], 1
        while d < GROUP:
            jump = self._behind(jump, b.sub(self.lane, I32(d)), b.icmp_unsigned(">=", within, I32(d)))
            d *= 2
        levels.append(jump)
        while d < WARP:
            last = b.sub(b.and_(self.lane, I32(-d)), I32(1))
            jump = self._behind(jump, last, b.icmp_unsigned("!=", b.and_(self.lane, I32(d)), I32(0)))
            d *= 2
        levels.append(jump)
        for level, pair in enumerate(levels):
            for k, x in enumerate(pair):
                for part, number in enumerate((x.distance, x.low, x.high)):
                    b.store(number, self.place(level, k, part), align=self.size)

    def _over(self, numbers: Sequence[ir.Value], start: ir.Value) -> _Jump:
        """A jump over numbers, found by traversing them from ``start``; none if that leaves the binade."""
        b, ones = self.b, (1 << _FRACTION[self.dtype]) - 1
        binade = b.and_(b.bitcast(start, self.word), self.word(~ones))
        ends = [b.bitcast(b.or_(binade, self.word(k)), self.kind) for k in (1, ones)]
        bottom, top = self._least(*ends), self._most(*ends)
        here = least = most = start
        for x in numbers:
            here = b.fadd(here, x)
            least, most = self._least(least, here), self._most(most, here)
        inside = b.and_(b.fcmp_ordered(">=", least, bottom), b.fcmp_ordered("<=", most, top))
        inside = b.and_(inside, b.fcmp_ordered("==", here, here))
        return _Jump(
            b.select(inside, b.fsub(here, start), self.kind(0)),
            b.select(inside, b.fsub(bottom, b.fsub(least, start)), self.kind(float("inf"))),
            b.select(inside, b.fsub(top, b.fsub(most, start)), self.kind(float("-inf"))),
            b.trunc(b.bitcast(here, self.word), I1),
        )

    def _behind(self, own: Jump, lane: ir.Value, there: ir.Value) -> Jump:
        """The jumps of another lane and then one's own, if it is there.

        Differences here are exact where p + distance is inside the binade; where it is not, or the two jumps are in
        different binades, rounding cannot bring their bounds together, and there is no such p, as there should be none.
        """
        b = self.b
        out = []
        for before in (self._of_other(x, lane) for x in own):
            then = self.either(before.odd, own[1], own[0])
            low = self._most(before.low, b.fsub(then.low, before.distance))
            high = self._least(before.high, b.fsub(then.high, before.distance))
            out.append(_Jump(b.fadd(before.distance, then.distance), low, high, then.odd))
        even, odd = (self.either(there, new, old) for new, old in zip(out, own, strict=True))
        return even, odd

    def _of_other(self, jump: _Jump, lane: ir.Value) -> _Jump:
        odd = ptx_ops.shuffle(self.b, "idx", self.b.zext(jump.odd, I32), lane)
        distance, low, high = (self.of_lane("idx", x, lane) for x in (jump.distance, jump.low, jump.high))
        return _Jump(distance, low, high, self.b.trunc(odd, I1))

    def _least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._extreme("minnum", x, y)

    def _most(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._extreme("maxnum", x, y)

    def _extreme(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller or the larger number; of a number and a NaN the number."""
        name = f"llvm.{name}.f{8 * self.size}"
        return self.b.call(intrinsic(self.b.module, name, self.kind, [self.kind] * 2), [x, y])


class Jumper(_Lane):
    """Takes the jumps over a warp's leaves."""

    def __init__(
        self, b: ir.IRBuilder, dtype: str, lane: ir.Value, record: ir.Value,
        traversed: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:  # fmt: skip
        """``traversed`` traverses a leaf of the warp (an i32) from a number; all lanes traverse the same one."""
        super().__init__(b, dtype, lane, record)
        self.traversed = traversed

    def over_all(self) -> list[ir.Value]:
        """What `traverse` needs to know to jump over all leaves: a lane's even and odd jump, the last one's distances.

        It is read early, since the chain waits for nothing as long as for memory.
        """
        found = [self._read(OVER_ALL, odd, part) for odd in (0, 1) for part in range(3)]
        last = [offset(self.b, self.line(OVER_ALL, odd, 0), (WARP - 1) * self.size) for odd in (0, 1)]
        return found + [self.b.load(at, align=self.size, typ=self.kind) for at in last]

    def traverse(self, running: ir.Value, over_all: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """What comes before the lane's leaf, and behind the warp's last, if ``running`` comes before its first."""
        b = self.b
        odd = b.trunc(b.bitcast(running, self.word), I1)
        distance, low, high = (b.select(odd, y, x) for x, y in zip(over_all[:3], over_all[3:6], strict=True))
        fits = b.and_(b.fcmp_ordered(">=", running, low), b.fcmp_ordered("<=", running, high))
        there = ptx_ops.ballot(b, fits)
        begin = self._begin(running, b.fadd(running, distance), b.icmp_unsigned("==", self.lane, I32(0)))
        with if_else(b, b.icmp_signed("==", there, I32(-1))) as branch:
            with branch.then():
                branch.give(begin, b.fadd(running, b.select(odd, over_all[7], over_all[6])))
            with branch.otherwise():
                first = b.cttz(b.not_(there), I1(0))
                branch.give(*self._by_groups(begin, b.and_(first, I32(-GROUP))))
        return branch.results[0], branch.results[1]

    def _by_groups(self, begin: ir.Value, start: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The same, from the group that begins at leaf ``start``; what comes before the leaves up to it is known."""
        b = self.b
        here = self.of_lane("idx", begin, start)
        with loop(b, b.zext(start, I64), WARP, GROUP, [here, begin], some=True) as it:
            here, begin = it.values
            start = b.trunc(it.index, I32)
            end = b.add(start, I32(GROUP))
            own = b.icmp_unsigned("==", b.and_(self.lane, I32(-GROUP)), start)
            reached, fits = self._jumped(OVER_GROUP, here)
            first = self._first_not(b.or_(fits, b.not_(own)))
            of_group = self._begin(here, reached, b.icmp_unsigned("==", self.lane, start))
            begin = b.select(own, of_group, begin)
            with if_else(b, b.icmp_unsigned(">=", first, end)) as branch:
                with branch.then():
                    branch.give(self.of_lane("idx", reached, b.sub(end, I32(1))), begin)
                with branch.otherwise():
                    branch.give(*self._leaf_by_leaf(begin, first, end))
            it.advance(*branch.results)
        return it.results[1], it.results[0]

    def _leaf_by_leaf(self, begin: ir.Value, first: ir.Value, end: ir.Value) -> tuple[ir.Value, ir.Value]:
        """From leaf ``first``, over which there is no jump, to ``end``: what is reached, and what comes before each."""
        b = self.b
        here = self.traversed(first, self.of_lane("idx", begin, first))
        with loop(b, b.zext(b.add(first, I32(1)), I64), b.zext(end, I64), 1, [here, begin]) as it:
            here, begin = it.values
            leaf = b.trunc(it.index, I32)
            begin = b.select(b.icmp_unsigned("==", leaf, self.lane), here, begin)
            reached, fits = self._jumped(OVER_LEAF, here)
            jumps = b.trunc(b.lshr(ptx_ops.ballot(b, fits), leaf), I1)
            with if_else(b, jumps) as branch:
                with branch.then():
                    branch.give(self.of_lane("idx", reached, leaf))
                with branch.otherwise():
                    branch.give(self.traversed(leaf, here))
            it.advance(branch.results[0], begin)
        return it.results[0], it.results[1]

    def _jumped(self, level: int, start: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the lane's jump from a number leads, and whether it may be taken from there."""
        b = self.b
        odd = b.trunc(b.bitcast(start, self.word), I1)
        both = [[self._read(level, k, part) for part in range(3)] for k in (0, 1)]
        distance, low, high = (b.select(odd, y, x) for x, y in zip(*both, strict=True))
        fits = b.and_(b.fcmp_ordered(">=", start, low), b.fcmp_ordered("<=", start, high))
        return b.fadd(start, distance), fits

    def _read(self, level: int, odd: int, part: int) -> ir.Value:
        return self.b.load(self.place(level, odd, part), align=self.size, typ=self.kind)

    def _begin(self, start: ir.Value, reached: ir.Value, first: ir.Value) -> ir.Value:
        """What comes before the lane's leaf: what the lane before reached, or the start."""
        return self.b.select(first, start, self.of_lane("up", reached, I32(1)))

    def _first_not(self, fits: ir.Value) -> ir.Value:
        """The first lane where that does not hold (an i32); 32 if there is none."""
        return self.b.cttz(self.b.not_(ptx_ops.ballot(self.b, fits)), I1(0))
