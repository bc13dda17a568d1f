"""Attention on Hopper's tensor cores with warp specialization: producer warps copy keys and values.

Barriers in shared memory say of each stage when it is full, and when it may be filled again. So consumer warps do
not wait for each other at every block, nor spend instructions on copies; and they take the registers that those who
producers do not need. What is computed is the same.
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

_CONSUMING, _PRODUCING = 216, 80
"""Registers of a thread, where a block of 384 threads begins with 168 each."""


def build_specialized(module: ir.Module, name: str, spec: TensorSpec, tile: TensorTile) -> ir.Function:
    """Add the kernel to a module; its grid is tiles of rows x batch x heads."""
    function, b = new_entry(module, name, tile.threads, tile.resident)
    Specialized(b, function.args[0], spec, tile, dynamic_shared(module, b)).emit()
    b.ret_void()
    return function


class Specialized(Forward):
    def emit(self) -> None:
        b, tile = self.b, self.tile
        queries = self.allot(tile.rows, self.spec.head)
        self.locate()
        self.exponent = b.fmul(self.scale, self.constant(LOG2E))
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            for stage in range(tile.stages):
                ptx_mbarrier.begin(b, self._full(I64(stage)), tile.producers * WARP)
                ptx_mbarrier.begin(b, self._empty(I64(stage)), tile.warps)
            ptx_mbarrier.opened(b)
        multiplies = b.icmp_signed("<", self.thread, I64(tile.multiplying))
        producer = b.sub(self.thread, I64(tile.multiplying))
        with if_else(b, multiplies) as branch:
            with branch.then():
                self.copy_own_rows(queries, Arg.Q)
                ptx_ops.commit_copies(b)
                ptx_ops.wait_copies(b, 0)
                ptx_wgmma.fence_tensor(b)
            with branch.otherwise():
                self.copier, self.copying = producer, tile.producers * WARP
                self._fill_stage(I64(0), I64(0))
        barrier(b)
        with if_else(b, multiplies) as branch:
            with branch.then():
                ptx_wgmma.have_registers(b, _CONSUMING, more=True)
                self.multiply(queries)
            with branch.otherwise():
                ptx_wgmma.have_registers(b, _PRODUCING, more=False)
                self._produce()

    def _full(self, stage: ir.Value) -> ir.Value:
        """The barrier of a stage that says that it is full."""
        return offset(self.b, self.space, self.b.mul(stage, I64(2 * ptx_mbarrier.BARRIER_BYTES)))

    def _empty(self, stage: ir.Value) -> ir.Value:
        return offset(self.b, self._full(stage), ptx_mbarrier.BARRIER_BYTES)

    def _stages(self, stage: ir.Value) -> list[Rows]:
        """A stage's keys and values."""
        b = self.b
        places = [b.mul(stage, I64(rows_bytes(BLOCK, x.width))) for x, *_ in self.stages]
        return [
            attrs.evolve(x, pointer=offset(b, x.pointer, place))
            for (x, *_), place in zip(self.stages, places, strict=True)
        ]

    def _after(self, stage: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The next stage, and the parity of the phases of its barriers."""
        b, following = self.b, self.b.add(stage, I64(1))
        last = b.icmp_signed("==", following, I64(self.tile.stages))
        return b.select(last, I64(0), following), b.xor(parity, b.zext(last, I32))

    def _fill_stage(self, block: ir.Value, stage: ir.Value) -> None:
        """Begin to copy a block's keys and values to a stage."""
        for to, (base, stride) in zip(self._stages(stage), (self.keys, self.values), strict=True):
            self.copy_rows(to, base, stride, block, self.s)
        ptx_ops.commit_copies(self.b)

    def _produce(self) -> None:
        """While a block is in flight, the one before it is handed over; the first is in flight already."""
        b = self.b
        with loop(b, 0, self.stop, BLOCK, [I64(0), I32(0)]) as it:
            stage, parity = it.values
            following, then = b.add(it.index, I64(BLOCK)), self._after(stage, parity)
            with if_else(b, b.icmp_signed("<", following, self.stop)) as branch:
                with branch.then():
                    ptx_mbarrier.wait(b, self._empty(then[0]), b.xor(then[1], I32(1)))
                    self._fill_stage(following, then[0])
                    ptx_ops.wait_copies(b, 1)
                with branch.otherwise():
                    ptx_ops.wait_copies(b, 0)
            ptx_wgmma.fence_tensor(b)
            ptx_mbarrier.arrive(b, self._full(stage), I1(1))
            it.advance(*then)

    def traverse(self, state: Sequence[ir.Value]) -> list[ir.Value]:
        b, count = self.b, len(state)
        first = b.icmp_signed("==", b.and_(self.thread, I64(WARP - 1)), I64(0))
        with loop(b, 0, self.stop, BLOCK, [*state, I64(0), I32(0)]) as it:
            stage, parity = it.values[count:]
            ptx_mbarrier.wait(b, self._full(stage), parity)
            keys, values = self._stages(stage)
            found = self.seen_block(it.index, keys, values, list(it.values[:count]))
            ptx_mbarrier.arrive(b, self._empty(stage), first)
            it.advance(*found, *self._after(stage, parity))
        return it.results[:count]
