"""Maps that read an operand across its rows: a tile of it is transposed in shared memory, so that neighbours are read
together.

A transposed operand lies along another dimension than the one the map writes along. A block of threads reads a tile
along the operand's own dimension, and computes it along the map's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.builder import Value, compute_dtype, item_size
from volta.emit.loops import I64, if_else, if_then, load_args, minimum, offset
from volta.numba_cuda.codegen.threads import barrier, block_index, new_entry, shared_memory, thread_index
from volta.numba_cuda.loops.nests_body import (
    SMALL,
    ThreadEmitter,
    accesses_of,
    division_words,
    is_narrow,
    unravel,
    words_of,
)
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.views import prod

TILES = ((64, 64), (32, 64), (32, 32))
"""Tiles: elements of the dimension along which the operand lies, and of the map's last one. The first that fits."""

_WIDTH = 32  # of a warp: a tile's sizes are multiples

_ROWS = 8  # of 32 threads, in a block of threads
THREADS = 32 * _ROWS

_SHARED = 40 << 10

_AHEAD = 4  # elements that are computed together

LEAST = 1 << 14
"""Elements from which it is worth it."""


@attrs.frozen
class TransposedVariant:
    """Which of the map's dimensions the loads ``transposed`` (by their value) lie along, and a tile's sizes."""

    dim: int
    transposed: tuple[int, ...]
    across: int
    along: int

    def suffix(self) -> str:
        return f"transposed{self.dim}of{'_'.join(map(str, self.transposed))}x{self.across}x{self.along}"


