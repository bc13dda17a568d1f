"""Attention on Hopper's tensor cores by warp-specialized kernels whose resident rows are queries: the result, and the
gradient of queries."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I1, I32, I64, if_else, loop, minimum
from volta.numba_cuda.attention.attention_tensor_pipeline import GROUP_ROWS, Pipeline, Slot, pipeline_bytes
from volta.numba_cuda.attention.attention_tensor_queries import Forward, Queries, QueryGradient
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen import ptx_ops, ptx_wgmma, ptx_wgmma_groups, ptx_wgmma_held
from volta.numba_cuda.codegen.threads import block_count, dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec


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


def build_specialized(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is as many blocks as run at once, or as there are tiles."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    SpecializedForward(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


class _SpecializedQueries(Pipeline, Queries):
    """A step has another block's products, while what was made of the block before is multiplied too."""

    STREAMED = (Arg.K, Arg.V)

    def tile_count(self) -> ir.Value:
        """Where all tiles take equally long, the last round's are cut into parts of fewer groups, as many as there are
        blocks of threads for: a group alone is done much sooner than three, and less waits for it."""
        b = self.b
        tiles = b.mul(b.mul(self.arg(Arg.B), self.arg(Arg.N)), ceil_div(b, self.t, self.tile.rows))
        if self.spec.causal:
            return tiles
        count = block_count(b)
        rest = b.urem(tiles, count)
        self.uncut = b.sub(tiles, rest)
        self.parts = minimum(b, b.udiv(count, self.above(rest, 1)), self.groups)
        groups = b.udiv(b.add(self.parts, I64(self.groups - 1)), self.parts)
        self.part_rows = b.mul(groups, I64(GROUP_ROWS))
        return b.add(self.uncut, b.mul(rest, self.parts))

    def place_tile(self, number: ir.Value) -> None:
        b, rows = self.b, self.tile.rows
        skipped, some = I64(0), I64(rows)
        if not self.spec.causal:
            behind = b.sub(number, self.uncut)
            with if_else(b, b.icmp_signed(">=", behind, I64(0))) as branch:
                with branch.then():
                    tile, part = b.udiv(behind, self.parts), b.urem(behind, self.parts)
                    branch.give(b.add(self.uncut, tile), b.mul(part, self.part_rows), self.part_rows)
                with branch.otherwise():
                    branch.give(number, skipped, some)
            number, skipped, some = branch.results
        first, position, self.stop = self.tile_of_queries(rows, number)
        self.first, self.position = b.add(first, skipped), b.add(position, skipped)
        self.end = minimum(b, minimum(b, self.t, b.add(first, I64(rows))), b.add(self.first, some))

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
        self.kept = self.kept_rows()
        if self.kept:
            self.leave_resident()
        blocks, seen = self._blocks()
        with if_else(b, b.icmp_signed(">", seen, I64(0))) as branch:
            with branch.then():
                branch.give(*self._traverse(seen, slot))
            with branch.otherwise():
                if not self.kept:
                    self.leave_resident()
                branch.give(*self.nothing(), *slot.values())
        *state, number, parity = branch.results
        slot = self.pass_over(seen, blocks, Slot(number, parity))
        self.write_state(state)
        return slot

    def _blocks(self) -> tuple[ir.Value, ir.Value]:
        """How many blocks of keys some of the tile's rows see, and some of the group's."""
        b, stop, seen = self.b, self.stop, self.stop
        if self.spec.causal:
            seen = minimum(b, stop, b.add(self.position, self.group_end()))
        there = b.icmp_signed("<", b.add(self.first, self.together_first), self.end)
        seen = b.select(there, seen, I64(0))
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
        if not self.spec.masked:
            state = self._steps(I64(1), whole, state, False)
        state = self._steps(self.above(whole, 1), seen, state, True)
        if not self.kept:
            self.leave_resident()
        return [*self.last_step(state[:-4], Slot(*state[-2:])), *state[-4:-2]]

    def _steps(self, start: ir.Value, stop: ir.Value, state: list[ir.Value], mixed: bool) -> list[ir.Value]:
        """The state behind some blocks, with the slot that comes next and that of the block before."""
        with loop(self.b, start, stop, 1, state) as it:
            keys, before = Slot(*it.values[-4:-2]), Slot(*it.values[-2:])
            block = self.b.shl(it.index, I64(6))
            found = self.step(block, list(it.values[:-4]), keys, before, mixed)
            it.advance(*found, *self.after(keys).values(), *keys.values())
        return it.results

    def _first_scores(self, blocks: Sequence[tuple[int, Slot]]) -> list[list[ir.Value]]:
        """Products with a tile's first blocks, each of a ring: nothing else is under way."""
        b = self.b
        own = {ring: self.own[min(ring, len(self.own) - 1)] for ring in range(2)}
        if self.kept:
            sides = [self.products.sides(own[ring], self.streamed(ring, slot)) for ring, slot in blocks]
            kept = [self.kept[min(ring, len(self.kept) - 1)] for ring, _ in blocks]
            begun, _ = ptx_wgmma_groups.multiply_groups(b, sides, kept=kept)
        else:
            begun = [self.products.begin_scores(own[ring], self.streamed(ring, slot), 0) for ring, slot in blocks]
        return [ptx_wgmma.multiply_group_wait(b, x) for x in begun]


