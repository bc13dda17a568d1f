"""All gradients of attention in one kernel: scores are computed again once instead of twice.

A block of threads has 64 keys, and gives their gradients as `attention_dkv` does, in two warp groups: one has the
products of scores and the gradients of values; the other those of the weights' cotangents, and the gradients of keys.
So a thread has many pairs of each matrix, and reads less from shared memory for each product. Weights and cotangents of
scores both warp groups find, each for half of the rows.

The block's part of the queries' gradients, one block of keys, both warp groups add to what the blocks of keys before it
have added: at each block of queries they add one after the other, so the order is that of the definition. The last to
add multiplies by the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import attrs
from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I64, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_backward import STATS
from volta.numba_cuda.attention.attention_copies import Spread
from volta.numba_cuda.attention.attention_layout import (
    WIDE,
    AttentionTile,
    Matrix,
    line_of,
    matrix_bytes,
    pairs_bytes,
    pairs_line,
)
from volta.numba_cuda.attention.attention_serial import KEYS, SerialQueries
from volta.numba_cuda.codegen.ptx_ops import settle
from volta.numba_cuda.codegen.threads import (
    dynamic_shared,
    new_entry,
)
from volta.xla_like.attention import BLOCK, AttentionSpec


def _layout(spec: AttentionSpec, tile: AttentionTile) -> dict[str, int]:
    """Where in shared memory what a block of threads keeps begins, by name, in this order; "end" is behind all."""
    matrix = matrix_bytes(BLOCK, max(spec.head, spec.value_head), 4)
    sizes = {
        "residents": 2 * matrix,
        "arriving": 2 * matrix,
        "matrices": 2 * pairs_bytes(tile, 4),
        "stats": (_RATIO + 1) * BLOCK * 4,
        "rest": WIDE,
        "words": _WORDS * 8,
        "crossed": BLOCK * line_of(BLOCK, 4) if tile.both else 0,
    }
    return dict(zip((*sizes, "end"), accumulate(sizes.values(), initial=0), strict=True))


def fused_bytes(spec: AttentionSpec, tile: AttentionTile) -> int:
    """Shared memory of a block of threads."""
    return _layout(spec, tile)["end"]


def build_attention_backward(module: ir.Module, name: str, spec: AttentionSpec, tile: AttentionTile) -> ir.Function:
    """Add the kernel to a module; its grid is (tiles of 64 keys) x batch x heads; its args end with where its
    semaphores are."""
    function, b = new_entry(module, name, tile.threads)
    _Gradients(b, function, spec, tile).emit(dynamic_shared(module, b))
    b.ret_void()
    return function


_WORDS = -(-(len(Arg) + 1) // 2) * 2
"""Words of args, an even number."""

_TOP, _TOTAL, _DELTA, _RATIO = range(4)
"""What is kept of each query, in this order: `STATS`, and the `ratio` of its total."""


@attrs.frozen
class _Two:
    """Two matrices in shared memory, so many bytes apart; the first is the first warp group's."""

    first: Matrix
    apart: int

    def of(self, b: ir.IRBuilder, warp_group: ir.Value) -> Matrix:
        return Matrix(
            offset(b, self.first.pointer, b.mul(warp_group, I64(self.apart))), self.first.width, self.first.line
        )


@attrs.frozen
class _Queries:
    """Where a head's queries, their cotangents and gradients begin, each with bytes from row to row; and statistics."""

    q: tuple[ir.Value, ir.Value]
    do: tuple[ir.Value, ir.Value]
    dq: tuple[ir.Value, ir.Value]
    stats: Sequence[ir.Value]


