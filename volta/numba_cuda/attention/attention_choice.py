"""Which attention kernel a call runs: tiles by what fits the GPU's shared memory, rows one by one where there are
few."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs

from volta.emit.args import Word
from volta.emit.attention_args import attention_words
from volta.numba_cuda.attention.attention import build_attention, forward_bytes
from volta.numba_cuda.attention.attention_backward import backward_bytes, build_attention_dkv, build_attention_dq
from volta.numba_cuda.attention.attention_fused import build_attention_backward, fused_bytes
from volta.numba_cuda.attention.attention_layout import WIDE, AttentionTile
from volta.numba_cuda.attention.attention_row_gradients import build_gradient
from volta.numba_cuda.attention.attention_row_stages import build_staged, build_staged_blocks, stage_bytes
from volta.numba_cuda.attention.attention_rows import THREADS, build_forward, row_blocks
from volta.numba_cuda.attention.attention_serial import semaphore_words
from volta.numba_cuda.attention.attention_split import build_split, split_blocks, split_bytes
from volta.numba_cuda.codegen.ptx import KernelSource, level_of, shared_of
from volta.numba_cuda.codegen.ptx_semaphore import CLEAR_THREADS, build_clear
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.processors import filling
from volta.xla_like.attention import BLOCK, Array, Attention, AttentionSpec
from volta.xla_like.dot import item_size
from volta.xla_like.kernels import KernelCall, LibraryKernel, kernel_name

KERNELS = ("attention", "attention_dq", "attention_dkv")

FEW_ROWS = 16
"""Calls of at most this many rows run row by row."""

_MANY_KEYS = 1024
"""Few rows of at least so many keys are cut into key blocks for several blocks of threads."""

_CACHE = 50 << 20
"""Bytes that a GPU's cache holds. Of more keys and values, rows that are asked for early are gone when they are read:
seen on an H200, one query each of 32 heads, 8,192 keys of 128 elements: 117 us, 84 without; of 128 heads, 4,096 keys of
64 elements: 100 and 96."""

_BESIDE = 16 << 10
"""Bytes of shared memory that kernels have beside what is copied there, at most."""

_FEW_BLOCKS = 132
"""Below this many blocks of threads, smaller ones share the work out better."""


@attrs.frozen
class _Shape:
    """For heads of up to `most` words of 4 bytes: a tile but for its warps, of which there may be so many."""

    most: int
    rows_each: int
    across: int
    warps: tuple[int, ...]
    places: int = 1


_SHAPES = {
    "attention": (
        _Shape(64, 8, 8, (4, 2, 1)), _Shape(128, 8, 16, (8, 4, 2, 1)),
        _Shape(256, 4, 16, (8, 6, 4, 2)), _Shape(512, 2, 16, (8, 4)),
    ),
    "attention_dq": (
        _Shape(64, 8, 16, (4, 2, 1)), _Shape(128, 4, 16, (8, 6, 4, 2)), _Shape(256, 2, 16, (8, 4, 2)),
    ),
    "attention_dkv": (
        _Shape(64, 8, 16, (4, 2, 1), places=2), _Shape(128, 4, 16, (8, 6, 4, 2)), _Shape(256, 2, 16, (8, 4, 2)),
    ),
}  # fmt: skip


@attrs.frozen
class Chosen:
    """A kernel, its grid, the threads of a block, its bytes of shared memory, and whether it takes tensor maps."""

    source: KernelSource
    grid: int
    threads: int
    shared: int
    mapped: bool = False


def op_of(call: KernelCall) -> Attention:
    """What a call of attention computes."""
    assert isinstance(call.kernel, Attention)
    return call.kernel


def words_of(call: KernelCall) -> list[Word]:
    """The args of a call's kernels: see `Arg`."""
    return [*call.accesses, *attention_words(call)]


