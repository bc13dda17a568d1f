"""Products of tiles in shared memory, with sums in registers: scores of pairs of rows, and pairs times rows.

What an iteration needs first is read in the one before it, so that no thread waits for shared memory: the streamed
operand as soon as the last row is done with it. Reads that are not pinned LLVM moves back to their use.
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

    def scores(self, left: Matrix, right: Matrix, whole: ir.Value | None = None) -> list[ir.Value]:
        """DOT of each of the thread's rows of `left` and of `right`, one chain over all columns.

        They may have fewer than the matrices: so many ``whole`` groups.
        """
        b, rows, columns, group = self.b, self.tile.rows_each, self.columns, self.group
        first = b.add(b.mul(self.warp, I64(self.tile.warp_rows)), self.ty)
        lefts = offset(b, left.pointer, b.mul(first, I64(left.line)))
        rights = offset(b, right.pointer, b.mul(self.tx, I64(right.line)))
        groups, rest = divmod(left.width, group)
        sums = [self.zero] * (rows * columns)

        def places(shift: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            x, y = offset(b, lefts, shift), offset(b, rights, shift)
            return (
                [offset(b, x, r * self.down * left.line) for r in range(rows)],
                [offset(b, y, c * self.tile.across * right.line) for c in range(columns)],
            )

        if groups:
            stop = I64(groups * WIDE) if whole is None else b.mul(whole, I64(WIDE))
            at_left, at_right = places(I64(0))
            ahead = [*self.vector(at_left[0]), *(v for place in at_right for v in self.vector(place))]
            with loop(b, 0, stop, WIDE, [*sums, *ahead]) as it:
                out, x, y = it.values[: len(sums)], it.values[len(sums) :][:group], it.values[len(sums) + group :]
                at_left, _ = places(it.index)
                next_left, next_right = places(b.add(it.index, I64(WIDE)))
                out = list(out)
                next_y = []
                for r in range(rows):
                    bottom = r == rows - 1
                    xs, x = x, self.vector(next_left[0] if bottom else at_left[r + 1])
                    for c in range(columns):
                        for e, value in enumerate(xs):
                            out[r * columns + c] = fma(b, value, y[c * group + e], out[r * columns + c])
                        if bottom:
                            next_y += self.vector(next_right[c])
                if self.tile.ahead:
                    pin_reads(b)
                it.advance(*out, *x, *next_y)
            sums = list(it.results[: len(sums)])
        for i in range(rest):
            at_left, at_right = places(I64(groups * WIDE + i * self.size))
            xs, ys = ([b.load(place, typ=self.kind, align=self.size) for place in x] for x in (at_left, at_right))
            sums = [fma(b, xs[n // columns], ys[n % columns], x) for n, x in enumerate(sums)]
        return sums

    def groups_of(self, width: int) -> int:
        """Groups of columns of a matrix of this width that a thread has in `apply`."""
        return -(-width // (self.tile.across * self.group))

    def apply(self, pairs: Matrix, right: Matrix, stop: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with chains over columns ``0 .. stop`` (whole groups) of the warp's `pairs`, times rows of `right`."""
        b, rows, group = self.b, self.tile.rows_each, self.group
        each = self.groups_of(right.width) * group
        last = b.sub(stop, I64(group))
        ahead = [
            *self._pair_group(pairs, 0, I64(0)),
            *(v for k in range(group) for v in self.columns_of(right, I64(0), k)),
        ]
        with loop(b, 0, stop, group, [*sums, *ahead]) as it:
            out, x, y = list(it.values[: len(sums)]), it.values[len(sums) :][:group], it.values[len(sums) + group :]
            following = minimum(b, b.add(it.index, I64(group)), last)
            next_y = []
            for r in range(rows):
                bottom = r == rows - 1
                xs, x = x, self._pair_group(pairs, 0 if bottom else r + 1, following if bottom else it.index)
                for k, value in enumerate(xs):
                    for n in range(each):
                        out[r * each + n] = fma(b, value, y[k * each + n], out[r * each + n])
                    if bottom:
                        next_y += self.columns_of(right, following, k)
            if self.tile.ahead:
                pin_reads(b)
            it.advance(*out, *x, *next_y)
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
