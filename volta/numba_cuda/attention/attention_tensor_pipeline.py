"""Attention on Hopper's tensor cores by persistent kernels with warp specialization, whose operands the copy engine
(TMA) loads as tensor maps describe them: what its kernels share.

A producer warp has a tile's resident rows and blocks of streamed rows loaded; groups of four consumer warps have 64 of
the resident rows each. Barriers in shared memory say of each place when it is full, and when it may be filled again. A
block of threads has one tile after another, so the next one's operands come while results are written.

A group begins products, and awaits them only where their sums are needed: so its tensor cores multiply while its
ordinary units make weights of scores. What is computed, and in which order a row's sums go, is as without all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I32, I64, Loop, if_else, if_then, loop, offset
from volta.numba_cuda.attention.attention_tensor import LOG2E, TensorAttention, shared_bytes
from volta.numba_cuda.attention.attention_tensor_tile import (
    BAND,
    LINE,
    Rows,
    TensorTile,
    WarpProducts,
    rounded,
    rows_bytes,
)
from volta.numba_cuda.codegen import ptx_mbarrier, ptx_tensor_map, ptx_wgmma
from volta.numba_cuda.codegen.threads import WARP, barrier, block_count, block_index, warp_barrier
from volta.xla_like.attention import BLOCK, TensorSpec

GROUP_ROWS = 4 * BAND
"""A tile's rows that four warps have."""

