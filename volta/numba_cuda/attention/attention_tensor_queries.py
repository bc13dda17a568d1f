"""Attention on tensor cores whose resident rows are queries: the result, and the gradient of queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I1, I32, I64, fma, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_tensor import LOG2E, TensorAttention, shared_bytes
from volta.numba_cuda.attention.attention_tensor_tile import Rows, TensorTile
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.ptx_approx import near_power
from volta.numba_cuda.codegen.threads import dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec


def forward_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    return shared_bytes(tile, (tile.rows, spec.head), (2 * BLOCK, spec.head + spec.value_head))


def dq_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    return shared_bytes(tile, (tile.rows + 2 * BLOCK, spec.head + spec.value_head))


def build_forward(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    Forward(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


def build_dq(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel for the queries' gradients to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    QueryGradient(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


class Queries(TensorAttention):
    position: ir.Value  # of the tile's first row among the keys
    stop: ir.Value  # the keys that some row sees end here
    end: ir.Value  # the tile's rows do

    def locate(self) -> None:
        """Find the block's place."""
        self.first, self.position, self.stop = self.tile_of_queries(self.tile.rows)
        self.end = self.t
        self.keys = self.of_head(Arg.K, self.item, self.head), self.arg(Arg.K_S)
        self.values = self.of_head(Arg.V, self.item, self.head), self.arg(Arg.V_S)
        self.stages = [[self.allot(BLOCK, w) for _ in range(2)] for w in (self.spec.head, self.spec.value_head)]

    def copy_own_rows(self, to: Rows, address: Arg) -> None:
        """Begin to copy an operand's resident rows."""
        base = self.of_head(address, self.item, self.head)
        self.copy_rows(to, base, self.arg(Arg[f"{address.name}_T"]), self.first, self.t)

    def bring_block(self, block: ir.Value) -> None:
        """Begin to copy a block's keys and values."""
        b, iteration = self.b, self.b.lshr(block, I64(6))
        for stages, (base, stride) in zip(self.stages, (self.keys, self.values), strict=True):
            self.copy_rows(self.stage(stages, iteration), base, stride, block, self.s)
        ptx_ops.commit_copies(b)

    def traverse(self, state: Sequence[ir.Value]) -> list[ir.Value]:
        """Every block of keys of which the warp's rows see something, one after the other."""
        b = self.b
        with loop(b, 0, self.stop, BLOCK, state) as it:
            self.arrived()
            following = b.add(it.index, I64(BLOCK))
            with if_then(b, b.icmp_signed("<", following, self.stop)):
                self.bring_block(following)
            iteration = b.lshr(it.index, I64(6))
            keys, values = (self.stage(stages, iteration) for stages in self.stages)
            it.advance(*self.seen_block(it.index, keys, values, list(it.values)))
        return it.results

    def seen_block(self, block: ir.Value, keys: Rows, values: Rows, state: list[ir.Value]) -> list[ir.Value]:
        b = self.b
        if not self.spec.causal:
            return self.block(block, keys, values, state)
        rows = self.tile.together * self.tile.warp_rows
        last = b.add(b.add(self.position, self.together_first), I64(rows - 1))
        with if_else(b, b.icmp_signed("<=", block, last)) as branch:
            with branch.then():
                branch.give(*self.block(block, keys, values, state))
            with branch.otherwise():
                branch.give(*state)
        return branch.results

    def block(self, block: ir.Value, keys: Rows, values: Rows, state: list[ir.Value]) -> list[ir.Value]:
        """What becomes of the state by a block of keys."""
        raise NotImplementedError

    def shown(self, block: ir.Value, part: int, scores: list[ir.Value]) -> list[ir.Value]:
        """Scores of a part of the block's keys; those of pairs that are not visible are -inf."""
        b, spec, columns = self.b, self.spec, BLOCK // self.tile.parts
        row = b.add(self.position, self.warp_first)
        mixed: ir.Value = I1(1)
        if not spec.masked:
            last = b.add(block, I64((part + 1) * columns - 1))
            mixed = b.icmp_signed(">=", last, self.s)
            if spec.causal:
                mixed = b.or_(mixed, b.icmp_signed(">", last, row))
        with if_else(b, mixed) as branch:
            with branch.then():
                branch.give(*self.hidden(block, part, scores))
            with branch.otherwise():
                branch.give(*scores)
        return branch.results

    def hidden(self, block: ir.Value, part: int, scores: list[ir.Value]) -> list[ir.Value]:
        """The same where some pairs may not be visible."""
        b, spec, columns = self.b, self.spec, BLOCK // self.tile.parts
        row = b.add(self.position, self.warp_first)
        start = b.add(b.add(block, I64(part * columns)), self.right)
        keys = self.distance(b.sub(self.s, start))
        behind = self.distance(b.sub(b.add(row, self.down), start))
        low = self.constant(float("-inf"))
        ends = [keys] * (2 * self.tile.bands)  # of each of the thread's rows, the first column that it does not see
        if spec.causal:
            ends = [minimum(b, keys, b.add(behind, I32(self.rows_below(r) + 1))) for r in range(len(ends))]
        chosen = []
        for i, x in enumerate(scores):
            r = self.row_of(i, columns)
            column, below = self.columns_beside(i, columns), self.rows_below(r)
            seen = b.icmp_signed("<", I32(column), ends[r])
            if spec.masked:
                own = b.add(b.add(self.first, self.warp_first), b.add(self.down, I64(below)))
                seen = b.and_(seen, self.in_mask(own, b.add(start, I64(column))))
            chosen.append(b.select(seen, x, low))
        return chosen

    def stats_places(self) -> list[ir.Value]:
        """For each of the thread's rows, where its statistics are behind the first; none beyond the last."""
        b, stats = self.b, self.stats(self.item, self.head)
        first = b.add(b.add(self.first, self.warp_first), self.down)
        rows = [b.add(first, I64(self.rows_below(r))) for r in range(2 * self.tile.bands)]
        last = b.sub(self.t, I64(1))
        return [b.add(stats, b.mul(minimum(b, row, last), I64(self.size))) for row in rows]


