"""Attention on Hopper's tensor cores by warp-specialized kernels whose resident rows are queries: the result, and the
gradient of queries."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I1, I32, I64, if_else, loop, minimum
from volta.numba_cuda.attention.attention_tensor_pipeline import Pipeline, Slot, pipeline_bytes
from volta.numba_cuda.attention.attention_tensor_queries import Forward, Queries, QueryGradient
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen import ptx_ops, ptx_wgmma, ptx_wgmma_held
from volta.numba_cuda.codegen.threads import dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec


def build_specialized(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is as many blocks as run at once, or as there are tiles."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    SpecializedForward(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


def build_specialized_dq(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel for the queries' gradients to a module; its grid is as that of the result's."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    SpecializedQueryGradient(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


def specialized_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    return pipeline_bytes(spec, tile, SpecializedForward.RESIDENT, SpecializedForward.STREAMED)


def specialized_dq_bytes(spec: TensorSpec, tile: TensorTile) -> int:
    """Shared memory of a block of threads."""
    return pipeline_bytes(spec, tile, SpecializedQueryGradient.RESIDENT, SpecializedQueryGradient.STREAMED)


class _SpecializedQueries(Pipeline, Queries):
    """A step has another block's products, while what was made of the block before is multiplied too."""

    STREAMED = (Arg.K, Arg.V)

    def tile_count(self) -> ir.Value:
        b = self.b
        return b.mul(b.mul(self.arg(Arg.B), self.arg(Arg.N)), ceil_div(b, self.t, self.tile.rows))

    def place_tile(self, number: ir.Value) -> None:
        self.first, self.position, self.stop = self.tile_of_queries(self.tile.rows, number)

    def streamed_range(self) -> tuple[ir.Value, ir.Value]:
        return I64(0), self.stop

    def nothing(self) -> list[ir.Value]:
        """The state of rows that have seen no key."""
        raise NotImplementedError

    def first_step(self, slot: Slot, state: list[ir.Value]) -> list[ir.Value]:
        """The state beside the first block's words."""
        raise NotImplementedError

    def step(self, block: ir.Value, state: list[ir.Value], keys: Slot, before: Slot, mixed: bool) -> list[ir.Value]:
        """The state beside the next block's words, with those of the block before taken in."""
        raise NotImplementedError

    def last_step(self, state: list[ir.Value], before: Slot) -> list[ir.Value]:
        """The state with the last block's words taken in."""
        raise NotImplementedError

    def write_state(self, state: list[ir.Value]) -> None:
        raise NotImplementedError

    def consume(self, slot: Slot) -> Slot:
        b = self.b
        blocks, seen = self._blocks()
        with if_else(b, b.icmp_signed(">", seen, I64(0))) as branch:
            with branch.then():
                branch.give(*self._traverse(seen, slot))
            with branch.otherwise():
                branch.give(*self.nothing(), *slot.values())
        *state, number, parity = branch.results
        self.leave_resident()
        slot = self.pass_over(seen, blocks, Slot(number, parity))
        self.write_state(state)
        return slot

    def _blocks(self) -> tuple[ir.Value, ir.Value]:
        """How many blocks of keys some of the tile's rows see, and some of the group's."""
        b, stop, seen = self.b, self.stop, self.stop
        if self.spec.causal:
            seen = minimum(b, stop, b.add(self.position, self.group_end()))
        blocks, seen = (b.lshr(b.add(self.above(x), I64(BLOCK - 1)), I64(6)) for x in (stop, seen))
        return blocks, seen

    def _whole(self, seen: ir.Value) -> ir.Value:
        """How many of the blocks that the group sees are visible to all of its rows in full."""
        b, end = self.b, self.s
        if self.spec.masked:
            return I64(0)
        if self.spec.causal:
            end = minimum(b, end, b.add(self.position, b.add(self.together_first, I64(1))))
        return minimum(b, seen, b.lshr(self.above(end), I64(6)))

    def _traverse(self, seen: ir.Value, slot: Slot) -> list[ir.Value]:
        """The state behind all the group's blocks, of which there is one at least, and the slot that comes next."""
        state = [*self.first_step(slot, self.nothing()), *self.after(slot).values(), *slot.values()]
        whole = self._whole(seen)
        ends = [] if self.spec.masked else [(I64(1), whole, False)]
        for start, stop, mixed in [*ends, (self.above(whole, 1), seen, True)]:
            with loop(self.b, start, stop, 1, state) as it:
                keys, before = Slot(*it.values[-4:-2]), Slot(*it.values[-2:])
                block = self.b.shl(it.index, I64(6))
                found = self.step(block, list(it.values[:-4]), keys, before, mixed)
                it.advance(*found, *self.after(keys).values(), *keys.values())
            state = it.results
        return [*self.last_step(state[:-4], Slot(*state[-2:])), *state[-4:-2]]


