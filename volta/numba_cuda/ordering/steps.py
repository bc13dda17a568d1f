"""The launches of scatters, sorts and scans, which take several kernels each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda.launch_context import MOST, LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.ordering import indexing, long_runs, narrow_runs, ordering, radix, scattering, sorting
from volta.numba_cuda.ordering.sorting import SLOT, PassSpec
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import Access, KernelCall
from volta.xla_like.ordering import Scatter, Sort

QUADRATIC = 16384
"""Up to this many updates a batch item are ranked by comparing all with all."""


def scatter(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """Updates sorted by target; short runs, blocks of long ones, and what combines these; of few updates all in one.

    Many single numbers are sorted with their targets: to look them up by position would read memory at random, a line
    for each number.
    """
    op, (updates, targets, out) = call.kernel, call.accesses
    assert isinstance(op, Scatter)
    spec, batch, slots, width, count = op.spec, op.batch, op.slots, op.width, op.count
    _check(call, batch * count, slots)
    lanes = scattering.columns_at_once(spec, width, (updates.offset, out.offset))
    text, nothing = f"scatter {spec}", Access(None, 0, ())

    def step(stem: str, build: Callable[[ir.Module, str], object], each: int) -> Launch:
        shift = indexing.tile_of(-(-width // (lanes * each)))
        grid = indexing.blocks_of(batch * count, width, lanes, shift, each)
        words = (updates, order, out, batch, slots, width, count, shift, nothing)
        name = f"volta_scatter_{stem}_{spec.op}_{spec.dtype.name}_{lanes}x{each}"
        return ctx.step(name, text, build, grid, scattering.THREADS, words, (updates, order, out), (out,))

    if count <= scattering.FEW_UPDATES:
        order = targets
        yield step("few", partial(scattering.build_few, spec=spec, lanes=lanes), 1)
        return
    assert call.workspace is not None
    order = Access(call.workspace, 0, ())
    carried = _may_carry(op)
    yield from _order(op, targets, order, [updates] if carried else [], ctx)
    if carried:
        updates = nothing
    partials = nothing
    nbytes = long_runs.partial_bytes(spec, batch, width, count)
    if nbytes:
        partials = ctx.scratch(nbytes)
    narrow = spec.op != "set" and width <= long_runs.NARROW
    if narrow:
        words = (updates, order, out, batch, slots, width, count, 0, partials)
        yield ctx.step(
            f"volta_scatter_narrow{'_carried' * carried}_{spec.op}_{spec.dtype.name}", f"{text} carried {carried}",
            partial(narrow_runs.build_narrow, spec=spec, carried=carried),
            batch * width * narrow_runs.windows_of(count), scattering.THREADS, words, (updates, order, out),
            (out, partials),
        )  # fmt: skip
    else:
        if spec.op == "set":
            each = indexing.columns_each(width // lanes, scattering.GROUPS)
            yield step("short", partial(scattering.build_short, spec=spec, lanes=lanes, each=each), each)
            return
        each = indexing.columns_each(width // lanes, long_runs.GROUPS)
        shift = indexing.tile_of(-(-width // (lanes * each)))
        windows, chunks = batch * -(-count // scattering.SHORT), -(-width // long_runs.COLUMNS)
        share, whole = long_runs.windows_at_once(windows, chunks), long_runs.are_whole(width, count)
        long = -(-windows // share) * chunks
        more = (updates, order, out, batch, slots, width, count, shift, partials, share, long)
        yield ctx.step(
            f"volta_scatter_wide{'_whole' * whole}_{spec.op}_{spec.dtype.name}_{lanes}x{each}", f"{text} whole {whole}",
            partial(long_runs.build_wide, spec=spec, lanes=lanes, each=each, whole=whole),
            long + indexing.blocks_of(batch * count, width, lanes, shift, each), scattering.THREADS, more,
            (updates, order, out), (out, partials),
        )  # fmt: skip
    if nbytes:
        grid = batch * -(-count // long_runs.BLOCK) * -(-width // long_runs.FINISH_COLUMNS)
        words = (updates, order, out, batch, slots, width, count, 0, partials)
        yield ctx.step(
            f"volta_scatter_finish_{spec.op}_{spec.dtype.name}", text,
            partial(long_runs.build_finish, spec=spec), grid, scattering.THREADS, words,
            (order, partials, out), (out,),
        )  # fmt: skip


def _check(call: KernelCall, *numbers: int) -> None:
    if max(numbers) > MOST:
        raise UnsupportedOperationError(f"{call.describe()} on backend 'cuda' takes up to {MOST:,} elements")


def order_bytes(call: KernelCall) -> int:
    """For each batch item where each slot's updates end, and the updates' positions, slot by slot."""
    op = call.kernel
    assert isinstance(op, Scatter)
    return 8 * op.batch * (op.count + op.slots) if op.count > scattering.FEW_UPDATES else 0


def _may_carry(op: Scatter) -> bool:
    return (
        op.spec.op != "set" and op.spec.dtype.itemsize == 4 and op.width == 1 and op.count > filling(QUADRATIC)
    )  # fmt: skip


def _order(
    op: Scatter, targets: Access, order: Access, carried: Sequence[Access], ctx: LaunchContext
) -> Iterator[Launch]:  # fmt: skip
    """Updates sorted by target: all compared with all, or by digits; these may carry the updates themselves."""
    batch, slots, count = op.batch, op.slots, op.count
    if count <= filling(QUADRATIC):
        words: tuple[Access | int, ...] = (targets, order, batch, slots, count)
        grid = ordering.blocks_of(batch, count)
        yield ctx.step(
            "volta_scatter_rank", "rank", ordering.build_rank, grid, ordering.THREADS, words, (targets,), (order,)
        )
        return
    keys = [ctx.scratch(4 * batch * count) for _ in range(2)]
    positions = [ctx.scratch(4 * batch * count) for _ in range(2)]
    yield from _passes(
        ctx, SLOT, slots.bit_length(), (batch, count), targets, keys, positions, order, slots, carried=carried
    )
    grid = -(-batch * count // ordering.THREADS)
    words = (order, batch, slots, count)
    yield ctx.step(
        "volta_scatter_edges", "edges", ordering.build_edges, grid, ordering.THREADS, words, (order,), (order,)
    )


def digit_bits(bits: int) -> int:
    """Of a digit of slots of so many bits: one more than elsewhere where that is a pass less."""
    return min((radix.BITS, radix.BITS + 1), key=lambda each: (radix.passes_of(bits, each), each))


def _passes(
    ctx: LaunchContext, dtype: str, bits: int, shape: tuple[int, int], source: Access, keys: Sequence[Access],
    positions: Sequence[Access], out: Access, slots: int = 0, first: bool = True, carried: Sequence[Access] = (),
) -> Iterator[Launch]:  # fmt: skip
    """Radix passes over ``bits`` of elements [rows, length]: from ``source``, by way of ``keys``, to ``out``.

    The second of ``keys`` is written last but one. ``positions`` (none, or two arrays) are carried along: with those of
    the elements to begin with if ``first``, otherwise from the first array. In the end they lie in `final_positions`.
    For targets ``out`` is the order of a scatter. What is ``carried`` (one array of words, or none) takes the place of
    the positions.
    """
    rows, length = shape
    tiles = sorting.tiles_of(length)
    each = digit_bits(bits) if dtype == SLOT else radix.BITS
    counts = ctx.scratch(sorting.counts_bytes(rows, length, each))
    nothing = Access(None, 0, ())
    number = radix.passes_of(bits, each)
    for i in range(number):
        last = i == number - 1
        begins = first and i == 0 and (bool(positions) or dtype == SLOT)
        spec = PassSpec(dtype, bool(positions), begins, dtype == SLOT and last, bool(carried) and begins, each)
        to = out if last else keys[(number - 1 - i) % 2]
        held, held_to = (positions[i % 2], positions[(i + 1) % 2]) if positions else (nothing, nothing)
        if spec.first or not positions:
            held = carried[0] if carried else nothing
        if spec.records:
            held_to = nothing
        words = (source, held, to, held_to, counts, rows, length, tiles, sorting.padded(tiles), each * i, slots)
        stem = f"{dtype}{'_positions' * spec.positions}{'_first' * spec.first}{'_records' * spec.records}_{each}"
        text = f"sort pass {spec}"
        counting = PassSpec(dtype, False, spec.first and dtype == SLOT, bits=each)
        count_name = f"volta_sort_count_{dtype}{'_first' * counting.first}_{each}"
        yield ctx.step(
            count_name, f"sort count {counting}", partial(sorting.build_count, spec=counting),
            rows * tiles, radix.THREADS, words, (source,), (counts,),
        )  # fmt: skip
        together = sorting.line_threads(tiles)
        yield ctx.step(
            f"volta_sort_offsets_{together}_{each}", f"offsets {together} {each}",
            partial(sorting.build_offsets, together=together, bits=each),
            (rows << each) * together // radix.THREADS, radix.THREADS, words, (counts,), (counts,),
        )  # fmt: skip
        yield ctx.step(
            f"volta_sort_move_{stem}{'_carried' * spec.carried}", text, partial(sorting.build_move, spec=spec),
            rows * tiles, radix.THREADS, words, (source, held, counts), (to, held_to),
        )  # fmt: skip
        source = to


def sort(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """Rows in shared memory, or by passes over device memory: by the last key first."""
    op = call.kernel
    assert isinstance(op, Sort)
    spec, rows, length = op.spec, op.rows, op.length
    number = len(spec.dtypes)
    _check(call, length)
    read = len(spec.read)
    inputs, outputs = dict(zip(spec.read, call.accesses[:read], strict=True)), call.accesses[read:]
    if length <= sorting.TILE:
        yield _sort_rows(op, ctx, inputs, outputs)
        return
    names = [d.name for d in spec.dtypes]
    bits = [1 if d.name == "bool" else 8 * d.itemsize for d in spec.dtypes]
    largest = max(d.itemsize for d in spec.dtypes[: spec.num_keys])
    temporary = [ctx.scratch(largest * rows * length) for _ in range(2 if spec.num_keys > 1 else 1)]
    if number == 1:
        yield from _passes(
            ctx, names[0], bits[0], (rows, length), inputs[0], (outputs[0], temporary[0]), (), outputs[0]
        )
        return
    positions = [ctx.scratch(4 * rows * length)]
    # They end where they began after an even number of passes: there they are a result, if they are one.
    ends = sum(map(radix.passes_of, bits[: spec.num_keys])) % 2
    kept = ctx.scratch(4 * rows * length) if spec.positions is None else outputs[spec.positions]
    positions.insert(ends, kept)
    for k in reversed(range(spec.num_keys)):
        first = k == spec.num_keys - 1
        source = inputs[k]
        if not first:
            source = temporary[1]
            yield _take(ctx, spec.dtypes[k], (rows, length), inputs[k], positions[0], source)
        buffers = (outputs[k], temporary[0])
        yield from _passes(ctx, names[k], bits[k], (rows, length), source, buffers, positions, outputs[k], first=first)
        if radix.passes_of(bits[k]) % 2:
            positions = positions[::-1]
    for k in spec.read[1:]:
        yield _take(ctx, spec.dtypes[k], (rows, length), inputs[k], positions[0], outputs[k])


def _take(
    ctx: LaunchContext, dtype: np.dtype, shape: tuple[int, ...], source: Access, positions: Access, out: Access
) -> Launch:
    rows, length = shape
    size = dtype.itemsize
    grid = -(-rows * length // (sorting.TAKE_EACH * radix.THREADS))
    words = (source, positions, out, rows, length)
    return ctx.step(
        f"volta_sort_take_{size}", f"take {size}", partial(sorting.build_take, nbytes=size), grid, radix.THREADS,
        words, (source, positions), (out,),
    )  # fmt: skip


def _sort_rows(
    op: Sort, ctx: LaunchContext, inputs: Mapping[int, Access], outputs: Sequence[Access]
) -> Launch:  # fmt: skip
    spec, rows, length = op.spec, op.rows, op.length
    for items in (1, 4, sorting.ITEMS):
        group = min(rows, radix.DIGITS, items * radix.THREADS // length)
        if group and (group == rows or items == sorting.ITEMS or rows <= group * filling(_ENOUGH_BLOCKS)):
            break
    words: tuple[Access | int, ...] = (*inputs.values(), *outputs, rows, length, group)
    names = "_".join("positions" if k == spec.positions else d.name for k, d in enumerate(spec.dtypes))
    return ctx.step(
        f"volta_sort_rows_{names}_{spec.num_keys}_{items}", f"sort rows {spec} {items}",
        partial(sorting.build_rows, spec=spec, items=items), -(-rows // group), radix.THREADS, words,
        tuple(dict.fromkeys(inputs.values())), tuple(outputs),
    )  # fmt: skip


_ENOUGH_BLOCKS = 264
"""Small tiles are taken while there are no more of them than this: a GPU runs so many at once."""
