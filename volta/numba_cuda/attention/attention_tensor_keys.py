"""Attention on tensor cores whose resident rows are keys: the gradients of keys and of values.

Scores are computed with keys as rows, so that weights and their cotangents, which multiply cotangents of the output and
queries next, have the places of left operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I1, I32, I64, fma, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_tensor import LOG2E, TensorAttention, shared_bytes
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.ptx_approx import near_power
from volta.numba_cuda.codegen.threads import block_index, dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec

STATS_BYTES = 2 * BLOCK * 4
"""What a block of queries leaves in shared memory: two numbers of each, as `prepared` makes them."""


def dkv_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    return shared_bytes(tile, (tile.rows + 2 * BLOCK, spec.head + spec.value_head)) + 2 * STATS_BYTES


def build_dkv(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is tiles of keys x batch x heads."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    KeyGradient(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


class KeyGradient(TensorAttention):
    def locate(self, which: ir.Value) -> None:
        """Find a place in the order of tiles: those with most queries first, of all heads."""
        b, spec, tile = self.b, self.spec, self.tile
        tiles = ceil_div(b, self.s, tile.rows)
        if spec.causal:
            number = self.find_head(which)
        else:
            self.set_head(b.udiv(which, tiles))
            number = b.urem(which, tiles)
        self.first = b.mul(number, I64(tile.rows))
        self.begin: ir.Value = I64(0)
        self.position = self.start(self.item)
        if spec.causal:
            behind = b.sub(self.first, self.position)
            behind = b.select(b.icmp_signed("<", behind, I64(0)), I64(0), behind)
            self.begin = b.and_(behind, I64(-BLOCK))
        stats = self.stats(self.item, self.head)
        self.stats_bases = [offset(b, self.base(x), stats) for x in self.STATS]

    def emit(self) -> None:
        b, spec, tile = self.b, self.spec, self.tile
        self.locate(block_index(b))
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        keys, values = self.allot(tile.rows, spec.head), self.allot(tile.rows, spec.value_head)
        self.stages = [[self.allot(BLOCK, w) for _ in range(2)] for w in (spec.head, spec.value_head)]
        for to, address in ((keys, Arg.K), (values, Arg.V)):
            base = self.of_head(address, self.item, self.head)
            self.copy_rows(to, base, self.arg(Arg[f"{address.name}_S"]), self.first, self.s)
        self.streams = [(self.of_head(x, self.item, self.head), self.arg(Arg[f"{x.name}_T"])) for x in (Arg.Q, Arg.DO)]
        self._load_block(self.begin)
        self._put_stats(self.begin, self.read_stats(self.begin, self.thread))
        self.arrived()
        self.keys, self.values = self.products.left(keys), self.products.left(values)
        count = len(self.zeros(spec.head))
        with loop(b, self.begin, self.t, BLOCK, [*self.zeros(spec.head), *self.zeros(spec.value_head)]) as it:
            self.arrived()
            following = b.add(it.index, I64(BLOCK))
            with if_then(b, b.icmp_signed("<", following, self.t)):
                self._load_block(following)
            stats = self.read_stats(following, self.thread)
            ptx_ops.pin_reads(b)
            it.advance(*self._seen_block(it.index, list(it.values)))
            self._put_stats(following, stats)
        self.write_rows(it.results[:count], it.results[count:])

    def write_rows(self, dk: list[ir.Value], dv: list[ir.Value]) -> None:
        """Write the warp's rows of the results."""
        rows = 2 * self.tile.bands
        self.write(Arg.DK, dk, self.spec.head, self.s, [self.scale] * rows)
        self.write(Arg.DV, dv, self.spec.value_head, self.s, [self.constant(1.0)] * rows)

    # -- blocks of queries -------------------------------------------------------------------------------------------

    def _load_block(self, block: ir.Value) -> None:
        b, iteration = self.b, self.b.lshr(block, I64(6))
        for stages, (base, stride) in zip(self.stages, self.streams, strict=True):
            self.copy_rows(self.stage(stages, iteration), base, stride, block, self.t)
        ptx_ops.commit_copies(b)

    def read_stats(self, block: ir.Value, number: ir.Value) -> list[ir.Value]:
        """The statistics of one of a block's queries, by a thread's number."""
        b = self.b
        row = minimum(b, b.add(block, b.and_(number, I64(BLOCK - 1))), b.sub(self.t, I64(1)))
        place = b.mul(row, I64(4))
        return [b.load(offset(b, base, place), typ=self.kind, align=4) for base in self.stats_bases]

    def _put_stats(self, block: ir.Value, stats: Sequence[ir.Value]) -> None:
        with if_then(self.b, self.b.icmp_signed("<", self.thread, I64(BLOCK))):
            self.put_stats(block, self._stats_of(block), stats, self.thread)

    def put_stats(self, block: ir.Value, to: ir.Value, stats: Sequence[ir.Value], number: ir.Value) -> None:
        """Leave what is made of a query's statistics in shared memory; beyond the last query the weights are 0."""
        b = self.b
        inside = b.icmp_signed("<", b.add(block, number), self.t)
        place = offset(b, to, b.mul(number, I64(4)))
        shift, less = self.prepared(stats)
        shift = b.select(inside, shift, self.constant(float("-inf")))
        for i, x in enumerate((shift, less)):
            b.store(x, offset(b, place, i * BLOCK * 4), align=4)

    def _stats_of(self, block: ir.Value) -> ir.Value:
        b = self.b
        return offset(b, self.space, b.mul(b.and_(b.lshr(block, I64(6)), I64(1)), I64(STATS_BYTES)))

    def _seen_block(self, block: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        """What becomes of the sums by a block of queries, if some of them see some of the keys."""
        b = self.b
        if not self.spec.causal:
            return self._block(block, state)
        last = b.add(self.position, b.add(block, I64(BLOCK - 1)))
        with if_else(b, b.icmp_signed("<=", b.add(self.first, self.together_first), last)) as branch:
            with branch.then():
                branch.give(*self._block(block, state))
            with branch.otherwise():
                branch.give(*state)
        return branch.results

    def _block(self, block: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        b, spec = self.b, self.spec
        iteration = b.lshr(block, I64(6))
        queries, cotangents = (self.stage(stages, iteration) for stages in self.stages)
        count = len(self.zeros(spec.head))
        dk, dv = state[:count], state[count:]
        for part in range(self.tile.parts):
            scores = self.shown(block, part, self.products.scores(self.keys, queries, part))
            slopes = self.products.scores(self.values, cotangents, part)
            found = self.found_stats(self._stats_of(block), part)
            weights = self.weights_of(scores, found)
            dv = self.products.apply(weights, cotangents, part, dv)
            dk = self.products.apply(self.slopes_of(weights, slopes, found), queries, part, dk)
        return [*dk, *dv]

    def found_stats(self, place: ir.Value, part: int) -> list[tuple[ir.Value, ir.Value]]:
        """What `put_stats` left, for each of the thread's pairs of a part of the block."""
        b, columns = self.b, BLOCK // self.tile.parts
        stats, pair = offset(b, place, b.mul(self.right, I64(4))), ir.VectorType(self.kind, 2)
        found = [
            [b.load(offset(b, stats, 4 * (i * BLOCK + part * columns + x)), typ=pair, align=8) for i in range(2)]
            for x in range(0, columns, 8)
        ]
        beside = [self.columns_beside(n, columns) for n in range(self.tile.bands * columns // 2)]
        return [tuple(b.extract_element(x, I32(column % 8)) for x in found[column // 8]) for column in beside]

    def weights_of(self, scores: Sequence[ir.Value], stats: Sequence[tuple[ir.Value, ir.Value]]) -> list[ir.Value]:
        """Weights, from scores."""
        b = self.b
        return [near_power(b, fma(b, x, self.exponent, y)) for x, (y, _) in zip(scores, stats, strict=True)]

    def slopes_of(
        self, weights: Sequence[ir.Value], slopes: Sequence[ir.Value], stats: Sequence[tuple[ir.Value, ir.Value]]
    ) -> list[ir.Value]:  # fmt: skip
        """The cotangents of scores, from those of weights."""
        b = self.b
        return [b.fmul(p, b.fadd(x, y)) for p, x, (_, y) in zip(weights, slopes, stats, strict=True)]

    def shown(self, block: ir.Value, part: int, scores: list[ir.Value]) -> list[ir.Value]:
        """Scores of a part of the block's queries; those of pairs that are not visible are -inf."""
        b, spec, columns = self.b, self.spec, BLOCK // self.tile.parts
        if not (spec.causal or spec.masked):
            return scores
        query, key = b.add(block, I64(part * columns)), b.add(self.first, self.warp_first)
        mixed: ir.Value = I1(1)
        if not spec.masked:
            mixed = b.icmp_signed(">", b.add(key, I64(self.tile.warp_rows - 1)), b.add(self.position, query))
        with if_else(b, mixed) as branch:
            with branch.then():
                branch.give(*self.hidden(block, part, scores))
            with branch.otherwise():
                branch.give(*scores)
        return branch.results

    def hidden(self, block: ir.Value, part: int, scores: list[ir.Value]) -> list[ir.Value]:
        """The same where some pairs may not be visible."""
        b, spec, columns = self.b, self.spec, BLOCK // self.tile.parts
        query, key = b.add(block, I64(part * columns)), b.add(self.first, self.warp_first)
        start, own = b.add(query, self.right), b.add(key, self.down)
        behind = self.distance(b.sub(b.add(self.position, start), own))
        chosen = []
        for i, x in enumerate(scores):
            column, below = self.columns_beside(i, columns), self.rows_below(self.row_of(i, columns))
            seen: ir.Value = I1(1)
            if spec.causal:
                seen = b.icmp_signed("<=", I32(below - column), behind)
            if spec.masked:
                shown = self.in_mask(b.add(start, I64(column)), b.add(own, I64(below)))
                seen = b.and_(seen, shown)
            chosen.append(b.select(seen, x, self.constant(float("-inf"))))
        return chosen