def _tree(values: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    while len(values) > 1:
        values = [combine(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
    return values[0]


class Forward(Queries):
    def emit(self) -> None:
        b, spec, tile = self.b, self.spec, self.tile
        queries = self.allot(tile.rows, spec.head)
        self.locate()
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        self.copy_own_rows(queries, Arg.Q)
        self.bring_block(I64(0))
        self.arrived()
        self.multiply(queries)

    def multiply(self, queries: Rows) -> None:
        """Traverse the keys, and write the result."""
        self.queries = self.products.left(queries)
        rows = 2 * self.tile.bands
        low = self.constant(float("-inf"))
        found = self.traverse([*[low] * rows, *[self.zero] * rows, *self.zeros(self.spec.value_head)])
        self.write_rows(found[:rows], found[rows : 2 * rows], found[2 * rows :])

    def block(self, block: ir.Value, keys: Rows, values: Rows, state: list[ir.Value]) -> list[ir.Value]:
        for part in range(self.tile.parts):
            state = self._part(block, part, keys, values, state)
        return state

    def _part(
        self, block: ir.Value, part: int, keys: Rows, values: Rows, state: list[ir.Value]
    ) -> list[ir.Value]:  # fmt: skip
        rows = 2 * self.tile.bands
        scores = self.shown(block, part, self.products.scores(self.queries, keys, part))
        weights, tops, totals, olds = self.weigh(scores, state[:rows], state[rows : 2 * rows])
        out = self.faded(state[2 * rows :], olds)
        return [*tops, *totals, *self.products.apply(weights, values, part, out)]

    def weigh(
        self, scores: list[ir.Value], tops: Sequence[ir.Value], totals: Sequence[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value], list[ir.Value], list[ir.Value]]:
        """Scores as weights beside the largest so far; the rows' largest scores and sums, and what those before count
        for beside them."""
        b, rows, columns = self.b, 2 * self.tile.bands, BLOCK // self.tile.parts
        weights, new_tops, new_totals, olds = list(scores), [], [], []
        minus = b.fsub(self.constant(-0.0), self.exponent)
        for r in range(rows):
            own = [i for i in range(len(scores)) if self.row_of(i, columns) == r]
            top = self.over_lanes(_tree([scores[i] for i in own], self.maximum), self.maximum)
            top = self.maximum(tops[r], top)
            shifts = []
            for x in (tops[r], top):  # 0 where a row has seen no key yet: then all weights are 0
                unseen = b.fcmp_ordered("==", x, self.constant(float("-inf")))
                shifts.append(b.fmul(b.select(unseen, self.zero, x), minus))
            old_shift, shift = shifts
            for i in own:
                weights[i] = near_power(b, fma(b, scores[i], self.exponent, shift))
            # 1 where the largest score stays: a block of which a row sees nothing changes no bit of it
            unseen = b.fcmp_ordered("==", tops[r], self.constant(float("-inf")))
            old = b.select(unseen, self.zero, near_power(b, b.fsub(shift, old_shift)))
            new_tops.append(top)
            new_totals.append(fma(b, totals[r], old, _tree([weights[i] for i in own], b.fadd)))
            olds.append(old)
        return weights, new_tops, new_totals, olds

    def faded(self, out: Sequence[ir.Value], olds: Sequence[ir.Value]) -> list[ir.Value]:
        """Sums of weighted values, times what they count for beside a new block."""
        width = self.spec.value_head
        return [self.b.fmul(x, olds[self.row_of(i, width)]) for i, x in enumerate(out)]

    def write_rows(self, tops: list[ir.Value], totals: list[ir.Value], out: list[ir.Value]) -> None:
        """Write the warp's rows of the results."""
        b, factors = self.b, []
        places = self.stats_places()
        first = b.add(b.add(self.first, self.warp_first), self.down)
        for r, (top, total) in enumerate(zip(tops, totals, strict=True)):
            total = self.over_lanes(total, b.fadd)
            row = b.add(first, I64(self.rows_below(r)))
            alone = b.icmp_signed("==", self.right, I64(0))
            with if_then(b, b.and_(alone, b.icmp_signed("<", row, self.end))):
                b.store(b.fmul(top, self.scale), offset(b, self.base(Arg.M), places[r]), align=4)
                b.store(total, offset(b, self.base(Arg.L), places[r]), align=4)
            nothing = b.fcmp_ordered("==", total, self.zero)
            factors.append(b.select(nothing, self.zero, b.fdiv(self.constant(1.0), total)))
        self.write(Arg.OUT, out, self.spec.value_head, self.end, factors)


class QueryGradient(Queries):
    def emit(self) -> None:
        b, spec, tile = self.b, self.spec, self.tile
        queries, cotangents = self.allot(tile.rows, spec.head), self.allot(tile.rows, spec.value_head)
        self.locate()
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        self.copy_own_rows(queries, Arg.Q)
        self.copy_own_rows(cotangents, Arg.DO)
        self.bring_block(I64(0))
        self.read_rows()
        self.arrived()
        self.queries, self.cotangents = self.products.left(queries), self.products.left(cotangents)
        found = self.traverse(self.zeros(spec.head))
        self.write(Arg.DQ, found, spec.head, self.t, [self.scale] * (2 * tile.bands))

    def read_rows(self) -> None:
        """Read the statistics of the thread's rows, as `prepared` makes them."""
        self.rows = [
            self.prepared(
                [self.b.load(offset(self.b, self.base(x), place), typ=self.kind, align=4) for x in self.STATS]
            )
            for place in self.stats_places()
        ]

    def block(self, block: ir.Value, keys: Rows, values: Rows, state: list[ir.Value]) -> list[ir.Value]:
        for part in range(self.tile.parts):
            scores = self.shown(block, part, self.products.scores(self.queries, keys, part))
            slopes = self.products.scores(self.cotangents, values, part)
            state = self.products.apply(self.slopes_of(self.weights_of(scores), slopes), keys, part, state)
        return state

    def weights_of(self, scores: Sequence[ir.Value]) -> list[ir.Value]:
        """Weights, from scores."""
        columns = BLOCK // self.tile.parts
        shifts = [self.rows[self.row_of(i, columns)][0] for i in range(len(scores))]
        return [near_power(self.b, fma(self.b, x, self.exponent, y)) for x, y in zip(scores, shifts, strict=True)]

    def slopes_of(self, weights: Sequence[ir.Value], slopes: Sequence[ir.Value]) -> list[ir.Value]:
        """The cotangents of scores, from those of weights."""
        b, columns = self.b, BLOCK // self.tile.parts
        less = [self.rows[self.row_of(i, columns)][1] for i in range(len(slopes))]
        return [b.fmul(p, b.fadd(x, y)) for p, x, y in zip(weights, slopes, less, strict=True)]
