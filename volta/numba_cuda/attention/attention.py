"""Attention on a GPU: a block of threads computes a tile of query rows, one block of 64 keys after the other.

A key block's scores are in registers, its weights in shared memory on their way to the second product, and the output
in registers until all blocks are merged. Keys arrive while the block before is weighted, values while scores are
computed. A warp that sees no key of a block waits.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import item_size
from volta.emit.loops import I1, I32, I64, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_layout import (
    AttentionTile,
    Shapes,
    shared_bytes,
    shared_matrices,
)
from volta.numba_cuda.attention.attention_products import Products
from volta.numba_cuda.codegen.threads import dynamic_shared, new_entry, warp_barrier
from volta.xla_like.attention import BLOCK, AttentionSpec


def forward_bytes(spec: AttentionSpec, tile: AttentionTile) -> int:
    """Shared memory of a block of threads."""
    return shared_bytes(_shapes(spec, tile), tile, item_size(spec.accumulator))


def _shapes(spec: AttentionSpec, tile: AttentionTile) -> Shapes:
    """Of queries, keys and values."""
    return (tile.rows, spec.head), (BLOCK, spec.head), (BLOCK, spec.value_head)


def build_attention(module: ir.Module, name: str, spec: AttentionSpec, tile: AttentionTile) -> ir.Function:
    """Add the kernel to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads)
    space = dynamic_shared(module, b)
    _Forward(b, function, spec, tile, space).emit()
    b.ret_void()
    return function