def choose_transposed(call: KernelCall) -> TransposedVariant | None:
    """The variant for a map that reads something large across its rows; None if it does not."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    sizes = call.sizes[: kernel.rank]
    if kernel.rank < 2 or not filling(LEAST) <= prod(sizes) <= SMALL or not is_narrow(call) or sizes[-1] < _WIDTH // 2:
        return None
    memory = [i for i, x in enumerate(kernel.body) if isinstance(x, (Load, IndexValue))]
    found: dict[int, list[int]] = {}
    for i, (x, access) in zip(memory, accesses_of(kernel, call.accesses), strict=False):
        if isinstance(x, Load) and not x.terms and abs(access.strides[-1]) >= 32:
            for d in range(kernel.rank - 1):
                if access.strides[d] == x.dtype.itemsize and sizes[d] >= _WIDTH // 2:
                    found.setdefault(d, []).append(i)
                    break
    if not found:
        return None
    dim = max(found, key=lambda d: (len(found[d]), d))
    element = sum(item_size(compute_dtype(kernel.body[i].dtype.name)) for i in found[dim])
    for across, along in TILES:
        spare = (across > _WIDTH and sizes[dim] <= _WIDTH) or (along > _WIDTH and sizes[-1] <= _WIDTH)
        if along * (across + 1) * element <= _SHARED and not spare:
            return TransposedVariant(dim, tuple(found[dim]), across, along)
    return None


def _tiles(call: KernelCall, v: TransposedVariant) -> list[int]:
    """The map's sizes without the tile's, then tiles of the operand's dimension and of the last."""
    sizes = call.sizes[: call.kernel.rank]  # type: ignore[union-attr]  # a loop kernel
    others = [n for d, n in enumerate(sizes[:-1]) if d != v.dim]
    return [*others, -(-sizes[v.dim] // v.across), -(-sizes[-1] // v.along)]


def grid_of_transposed(call: KernelCall, v: TransposedVariant) -> int:
    return prod(_tiles(call, v))


def extra_words(call: KernelCall, v: TransposedVariant) -> list[int]:
    tiles = _tiles(call, v)
    return [*tiles[-2:], *division_words(tiles)]


def build_transposed(module: ir.Module, name: str, kernel: LoopKernel, v: TransposedVariant) -> ir.Function:
    function, b = new_entry(module, name, THREADS)
    e = ThreadEmitter(b, function.args[0], kernel, narrow=True)
    words, sizes, one = words_of(kernel), e.sizes[: kernel.rank], ThreadBuilder(b, 1)
    tiles = load_args(b, e.args, 2, words)
    others = [n for d, n in enumerate(sizes[:-1]) if d != v.dim]
    *outer, across, along = unravel(b, e.args, words + 2, block_index(b), [*others, *tiles])
    thread = thread_index(b)
    column, row = b.and_(thread, I64(31)), b.lshr(thread, I64(5))
    first, start = b.mul(across, I64(v.across)), b.mul(along, I64(v.along))

    def bases(index: ir.Value) -> tuple[dict[int, ir.Value], list[ir.Value]]:
        return e.row_bases([*outer[: v.dim], index, *outer[v.dim :]])

    def slot(area: ir.Value, dtype: str, last: ir.Value, own: ir.Value) -> ir.Value:
        return offset(b, area, b.mul(b.add(b.mul(last, I64(v.across + 1)), own), I64(item_size(dtype))))

    dtypes = [compute_dtype(kernel.body[i].dtype.name) for i in v.transposed]
    areas = [shared_memory(module, b, f"{name}_tile{i}", v.along * (v.across + 1) * item_size(d)) for i, d in
             zip(v.transposed, dtypes, strict=True)]  # fmt: skip
    loaded: list[tuple[ir.Value, ir.Value, dict[int, Value]]] = []
    for part in range(v.across // 32):
        own = b.add(column, I64(32 * part))
        here, _ = bases(minimum(b, b.add(first, own), b.sub(sizes[v.dim], I64(1))))
        for k in range(v.along // _ROWS):
            place = b.add(row, I64(k * _ROWS))
            loaded.append((place, own, {}))
            last = minimum(b, b.add(start, place), b.sub(sizes[-1], I64(1)))
            e.evaluate(v.transposed, loaded[-1][2], 1, here, last)
    for place, own, values in loaded:
        for i, area, dtype in zip(v.transposed, areas, dtypes, strict=True):
            one.store(values[i], slot(area, dtype, place, own))
    barrier(b)
    which = e.pass_values([s.value for s in kernel.stores])

    def element(k: int, half: int) -> tuple[Callable[[], None], ir.Value]:
        """Compute an element; what writes it, and whether there is one."""
        own, place = b.add(row, I64(k * _ROWS)), b.add(column, I64(32 * half))
        index, last = b.add(first, own), b.add(start, place)
        memory, stores = bases(index)
        inside = b.and_(b.icmp_signed("<", index, sizes[v.dim]), b.icmp_signed("<", last, sizes[-1]))

        def compute() -> None:
            values = {
                i: one.value(one.load(slot(area, d, place, own), d).ir, d)
                for i, area, d in zip(v.transposed, areas, dtypes, strict=True)
            }
            e.evaluate(e.invariant(), values, 1, memory, None)
            e.evaluate(which, values, 1, memory, last)
            writes.append(partial(_write, e, kernel, values, stores, last))

        return compute, inside

    writes: list[Callable[[], None]] = []
    elements = [(k, half) for k in range(v.across // _ROWS) for half in range(v.along // 32)]
    whole = b.and_(
        b.icmp_signed("<=", b.add(first, I64(v.across)), sizes[v.dim]),
        b.icmp_signed("<=", b.add(start, I64(v.along)), sizes[-1]),
    )
    with if_else(b, whole) as branch:
        with branch.then():  # what several elements read is in flight at once
            for n in range(0, len(elements), _AHEAD):
                for k, half in elements[n : n + _AHEAD]:
                    element(k, half)[0]()
                for write in writes:
                    write()
                writes.clear()
        with branch.otherwise():
            for k, half in elements:
                compute, inside = element(k, half)
                with if_then(b, inside):
                    compute()
                    writes.pop()()
    b.ret_void()
    return function


def _write(
    e: ThreadEmitter, kernel: LoopKernel, values: dict[int, Value], stores: Sequence[ir.Value], index: ir.Value
) -> None:
    for k, s in enumerate(kernel.stores):
        e.store(k, s, values[s.value], 1, stores[k], index, values)
