"""The queries' gradients accumulated serially over blocks of keys: each adds its part to what those before it have
added.

An integer for each block of queries counts the blocks of keys that have added to it. So the order is that of the
definition, and no float is added atomically. The last to add multiplies by the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I1, I32, I64, fma, for_range, if_else, if_then, load_arg, loop, minimum, offset
from volta.numba_cuda.attention.attention_backward import KeyTiles
from volta.numba_cuda.attention.attention_copies import Spread
from volta.numba_cuda.attention.attention_layout import WIDE, AttentionTile, Matrix
from volta.numba_cuda.codegen.ptx_ops import commit_copies, pin_reads
from volta.numba_cuda.codegen.ptx_semaphore import (
    await_semaphore,
    read_serial,
    release_semaphore,
    semaphore_is,
    take_ticket,
    write_serial,
)
from volta.numba_cuda.codegen.threads import barrier, device_pointer
from volta.xla_like.attention import BLOCK, AttentionSpec

KEYS = 8
"""Keys of an iteration of the queries' gradients."""


def semaphore_words(heads: int, t: int) -> int:
    """Words of 4 bytes, 0 at the start, the semaphores: one for tickets, one for each block of queries."""
    return 1 + heads * -(-t // BLOCK)


class SerialQueries(KeyTiles):
    """A block of threads with keys, and the cotangents of their scores with a block of queries in shared memory."""

    keys: Matrix
    crossed: Matrix  # cotangents of scores, a line for each key, if the tile has them so too
    rest: ir.Value  # 4 bytes of shared memory

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: AttentionSpec, tile: AttentionTile) -> None:
        super().__init__(b, args, spec, tile)
        self.semaphores = device_pointer(b, load_arg(b, self.words, len(Arg)))

    # -- semaphores ----------------------------------------------------------------------------------------------------

    def _ticket(self) -> ir.Value:
        """How many blocks of keys add before this one."""
        return self.b.lshr(self.first, I64(6))

    def _place(self, block: ir.Value) -> ir.Value:
        """The semaphore of a block of queries: how many blocks of keys have added to it."""
        b = self.b
        head = b.add(b.mul(self.item, self.arg(Arg.N)), self.head)
        index = b.add(b.mul(head, ceil_div(b, self.t, BLOCK)), b.lshr(block, I64(6)))
        return offset(b, self.semaphores, b.mul(b.add(index, I64(1)), I64(4)))

    def pass_on(self, block: ir.Value) -> None:
        b = self.b
        before = b.icmp_signed(">=", block, self.begin)
        with if_then(b, b.and_(before, b.icmp_signed("==", self.thread, I64(self.tile.threads - 1)))):
            release_semaphore(b, self._place(block), b.trunc(b.add(self._ticket(), I64(1)), I32))

    def ask(self, block: ir.Value) -> ir.Value:
        """Whether all blocks before this one have added already; only the thread knows that is going to wait for it."""
        b = self.b
        with if_else(b, self._waits()) as branch:
            with branch.then():
                branch.give(semaphore_is(b, self._place(block), b.trunc(self._ticket(), I32)))
            with branch.otherwise():
                branch.give(I1(1))
        return branch.results[0]

    def _waits(self) -> ir.Value:
        return self.b.icmp_signed("==", self.thread, I64(self.tile.threads - 1))

    def await_others(self, block: ir.Value, come: ir.Value) -> None:
        """All threads meet, see all cotangents of scores, and all blocks before this one have added; ``come``: what
        `ask` said."""
        b = self.b
        with if_then(b, b.not_(come)):
            await_semaphore(b, self._place(block), b.trunc(self._ticket(), I32))
        self.meet()

    def number(self) -> ir.Value:
        """The block's number, in the order in which blocks begin."""
        b = self.b
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            b.store(take_ticket(b, self.semaphores), self.rest, align=4)
        barrier(b)
        return b.zext(b.load(self.rest, typ=I32, align=4), I64)

    def finish(self) -> None:
        """Release the last semaphore; rows of queries that see no key at all are the first block's to write."""
        b = self.b
        blocks = b.mul(ceil_div(b, self.t, BLOCK), I64(BLOCK))
        with if_then(b, b.icmp_signed("<", self.begin, self.t)):
            self.pass_on(b.sub(blocks, I64(BLOCK)))
        if not self.spec.causal:
            return
        unseen = b.select(b.icmp_signed("==", self.first, I64(0)), minimum(b, self.begin, self.t), I64(0))
        base = self.of_head(Arg.DQ, self.item, self.head)
        (zero,) = self.scaled([self.zero])
        zeros: ir.Value = ir.Constant(ir.VectorType(self.kind, self.group), ir.Undefined)
        for e in range(self.group):
            zeros = b.insert_element(zeros, zero, I32(e))
        groups = self.spec.head // self.group
        with for_range(b, self.thread, b.mul(unseen, I64(groups)), self.tile.threads) as i:
            row, part = b.udiv(i, I64(groups)), b.urem(i, I64(groups))
            line = offset(b, base, b.mul(row, self.arg(Arg.DQ_T)))
            b.store(zeros, offset(b, line, b.mul(part, I64(WIDE))), align=WIDE)

    # -- which pairs are seen ----------------------------------------------------------------------------------------

    def mixed(self, block: ir.Value) -> ir.Value:
        b = self.b
        last = b.add(self.first, b.add(b.mul(self.warp, I64(self.tile.warp_rows)), I64(self.tile.warp_rows - 1)))
        return b.or_(super().mixed(block), b.icmp_signed(">=", last, self.s))

    def visible(self, block: ir.Value) -> list[ir.Value]:
        b, seen = self.b, super().visible(block)
        keys = self.distance(b.sub(self.s, b.add(self.first, self.row(0))))
        inside = [b.icmp_signed("<", I32(self.step(r)), keys) for r in range(self.tile.rows_each)]
        return [b.and_(x, inside[i // self.columns]) for i, x in enumerate(seen)]

    def _any_mixed(self, block: ir.Value) -> ir.Value:
        """Whether some query of the block does not see some key of the tile."""
        b = self.b
        if self.spec.masked:
            return I1(1)
        last = b.add(self.first, I64(BLOCK - 1))
        mixed = b.or_(b.icmp_signed(">", b.add(block, I64(BLOCK)), self.t), b.icmp_signed(">=", last, self.s))
        if self.spec.causal:
            mixed = b.or_(mixed, b.icmp_signed("<", block, self.lowest(last)))
        return mixed

    # -- queries -----------------------------------------------------------------------------------------------------

    def add_queries(
        self, dq: tuple[ir.Value, ir.Value], block: ir.Value, slopes: Matrix, spreads: Sequence[Spread],
        copy_all: Callable[[], None],
    ) -> None:  # fmt: skip
        """Add the block's part, after those before it; ``dq``: where a head's gradients begin, and bytes from row to
        row. Meanwhile copy what `spreads` say, or all at once by `copy_rows`."""
        b, spec = self.b, self.spec
        places = self._places(*dq, block)
        before = [v for place, _ in places for v in self._elements(read_serial(b, place))]
        mixed = self._any_mixed(block)
        if spreads:
            with if_then(b, mixed):
                copy_all()
        else:
            copy_all()
        parts = self._across(slopes, b.select(mixed, I64(0), I64(BLOCK)), [self.zero] * len(before), spreads)
        commit_copies(b)
        parts = self._across_present(slopes, b.select(mixed, I64(BLOCK), I64(0)), parts)
        last = b.sub(ceil_div(b, self.s, BLOCK), I64(1))
        if spec.causal:
            last = minimum(b, last, b.ashr(b.add(self.position, b.add(block, I64(BLOCK - 1))), I64(6)))
        factor = b.select(b.icmp_signed("==", self._ticket(), last), self.scale, self.constant(1.0))
        first = b.icmp_signed("==", self.first, I64(0))
        sums = [b.fmul(b.fadd(b.select(first, self.zero, x), y), factor) for x, y in zip(before, parts, strict=True)]
        for n, (place, inside) in enumerate(places):
            value: ir.Value = ir.Constant(ir.VectorType(self.kind, self.group), ir.Undefined)
            for e in range(self.group):
                value = b.insert_element(value, sums[n * self.group + e], I32(e))
            with if_then(b, inside):
                write_serial(b, place, value)

    def _elements(self, vector: ir.Value) -> list[ir.Value]:
        return [self.b.extract_element(vector, I32(e)) for e in range(self.group)]

    def _places(self, base: ir.Value, stride: ir.Value, block: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Where the thread's groups of a block's gradients lie, and whether they are there; else one that is."""
        b, width, query = self.b, self.spec.head, self._query()
        first, rows = offset(b, base, b.mul(block, stride)), self.distance(b.sub(self.t, b.add(block, query)))
        line, apart = offset(b, first, b.mul(query, stride)), b.mul(stride, I64(self._apart))
        out = []
        for r in range(self.queries_each):
            here = b.icmp_signed(">", rows, I32(r * self._apart))
            place = b.select(here, line, first)
            line = offset(b, line, apart)
            for g in range(self.groups_of(width)):
                column, inside = b.add(b.mul(self.tx, I64(self.group)), I64(g * self.tile.across * self.group)), here
                if width % (self.tile.across * self.group):
                    inside = b.and_(here, b.icmp_signed("<", column, I64(width)))
                    column = minimum(b, column, I64(width - self.group))
                out.append((offset(b, place, b.mul(column, I64(4))), inside))
        return out

    @property
    def queries_each(self) -> int:
        """Queries of a thread: the warp groups share out the block's."""
        return self.tile.rows_each // self.tile.warp_groups

    @property
    def _apart(self) -> int:
        """From one of the thread's queries to the next: so neighbouring lanes read lines in different banks."""
        return 1 if self.tile.both else BLOCK // self.queries_each

    def _query(self) -> ir.Value:
        """The thread's first query of a block."""
        b, tile = self.b, self.tile
        warp = b.add(b.mul(self.warp_group, I64(tile.warps)), self.warp)
        number = b.add(b.mul(warp, I64(self.down)), self.ty)
        return b.mul(number, I64(self.queries_each)) if self.tile.both else number

    def _across(
        self, slopes: Matrix, stop: ir.Value, sums: list[ir.Value], spreads: Sequence[Spread]
    ) -> list[ir.Value]:
        """Go on with chains over keys ``0 .. stop``: cotangents of the thread's queries' scores, times keys.

        A group of keys' cotangents is read while the group before it is multiplied, a key while the one before it is.
        """
        b, queries, group = self.b, range(self.queries_each), self.group

        def copies(index: ir.Value, sources: list[ir.Value]) -> list[ir.Value]:
            time = b.udiv(index, I64(KEYS))
            return [self.copy_part(x, time, source) for x, source in zip(spreads, sources, strict=True)]

        if self.tile.both:
            start = self._cotangent(slopes, 0, I64(0))

            def of_key(key: ir.Value) -> list[ir.Value]:
                return self.vector(offset(b, start, b.mul(key, I64(self.crossed.line))))

            sources = [x.source for x in spreads]
            return self.chains(
                of_key, lambda key: self.columns_of(self.keys, key), stop, sums, KEYS, sources, copies
            )  # fmt: skip
        width = len(sums) // self.queries_each
        xs = [v for r in queries for v in self._of_query(slopes, r, I64(0))]
        now = [*xs, *self.columns_of(self.keys, I64(0))]
        with loop(b, 0, stop, KEYS, [*sums, *now, *(x.source for x in spreads)]) as it:
            out, now = list(it.values[: len(sums)]), list(it.values[len(sums) : len(sums) + len(now)])
            sources = copies(it.index, list(it.values[len(sums) + len(now) :]))
            following = b.add(it.index, I64(KEYS))
            following = b.select(b.icmp_signed("<", following, stop), following, I64(0))  # somewhere, the last time
            xs, ys = now[: len(xs)], now[len(xs) :]
            for first in range(0, KEYS, group):
                then = b.add(it.index, I64(first + group)) if first + group < KEYS else following
                next_xs: list[ir.Value] = []
                for k in range(group):
                    for r in queries[k * len(queries) // group : (k + 1) * len(queries) // group]:
                        next_xs += self._of_query(slopes, r, then)
                    ahead = b.add(it.index, I64(first + k + 1)) if k + 1 < group else then
                    now, ys = ys, self.columns_of(self.keys, ahead)
                    for r in queries:
                        for n in range(width) if r % 2 == 0 else reversed(range(width)):
                            out[r * width + n] = fma(b, xs[r * group + k], now[n], out[r * width + n])
                xs = next_xs
            pin_reads(b)
            it.advance(*out, *xs, *ys, *sources)
        return list(it.results[: len(sums)])

    def _across_present(self, slopes: Matrix, stop: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with such chains, leaving out pairs that are absent."""
        b, width = self.b, len(sums) // self.queries_each
        with loop(b, 0, stop, 1, sums) as it:
            ys, out = self.columns_of(self.keys, it.index), list(it.values)
            for r in range(self.queries_each):
                x = self.element(self._cotangent(slopes, r, it.index), 0)
                here = self.present(x)
                for n, y in enumerate(ys):
                    i = r * width + n
                    out[i] = b.select(here, fma(b, x, y, out[i]), out[i])
            it.advance(*out)
        return list(it.results)

    def _cotangent(self, slopes: Matrix, r: int, key: ir.Value) -> ir.Value:
        """Where the cotangent of the score of the thread's r-th query with a key lies."""
        b, query = self.b, self.b.add(self._query(), I64(r * self._apart))
        matrix, line, along = (self.crossed, key, query) if self.tile.both else (slopes, query, key)
        return offset(b, offset(b, matrix.pointer, b.mul(line, I64(matrix.line))), b.mul(along, I64(4)))

    def crossed_places(self, key: ir.Value, count: int) -> list[ir.Value]:
        """Where so many of the thread's pairs lie in `crossed`, from a key on."""
        b, matrix = self.b, self.crossed
        start = offset(b, offset(b, matrix.pointer, b.mul(key, I64(matrix.line))), b.mul(self.tx, I64(4)))
        return [
            offset(b, start, self.step(r) * matrix.line + c * self.tile.across * 4)
            for r in range(count // self.columns)
            for c in range(self.columns)
        ]

    def write_crossed(self, places: Sequence[ir.Value], values: Sequence[ir.Value]) -> None:
        for place, value in zip(places, values, strict=True):
            self.b.store(value, place, align=4)

    def _of_query(self, slopes: Matrix, r: int, key: ir.Value) -> list[ir.Value]:
        """The cotangents of the thread's r-th query with a group of keys."""
        return self.vector(self._cotangent(slopes, r, key))
