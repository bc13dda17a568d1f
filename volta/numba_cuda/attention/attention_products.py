"""Products of tiles in shared memory, with sums in registers: scores of pairs of rows, and pairs times rows.

A row of the left operand is read while the row before it is multiplied, a group of the right operand as soon as the
last row is done with it. So that no thread waits for shared memory, a kernel may instead read ahead: while one group of
the right operand is multiplied, the next is read, a part with each row. Two groups are then one iteration, so that they
trade places without being moved. Reads that are not pinned LLVM moves back to their use.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I32, I64, fma, loop, minimum, offset
from volta.numba_cuda.attention.attention_tiles import ABSENT, WIDE, Matrix, Tiles
from volta.numba_cuda.target.ptx_ops import pin_reads


class Products(Tiles):
    def vector(self, pointer: ir.Value) -> list[ir.Value]:
        """A group of neighbouring elements in shared memory."""
        b = self.b
        found = b.load(pointer, align=WIDE, typ=ir.VectorType(self.kind, self.group))
        return [b.extract_element(found, I32(i)) for i in range(self.group)]

    def element(self, pointer: ir.Value, nbytes: int) -> ir.Value:
        return self.b.load(offset(self.b, pointer, nbytes), typ=self.kind, align=self.size)

    def scores(self, left: Matrix, right: Matrix, whole: ir.Value | None = None) -> list[ir.Value]:
        """DOT of each of the thread's rows of `left` and of `right`, one chain over all columns.

        They may have fewer than the matrices: so many ``whole`` groups.
        """
        b, rows, columns, group, ahead = self.b, self.tile.rows_each, self.columns, self.group, self.tile.ahead
        first = b.add(b.mul(self.warp, I64(self.tile.warp_rows)), self.ty)
        lefts = offset(b, left.pointer, b.mul(first, I64(left.line)))
        rights = offset(b, right.pointer, b.mul(self.tx, I64(right.line)))
        groups, rest = divmod(left.width, group)
        sums = [self.zero] * (rows * columns)

        def left_group(shift: ir.Value, step: int, r: int) -> list[ir.Value]:
            return self.vector(offset(b, offset(b, lefts, shift), step * WIDE + r * self.down * left.line))

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
            xs = [self.element(lefts, shift + r * self.down * left.line) for r in range(rows)]
            ys = [self.element(rights, shift + c * self.tile.across * right.line) for c in range(columns)]
            sums = [fma(b, xs[n // columns], ys[n % columns], x) for n, x in enumerate(sums)]
        return sums

    def groups_of(self, width: int) -> int:
        """Groups of columns of a matrix of this width that a thread has in `apply`."""
        return -(-width // (self.tile.across * self.group))

    @property
    def whole(self) -> int:
        """Columns of an iteration of `apply`."""
        return self.group * (2 if self.tile.ahead else 1)

    def apply(self, pairs: Matrix, right: Matrix, stop: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with chains over columns ``0 .. stop`` (in steps of `whole`) of the warp's `pairs`, times `right`."""
        b, rows, group, ahead = self.b, self.tile.rows_each, self.group, self.tile.ahead
        each = self.groups_of(right.width) * group
        last = b.sub(stop, I64(group))
        zero = I64(0)
        now = [*self._pair_group(pairs, 0, zero), *(v for k in range(group) for v in self.columns_of(right, zero, k))]
        with loop(b, 0, stop, self.whole, [*sums, *now]) as it:
            out, now, column = list(it.values[: len(sums)]), list(it.values[len(sums) :]), it.index
            x, y = now[:group], now[group:]
            for start in range(0, self.whole, group):
                following = b.add(column, I64(group))
                if start + group == self.whole:
                    following = minimum(b, following, last)
                next_y: list[ir.Value] = []
                for r in range(rows):
                    bottom = r == rows - 1
                    xs, x = x, self._pair_group(pairs, 0 if bottom else r + 1, following if bottom else column)
                    for k in range(r * group // rows, (r + 1) * group // rows) if ahead else ():
                        next_y += self.columns_of(right, following, k)
                    for k, value in enumerate(xs):
                        for n in range(each):
                            out[r * each + n] = fma(b, value, y[k * each + n], out[r * each + n])
                        if bottom and not ahead:
                            next_y += self.columns_of(right, following, k)
                y, column = next_y, following
            if ahead:
                pin_reads(b)
            it.advance(*out, *x, *y)
        return list(it.results[: len(sums)])

    def apply_present(
        self, pairs: Matrix, right: Matrix, start: ir.Value, stop: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Go on with such chains over columns ``start .. stop``, leaving out pairs that are absent."""
        b, rows, group = self.b, self.tile.rows_each, self.group
        each = self.groups_of(right.width) * group
        with loop(b, start, stop, group, sums) as it:
            out = list(it.values)
            ys = [self.columns_of(right, it.index, k) for k in range(group)]
            for r in range(rows):
                for k, value in enumerate(self._pair_group(pairs, r, it.index)):
                    here = self.present(value)
                    for n in range(each):
                        new = fma(b, value, ys[k][n], out[r * each + n])
                        out[r * each + n] = b.select(here, new, out[r * each + n])
            it.advance(*out)
        return list(it.results)

    def present(self, pair: ir.Value) -> ir.Value:
        """Whether a pair is visible."""
        absent = ir.Constant(self.bits, ABSENT[self.size])
        return self.b.icmp_signed("!=", self.b.bitcast(pair, self.bits), absent)

    def _pair_group(self, pairs: Matrix, r: int, column: ir.Value) -> list[ir.Value]:
        """A group of the thread's r-th row of pairs."""
        b = self.b
        x = offset(b, self.first_pair(pairs), b.mul(column, I64(self.size)))
        return self.vector(offset(b, x, r * self.down * pairs.line))

    def columns_of(self, right: Matrix, first: ir.Value, k: int) -> list[ir.Value]:
        """The thread's columns of row ``first + k`` of an operand."""
        b = self.b
        y = offset(b, offset(b, right.pointer, b.mul(self.tx, I64(WIDE))), b.mul(first, I64(right.line)))
        parts = range(self.groups_of(right.width))
        return [v for g in parts for v in self.vector(offset(b, y, k * right.line + g * self.tile.across * WIDE))]
