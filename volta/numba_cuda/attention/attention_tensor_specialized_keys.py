"""Attention on Hopper's tensor cores by a warp-specialized kernel whose resident rows are keys: the gradients of keys
and of values."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I64, if_else, loop, minimum, offset
from volta.numba_cuda.attention.attention_tensor_keys import STATS_BYTES, KeyGradient
from volta.numba_cuda.attention.attention_tensor_pipeline import Pipeline, Slot, pipeline_bytes
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen import ptx_wgmma, ptx_wgmma_groups, ptx_wgmma_held
from volta.numba_cuda.codegen.threads import WARP, dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec


def build_specialized_dkv(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is as many blocks as run at once, or as there are tiles."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    SpecializedKeyGradient(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


def specialized_dkv_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    kernel = SpecializedKeyGradient
    return pipeline_bytes(spec, tile, kernel.RESIDENT, kernel.STREAMED) + tile.stages * STATS_BYTES


class SpecializedKeyGradient(Pipeline, KeyGradient):
    """Two warps of the producers leave each block's statistics in shared memory."""

    RESIDENT = (Arg.K, Arg.V)
    STREAMED = (Arg.Q, Arg.DO)
    HELPERS = BLOCK

    def tile_count(self) -> ir.Value:
        b = self.b
        return b.mul(b.mul(self.arg(Arg.B), self.arg(Arg.N)), ceil_div(b, self.s, self.tile.rows))

    def place_tile(self, number: ir.Value) -> None:
        self.locate(number)

    def streamed_range(self) -> tuple[ir.Value, ir.Value]:
        return self.begin, self.t

    def help(self, block: ir.Value, slot: Slot) -> None:
        number = self.b.sub(self.thread, I64(self.tile.multiplying + WARP))
        self.put_stats(block, self._place(slot), self.read_stats(block, number), number)

    def _place(self, slot: Slot) -> ir.Value:
        return offset(self.b, self.besides, self.b.mul(slot.number, I64(STATS_BYTES)))

    def consume(self, slot: Slot) -> Slot:
        b = self.b
        begin = self.begin
        if self.spec.causal:
            behind = b.sub(b.add(self.first, self.together_first), self.position)
            begin = minimum(b, b.and_(self.above(behind), I64(-BLOCK)), self._end())
        first, own = (b.lshr(x, I64(6)) for x in (self.begin, begin))
        slot = self.pass_over(first, own, slot)
        with if_else(b, b.icmp_signed("<", begin, self.t)) as branch:
            with branch.then():
                branch.give(*self._traverse(begin, slot))
            with branch.otherwise():
                branch.give(*self._nothing(), *slot.values())
        *sums, number, parity = branch.results
        self.leave_resident()
        count = len(self.zeros(self.spec.head))
        self.write_rows(sums[:count], sums[count:])
        return Slot(number, parity)

    def _nothing(self) -> list[ir.Value]:
        return [*self.zeros(self.spec.head), *self.zeros(self.spec.value_head)]

    def _end(self) -> ir.Value:
        """Where the last block of queries ends."""
        b = self.b
        return b.and_(b.add(self.t, I64(BLOCK - 1)), I64(-BLOCK))

    def _whole(self, start: ir.Value) -> ir.Value:
        """The first block from `start` on of which all queries see all the group's keys."""
        b, spec = self.b, self.spec
        if spec.masked:
            return self._end()
        if not spec.causal:
            return start
        last = b.sub(b.add(self.first, self.group_end()), b.add(self.position, I64(1)))
        found = b.and_(b.add(self.above(last), I64(BLOCK - 1)), I64(-BLOCK))
        found = b.select(b.icmp_signed("<", found, start), start, found)
        return minimum(b, found, self._end())

    def _traverse(self, begin: ir.Value, slot: Slot) -> list[ir.Value]:
        """The sums over all queries, of which there is a block at least, and the slot that comes next."""
        b, count = self.b, len(self._nothing())
        following = b.add(begin, I64(BLOCK))
        state = [*self._nothing(), *self._first_step(begin, slot), *self.after(slot).values(), *slot.values()]
        whole = self._whole(following)
        for start, stop, mixed in ((following, whole, True), (whole, self._end(), False)):
            if not (self.spec.causal or self.spec.masked) and mixed:
                continue
            with loop(b, start, stop, BLOCK, state) as it:
                slot, before = Slot(*it.values[-4:-2]), Slot(*it.values[-2:])
                found = self._step(it.index, list(it.values[:-4]), slot, before, mixed)
                it.advance(*found, *self.after(slot).values(), *slot.values())
            state = it.results
        before, sums = Slot(*state[-2:]), []
        for words, right, some in self._held(state[:count], state[count:-4], before):
            sums.append(ptx_wgmma_held.multiply_group_held(b, "bfloat16", words, right, some))
        for ring in range(2):
            self.leave(ring, before)
        return [*sums[1], *sums[0], *state[-4:-2]]

    def _held(
        self, sums: list[ir.Value], words: list[ir.Value], before: Slot
    ) -> list[tuple[list[ir.Value], ir.Value, list[ir.Value]]]:  # fmt: skip
        """What a block's weights and cotangents of scores go on with: the gradients of values, then of keys."""
        count, half = len(self.zeros(self.spec.head)), len(words) // 2
        return [
            (words[:half], self.streamed(1, before).pointer, sums[count:]),
            (words[half:], self.streamed(0, before).pointer, sums[:count]),
        ]

    def _first_step(self, block: ir.Value, slot: Slot) -> list[ir.Value]:
        b = self.b
        for ring in range(2):
            self.await_full(ring, slot)
        found = [self.products.begin_scores(x, self.streamed(i, slot), 0) for i, x in enumerate(self.own)]
        scores, slopes = (ptx_wgmma.multiply_group_wait(b, x) for x in found)
        stats = self.found_stats(self._place(slot), 0)
        weights = self.weights_of(self.shown(block, 0, scores), stats)
        return [*self.words_of(weights), *self.words_of(self.slopes_of(weights, slopes, stats))]

    def _step(self, block: ir.Value, state: list[ir.Value], slot: Slot, before: Slot, mixed: bool) -> list[ir.Value]:
        b, count = self.b, len(self._nothing())
        held = self._held(state[:count], state[count:], before)
        both = self.spec.head + self.spec.value_head <= 128 and self.tile.warps <= 8  # are there registers for
        self.await_full(0, slot)
        self.await_full(1, slot)
        sides = [self.products.sides(x, self.streamed(i, slot)) for i, x in enumerate(self.own)]
        found, sums = ptx_wgmma_groups.multiply_groups(b, sides if both else sides[:1], held)
        scores = ptx_wgmma_groups.multiply_group_wait_earlier(b, found[0], len(found))
        if mixed:
            scores = self.hidden(block, 0, scores)
        weights = self.weights_of(scores, self.found_stats(self._place(slot), 0))
        self.await_full(0, slot)  # it is there: so weights are made here, while products are under way
        if both:
            slopes = ptx_wgmma_groups.multiply_group_wait_earlier(b, found[1], 1)
        both_sums = [x for some in sums for x in some]
        both_sums, weights = ptx_wgmma_groups.multiply_group_wait_holding(b, both_sums, state[count:], weights)
        for ring in range(2):
            self.leave(ring, before)
        if not both:
            slopes = self.products.scores(self.own[1], self.streamed(1, slot), 0)
        slopes = self.slopes_of(weights, slopes, self.found_stats(self._place(slot), 0))
        values = len(self.zeros(self.spec.value_head))
        sums = [*both_sums[values:], *both_sums[:values]]
        return [*sums, *self.words_of(weights), *self.words_of(slopes)]
