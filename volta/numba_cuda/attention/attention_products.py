"""Products of tiles in shared memory, with sums in registers: scores of pairs of rows, and pairs times rows.

The registers of a multiprocessor give two operands a cycle for each fused multiply-add, one from the even registers
and one from the odd; the third must be an operand of the instruction before. So what counts is which numbers lie in
neighbouring registers, that is, are read at once from shared memory. `chains` reads neighbouring rows of one operand
and neighbouring columns of the other, and every sum stays where it is: seen on an H200, 90% of what the GPU can issue.
In `scores` both operands lie along their chains, which makes sums move from even to odd registers: 82%.

In `scores` a row of the left operand is read while the row before it is multiplied, a group of the right operand as
soon as the last row is done with it. A kernel may instead read ahead: while one group of the right operand is
multiplied, the next is read, a part with each row. Two groups are then one iteration, so that they trade places without
being moved. Reads that are not pinned LLVM moves back to their use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.loops import I64, fma, loop, offset
from volta.numba_cuda.attention.attention_layout import WIDE, Matrix
from volta.numba_cuda.attention.attention_tiles import ABSENT, Tiles
from volta.numba_cuda.codegen.ptx_ops import pin_reads

Row = Callable[[ir.Value], list[ir.Value]]
"""What a thread has of an operand's row, by the row's number."""


class Products(Tiles):
    def vector(self, pointer: ir.Value) -> list[ir.Value]:
        """A group of neighbouring elements in shared memory."""
        return self.neighbours(pointer, self.group)

    def element(self, pointer: ir.Value, nbytes: int) -> ir.Value:
        return self.b.load(offset(self.b, pointer, nbytes), typ=self.kind, align=self.size)

    def scores(self, left: Matrix, right: Matrix, whole: ir.Value | None = None) -> list[ir.Value]:
        """DOT of each of the thread's rows of `left` and of `right`, one chain over all columns.

        They may have fewer than the matrices: so many ``whole`` groups.
        """
        b, rows, columns, group, ahead = self.b, self.tile.rows_each, self.columns, self.group, self.tile.ahead
        lefts = offset(b, left.pointer, b.mul(self.row(0), I64(left.line)))
        rights = offset(b, right.pointer, b.mul(self.tx, I64(right.line)))
        groups, rest = divmod(left.width, group)
        sums = [self.zero] * (rows * columns)

        def left_group(shift: ir.Value, step: int, r: int) -> list[ir.Value]:
            return self.vector(offset(b, offset(b, lefts, shift), step * WIDE + self.step(r) * left.line))

        def right_group(shift: ir.Value, step: int, c: int) -> list[ir.Value]:
            return self.vector(offset(b, offset(b, rights, shift), step * WIDE + c * self.tile.across * right.line))

        if groups:
            stop, counts = I64(groups * WIDE), [groups]
            if whole is not None:
                stop, counts = b.mul(whole, I64(WIDE)), [self.spec.head // group, self.spec.value_head // group]
            steps = 2 if ahead and all(count % 2 == 0 for count in counts) else 1
            zero = I64(0)
            now = [*left_group(zero, 0, 0), *(v for c in range(columns) for v in right_group(zero, 0, c))]
            with loop(b, 0, stop, steps * WIDE, [*sums, *now]) as it:
                out, now = list(it.values[: len(sums)]), list(it.values[len(sums) :])
                x, y = now[:group], now[group:]
                for step in range(steps):
                    next_y: list[ir.Value] = []
                    for r in range(rows):
                        xs, x = x, left_group(it.index, step + (r + 1) // rows, (r + 1) % rows)
                        for c in range(r * columns // rows, (r + 1) * columns // rows) if ahead else ():
                            next_y += right_group(it.index, step + 1, c)
                        for c in range(columns):
                            for e, value in enumerate(xs):
                                out[r * columns + c] = fma(b, value, y[c * group + e], out[r * columns + c])
                            if r == rows - 1 and not ahead:
                                next_y += right_group(it.index, step + 1, c)
                    y = next_y
                if ahead:
                    pin_reads(b)
                it.advance(*out, *x, *y)
            sums = list(it.results[: len(sums)])
        for i in range(rest):
            shift = groups * WIDE + i * self.size
            xs = [self.element(lefts, shift + self.step(r) * left.line) for r in range(rows)]
            ys = [self.element(rights, shift + c * self.tile.across * right.line) for c in range(columns)]
            sums = [fma(b, xs[n // columns], ys[n % columns], x) for n, x in enumerate(sums)]
        return sums

    def chains(
        self, left: Row, right: Row, stop: ir.Value, sums: list[ir.Value], at_once: int, state: Sequence[ir.Value] = (),
        beside: Callable[[ir.Value, list[ir.Value]], list[ir.Value]] = lambda index, state: state,
    ) -> list[ir.Value]:  # fmt: skip
        """Go on with chains over rows ``0 .. stop``, so many in an iteration: each row adds the products of all that
        `left` gives of it with all that `right` gives. A row is read while the one before it is multiplied.

        Every other one backwards: an operand of a product is then the last one's, and is not read again from registers.
        """
        b = self.b
        xs, ys = left(I64(0)), right(I64(0))
        count, each = len(xs), len(ys)
        with loop(b, 0, stop, at_once, [*sums, *xs, *ys, *state]) as it:
            out, now = list(it.values[: len(sums)]), list(it.values[len(sums) : len(sums) + count + each])
            state = beside(it.index, list(it.values[len(sums) + count + each :]))
            following = b.add(it.index, I64(at_once))
            following = b.select(b.icmp_signed("<", following, stop), following, I64(0))  # somewhere, the last time
            for k in range(1, at_once + 1):
                ahead = b.add(it.index, I64(k)) if k < at_once else following
                xs, ys, now = now[:count], now[count:], [*left(ahead), *right(ahead)]
                for r, x in enumerate(xs):
                    for n in range(each) if r % 2 == 0 else reversed(range(each)):
                        out[r * each + n] = fma(b, x, ys[n], out[r * each + n])
            if self.tile.ahead:
                pin_reads(b)
            it.advance(*out, *now, *state)
        return list(it.results[: len(sums)])

    def groups_of(self, width: int) -> int:
        """Groups of columns of a matrix of this width that a thread has in `apply`."""
        return -(-width // (self.tile.across * self.group))

    @property
    def whole(self) -> int:
        """Streamed rows of an iteration of `apply`."""
        return self.group * (2 if self.tile.ahead else 1)

    def apply(self, pairs: Matrix, right: Matrix, stop: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with chains over streamed rows ``0 .. stop`` (in steps of `whole`): the warp's pairs, times `right`."""
        return self.chains(
            lambda k: self._pairs_of(pairs, k), lambda k: self.columns_of(right, k), stop, sums, self.whole
        )

    def apply_present(
        self, pairs: Matrix, right: Matrix, start: ir.Value, stop: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Go on with such chains over rows ``start .. stop``, in steps of `group`, without pairs that are absent."""
        b = self.b
        each = self.groups_of(right.width) * self.group
        with loop(b, start, stop, self.group, sums) as it:
            out = list(it.values)
            for k in range(self.group):
                row = b.add(it.index, I64(k))
                ys = self.columns_of(right, row)
                for r, value in enumerate(self._pairs_of(pairs, row)):
                    here = self.present(value)
                    for n in range(each):
                        new = fma(b, value, ys[n], out[r * each + n])
                        out[r * each + n] = b.select(here, new, out[r * each + n])
            it.advance(*out)
        return list(it.results)

    def present(self, pair: ir.Value) -> ir.Value:
        """Whether a pair is visible."""
        absent = ir.Constant(self.bits, ABSENT[self.size])
        return self.b.icmp_signed("!=", self.b.bitcast(pair, self.bits), absent)

    def _pairs_of(self, pairs: Matrix, row: ir.Value) -> list[ir.Value]:
        """The pairs of the thread's rows with a streamed row."""
        b, groups = self.b, range(0, self.tile.rows_each, self.beside)
        start = offset(b, self.first_pair(pairs), b.mul(row, I64(pairs.line)))
        return [v for r in groups for v in self.neighbours(offset(b, start, self.step(r) * self.size), self.beside)]

    def columns_of(self, right: Matrix, row: ir.Value) -> list[ir.Value]:
        """The thread's columns of a row of an operand."""
        b = self.b
        y = offset(b, offset(b, right.pointer, b.mul(self.tx, I64(WIDE))), b.mul(row, I64(right.line)))
        parts = range(self.groups_of(right.width))
        return [v for g in parts for v in self.vector(offset(b, y, g * self.tile.across * WIDE))]
