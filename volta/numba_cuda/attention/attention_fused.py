"""All gradients of attention in one kernel: scores are computed again once instead of twice.

A block of threads has 64 keys, and gives their gradients as `attention_dkv` does. Its part of the queries' gradients,
one block of keys, it adds to what the blocks of keys before it have added: they take turns at each block of queries, so
the order is that of the definition. The last to add multiplies by the scale.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.dot_args import ceil_div
from volta.emit.loops import I1, I32, I64, fma, for_range, if_then, load_arg, load_args, loop, minimum, offset
from volta.numba_cuda.attention.attention_backward import KeyGradient, backward_bytes
from volta.numba_cuda.attention.attention_tiles import ABSENT, WIDE, AttentionTile
from volta.numba_cuda.target.ptx_turns import await_turn, pass_turn, read_in_turn, take_number, write_in_turn
from volta.numba_cuda.target.threads import (
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    own_args,
    thread_index,
)
from volta.xla_like.attention import BLOCK, Arg, AttentionSpec

CLEAR_THREADS = 256


def fused_bytes(spec: AttentionSpec, tile: AttentionTile) -> int:
    """Shared memory of a block of threads."""
    return backward_bytes(spec, tile) + WIDE


def turn_words(heads: int, t: int) -> int:
    """Words of 4 bytes, 0 at the start, by which blocks take turns: one for numbers, one for each block of queries."""
    return 1 + heads * -(-t // BLOCK)


def build_clear(module: ir.Module, name: str) -> ir.Function:
    """Add the kernel that makes the words of turns 0; its args: where they are, and how many."""
    function, b = new_entry(module, name, CLEAR_THREADS)
    address, count = load_args(b, own_args(b, function.args[0]), 2)
    place = b.add(b.mul(block_index(b), I64(CLEAR_THREADS)), thread_index(b))
    with if_then(b, b.icmp_signed("<", place, count)):
        b.store(I32(0), offset(b, device_pointer(b, address), b.mul(place, I64(4))), align=4)
    b.ret_void()
    return function


def build_attention_backward(module: ir.Module, name: str, spec: AttentionSpec, tile: AttentionTile) -> ir.Function:
    """Add the kernel to a module; its grid is (tiles of 64 keys) x batch x heads; its args end with where turns are."""
    function, b = new_entry(module, name, tile.threads)
    _Gradients(b, function, spec, tile).emit(dynamic_shared(module, b))
    b.ret_void()
    return function


class _Gradients(KeyGradient):
    def __init__(self, b: ir.IRBuilder, function: ir.Function, spec: AttentionSpec, tile: AttentionTile) -> None:
        if tile.rows != BLOCK or spec.dtype != "float32" or not tile.whole:
            raise ValueError(f"no kernel for all gradients of {spec} in tiles {tile}")
        super().__init__(b, function.args[0], spec, tile)
        self.turns = device_pointer(b, load_arg(b, self.words, len(Arg)))

    def number(self) -> ir.Value:
        b = self.b
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            b.store(take_number(b, self.turns), self.rest, align=4)
        barrier(b)
        return b.zext(b.load(self.rest, typ=I32, align=4), I64)

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turn(self) -> ir.Value:
        """How many blocks of keys add before this one."""
        return self.b.lshr(self.first, I64(6))

    def _place(self, block: ir.Value) -> ir.Value:
        """Where the turns of a block of queries are counted."""
        b = self.b
        head = b.add(b.mul(self.item, self.arg(Arg.N)), self.head)
        index = b.add(b.mul(head, ceil_div(b, self.t, BLOCK)), b.lshr(block, I64(6)))
        return offset(b, self.turns, b.mul(b.add(index, I64(1)), I64(4)))

    def _pass(self, block: ir.Value) -> None:
        b = self.b
        before = b.icmp_signed(">=", block, self.begin)
        with if_then(b, b.and_(before, b.icmp_signed("==", self.thread, I64(0)))):
            pass_turn(b, self._place(block), b.trunc(b.add(self._turn(), I64(1)), I32))

    def begins(self, block: ir.Value) -> None:
        self._pass(self.b.sub(block, I64(BLOCK)))

    def exchange(self, block: ir.Value) -> None:
        b = self.b
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            await_turn(b, self._place(block), b.trunc(self._turn(), I32))
        self.meet()

    def finish(self) -> None:
        """Pass the last turn on; rows of queries that see no key at all are the first block's to write."""
        b = self.b
        blocks = b.mul(ceil_div(b, self.t, BLOCK), I64(BLOCK))
        with if_then(b, b.icmp_signed("<", self.begin, self.t)):
            self._pass(b.sub(blocks, I64(BLOCK)))
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
        inside = [b.icmp_signed("<", I32(r * self.down), keys) for r in range(self.tile.rows_each)]
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

    def ends(self, block: ir.Value) -> None:
        b, spec = self.b, self.spec
        mixed = self._any_mixed(block)
        parts = self._across(I64(0), b.select(mixed, I64(0), I64(BLOCK)), self.zeros(spec.head), True)
        parts = self._across(I64(0), b.select(mixed, I64(BLOCK), I64(0)), parts, False)
        places = self._places(block)
        before = [v for place, _ in places for v in self._elements(read_in_turn(b, place))]
        last = b.sub(ceil_div(b, self.s, BLOCK), I64(1))
        if spec.causal:
            last = minimum(b, last, b.ashr(b.add(self.position, b.add(block, I64(BLOCK - 1))), I64(6)))
        (scale,) = self.scaled([self.constant(1.0)])
        factor = b.select(b.icmp_signed("==", self._turn(), last), scale, self.constant(1.0))
        first = b.icmp_signed("==", self.first, I64(0))
        sums = [b.fmul(b.fadd(b.select(first, self.zero, x), y), factor) for x, y in zip(before, parts, strict=True)]
        for n, (place, inside) in enumerate(places):
            value: ir.Value = ir.Constant(ir.VectorType(self.kind, self.group), ir.Undefined)
            for e in range(self.group):
                value = b.insert_element(value, sums[n * self.group + e], I32(e))
            with if_then(b, inside):
                write_in_turn(b, place, value)

    def _elements(self, vector: ir.Value) -> list[ir.Value]:
        return [self.b.extract_element(vector, I32(e)) for e in range(self.group)]

    def _places(self, block: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Where the thread's groups of a block's gradients lie, and whether they are there; else it is the last one."""
        b, width = self.b, self.spec.head
        base = self.of_head(Arg.DQ, self.item, self.head)
        out = []
        for r in range(self.tile.rows_each):
            row = b.add(block, self._query(r))
            here = b.icmp_signed("<", row, self.t)
            line = offset(b, base, b.mul(minimum(b, row, b.sub(self.t, I64(1))), self.arg(Arg.DQ_T)))
            for g in range(self.groups_of(width)):
                column = b.add(b.mul(self.tx, I64(self.group)), I64(g * self.tile.across * self.group))
                inside = b.and_(here, b.icmp_signed("<", column, I64(width)))
                column = minimum(b, column, I64(width - self.group))
                out.append((offset(b, line, b.mul(column, I64(4))), inside))
        return out

    def _query(self, r: int) -> ir.Value:
        """The thread's r-th query of a block: they are neighbours."""
        b, tile = self.b, self.tile
        first = b.add(b.mul(self.warp, I64(tile.warp_rows)), b.mul(self.ty, I64(tile.rows_each)))
        return b.add(first, I64(r))

    def _across(self, start: ir.Value, stop: ir.Value, sums: list[ir.Value], present: bool) -> list[ir.Value]:
        """Go on with chains over all keys of the tile: cotangents of the thread's queries' scores, times keys."""
        b, rows, right = self.b, self.tile.rows_each, self.own
        groups = self.groups_of(right.width)
        each = groups * self.group
        absent = ir.Constant(self.bits, ABSENT[self.size])
        lefts = offset(b, self.pairs.pointer, b.mul(self._query(0), I64(self.size)))
        rights = offset(b, right.pointer, b.mul(self.tx, I64(WIDE)))
        step = 4
        with loop(b, start, stop, step, sums) as it:
            out = list(it.values)
            for k in range(step):
                key = b.add(it.index, I64(k))
                x = offset(b, lefts, b.mul(key, I64(self.pairs.line)))
                y = offset(b, rights, b.mul(key, I64(right.line)))
                ys = [v for g in range(groups) for v in self.vector(offset(b, y, g * self.tile.across * WIDE))]
                xs = [v for i in range(0, rows, self.group) for v in self.vector(offset(b, x, i * self.size))]
                for r, value in enumerate(xs):
                    here = b.icmp_signed("!=", b.bitcast(value, self.bits), absent)
                    for n in range(each):
                        new = fma(b, value, ys[n], out[r * each + n])
                        out[r * each + n] = new if present else b.select(here, new, out[r * each + n])
            it.advance(*out)
        return list(it.results)