class SpecializedForward(_SpecializedQueries, Forward):
    RESIDENT = (Arg.Q,)

    def nothing(self) -> list[ir.Value]:
        rows = 2 * self.tile.bands
        return [*[self.constant(float("-inf"))] * rows, *[self.zero] * rows, *self.zeros(self.spec.value_head)]

    def first_step(self, slot: Slot, state: list[ir.Value]) -> list[ir.Value]:
        rows = 2 * self.tile.bands
        self.await_full(0, slot)
        (scores,) = self._first_scores([(0, slot)])
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
        (scores,), (out,) = ptx_wgmma_groups.multiply_groups(b, [sides], [held], self.kept)
        scores = ptx_wgmma_groups.multiply_group_wait_earlier(b, scores)
        self.leave(0, keys)
        if mixed:
            scores = self.hidden(block, 0, scores)
        weights, tops, totals, olds = self.weigh(scores, tops, totals)
        self.await_full(1, keys)  # so weights are made here, while products are under way
        # rounded only then, as the words under way may not be written before
        out, weights = ptx_wgmma_groups.multiply_group_wait_holding(b, out, words, weights)
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
        self.await_full(0, slot)
        self.await_full(1, slot)
        scores, slopes = self._first_scores([(0, slot), (1, slot)])
        self.leave(1, slot)
        weights = self.weights_of(self.shown(I64(0), 0, scores))
        return [*state, *self.words_of(self.slopes_of(weights, slopes))]

    def step(self, block: ir.Value, state: list[ir.Value], keys: Slot, before: Slot, mixed: bool) -> list[ir.Value]:
        b, count = self.b, len(self.nothing())
        self.await_full(0, keys)
        self.await_full(1, keys)
        sides = [self.products.sides(x, self.streamed(i, keys)) for i, x in enumerate(self.own)]
        held = state[count:], self.streamed(0, before).pointer, state[:count]
        (scores, slopes), (out,) = ptx_wgmma_groups.multiply_groups(b, sides, [held], self.kept)
        scores = ptx_wgmma_groups.multiply_group_wait_earlier(b, scores, 2)
        weights = self.weights_of(self.hidden(block, 0, scores) if mixed else scores)
        self.await_full(0, keys)  # it is there: so weights are made here, while products are under way
        slopes = ptx_wgmma_groups.multiply_group_wait_earlier(b, slopes, 1)
        self.leave(1, keys)
        slopes = self.slopes_of(weights, slopes)
        self.await_full(0, keys)
        out, slopes = ptx_wgmma_groups.multiply_group_wait_holding(b, out, state[count:], slopes)
        self.leave(0, before)
        return [*out, *self.words_of(slopes)]

    def last_step(self, state: list[ir.Value], before: Slot) -> list[ir.Value]:
        count, right = len(self.nothing()), self.streamed(0, before).pointer
        found = ptx_wgmma_held.multiply_group_held(self.b, "bfloat16", state[count:], right, state[:count])
        self.leave(0, before)
        return found

    def write_state(self, state: list[ir.Value]) -> None:
        self.write(Arg.DQ, state, self.spec.head, self.end, [self.scale] * (2 * self.tile.bands))
