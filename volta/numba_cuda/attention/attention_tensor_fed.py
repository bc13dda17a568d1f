"""Attention on Hopper's tensor cores whose keys and values are brought by warps of their own.

Barriers in shared memory say of each slot when it is full, and when it may be filled again. So those who multiply do
not wait for each other at every block, nor spend instructions on copies; and they take the registers that those who
bring do not need. What is computed is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I1, I32, I64, if_else, if_then, loop, offset
from volta.numba_cuda.attention.attention_tensor import LOG2E
from volta.numba_cuda.attention.attention_tensor_queries import Forward
from volta.numba_cuda.attention.attention_tensor_tile import Rows, TensorTile, rows_bytes
from volta.numba_cuda.codegen import ptx_mbarrier, ptx_ops, ptx_wgmma
from volta.numba_cuda.codegen.threads import WARP, barrier, dynamic_shared, new_entry
from volta.xla_like.attention import BLOCK, TensorSpec

_MULTIPLYING, _FEEDING = 216, 80
"""Registers of a thread, where a block of 384 threads begins with 168 each."""


def build_fed(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    Fed(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


class Fed(Forward):
    def emit(self) -> None:
        b, tile = self.b, self.tile
        queries = self.allot(tile.rows, self.spec.head)
        self.locate()
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            for slot in range(tile.slots):
                ptx_mbarrier.begin(b, self._full(I64(slot)), tile.feeders * WARP)
                ptx_mbarrier.begin(b, self._empty(I64(slot)), tile.warps)
            ptx_mbarrier.opened(b)
        multiplies = b.icmp_signed("<", self.thread, I64(tile.multiplying))
        feeder = b.sub(self.thread, I64(tile.multiplying))
        with if_else(b, multiplies) as branch:
            with branch.then():
                self.bring_rows(queries, Arg.Q)
                ptx_ops.commit_copies(b)
                ptx_ops.wait_copies(b, 0)
                ptx_wgmma.fence_tensor(b)
            with branch.otherwise():
                self.bringing, self.bringers = feeder, tile.feeders * WARP
                self._bring_slot(I64(0), I64(0))
        barrier(b)
        with if_else(b, multiplies) as branch:
            with branch.then():
                ptx_wgmma.have_registers(b, _MULTIPLYING, more=True)
                self.multiply(queries)
            with branch.otherwise():
                ptx_wgmma.have_registers(b, _FEEDING, more=False)
                self._feed()

    def _full(self, slot: ir.Value) -> ir.Value:
        """The barrier of a slot that says that it is full."""
        return offset(self.b, self.space, self.b.mul(slot, I64(2 * ptx_mbarrier.BARRIER_BYTES)))

    def _empty(self, slot: ir.Value) -> ir.Value:
        return offset(self.b, self._full(slot), ptx_mbarrier.BARRIER_BYTES)

    def _slots(self, slot: ir.Value) -> list[Rows]:
        """A slot's keys and values."""
        b = self.b
        places = [b.mul(slot, I64(rows_bytes(BLOCK, x.width))) for x, *_ in self.slots]
        return [
            attrs.evolve(x, pointer=offset(b, x.pointer, place))
            for (x, *_), place in zip(self.slots, places, strict=True)
        ]

    def _after(self, slot: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The next slot, and the parity of the phases of its barriers."""
        b, following = self.b, self.b.add(slot, I64(1))
        last = b.icmp_signed("==", following, I64(self.tile.slots))
        return b.select(last, I64(0), following), b.xor(parity, b.zext(last, I32))

    def _bring_slot(self, block: ir.Value, slot: ir.Value) -> None:
        """Begin to copy a block's keys and values to a slot."""
        for to, (base, stride) in zip(self._slots(slot), (self.keys, self.values), strict=True):
            self.bring(to, base, stride, block, self.s)
        ptx_ops.commit_copies(self.b)

    def _feed(self) -> None:
        """While a block is on its way, the one before it is handed over; the first is on its way already."""
        b = self.b
        with loop(b, 0, self.stop, BLOCK, [I64(0), I32(0)]) as it:
            slot, parity = it.values
            following, then = b.add(it.index, I64(BLOCK)), self._after(slot, parity)
            with if_else(b, b.icmp_signed("<", following, self.stop)) as branch:
                with branch.then():
                    ptx_mbarrier.wait(b, self._empty(then[0]), b.xor(then[1], I32(1)))
                    self._bring_slot(following, then[0])
                    ptx_ops.wait_copies(b, 1)
                with branch.otherwise():
                    ptx_ops.wait_copies(b, 0)
            ptx_wgmma.fence_tensor(b)
            ptx_mbarrier.arrive(b, self._full(slot), I1(1))
            it.advance(*then)

    def walk(self, state: Sequence[ir.Value]) -> list[ir.Value]:
        b, count = self.b, len(state)
        first = b.icmp_signed("==", b.and_(self.thread, I64(WARP - 1)), I64(0))
        with loop(b, 0, self.stop, BLOCK, [*state, I64(0), I32(0)]) as it:
            slot, parity = it.values[count:]
            ptx_mbarrier.wait(b, self._full(slot), parity)
            keys, values = self._slots(slot)
            found = self.seen_block(it.index, keys, values, list(it.values[:count]))
            ptx_mbarrier.arrive(b, self._empty(slot), first)
            it.advance(*found, *self._after(slot, parity))
        return it.results[:count]