MAPS = -(-len(Arg) // ptx_tensor_map.MAP_WORDS) * ptx_tensor_map.MAP_WORDS
"""The word of the args block where the operands' maps begin: a multiple of their own size."""

_PRODUCING = 24
"""Registers that a producer's thread keeps."""

_SIDES = {Arg.Q: "T", Arg.K: "S", Arg.V: "S", Arg.DO: "T"}


def pipeline_bytes(spec: TensorSpec, tile: TensorTile, resident: Sequence[Arg], streamed: Sequence[Arg]) -> int:
    """Shared memory of a block of threads, but for what a kernel keeps besides."""
    arrays = [(tile.rows, width_of(spec, x)) for x in resident]
    arrays += [(tile.stages * BLOCK, width_of(spec, x)) for x in streamed]
    return shared_bytes(tile, *arrays) + 2 * ptx_mbarrier.BARRIER_BYTES * (tile.warps + 2 * tile.stages)


def width_of(spec: TensorSpec, operand: Arg) -> int:
    """The elements of an operand's row."""
    return spec.head if operand in (Arg.Q, Arg.K) else spec.value_head


@attrs.frozen
class Slot:
    """A place in the rings of pipeline stages: its number, and the parity of the phases of its barriers."""

    number: ir.Value
    parity: ir.Value

    def values(self) -> list[ir.Value]:
        return [self.number, self.parity]


class Pipeline(TensorAttention):
    RESIDENT: tuple[Arg, ...]
    STREAMED: tuple[Arg, Arg]
    HELPERS = 0
    """Lanes that write something beside each block of the first streamed operand (`help`), of a warp of their own."""

    def place_tile(self, number: ir.Value) -> None:
        """Find the place of a tile by its number."""
        raise NotImplementedError

    def streamed_range(self) -> tuple[ir.Value, ir.Value]:
        """The tile's streamed rows: the first, which begins a block, and where they end."""
        raise NotImplementedError

    def tile_count(self) -> ir.Value:
        raise NotImplementedError

    def consume(self, slot: Slot) -> Slot:
        """Compute the tile, from the slot of its first block on; gives the one that comes next."""
        raise NotImplementedError

    def help(self, block: ir.Value, slot: Slot) -> None:
        """What the helpers write."""

    def find_head(self, number: ir.Value) -> ir.Value:
        """The same by numbers of 32 bits: every tile waits for this, and operands in memory have fewer tiles."""
        heads = self.b.mul(self.arg(Arg.B), self.arg(Arg.N))
        rest, which = self._divided(number, heads)
        self.set_head(which)
        return rest

    def set_head(self, which: ir.Value) -> None:
        self.item, self.head = self._divided(which, self.arg(Arg.N))

    def _divided(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Quotient and rest of numbers of 32 bits."""
        b = self.b
        x, y = b.trunc(x, I32), b.trunc(y, I32)
        return b.zext(b.udiv(x, y), I64), b.zext(b.urem(x, y), I64)

    # -- the kernel ----------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        b, spec, tile = self.b, self.spec, self.tile
        self.groups = tile.warps // tile.together
        self.resident = [self.allot(tile.rows, width_of(spec, x)) for x in self.RESIDENT]
        self.rings = [self.allot(tile.stages * BLOCK, width_of(spec, x)) for x in self.STREAMED]
        self.besides = offset(b, self.space, 2 * ptx_mbarrier.BARRIER_BYTES * (tile.warps + 2 * tile.stages))
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        count = len(self.RESIDENT) + len(self.STREAMED)
        self.maps = [offset(b, self.words, 8 * (MAPS + ptx_tensor_map.MAP_WORDS * i)) for i in range(count)]
        self.leads = b.icmp_signed("==", b.and_(self.thread, I64(WARP - 1)), I64(0))
        self.tiles = self.tile_count()
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            for group in range(self.groups):
                self._begin(self._resident_barrier(I64(group)), 1, tile.together)
            for ring in range(2):
                for stage in range(tile.stages):
                    self._begin(self._barrier(ring, I64(stage)), 1 + self.HELPERS * (ring == 0), tile.warps)
            ptx_mbarrier.opened(b)
        barrier(b)
        with if_else(b, b.icmp_signed("<", self.thread, I64(tile.multiplying))) as branch:
            with branch.then():
                count = ptx_wgmma.registers_left(tile.resident, tile.threads, tile.multiplying, _PRODUCING)
                ptx_wgmma.have_registers(b, count, more=True)
                self._consume_all()
            with branch.otherwise():
                ptx_wgmma.have_registers(b, _PRODUCING, more=False)
                warp = b.sub(self.thread, I64(tile.multiplying))
                with if_then(b, b.icmp_signed("==", warp, I64(0))):
                    self._produce_streamed()
                with if_then(b, b.icmp_signed("==", warp, I64((tile.producers - 1) * WARP))):
                    self._produce_resident()
                if self.HELPERS:
                    number = b.sub(self.thread, I64(tile.multiplying + WARP))
                    helps = b.icmp_unsigned("<", number, I64(self.HELPERS))
                    with if_then(b, helps):
                        self._help_all()

    @contextmanager
    def _each_tile(self, init: Sequence[ir.Value]) -> Iterator[Loop]:
        """Traverse the block's tiles by their numbers: one of as many as there are blocks of threads, then of the next.

        Causal tiles come longest first, so each round is taken in the other direction than the one before: else the
        block that begins with the longest would have the longest of every round.
        """
        b, own, count = self.b, block_index(self.b), block_count(self.b)
        if not self.spec.causal:
            with loop(b, own, self.tiles, count, init) as it:
                yield it
            return
        two = b.shl(count, I64(1))
        back = b.sub(b.sub(two, I64(1)), b.shl(own, I64(1)))
        with loop(b, own, self.tiles, init=[back, *init]) as it:
            carried = it.values
            it.step, *it.values = carried
            yield it
            it.values, own_values = carried, it.next_values
            it.advance(b.sub(two, it.step), *own_values)

    # -- barriers ------------------------------------------------------------------------------------------------------

    def _begin(self, full: ir.Value, writers: int, readers: int) -> None:
        """Begin the two barriers of a place: so many threads say that they fill it, so many warps read it."""
        ptx_mbarrier.begin(self.b, full, writers)
        ptx_mbarrier.begin(self.b, self._empty(full), readers)

    def _resident_barrier(self, group: ir.Value) -> ir.Value:
        """The barrier that says that a group's resident rows are there."""
        return offset(self.b, self.space, self.b.mul(group, I64(2 * ptx_mbarrier.BARRIER_BYTES)))

    def _barrier(self, ring: int, stage: ir.Value) -> ir.Value:
        """The barrier of a ring's stage that says that it is full."""
        return self._resident_barrier(self.b.add(stage, I64(self.groups + ring * self.tile.stages)))

    def _empty(self, full: ir.Value) -> ir.Value:
        """The one beside it, that says that its place may be filled."""
        return offset(self.b, full, ptx_mbarrier.BARRIER_BYTES)

    def after(self, slot: Slot) -> Slot:
        """The slot that comes next."""
        b, following = self.b, self.b.add(slot.number, I64(1))
        last = b.icmp_signed("==", following, I64(self.tile.stages))
        return Slot(b.select(last, I64(0), following), b.xor(slot.parity, b.zext(last, I32)))

    def streamed(self, ring: int, slot: Slot) -> Rows:
        """A block of a streamed operand."""
        rows = self.rings[ring]
        place = offset(self.b, rows.pointer, self.b.mul(slot.number, I64(rows_bytes(BLOCK, rows.width))))
        return Rows(place, rows.width, BLOCK)

    def await_full(self, ring: int, slot: Slot) -> None:
        """Wait until a block is there. The assembler moves no instruction over this."""
        ptx_mbarrier.wait(self.b, self._barrier(ring, slot.number), slot.parity)

    def leave(self, ring: int, slot: Slot) -> None:
        """The warp has read a block."""
        ptx_mbarrier.arrive(self.b, self._empty(self._barrier(ring, slot.number)), self.leads)

    def pass_over(self, first: ir.Value, stop: ir.Value, slot: Slot) -> Slot:
        """Leave blocks that other groups alone multiply, as many as there are from `first` to `stop`."""
        b = self.b
        with loop(b, first, stop, 1, slot.values()) as it:
            slot = Slot(*it.values)
            for ring in range(2):
                self.await_full(ring, slot)
            warp_barrier(b)  # no lane is still waiting when one says that all have read
            for ring in range(2):
                self.leave(ring, slot)
            it.advance(*self.after(slot).values())
        return Slot(*it.results)

    # -- producers -----------------------------------------------------------------------------------------------------

    def _produce_resident(self) -> None:
        """Have each tile's resident rows copied, by a warp of their own: so the next tile's blocks are asked for while
        these still wait for their place."""
        b, maps = self.b, self.maps[: len(self.RESIDENT)]
        for tensor in maps:
            ptx_tensor_map.acquire_map(b, tensor)
        with self._each_tile([I32(0)]) as it:
            (phase,) = it.values
            self.place_tile(it.index)
            indices = [self._indices(x) for x in self.RESIDENT]
            for group in range(self.groups):
                full, rows = self._resident_barrier(I64(group)), group * GROUP_ROWS
                self._announce(full, self.resident, phase)
                first = b.trunc(b.add(self.first, I64(rows)), I32)
                for to, tensor, place in zip(self.resident, maps, indices, strict=True):
                    here = attrs.evolve(to, pointer=offset(b, to.pointer, rows * LINE))
                    self._fill(here, tensor, first, place, full)
            it.advance(b.xor(phase, I32(1)))

    def _produce_streamed(self) -> None:
        b, maps = self.b, self.maps[len(self.RESIDENT) :]
        for tensor in maps:
            ptx_tensor_map.acquire_map(b, tensor)
        with self._each_tile([I64(0), I32(0)]) as it:
            self.place_tile(it.index)
            begin, stop = self.streamed_range()
            indices = [self._indices(x) for x in self.STREAMED]
            with loop(b, begin, stop, BLOCK, list(it.values)) as blocks:
                slot = Slot(*blocks.values)
                for ring, (tensor, place) in enumerate(zip(maps, indices, strict=True)):
                    to, full = self.streamed(ring, slot), self._barrier(ring, slot.number)
                    self._announce(full, [to], slot.parity)
                    self._fill(to, tensor, b.trunc(blocks.index, I32), place, full)
                blocks.advance(*self.after(slot).values())
            it.advance(*blocks.results)

    def _help_all(self) -> None:
        b = self.b
        with self._each_tile([I64(0), I32(0)]) as it:
            self.place_tile(it.index)
            begin, stop = self.streamed_range()
            with loop(b, begin, stop, BLOCK, list(it.values)) as blocks:
                slot = Slot(*blocks.values)
                full = self._barrier(0, slot.number)
                ptx_mbarrier.wait(b, self._empty(full), b.xor(slot.parity, I32(1)))
                self.help(blocks.index, slot)
                ptx_mbarrier.arrive(b, full, ir.IntType(1)(1))
                blocks.advance(*self.after(slot).values())
            it.advance(*blocks.results)

    def _indices(self, operand: Arg) -> list[ir.Value]:
        """The head's place in an operand's map: what has no step has one item there."""
        b, found = self.b, []
        head = b.udiv(self.head, self.arg(Arg.GROUP)) if operand in (Arg.K, Arg.V) else self.head
        for index, step in ((head, "N"), (self.item, "B")):
            some = b.icmp_signed("!=", self.arg(Arg[f"{operand.name}_{step}"]), I64(0))
            found.append(b.trunc(b.select(some, index, I64(0)), I32))
        return found

    def _announce(self, full: ir.Value, places: Sequence[Rows], parity: ir.Value) -> None:
        """Once a place has been read: announce 64 rows of each operand."""
        ptx_mbarrier.wait(self.b, self._empty(full), self.b.xor(parity, I32(1)))
        ptx_mbarrier.expect(self.b, full, sum(rows_bytes(BLOCK, x.width) for x in places))

    def _fill(self, to: Rows, tensor: ir.Value, first: ir.Value, place: Sequence[ir.Value], full: ir.Value) -> None:
        """Have 64 rows of an operand copied."""
        for column in range(0, to.width, 64):
            here = offset(self.b, to.pointer, column // 64 * to.count * LINE)
            ptx_tensor_map.copy_box(self.b, here, tensor, [I32(column), first, *place], full)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def _consume_all(self) -> None:
        b = self.b
        self.own = [self.products.left(x) for x in self.resident]
        with self._each_tile([I64(0), I32(0), I32(0)]) as it:
            slot, phase = Slot(*it.values[:2]), it.values[2]
            self.place_tile(it.index)
            self.full = self._resident_barrier(self.products.group)
            ptx_mbarrier.wait(b, self.full, phase)
            it.advance(*self.consume(slot).values(), b.xor(phase, I32(1)))

    def kept_rows(self) -> list[list[ir.Value]]:
        """The group's resident rows as left operands in registers, if they are kept there."""
        if not self.tile.kept:
            return []
        products = WarpProducts(self.b, self.tile, self.thread)
        lefts = [(products.left(x), x.width // BAND) for x in self.resident]
        return [[word for step in range(steps) for word in left(0, step)] for left, steps in lefts]

    def leave_resident(self) -> None:
        """The warp has multiplied the tile's resident rows for the last time, if at all."""
        warp_barrier(self.b)
        ptx_mbarrier.arrive(self.b, self._empty(self.full), self.leads)

    def group_end(self) -> ir.Value:
        """Behind the last of the group's rows, from the tile's first."""
        return self.b.add(self.together_first, I64(GROUP_ROWS))

    def words_of(self, pairs: Sequence[ir.Value]) -> list[ir.Value]:
        """Pairs as a left operand."""
        return [x for at in range(0, len(pairs), 8) for x in rounded(self.b, pairs, at)]

    def above(self, x: ir.Value, least: int = 0) -> ir.Value:
        """An i64, or the least if it is below."""
        return self.b.select(self.b.icmp_signed("<", x, I64(least)), I64(least), x)
