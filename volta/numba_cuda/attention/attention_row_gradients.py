"""Cotangents of attention row by row: a warp has a row of queries, or of keys (see attention_rows.py)."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I64, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_rows import EACH, THREADS, WARPS, Rows
from volta.numba_cuda.codegen.ptx_ops import ballot
from volta.numba_cuda.codegen.threads import WARP, block_index, new_entry, warp_barrier
from volta.xla_like.attention import BLOCK, AttentionSpec


def build_gradient(module: ir.Module, name: str, kernel: str, spec: AttentionSpec, whole: bool) -> ir.Function:
    """Add a kernel to a module; its grid is `row_blocks`. ``whole``: operands can be read 16 bytes at a time."""
    function, b = new_entry(module, name, THREADS)
    {"attention_dq": _QueryGradient, "attention_dkv": _KeyGradient}[kernel](b, function, spec, whole).emit()
    b.ret_void()
    return function


class _RowGradient(Rows):
    """A warp has a row, with two operands of it in shared memory."""

    def shared_bytes(self) -> int:
        return WARPS * self.size * (self.spec.head + self.spec.value_head)

    def locate(self, size: ir.Value, own: tuple[Arg, Arg], strides: tuple[Arg, Arg]) -> tuple[ir.Value, ir.Value]:
        """Find the warp's row and load it; returns its number (it may lie beyond the end) and the operands' place."""
        b, spec = self.b, self.spec
        warp_rows = self.find_head(block_index(b))
        row = b.add(b.mul(warp_rows, I64(WARPS)), self.warp)
        self.position = self.start(self.item)
        space = offset(b, self.space, b.mul(self.warp, I64(self.size * (spec.head + spec.value_head))))
        values = offset(b, space, self.size * spec.head)
        for to, address, stride, width in zip((space, values), own, strides, (spec.head, spec.value_head), strict=True):
            line = self.line(self.of_head(address, self.item, self.head), self.arg(stride), row, size)
            self.keep(to, line, width, self.lane, WARP)
        warp_barrier(b)
        return row, space

    def slopes(
        self, rows: Sequence[ir.Value], scores: Sequence[ir.Value], products: Sequence[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """Weights and their cotangents; ``rows``: the query of each pair."""
        b, stats = self.b, self.stats(self.item, self.head)
        weights, slopes = [], []
        for row, score, product in zip(rows, scores, products, strict=True):
            place = b.add(stats, b.mul(minimum(b, row, b.sub(self.t, I64(1))), I64(self.size)))
            top, total, delta = (
                b.load(offset(b, self.base(x), place), typ=self.kind, align=self.size)
                for x in (Arg.M, Arg.L, Arg.DELTA)
            )
            weights.append(b.fdiv(self.exp(b.fsub(score, top)), total))
            slopes.append(b.fmul(weights[-1], b.fsub(product, delta)))
        return weights, slopes

    def write(
        self, address: Arg, stride: Arg, row: ir.Value, size: ir.Value, values: list[ir.Value], width: int
    ) -> None:
        b = self.b
        with if_then(b, b.icmp_signed("<", row, size)):
            base = offset(b, self.of_head(address, self.item, self.head), b.mul(row, self.arg(stride)))
            self.write_columns(base, values, width)


class _QueryGradient(_RowGradient):
    def emit(self) -> None:
        b, spec, a = self.b, self.spec, self.arg
        row, space = self.locate(self.t, (Arg.Q, Arg.DO), (Arg.Q_T, Arg.DO_T))
        k, v = (self.of_head(x, self.item, self.head) for x in (Arg.K, Arg.V))
        stop = self.s
        if spec.causal:
            stop = minimum(b, stop, b.add(b.add(self.position, row), I64(1)))
        with loop(b, 0, stop, BLOCK, [self.zero] * -(-spec.head // WARP)) as it:
            keys = self.others(it.index)
            scores = self.scaled(self.dots(space, [self.line(k, a(Arg.K_S), j, self.s) for j in keys], spec.head))
            values = offset(b, space, self.size * spec.head)
            products = self.dots(values, [self.line(v, a(Arg.V_S), j, self.s) for j in keys], spec.value_head)
            _, slopes = self.slopes([row] * EACH, scores, products)
            seen = [ballot(b, self.pair_seen(row, j, self.position)) for j in keys]
            parts = self.chains(slopes, seen, k, a(Arg.K_S), it.index, self.s, spec.head)
            it.advance(*[b.fadd(x, y) for x, y in zip(it.values, parts, strict=True)])
        self.write(Arg.DQ, Arg.DQ_T, row, self.t, self.scaled(it.results), spec.head)


class _KeyGradient(_RowGradient):
    def emit(self) -> None:
        b, spec, a = self.b, self.spec, self.arg
        key, space = self.locate(self.s, (Arg.K, Arg.V), (Arg.K_S, Arg.V_S))
        q, do = (self.of_head(x, self.item, self.head) for x in (Arg.Q, Arg.DO))
        begin = I64(0)
        if spec.causal:
            begin = b.and_(b.sub(key, self.position), I64(-BLOCK))
            begin = b.select(b.icmp_signed("<", begin, I64(0)), I64(0), begin)
        count = -(-spec.head // WARP)
        zeros = [self.zero] * (count - (-spec.value_head // WARP))
        with loop(b, begin, self.t, BLOCK, zeros) as it:
            rows = self.others(it.index)
            scores = self.scaled(self.dots(space, [self.line(q, a(Arg.Q_T), i, self.t) for i in rows], spec.head))
            values = offset(b, space, self.size * spec.head)
            products = self.dots(values, [self.line(do, a(Arg.DO_T), i, self.t) for i in rows], spec.value_head)
            weights, slopes = self.slopes(rows, scores, products)
            seen = [ballot(b, self.pair_seen(i, key, self.position)) for i in rows]
            parts = self.chains(slopes, seen, q, a(Arg.Q_T), it.index, self.t, spec.head)
            parts += self.chains(weights, seen, do, a(Arg.DO_T), it.index, self.t, spec.value_head)
            it.advance(*[b.fadd(x, y) for x, y in zip(it.values, parts, strict=True)])
        self.write(Arg.DK, Arg.DK_S, key, self.s, self.scaled(it.results[:count]), spec.head)
        self.write(Arg.DV, Arg.DV_S, key, self.s, list(it.results[count:]), spec.value_head)
