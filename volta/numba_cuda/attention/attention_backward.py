"""Gradients of attention on a GPU: one kernel for queries, one for keys and values; scores are computed again.

Both hold a tile of rows with two operands (queries with cotangents of the output, or keys with values) and traverse
blocks of 64 of the other side. A block gives two matrices of pairs, p and ds, and these give parts of gradients, which
are added block by block. The operand that is needed last may have two places, so that its next block arrives early.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import item_size
from volta.emit.loops import I1, I32, I64, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention import QueryTiles
from volta.numba_cuda.attention.attention_layout import (
    AttentionTile,
    Matrix,
    Shapes,
    matrix_bytes,
    pairs_bytes,
    shared_bytes,
    shared_matrices,
)
from volta.numba_cuda.attention.attention_products import Products
from volta.numba_cuda.codegen.threads import block_index, dynamic_shared, new_entry, warp_barrier
from volta.xla_like.attention import BLOCK, AttentionSpec

STATS = (Arg.M, Arg.L, Arg.DELTA)
"""What is kept of each query: its largest score, its sum of weights, and the sum of its cotangent times its result."""


def backward_bytes(spec: AttentionSpec, tile: AttentionTile) -> int:
    """Shared memory of a block of threads."""
    return shared_bytes(_shapes(spec, tile), tile, item_size(spec.accumulator))


def _shapes(spec: AttentionSpec, tile: AttentionTile) -> Shapes:
    """Of the resident rows' two operands, then of a block's: of the first, needed last, there may be several."""
    resident = (tile.rows, spec.head), (tile.rows, spec.value_head)
    return *resident, *[(BLOCK, spec.head)] * tile.places, (BLOCK, spec.value_head)


def build_attention_dq(module: ir.Module, name: str, spec: AttentionSpec, tile: AttentionTile) -> ir.Function:
    """Add the kernel for queries to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads)
    _QueryGradient(b, function.args[0], spec, tile).emit(dynamic_shared(module, b))
    b.ret_void()
    return function


def build_attention_dkv(module: ir.Module, name: str, spec: AttentionSpec, tile: AttentionTile) -> ir.Function:
    """Add the kernel for keys and values to a module; its grid is tiles of keys x batch x heads."""
    function, b = new_entry(module, name, tile.threads)
    _KeyGradient(b, function.args[0], spec, tile).emit(dynamic_shared(module, b))
    b.ret_void()
    return function


class _Backward(Products):
    """What both kernels have: operands in shared memory, and weights and their cotangents from scores."""

    def allot(self, space: ir.Value) -> None:
        b, spec, tile, size = self.b, self.spec, self.tile, self.size

        found, self.pairs = shared_matrices(b, space, _shapes(spec, tile), tile, size)
        self.own, self.own_values, *self.other, self.other_values = found
        self.rest = offset(b, self.pairs.pointer, pairs_bytes(tile, size))

    def streamed(self, iteration: ir.Value) -> Matrix:
        """The place of the iteration's block of the operand that may have two."""
        first = self.other[0]
        if self.tile.places == 1:
            return first
        b = self.b
        distance = matrix_bytes(BLOCK, first.width, self.size)
        return Matrix(
            offset(b, first.pointer, b.mul(b.and_(iteration, I64(1)), I64(distance))), first.width, first.line
        )

    def gradient(self, sums: list[ir.Value], parts: list[ir.Value]) -> list[ir.Value]:
        return [self.b.fadd(x, y) for x, y in zip(sums, parts, strict=True)]

    def zeros(self, width: int) -> list[ir.Value]:
        return [self.zero] * (self.tile.rows_each * self.groups_of(width) * self.group)

    def write(self, address: Arg, sums: list[ir.Value], width: int, size: ir.Value) -> None:
        """Write the tile's rows of a gradient; ``size``: how many rows there are."""
        b = self.b
        base = self.of_head(address, self.item, self.head)
        stride = self.arg(Arg[f"{address.name}_{'T' if address is Arg.DQ else 'S'}"])
        each = self.groups_of(width) * self.group
        for r in range(self.tile.rows_each):
            row = b.add(self.first, self.row(r))
            with if_then(b, b.icmp_signed("<", row, size)):
                self.write_row(offset(b, base, b.mul(row, stride)), sums[r * each : (r + 1) * each], width)

    first: ir.Value  # the tile's first row