def choose(call: KernelCall, capability: str) -> Chosen:
    """The kernel of an attention call on a GPU of a compute capability."""
    op = op_of(call)
    name, spec, heads = op.name, op.spec, op.batch * op.heads
    rows = op.keys if name == "attention_dkv" else op.queries
    stem = kernel_name(LibraryKernel(name, spec))
    whole = in_groups(call)
    tile = tile_of(name, spec, rows, heads, whole, capability) if op.queries and op.keys else None
    if tile is None and is_staged(call, capability):
        source = KernelSource(f"{stem}_staged", f"{name} {spec} staged", lambda m, n: build_staged(m, n, spec))
        return Chosen(source, row_blocks(name, heads, op.queries, op.keys), THREADS, stage_bytes(spec))
    if tile is None:
        build = build_forward if name == "attention" else partial(build_gradient, kernel=name)
        text = f"{name} {spec} rows {whole}"
        source = KernelSource(
            f"{stem}_rows{'w' * whole}", text, lambda m, n: build(module=m, name=n, spec=spec, whole=whole)
        )
        return Chosen(source, row_blocks(name, heads, op.queries, op.keys), THREADS, 0)
    return Chosen(tile_source(name, spec, tile), heads * -(-rows // tile.rows), tile.threads,
                  tile_bytes(name, spec, tile))  # fmt: skip


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of an attention, or of one kind of cotangents."""
    ctx = ctx.of(call)
    if is_split(call):
        yield from split(call, ctx)
        return
    found = choose(call, ctx.capability)
    yield ctx.launch(found.source, found.grid, found.threads, words_of(call), found.shared, alone=True)


def tile_source(kernel: str, spec: AttentionSpec, tile: AttentionTile) -> KernelSource:
    build = {"attention": build_attention, "attention_dq": build_attention_dq, "attention_dkv": build_attention_dkv}
    name = f"{kernel_name(LibraryKernel(kernel, spec))}_{tile.suffix()}"
    return KernelSource(name, f"{kernel} {spec} {tile}", lambda m, n: build[kernel](m, n, spec, tile))


def tile_bytes(kernel: str, spec: AttentionSpec, tile: AttentionTile) -> int:
    return forward_bytes(spec, tile) if kernel == "attention" else backward_bytes(spec, tile)


def tile_of(
    kernel: str, spec: AttentionSpec, rows: int, heads: int, whole: bool, capability: str
) -> AttentionTile | None:
    """The tile for so many rows of so many heads; None: there is none, rows run one by one."""
    if rows <= FEW_ROWS:
        return None
    words = max(spec.head, spec.value_head) * item_size(spec.accumulator) // 4
    copies, most = level_of(capability) >= (8, 0), shared_of(capability)
    for shape in _SHAPES[kernel]:
        parked = shape.rows_each == 8 and kernel != "attention"
        ahead = shape.rows_each == 8 and kernel == "attention" and spec.accumulator == "float32"
        fitting = []
        for warps in shape.warps if words <= shape.most else ():
            for places in range(shape.places, 0, -1):
                tile = AttentionTile(shape.rows_each, shape.across, warps, whole, copies, places, parked, ahead=ahead)
                if tile_bytes(kernel, spec, tile) <= most:
                    fitting.append(tile)
                    break
        while len(fitting) > 1:
            tile, smaller = fitting[:2]
            few = heads * -(-rows // tile.rows) < filling(_FEW_BLOCKS)
            if not few and rows > smaller.rows:
                break
            fitting.pop(0)
        if fitting:
            return fitting[0]
    return None


# -- key blocks of few rows, shared out --------------------------------------------------------------------------------


def is_split(call: KernelCall) -> bool:
    """Whether a call has few rows, each of many keys."""
    op = op_of(call)
    few = op.queries <= FEW_ROWS and op.batch * op.heads * op.queries < 4 * filling(_FEW_BLOCKS)
    return op.name == "attention" and few and op.keys >= _MANY_KEYS


def is_staged(call: KernelCall, capability: str) -> bool:
    """Whether the keys and values of a call's few rows come to shared memory: there is a multiprocessor for each row,
    and room."""
    op = op_of(call)
    few = op.name == "attention" and op.batch * op.heads * op.queries <= filling(_FEW_BLOCKS)
    return few and in_groups(call) and stage_bytes(op.spec) + _BESIDE <= shared_of(capability)


def split(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of few rows of many keys: every key block, then each row's merged in order."""
    op = op_of(call)
    spec, whole, rows = op.spec, in_groups(call), op.batch * op.heads * op.queries
    results = ctx.scratch(split_bytes(spec, rows, op.keys))
    words = [*words_of(call), results]
    reads = [x for x in call.accesses if x.buffer in call.reads]
    writes = [x for x in call.accesses if x.buffer in call.writes]
    stem, text = kernel_name(LibraryKernel("attention", spec)), f"attention {spec} {whole}"
    width = (spec.head + spec.value_head) * item_size(spec.dtype)
    ahead = op.batch * op.heads // op.group * op.keys * width <= _CACHE
    if ahead and is_staged(call, ctx.capability):
        source = KernelSource(f"{stem}_shares", f"{text} shares", lambda m, n: build_staged_blocks(m, n, spec))
        grid, touched = rows * (filling(_FEW_BLOCKS) // rows), (ctx.ranges(reads), ctx.ranges([results]))
        yield ctx.launch(source, grid, THREADS, words, stage_bytes(spec), touched=touched)
    else:
        yield ctx.step(
            f"{stem}_blocks{'w' * whole}{'' if ahead else 'l'}", f"{text} blocks {ahead}",
            lambda m, n: build_split(m, n, spec, whole, False, ahead),
            split_blocks(rows, op.keys), THREADS, words, reads, [results],
        )  # fmt: skip
    yield ctx.step(
        f"{stem}_merge{'w' * whole}", f"{text} merge", lambda m, n: build_split(m, n, spec, whole, True),
        rows, THREADS, words, [*reads, results], writes,
    )  # fmt: skip


# -- both cotangents in one kernel -------------------------------------------------------------------------------------

BACKWARD = "attention_backward"

AT_ONCE = 264
"""Blocks of threads that a large GPU runs at once, with heads of up to 64 elements; of larger ones it runs half."""


def fused_tile(call: KernelCall, capability: str) -> AttentionTile | None:
    """The tile for both cotangents of a call; None: there is none, or the call is too small."""
    op = op_of(call)
    spec, width = op.spec, max(op.spec.head, op.spec.value_head)
    if _waits_long(op):
        return None
    if spec.dtype != "float32" or width > 128 or min(op.queries, op.keys) <= FEW_ROWS or not in_groups(call):
        return None
    copies, most = level_of(capability) >= (8, 0), shared_of(capability)
    across, warps = (8, 2) if width <= 64 else (16, 4)
    tile = AttentionTile(8, across, warps, True, copies, warp_groups=2, ahead=True, both=width > 64)
    return tile if fused_bytes(spec, tile) <= most else None


def _waits_long(op: Attention) -> bool:
    """Whether blocks that add serially wait for each other longer than it takes to compute scores twice.

    A head takes as many steps as it has blocks of keys and of queries. Seen: so it is where all pairs of blocks that
    see each other, shared out, are fewer than 1.5 times that. Rows that start among the keys are taken for the last.
    """
    keys, queries = (-(-n // BLOCK) for n in (op.keys, op.queries))
    pairs = keys * queries
    if op.spec.causal and not op.spec.started:
        keys = min(keys, queries)
        pairs = keys * queries - keys * keys // 2
    elif op.spec.causal:
        pairs -= min(keys, queries) ** 2 // 2
    at_once = AT_ONCE if max(op.spec.head, op.spec.value_head) <= 64 else AT_ONCE // 2
    return 2 * op.batch * op.heads * pairs < 3 * filling(at_once) * (keys + queries)


def backward(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of both cotangents: of one kernel, or where the GPU has none for them those of each.

    Blocks of keys take semaphores, so what counts the semaphores is made 0 first.
    """
    op, tile = op_of(call), fused_tile(call, ctx.capability)
    if tile is None:
        for part in call.parts:
            yield from launches(part, ctx)
        return
    spec, ctx, heads = op.spec, ctx.of(attrs.evolve(call, parts=())), op.batch * op.heads
    count = semaphore_words(heads, op.queries)
    semaphores = ctx.scratch(4 * count)
    yield ctx.step(
        "volta_clear_semaphores", "clear", build_clear, -(-count // CLEAR_THREADS), CLEAR_THREADS, (semaphores, count),
        (), (semaphores,),
    )  # fmt: skip
    name = f"{kernel_name(LibraryKernel(BACKWARD, spec))}_{tile.suffix()}"
    launch = ctx.step(
        name, f"{BACKWARD} {spec} {tile}", lambda m, n: build_attention_backward(m, n, spec, tile),
        heads * -(-op.keys // tile.rows), tile.threads, [*words_of(call), semaphores],
        [x for x in call.accesses if x.buffer in call.reads],
        [*(x for x in call.accesses if x.buffer in call.writes), semaphores],
    )  # fmt: skip
    yield attrs.evolve(launch, shared=fused_bytes(spec, tile), alone=True)


def in_groups(call: KernelCall) -> bool:
    """Whether every operand with heads can be copied 16 bytes at a time."""
    spec = op_of(call).spec
    item = item_size(spec.dtype)
    if any(width * item % WIDE for width in (spec.head, spec.value_head)):
        return False
    for array, access in zip(Array, call.accesses, strict=True):
        if access.buffer is None or array in (Array.START, Array.MASK):
            continue
        if access.strides and any(n % WIDE for n in (access.offset, *access.strides)):
            return False
    return True