class QueryTiles(Products):
    """A block of threads whose resident rows are queries and whose streamed rows are keys."""

    first: ir.Value  # the tile's first row, and its position among the keys
    position: ir.Value
    stop: ir.Value  # the keys that some row sees end here

    def locate(self) -> None:
        """Find the block's place."""
        self.first, self.position, self.stop = self.tile_of_queries(self.tile.rows)

    def mixed(self, block: ir.Value) -> ir.Value:
        """Whether some row of the warp does not see some key of the block."""
        b, tile = self.b, self.tile
        if self.spec.masked:
            return I1(1)
        last = b.add(block, I64(BLOCK - 1))
        mixed = b.icmp_signed(">=", last, self.s)
        if self.spec.causal:
            first_row = b.add(self.position, b.mul(self.warp, I64(tile.warp_rows)))
            mixed = b.or_(mixed, b.icmp_signed(">", last, first_row))
        return mixed

    def visible(self, block: ir.Value) -> list[ir.Value]:
        """Whether each of the thread's rows sees each of its keys."""
        b, tile = self.b, self.tile
        start = b.add(block, self.tx)
        keys = self.distance(b.sub(self.s, start))
        behind = self.distance(b.sub(b.add(self.position, self.row(0)), start))
        out = []
        for r in range(tile.rows_each):
            for c in range(self.columns):
                seen = b.icmp_signed("<", I32(c * tile.across), keys)
                if self.spec.causal:
                    seen = b.and_(seen, b.icmp_signed("<=", I32(c * tile.across - self.step(r)), behind))
                if self.spec.masked:
                    row = b.add(self.first, self.row(r))
                    seen = b.and_(seen, self.in_mask(row, b.add(start, I64(c * tile.across))))
                out.append(seen)
        return out

    def any(self, block: ir.Value, seen: list[ir.Value]) -> ir.Value:
        """Whether the lane's row sees any key of the block."""
        b = self.b
        if self.spec.masked:
            some = self.combine_rows([b.zext(x, ir.IntType(32)) for x in seen], b.or_)
            return b.icmp_unsigned("!=", some, ir.IntType(32)(0))
        if not self.spec.causal:
            return I1(1)
        return b.icmp_signed("<=", block, b.add(self.position, self.lane_row()))

    def bounds(self, block: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Keys of the block: those that every row of the warp sees, in steps of `whole`; those that some row sees, in
        whole groups."""
        b, tile = self.b, self.tile
        if self.spec.masked:
            return I64(0), I64(BLOCK)
        some = b.sub(self.s, block)
        every = some
        if self.spec.causal:
            first = b.sub(b.add(self.position, b.mul(self.warp, I64(tile.warp_rows))), block)
            every = minimum(b, every, b.add(first, I64(1)))
            some = minimum(b, some, b.add(first, I64(tile.warp_rows)))

        def clamp(x: ir.Value, whole: int) -> ir.Value:
            x = minimum(b, b.and_(x, I64(-whole)), I64(BLOCK))
            return b.select(b.icmp_signed("<", x, I64(0)), I64(0), x)

        return clamp(every, self.whole), clamp(b.add(some, I64(self.group - 1)), self.group)


class _Forward(QueryTiles):
    def __init__(
        self, b: ir.IRBuilder, function: ir.Function, spec: AttentionSpec, tile: AttentionTile, space: ir.Value
    ) -> None:
        super().__init__(b, function.args[0], spec, tile)
        found, self.pairs = shared_matrices(b, space, _shapes(spec, tile), tile, self.size)
        self.queries, self.keys, self.values = found

    def emit(self) -> None:
        b, spec, tile, a = self.b, self.spec, self.tile, self.arg
        self.locate()
        q = self.of_head(Arg.Q, self.item, self.head)
        k = self.of_head(Arg.K, self.item, self.head)
        v = self.of_head(Arg.V, self.item, self.head)
        k_line, v_line = a(Arg.K_S), a(Arg.V_S)
        self.copy_rows(self.queries, tile.rows, q, a(Arg.Q_T), self.first, self.t)
        self.copy_rows(self.keys, BLOCK, k, k_line, I64(0), self.s)
        groups = self.groups_of(spec.value_head) * self.group
        zeros = [self.zero] * (tile.rows_each * groups)
        with loop(b, 0, self.stop, BLOCK, [self.constant(float("-inf")), self.zero, *zeros]) as it:
            self.arrived()
            self.copy_rows(self.values, BLOCK, v, v_line, it.index, self.s)
            top, total, *out = it.values
            weighted = self._weigh(it.index, top, total)
            self.arrived()
            self.copy_rows(self.keys, BLOCK, k, k_line, b.add(it.index, I64(BLOCK)), self.s)
            it.advance(*self._merge(it.index, weighted, top, total, out))
        self.arrived()
        self._write(it.results[0], it.results[1], it.results[2:])

    def _weigh(self, block: ir.Value, top: ir.Value, total: ir.Value) -> list[ir.Value]:
        """Scores and weights of a key block, the latter left in `pairs`; what merging needs: m, l, a, c of a row."""
        b, columns = self.b, self.columns
        scores = self.scaled(self.scores(self.queries, self.keys))
        mixed = self.mixed(block)
        low = self.constant(float("-inf"))
        with if_else(b, mixed) as branch:
            with branch.then():
                seen = self.visible(block)
                chosen = [b.select(s, x, low) for s, x in zip(seen, scores, strict=True)]
                found = self.any(block, seen)
                branch.give(found, *chosen)
            with branch.otherwise():
                branch.give(I1(1), *scores)
        any_visible, *scores = branch.results
        block_top = self.combine_rows(scores, self.maximum)
        shown = b.select(any_visible, block_top, self.zero)
        tops = self.spread_rows(shown)
        weights = [self.exp_down(b.fsub(x, tops[i // columns])) for i, x in enumerate(scores)]
        self.put(self.pair_places(self.pairs), weights, mixed, lambda: self.visible(block))
        block_total = self.combine_rows(weights, b.fadd)
        new_top, old, new = self.merge_factors(top, block_top)
        # A row that sees no key of the block stays as it is: its sums are +0, and fma(x, 1, -0) is x.
        old = b.select(any_visible, old, self.constant(1.0))
        new = b.select(any_visible, new, self.constant(-0.0))
        new_top = b.select(any_visible, new_top, top)
        new_total = self.merged(total, old, block_total, new)
        return [new_top, new_total, old, new]

    def _merge(
        self, block: ir.Value, weighted: list[ir.Value], top: ir.Value, total: ir.Value, out: list[ir.Value]
    ) -> list[ir.Value]:
        b = self.b
        warp_barrier(b)
        new_top, new_total, old, new = weighted
        each = self.groups_of(self.spec.value_head) * self.group
        sums = [self.zero] * len(out)
        whole, stop = self.bounds(block)
        sums = self.apply(self.pairs, self.values, whole, sums)
        sums = self.apply_present(self.pairs, self.values, whole, stop, sums)
        olds, news = self.spread_rows(old), self.spread_rows(new)
        merged = [
            self.merged(x, olds[i // each], y, news[i // each]) for i, (x, y) in enumerate(zip(out, sums, strict=True))
        ]
        return [new_top, new_total, *merged]

    def _write(self, top: ir.Value, total: ir.Value, out: list[ir.Value]) -> None:
        b, a, spec = self.b, self.arg, self.spec
        stats = self.stats(self.item, self.head)
        row = b.add(self.first, self.lane_row())
        alone = b.icmp_signed("==", b.and_(self.tx, I64(self.lane_rows - 1)), I64(0))
        with if_then(b, b.and_(alone, b.icmp_signed("<", row, self.t))):
            place = b.add(stats, b.mul(row, I64(self.size)))
            b.store(top, offset(b, self.base(Arg.M), place), align=self.size)
            b.store(total, offset(b, self.base(Arg.L), place), align=self.size)
        base = self.of_head(Arg.OUT, self.item, self.head)
        groups = self.groups_of(spec.value_head)
        each = groups * self.group
        for r, divisor in enumerate(self.spread_rows(total)):
            row = b.add(self.first, self.row(r))
            nothing = b.fcmp_ordered("==", divisor, self.zero)
            with if_then(b, b.icmp_signed("<", row, self.t)):
                line = offset(b, base, b.mul(row, a(Arg.OUT_T)))
                values = [b.select(nothing, self.zero, b.fdiv(x, divisor)) for x in out[r * each : (r + 1) * each]]
                self.write_row(line, values, spec.value_head)
