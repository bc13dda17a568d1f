"""Few rows whose keys and values come to shared memory at once: a row alone would wait for memory again and again.

All threads of a block copy a round's key blocks, then share out what is computed of them: a thread has a key, then a
warp a key block's weights, then a thread an element of a key block's weighted values.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import item_size
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I32, I64, fma, for_range, if_then, loop, offset
from volta.numba_cuda.attention.attention_rows import EACH, THREADS, RowForward
from volta.numba_cuda.attention.attention_split import Split
from volta.numba_cuda.codegen.ptx_following import await_earlier
from volta.numba_cuda.codegen.ptx_ops import ballot, commit_copies, copy_async, once, wait_copies
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_count,
    block_index,
    dynamic_shared,
    new_entry,
    read_args_first,
)
from volta.xla_like.attention import BLOCK, AttentionSpec

AT_ONCE = 2
"""Key blocks of a round: 130 KB where heads have 128 elements of float32."""

_QUAD = 16  # bytes
_KEYS = AT_ONCE * BLOCK
_LINKS = 8  # of a chain, between tests whether it ends


def stage_bytes(spec: AttentionSpec) -> int:
    """Dynamic shared memory: keys, so far apart that threads read them from different banks, and values."""
    return _KEYS * (_pitch(spec) + spec.value_head * item_size(spec.dtype))


def _pitch(spec: AttentionSpec) -> int:
    quads = spec.head * item_size(spec.dtype) // _QUAD
    return (quads | 1) * _QUAD


def build_staged(module: ir.Module, name: str, spec: AttentionSpec) -> ir.Function:
    """Add the kernel; its grid is `row_blocks`."""
    function, b = new_entry(module, name, THREADS, 1, waits=False)
    _Staged(b, function, spec, True).emit()
    b.ret_void()
    read_args_first(function)
    return function


def build_staged_blocks(module: ir.Module, name: str, spec: AttentionSpec) -> ir.Function:
    """Add the first kernel of `attention_split` to a module, for any number of blocks of threads that each row has
    alike."""
    function, b = new_entry(module, name, THREADS, 1, waits=False)
    _StagedBlocks(b, function, spec, True).emit()
    b.ret_void()
    read_args_first(function)
    return function


class _Staged(RowForward):
    at_once = AT_ONCE

    def __init__(self, b: ir.IRBuilder, function: ir.Function, spec: AttentionSpec, whole: bool) -> None:
        super().__init__(b, function, spec, whole)
        self.keys = dynamic_shared(b.module, b)
        self.values = offset(b, self.keys, _KEYS * _pitch(spec))
        self.scores = offset(b, self.space, self._before())  # then weights
        self.seen = offset(b, self.space, self._before() + _KEYS * self.size)
        self.masks = offset(self.b, self.seen, _KEYS * 4)  # of a key block's flags, a word for each warp's keys

    def _before(self) -> int:
        return -(-super().shared_bytes() // _QUAD) * _QUAD

    def shared_bytes(self) -> int:
        return self._before() + _KEYS * (self.size + 4) + _KEYS // WARP * 4

    def fetch(self, first: ir.Value, stop: ir.Value) -> None:
        spec, item = self.spec, item_size(self.spec.dtype)
        self._copy(first, stop, Arg.K, Arg.K_S, spec.head * item // _QUAD, self.keys, _pitch(spec))
        self._copy(first, stop, Arg.V, Arg.V_S, spec.value_head * item // _QUAD, self.values, spec.value_head * item)

    def _copy(
        self, first: ir.Value, stop: ir.Value, base: Arg, stride: Arg, quads: int, to: ir.Value, pitch: int
    ) -> None:
        """Start copying rows, the last one where there are no more: one group of copies."""
        b = self.b
        rows, step = self.of_head(base, self.item, self.head), self.arg(stride)
        total = _KEYS * quads
        each = next(n for n in (4, 2, 1) if n == 1 or total % (n * THREADS) == 0)
        with if_then(b, b.icmp_signed("<", first, stop)), for_range(b, self.thread, total, THREADS * each) as begin:
            once(b)  # few instructions: each runs but once, and is read from memory before
            for number in [b.add(begin, I64(i * THREADS)) for i in range(each)]:
                row = b.zext(b.udiv(b.trunc(number, I32), I32(quads)), I64)
                quad = b.mul(b.sub(number, b.mul(row, I64(quads))), I64(_QUAD))
                source = offset(b, self.line(rows, step, b.add(first, row), self.s), quad)
                copy_async(b, offset(b, offset(b, to, b.mul(row, I64(pitch))), quad), source, _QUAD)
        commit_copies(b)

    def round(
        self, row: ir.Value, first: ir.Value, stop: ir.Value, number: ir.Value, facts: ir.Value, parts: ir.Value
    ) -> None:
        b = self.b
        wait_copies(b, 1)
        barrier(b)
        with for_range(b, self.thread, _KEYS, THREADS) as key:
            line = offset(b, self.keys, b.mul(key, I64(_pitch(self.spec))))
            (score,) = self.scaled(self.dots(self.space, [line], self.spec.head))
            b.store(score, offset(b, self.scores, b.mul(key, I64(self.size))), align=self.size)
            seen = b.zext(self.pair_seen(row, b.add(first, key), self.position), I32)
            b.store(seen, offset(b, self.seen, b.mul(key, I64(4))), align=4)
        barrier(b)
        block = b.add(first, b.mul(self.warp, I64(BLOCK)))
        there = b.icmp_signed("<", block, stop)
        with if_then(b, b.and_(there, b.icmp_signed("<", self.warp, I64(AT_ONCE)))):
            self._weigh(b.add(number, self.warp), facts)
        wait_copies(b, 0)
        barrier(b)
        width = self.spec.value_head
        with for_range(b, self.thread, AT_ONCE * width, THREADS) as i:
            own, column = b.udiv(i, I64(width)), b.urem(i, I64(width))
            with if_then(b, b.icmp_signed("<", b.add(first, b.mul(own, I64(BLOCK))), stop)):
                place = b.add(b.mul(b.add(number, own), I64(width)), column)
                b.store(self._chain(own, column), offset(b, parts, b.mul(place, I64(self.size))), align=self.size)

    def finish(self, row: ir.Value, top: ir.Value, total: ir.Value, value: ir.Value) -> None:
        wait_copies(self.b, 0)  # of keys that no row saw
        super().finish(row, top, total, value)

    def _weigh(self, number: ir.Value, facts: ir.Value) -> None:
        """The weights of the warp's key block take its scores' place, 0 where a key is not seen."""
        b = self.b
        keys = [b.add(b.mul(self.warp, I64(BLOCK)), b.add(self.lane, I64(e))) for e in range(0, BLOCK, WARP)]
        places = [offset(b, self.scores, b.mul(key, I64(self.size))) for key in keys]
        scores = [b.load(place, typ=self.kind, align=self.size) for place in places]
        flags = [b.load(offset(b, self.seen, b.mul(key, I64(4))), typ=I32, align=4) for key in keys]
        seen = [b.icmp_unsigned("!=", flag, I32(0)) for flag in flags]
        bits = [ballot(b, x) for x in seen]
        weights = self.weighed(scores, seen, bits, number, facts)
        for place, weight in zip(places, weights, strict=True):
            b.store(weight, place, align=self.size)
        with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
            for i, word in enumerate(bits):
                at = b.add(b.mul(self.warp, I64(EACH)), I64(i))
                b.store(word, offset(b, self.masks, b.mul(at, I64(4))), align=4)

    def _chain(self, block: ir.Value, column: ir.Value) -> ir.Value:
        """The chain of an element over a key block's rows that are seen."""
        b, pitch, together = self.b, self.spec.value_head * item_size(self.spec.dtype), _QUAD // self.size
        first, kind = b.mul(block, I64(BLOCK)), ir.VectorType(self.kind, together)
        with loop(b, 0, BLOCK, _LINKS, [self.zero]) as it:
            (found,) = it.values
            begin = b.add(first, it.index)
            word = b.load(offset(b, self.masks, b.mul(b.lshr(begin, I64(5)), I64(4))), typ=I32, align=4)
            word = b.lshr(word, b.trunc(b.and_(begin, I64(WARP - 1)), I32))
            places = [offset(b, self.scores, b.mul(b.add(begin, I64(k)), I64(self.size))) for k in range(_LINKS)]
            weights = [b.load(place, typ=kind, align=_QUAD) for place in places[::together]]
            for k in range(_LINKS):
                key = b.add(begin, I64(k))
                weight = b.extract_element(weights[k // together], I32(k % together))
                value = self.element(offset(b, self.values, b.mul(key, I64(pitch))), column)
                seen = b.icmp_unsigned("!=", b.and_(word, I32(1 << k)), I32(0))
                found = b.select(seen, fma(b, weight, value, found), found)
            it.advance(found)
        return it.results[0]


class _StagedBlocks(_Staged, Split):
    """Blocks of threads share out the rounds of a row; what they find of key blocks is left in device memory."""

    def emit(self) -> None:
        b = self.b
        rest = self.find_head(block_index(b))
        row, share = b.urem(rest, self.t), b.udiv(rest, self.t)
        rows = b.mul(b.mul(self.arg(Arg.B), self.arg(Arg.N)), self.t)
        step = b.mul(b.udiv(block_count(b), rows), I64(_KEYS))
        await_earlier(b)
        stop = self.locate(row)
        results = self.results(row, ceil_div(b, self.s, BLOCK))
        with loop(b, b.mul(share, I64(_KEYS)), stop, step) as it:
            self.fetch(it.index, stop)
            self.round(row, it.index, stop, b.udiv(it.index, I64(BLOCK)), *results)
            barrier(b)