class _QueryGradient(QueryTiles, _Backward):
    def emit(self, space: ir.Value) -> None:
        b, spec, tile, a = self.b, self.spec, self.tile, self.arg
        self.allot(space)
        self.locate()
        q, k, v, do = (self.of_head(x, self.item, self.head) for x in (Arg.Q, Arg.K, Arg.V, Arg.DO))
        self.copy_rows(self.own, tile.rows, q, a(Arg.Q_T), self.first, self.t)
        self.copy_rows(self.own_values, tile.rows, do, a(Arg.DO_T), self.first, self.t)
        self.copy_rows(self.streamed(I64(0)), BLOCK, k, a(Arg.K_S), I64(0), self.s)
        self.copy_rows(self.other_values, BLOCK, v, a(Arg.V_S), I64(0), self.s)
        stats = self.stats(self.item, self.head)
        last = b.sub(self.t, I64(1))
        rows = [b.mul(minimum(b, b.add(self.first, self.row(r)), last), I64(self.size)) for r in range(tile.rows_each)]
        tops, totals, deltas = (
            [b.load(offset(b, self.base(x), b.add(stats, r)), typ=self.kind, align=self.size) for r in rows]
            for x in STATS
        )
        with loop(b, 0, self.stop, BLOCK, self.zeros(spec.head)) as it:
            iteration, following = b.lshr(it.index, I64(6)), b.add(it.index, I64(BLOCK))
            keys = self.streamed(iteration)
            self.arrived()
            if tile.places == 2:
                self.copy_rows(self.streamed(b.add(iteration, I64(1))), BLOCK, k, a(Arg.K_S), following, self.s)
            scores = self.scaled(self.scores(self.own, keys))
            c = self.columns
            weights = self.weights(
                [b.fsub(x, tops[i // c]) for i, x in enumerate(scores)], [totals[i // c] for i in range(len(scores))]
            )
            weights = self.park(self.pairs, weights)
            slopes = self.scores(self.own_values, self.other_values)
            self.meet()
            self.copy_rows(self.other_values, BLOCK, v, a(Arg.V_S), following, self.s)
            weights = self.unpark(self.pairs, weights)
            slopes = [
                b.fmul(p, b.fsub(x, deltas[i // c])) for i, (p, x) in enumerate(zip(weights, slopes, strict=True))
            ]
            self.put(self.pair_places(self.pairs), slopes, self.mixed(it.index), lambda: self.visible(it.index))
            warp_barrier(b)
            whole, stop = self.bounds(it.index)
            parts = self.apply(self.pairs, keys, whole, self.zeros(spec.head))
            parts = self.apply_present(self.pairs, keys, whole, stop, parts)
            if tile.places == 1:
                self.meet()
                self.copy_rows(keys, BLOCK, k, a(Arg.K_S), following, self.s)
            it.advance(*self.gradient(list(it.values), parts))
        self.arrived()
        self.write(Arg.DQ, self.scaled(it.results), spec.head, self.t)


class KeyTiles(_Backward):
    """A block of threads whose resident rows are keys and whose streamed rows are queries."""

    begin: ir.Value  # the first block of queries that sees one of the keys

    def locate(self, number: ir.Value) -> None:
        """Find the block's keys, by its number in the grid."""
        b = self.b
        self.first = b.mul(self.find_head(number), I64(self.tile.rows))
        self.begin = I64(0)
        if self.spec.causal:  # query i sees keys up to start + i
            self.position = self.start(self.item)
            self.begin = b_max(b, b.and_(b.sub(self.first, self.position), I64(-BLOCK)))

    def parts(self, block: ir.Value, pairs: Matrix, right: Matrix) -> list[ir.Value]:
        """Chains over the queries of the block: the warp's pairs, times the rows of `right`."""
        lowest, whole, stop = self._bounds(block)
        found = self.apply(pairs, right, whole, self.zeros(right.width))
        return self.apply_present(pairs, right, lowest, stop, found)

    def lowest(self, key: ir.Value) -> ir.Value:
        """The first query that sees a key, mask apart."""
        return b_max(self.b, self.b.sub(key, self.position)) if self.spec.causal else I64(0)

    def mixed(self, block: ir.Value) -> ir.Value:
        """Whether some query of the block does not see some key of the warp."""
        b, tile = self.b, self.tile
        if self.spec.masked:
            return I1(1)
        mixed = b.icmp_signed(">", b.add(block, I64(BLOCK)), self.t)
        if self.spec.causal:
            last = b.add(self.first, b.add(b.mul(self.warp, I64(tile.warp_rows)), I64(tile.warp_rows - 1)))
            mixed = b.or_(mixed, b.icmp_signed("<", block, self.lowest(last)))
        return mixed

    def visible(self, block: ir.Value) -> list[ir.Value]:
        b, tile = self.b, self.tile
        start, key = b.add(block, self.tx), b.add(self.first, self.row(0))
        queries = self.distance(b.sub(self.t, start))
        if self.spec.causal:
            ahead = self.distance(b.sub(b.add(self.position, start), key))
        out = []
        for r in range(tile.rows_each):
            for c in range(self.columns):
                seen = b.icmp_signed("<", I32(c * tile.across), queries)
                if self.spec.causal:
                    seen = b.and_(seen, b.icmp_signed("<=", I32(self.step(r) - c * tile.across), ahead))
                if self.spec.masked:
                    pair = b.add(start, I64(c * tile.across)), b.add(key, I64(self.step(r)))
                    seen = b.and_(seen, self.in_mask(*pair))
                out.append(seen)
        return out

    def _bounds(self, block: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries of the block, in whole groups: either all are seen, 0 .. whole; or those lowest .. stop may be."""
        b, tile = self.b, self.tile
        if self.spec.masked:
            return I64(0), I64(0), I64(BLOCK)
        mixed = self.mixed(block)
        up = b.and_(b.add(b.sub(self.t, block), I64(self.group - 1)), I64(-self.group))
        stop = minimum(b, up, I64(BLOCK))
        low = I64(0)
        if self.spec.causal:
            key = b.add(self.first, b.mul(self.warp, I64(tile.warp_rows)))
            low = b.sub(b.and_(self.lowest(key), I64(-self.group)), block)
            low = b_max(b, low)
        return (
            low,
            b.select(mixed, I64(0), I64(BLOCK)),
            b.select(mixed, stop, I64(0)),
        )


class _KeyGradient(KeyTiles):
    def emit(self, space: ir.Value) -> None:
        b, spec, tile, a = self.b, self.spec, self.tile, self.arg
        self.allot(space)
        self.locate(block_index(b))
        q, k, v, do = (self.of_head(x, self.item, self.head) for x in (Arg.Q, Arg.K, Arg.V, Arg.DO))
        self.copy_rows(self.own, tile.rows, k, a(Arg.K_S), self.first, self.s)
        self.copy_rows(self.own_values, tile.rows, v, a(Arg.V_S), self.first, self.s)
        self.copy_rows(self.streamed(b.lshr(self.begin, I64(6))), BLOCK, q, a(Arg.Q_T), self.begin, self.t)
        self.copy_rows(self.other_values, BLOCK, do, a(Arg.DO_T), self.begin, self.t)
        sums = [*self.zeros(spec.head), *self.zeros(spec.value_head)]
        with loop(b, self.begin, self.t, BLOCK, sums) as it:
            it.advance(*self._block(it.index, list(it.values), q, do))
        self.arrived()
        count = len(self.zeros(spec.head))
        self.write(Arg.DK, self.scaled(it.results[:count]), spec.head, self.s)
        self.write(Arg.DV, it.results[count:], spec.value_head, self.s)

    def _block(self, block: ir.Value, sums: list[ir.Value], q: ir.Value, do: ir.Value) -> list[ir.Value]:
        b, spec, tile, a, c = self.b, self.spec, self.tile, self.arg, self.columns
        iteration, following = b.lshr(block, I64(6)), b.add(block, I64(BLOCK))
        queries = self.streamed(iteration)
        tops, totals, deltas = self._columns(block)
        self.arrived()
        if tile.places == 2:
            self.copy_rows(self.streamed(b.add(iteration, I64(1))), BLOCK, q, a(Arg.Q_T), following, self.t)
        scores = self.scaled(self.scores(self.own, queries))
        weights = self.weights(
            [b.fsub(x, tops[i % c]) for i, x in enumerate(scores)], [totals[i % c] for i in range(len(scores))]
        )
        mixed = self.mixed(block)
        self.put(self.pair_places(self.pairs), weights, mixed, lambda: self.visible(block))
        warp_barrier(b)
        count = len(self.zeros(spec.head))
        value_sums = self.gradient(sums[count:], self.parts(block, self.pairs, self.other_values))
        slopes = self.scores(self.own_values, self.other_values)
        warp_barrier(b)  # every lane has read the weights
        weights = self.unpark(self.pairs, weights)
        slopes = [b.fmul(p, b.fsub(x, deltas[i % c])) for i, (p, x) in enumerate(zip(weights, slopes, strict=True))]
        self.put(self.pair_places(self.pairs), slopes, mixed, lambda: self.visible(block))
        self.meet()
        self.copy_rows(self.other_values, BLOCK, do, a(Arg.DO_T), following, self.t)
        key_sums = self.gradient(sums[:count], self.parts(block, self.pairs, queries))
        if tile.places == 1:
            self.meet()
            self.copy_rows(queries, BLOCK, q, a(Arg.Q_T), following, self.t)
        return [*key_sums, *value_sums]

    def _columns(self, block: ir.Value) -> list[list[ir.Value]]:
        """m, l and delta of the thread's queries."""
        b = self.b
        stats, last = self.stats(self.item, self.head), b.sub(self.t, I64(1))
        queries = [
            minimum(b, b.add(block, b.add(self.tx, I64(c * self.tile.across))), last) for c in range(self.columns)
        ]
        places = [b.add(stats, b.mul(i, I64(self.size))) for i in queries]
        return [
            [b.load(offset(b, self.base(x), place), typ=self.kind, align=self.size) for place in places] for x in STATS
        ]


def b_max(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """A number, or 0 if it is below."""
    return b.select(b.icmp_signed("<", x, I64(0)), I64(0), x)