class _Gradients(SerialQueries):
    """One warp group multiplies keys by queries, which gives scores; the other values by cotangents of the output."""

    residents: _Two
    arriving: _Two
    matrices: _Two  # weights, and cotangents of scores

    def __init__(self, b: ir.IRBuilder, function: ir.Function, spec: AttentionSpec, tile: AttentionTile) -> None:
        if (tile.rows, tile.warp_groups) != (BLOCK, 2) or spec.dtype != "float32" or not tile.whole:
            raise ValueError(f"no kernel for all gradients of {spec} in tiles {tile}")
        super().__init__(b, function.args[0], spec, tile)
        self.other_group = b.xor(self.warp_group, I64(1))
        self.scoring = b.icmp_signed("==", self.warp_group, I64(0))

    def allot(self, space: ir.Value) -> None:
        b, spec = self.b, self.spec
        widest = max(spec.head, spec.value_head)
        places = {name: offset(b, space, at) for name, at in _layout(spec, self.tile).items()}
        nbytes = matrix_bytes(BLOCK, widest, 4)
        self.residents, self.arriving = (
            _Two(Matrix(places[name], widest, line_of(widest, 4)), nbytes) for name in ("residents", "arriving")
        )
        pairs = Matrix(places["matrices"], BLOCK, pairs_line(self.tile, 4))
        self.matrices = _Two(pairs, pairs_bytes(self.tile, 4))
        self.keys = attrs.evolve(self.residents.first, width=spec.head)
        self.stats_place, self.rest, self.words_place = places["stats"], places["rest"], places["words"]
        self.crossed = Matrix(places["crossed"], BLOCK, line_of(BLOCK, 4))

    def emit(self, space: ir.Value) -> None:
        b, spec = self.b, self.spec
        self.allot(space)
        self._keep_args()
        self.locate(self.number())
        self.words = self.words_place
        keys, values = self._operand(Arg.K, Arg.K_S), self._operand(Arg.V, Arg.V_S)
        self._load_two(self.residents, (keys, values), self.first, self.s)
        self._load_queries(self._queries(), self.begin)
        with loop(b, self.begin, self.t, BLOCK, self.zeros(self.residents.first.width)) as it:
            it.advance(*self._block(it.index, list(it.values)))
        self.arrived()
        self.finish()
        with if_else(b, self.scoring) as branch:
            with branch.then():
                self.write(Arg.DV, it.results, spec.value_head, self.s)
                branch.give()
            with branch.otherwise():
                self.write(Arg.DK, self.scaled(it.results), spec.head, self.s)
                branch.give()

    def _keep_args(self) -> None:
        """Copy the args to shared memory: each block of queries needs some that registers cannot hold."""
        b = self.b
        with if_then(b, b.icmp_signed("<", self.thread, I64(len(Arg) + 1))):
            number = b.mul(self.thread, I64(8))
            b.store(
                b.load(offset(b, self.words, number), typ=I64, align=8), offset(b, self.words_place, number), align=8
            )

    def _operand(self, address: Arg, stride: Arg) -> tuple[ir.Value, ir.Value]:
        return self.of_head(address, self.item, self.head), self.arg(stride)

    def _queries(self) -> _Queries:
        b, stats = self.b, self.stats(self.item, self.head)
        q, do, dq = (self._operand(x, Arg[f"{x.name}_T"]) for x in (Arg.Q, Arg.DO, Arg.DQ))
        return _Queries(q, do, dq, [offset(b, self.base(x), stats) for x in STATS])

    def _load_two(
        self, to: _Two, operands: Sequence[tuple[ir.Value, ir.Value]], first: ir.Value, size: ir.Value
    ) -> None:
        widths = (self.spec.head, self.spec.value_head)
        for i, ((base, stride), width) in enumerate(zip(operands, widths, strict=True)):
            self.copy_rows(attrs.evolve(to.of(self.b, I64(i)), width=width), BLOCK, base, stride, first, size)

    def _spread_two(self, queries: _Queries, block: ir.Value) -> list[Spread]:
        """The copies of a block's queries and their cotangents for a loop over keys; none if they cannot be spread."""
        found, operands = [], (queries.q, queries.do)
        for i, ((base, stride), width) in enumerate(zip(operands, (self.spec.head, self.spec.value_head), strict=True)):
            to = attrs.evolve(self.arriving.of(self.b, I64(i)), width=width)
            found.append(self.spread(to, BLOCK, base, stride, block, self.t, BLOCK // KEYS))
        return [x for x in found if x is not None] if None not in found else []

    def _load_queries(self, queries: _Queries, block: ir.Value) -> None:
        self._load_stats(queries, block)
        self._load_two(self.arriving, (queries.q, queries.do), block, self.t)

    def _load_stats(self, queries: _Queries, block: ir.Value) -> None:
        b = self.b
        number = b.sub(self.thread, I64(self.tile.threads - BLOCK))
        with if_then(b, b.icmp_signed(">=", number, I64(0))):
            row = minimum(b, b.add(block, number), b.sub(self.t, I64(1)))
            for i, base in enumerate(queries.stats):
                to = offset(b, self.stats_place, b.mul(b.add(number, I64(i * BLOCK)), I64(4)))
                self.copy(offset(b, base, b.mul(row, I64(4))), to, 1)

    def _block(self, block: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        b = self.b
        self.arrived()
        self.pass_on(b.sub(block, I64(BLOCK)))
        self._find_ratios()
        products = self.scores(
            self.residents.of(b, self.warp_group), self.arriving.of(b, self.warp_group), self._groups()
        )
        weights, slopes = (self.matrices.of(b, I64(i)) for i in range(2))
        self._weigh(block, weights, slopes, products)
        come = self.ask(block)
        queries = self._queries()  # read from device memory while there is something to do
        parts = self.parts(block, self.matrices.of(b, self.warp_group), self.arriving.of(b, self.other_group))
        sums = [settle(b, x) for x in self.gradient(sums, parts)]
        self.await_others(block, come)
        following = b.add(block, I64(BLOCK))
        self._load_stats(queries, following)
        found = self._spread_two(queries, following)

        def copy_all() -> None:
            self._load_two(self.arriving, (queries.q, queries.do), following, self.t)

        self.add_queries(queries.dq, block, slopes, found, copy_all)
        return sums

    def _weigh(self, block: ir.Value, weights: Matrix, slopes: Matrix, products: list[ir.Value]) -> None:
        """Weights, and cotangents of scores: of half of its rows in each warp group, which have exchanged products."""
        b, c = self.b, self.columns
        half = len(products) // 2
        lent, borrowed = self.pair_places(slopes)[:half], self.pair_places(weights)[half:]
        with if_else(b, self.scoring) as giving:
            with giving.then():
                scores = self.scaled(products)
                self.write_pairs(borrowed, scores[half:])
                giving.give(*scores[:half])
            with giving.otherwise():
                self.write_pairs(lent, products[:half])
                giving.give(*products[half:])
        self.meet()
        with if_else(b, self.scoring) as taking:
            with taking.then():
                taking.give(*giving.results, *self.read_pairs(lent))
            with taking.otherwise():
                taking.give(*self.read_pairs(borrowed), *giving.results)
        scores, products = taking.results[:half], taking.results[half:]
        tops, totals, deltas, ratios = (self._stats_of(x) for x in (_TOP, _TOTAL, _DELTA, _RATIO))
        shifted = [b.fsub(x, tops[i % c]) for i, x in enumerate(scores)]
        found = self.weights(shifted, [totals[i % c] for i in range(half)], [ratios[i % c] for i in range(half)])
        behind = b.mul(self.warp_group, I64(self.step(self.tile.rows_each // 2) * 4))

        def seen() -> list[ir.Value]:
            both = self.visible(block)
            return [b.select(self.scoring, x, y) for x, y in zip(both[:half], both[half:], strict=True)]

        mixed = self.mixed(block)
        cotangents = [b.fmul(p, b.fsub(x, deltas[i % c])) for i, (p, x) in enumerate(zip(found, products, strict=True))]
        for matrix, values in ((weights, found), (slopes, cotangents)):
            places = [offset(b, place, behind) for place in self.pair_places(matrix)[:half]]
            self.put(places, values, mixed, seen)
        if self.tile.both:
            row = b.add(self.row(0), b.mul(self.warp_group, I64(self.step(self.tile.rows_each // 2))))
            self.put(self.crossed_places(row, half), cotangents, mixed, seen, self.write_crossed)
        self.meet()

    def _find_ratios(self) -> None:
        """Leave the ratios of the queries' totals: once, where all threads would find them again."""
        b = self.b
        number = b.sub(self.thread, I64(self.tile.threads - BLOCK))
        with if_then(b, b.icmp_signed(">=", number, I64(0))):
            total, ratio = (offset(b, self._stats(x), b.mul(number, I64(4))) for x in (_TOTAL, _RATIO))
            b.store(self.ratio(b.load(total, typ=self.kind, align=4)), ratio, align=4)

    def _stats_of(self, which: int) -> list[ir.Value]:
        """Of the thread's queries."""
        b = self.b
        start = offset(b, self._stats(which), b.mul(self.tx, I64(4)))
        return [b.load(offset(b, start, c * self.tile.across * 4), typ=self.kind, align=4) for c in range(self.columns)]

    def _stats(self, which: int) -> ir.Value:
        return offset(self.b, self.stats_place, which * BLOCK * 4)

    def _groups(self) -> ir.Value | None:
        """Groups of columns of the warp group's operands, where the groups' differ."""
        head, value_head = (I64(width // self.group) for width in (self.spec.head, self.spec.value_head))
        return None if head == value_head else self.b.select(self.scoring, head, value_head)