class SpecializedForward(_SpecializedQueries, Forward):
    RESIDENT = (Arg.Q,)

    def nothing(self) -> list[ir.Value]:
        rows = 2 * self.tile.bands
        return [*[self.constant(float("-inf"))] * rows, *[self.zero] * rows, *self.zeros(self.spec.value_head)]

    def first_step(self, slot: Slot, state: list[ir.Value]) -> list[ir.Value]:
        b, rows = self.b, 2 * self.tile.bands
        self.await_full(0, slot)
        scores = self.products.begin_scores(self.own[0], self.streamed(0, slot), 0)
        scores = ptx_wgmma.multiply_group_wait(b, scores)
        self.leave(0, slot)
        self.await_full(1, slot)
        weights, tops, totals, _ = self.weigh(self.shown(I64(0), 0, scores), state[:rows], state[rows : 2 * rows])
        return [*tops, *totals, *state[2 * rows :], *self.words_of(weights)]

    def step(self, block: ir.Value, state: list[ir.Value], keys: Slot, before: Slot, mixed: bool) -> list[ir.Value]:
        b, rows, count = self.b, 2 * self.tile.bands, len(self.nothing())
        tops, totals, out, words = state[:rows], state[rows : 2 * rows], state[2 * rows : count], state[count:]
        self.await_full(0, keys)
        sides = self.products.sides(self.own[0], self.streamed(0, keys))
        held = words, self.streamed(1, before).pointer, out
        (scores,), (out,) = ptx_wgmma_held.multiply_groups(b, [sides], [held])
        scores = ptx_wgmma_held.multiply_group_wait_earlier(b, scores)
        self.leave(0, keys)
        if mixed:
            scores = self.hidden(block, 0, scores)
        weights, tops, totals, olds = self.weigh(scores, tops, totals)
        self.await_full(1, keys)  # so weights are made here, while products are under way
        # rounded only then, as the words under way may not be written before
        out, weights = ptx_wgmma_held.multiply_group_wait_holding(b, out, words, weights)
        self.leave(1, before)
        return [*tops, *totals, *self._faded(out, olds), *self.words_of(weights)]

    def last_step(self, state: list[ir.Value], before: Slot) -> list[ir.Value]:
        rows, count = 2 * self.tile.bands, len(self.nothing())
        out, words = state[2 * rows : count], state[count:]
        found = ptx_wgmma_held.multiply_group_held(self.b, "bfloat16", words, self.streamed(1, before).pointer, out)
        self.leave(1, before)
        return [*state[: 2 * rows], *found]

    def _faded(self, out: list[ir.Value], olds: Sequence[ir.Value]) -> list[ir.Value]:
        """The same as `faded`; where no row of the warp has a new largest score, all factors are 1."""
        if not self.tile.skips:
            return self.faded(out, olds)
        b, same = self.b, I1(1)
        for old in olds:
            same = b.and_(same, b.fcmp_ordered("==", old, self.constant(1.0)))
        with if_else(b, b.icmp_signed("==", ptx_ops.ballot(b, same), I32(-1))) as branch:
            with branch.then():
                branch.give(*out)
            with branch.otherwise():
                branch.give(*self.faded(out, olds))
        return branch.results

    def write_state(self, state: list[ir.Value]) -> None:
        rows = 2 * self.tile.bands
        self.write_rows(state[:rows], state[rows : 2 * rows], state[2 * rows :])


class SpecializedQueryGradient(_SpecializedQueries, QueryGradient):
    RESIDENT = (Arg.Q, Arg.DO)

    def nothing(self) -> list[ir.Value]:
        return self.zeros(self.spec.head)

    def consume(self, slot: Slot) -> Slot:
        self.read_rows()
        return super().consume(slot)

    def first_step(self, slot: Slot, state: list[ir.Value]) -> list[ir.Value]:
        b = self.b
        self.await_full(0, slot)
        self.await_full(1, slot)
        found = [self.products.begin_scores(x, self.streamed(i, slot), 0) for i, x in enumerate(self.own)]
        scores, slopes = (ptx_wgmma.multiply_group_wait(b, x) for x in found)
        self.leave(1, slot)
        weights = self.weights_of(self.shown(I64(0), 0, scores))
        return [*state, *self.words_of(self.slopes_of(weights, slopes))]

    def step(self, block: ir.Value, state: list[ir.Value], keys: Slot, before: Slot, mixed: bool) -> list[ir.Value]:
        b, count = self.b, len(self.nothing())
        self.await_full(0, keys)
        self.await_full(1, keys)
        sides = [self.products.sides(x, self.streamed(i, keys)) for i, x in enumerate(self.own)]
        held = state[count:], self.streamed(0, before).pointer, state[:count]
        (scores, slopes), (out,) = ptx_wgmma_held.multiply_groups(b, sides, [held])
        scores = ptx_wgmma_held.multiply_group_wait_earlier(b, scores, 2)
        weights = self.weights_of(self.hidden(block, 0, scores) if mixed else scores)
        self.await_full(0, keys)  # it is there: so weights are made here, while products are under way
        slopes = ptx_wgmma_held.multiply_group_wait_earlier(b, slopes, 1)
        self.leave(1, keys)
        slopes = self.slopes_of(weights, slopes)
        self.await_full(0, keys)
        out, slopes = ptx_wgmma_held.multiply_group_wait_holding(b, out, state[count:], slopes)
        self.leave(0, before)
        return [*out, *self.words_of(slopes)]

    def last_step(self, state: list[ir.Value], before: Slot) -> list[ir.Value]:
        count, right = len(self.nothing()), self.streamed(0, before).pointer
        found = ptx_wgmma_held.multiply_group_held(self.b, "bfloat16", state[count:], right, state[:count])
        self.leave(0, before)
        return found

    def write_state(self, state: list[ir.Value]) -> None:
        self.write(Arg.DQ, state, self.spec.head, self.t, [self.scale] * (2 * self.tile.bands))
