"""How a matrix product is cut into launches and tasks on the CPU: pure data, decided from sizes and strides alone.

Tiles, tasks, packing and threads only choose which elements are computed when and by whom: the bits are those of DOT
(volta/xla_like/dot.py) whatever is decided here.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs

from volta.core.block_formats import BlockFormat
from volta.emit.args import laid_out
from volta.emit.dot_args import Arg, dot_words
from volta.numba_cpu.launches import Launch
from volta.numba_cpu.target import has_byte_products
from volta.xla_like.dot import CHUNK, Dot, DotSpec, DotStrides, item_size, levels_of, strides_of
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.plan import Buffer
from volta.xla_like.views import Ints

_PAGE = 4096
_WORD = 4

PIECES = 2
"""Of a thread's tasks that are whole rows: each piece reads the whole right operand."""

WIDE_PIECES = 4
"""Of a thread's tasks that are some columns of rows."""

COLUMN_BYTES = 2048
"""Of a large product tasks are so many bytes of columns: a chunk of 256 of them is half a megabyte, and threads that
share out rows and columns read less of both operands than those that share out rows. With rows of two tiles and
`WIDE_PIECES` 16 threads multiply matrices of 2,048 in 10.9 ms and of 1,024 in 1.7 where whole rows took 14.3 and 2.1
(medians; a Xeon of 2 MiB a core)."""

ROW_STRIPS = 4
"""Vectors of columns of a row's tile times weights in blocks: so many chains hide the latency of a link."""

TASK_TILES = 2
"""Register tiles of rows in a task of a product that is cut so."""

WIDE_TILES = 4
"""Tiles of a task of many rows times weights in blocks: rows of the left operand are copied once for so many. 128 rows
times 5,632 columns took 14.9 ms instead of 18.1 (one core with vectors of 512 bits)."""

PACK_PANELS = 8
"""Register tiles of columns in a task that packs the right operand, of one chunk of k: rows are read in long pieces."""

LARGE_ROWS = 512
"""Rows of a product that is cut so, at least: there are rows enough for threads."""


@attrs.frozen
class TileSpec(DotSpec):
    """What one compiled kernel of the CPU is for: `vector_bits` (512, 256 or 128) is the width of its registers.
    ``parts``: whether of an operand every other element is read, as of complex numbers."""

    vector_bits: int = 512
    parts: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.vector_bits not in (128, 256, 512):
            raise ValueError(f"vector_bits must be 128, 256 or 512, got {self.vector_bits}")

    @classmethod
    def of(cls, spec: DotSpec, vector_bits: int, parts: bool = False) -> TileSpec:
        return cls(spec.lhs, spec.rhs, spec.out, spec.precision, vector_bits, parts=parts)

    quads: ClassVar[bool] = False
    """Whether kernels read four bytes that are neighbours in k as one word; see `QuadSpec`."""

    @property
    def left(self) -> str:
        """As what kernels read the left operand."""
        return "int32" if self.quads else self.lhs

    @property
    def right(self) -> str:
        """As what they read the right one."""
        return "int32" if self.quads else self.rhs

    @property
    def lanes(self) -> int:
        """Accumulators in one vector register."""
        return self.vector_bits // (8 * item_size(self.accumulator))

    @property
    def tile_rows(self) -> int:
        """Rows of the largest register tile; 32 registers hold 28 accumulators, 16 for 12."""
        return 14 if self.vector_bits == 512 else 6

    @property
    def tile_cols(self) -> int:
        """Columns of a register tile: two vectors."""
        return 2 * self.lanes

    @property
    def converts_lhs(self) -> bool:
        """Whether elements of the left operand must be converted before they are multiplied."""
        return _storage(self.left) != _storage(self.accumulator)

    @property
    def converts_rhs(self) -> bool:
        """Whether elements of the right operand must be converted before they are multiplied."""
        return _storage(self.right) != _storage(self.accumulator)

    @property
    def converts_out(self) -> bool:
        """Whether sums are kept apart from the output, and converted when they are complete."""
        return _storage(self.out) != _storage(self.accumulator)


@attrs.frozen
class QuadSpec(TileSpec):
    """A product of int8 with sums in int32, both operands along k: a word is four numbers of each, whose products
    processors add up by themselves, those of the left operand `flipped` (`dot_bytes`). Sizes and strides of k are those
    of words."""

    flipped: bool = False
    quads: ClassVar[bool] = True

    @property
    def tile_rows(self) -> int:
        """Fewer: what words are taken apart to, or corrected by, is in registers as well."""
        return 12 if self.vector_bits == 512 else 4


_SHORT = 1 << 12
"""Products up to which words do not pay."""


def for_tiles(dot: Dot, strides: DotStrides, vector_bits: int) -> tuple[TileSpec, Dot, DotStrides]:
    """What kernels are for, and the product as they see it."""
    spec, (*_, lhs_k), (*_, rhs_k, _) = dot.spec, strides.lhs, strides.rhs
    quads = (spec.lhs, spec.rhs, spec.accumulator) == ("int8", "int8", "int32") and lhs_k == rhs_k == 1
    counts = (*dot.batch, dot.m, *dot.batch, dot.n)
    steps = zip((*strides.lhs[:3], *strides.rhs[:2], strides.rhs[3]), counts, strict=True)
    if not quads or dot.k % 4 or any(step % 4 for step, count in steps if count > 1) or dot.m * dot.n * dot.k < _SHORT:
        operands = ((spec.lhs, strides.lhs[2:]), (spec.rhs, strides.rhs[2:]))
        parts = any(dtype in ("float32", "float64") and min(s) == 2 * item_size(dtype) for dtype, s in operands)
        return TileSpec.of(spec, vector_bits, parts), dot, strides
    words = DotStrides((*strides.lhs[:3], 4), (*strides.rhs[:2], 4, strides.rhs[3]), strides.out)
    quad = QuadSpec(spec.lhs, spec.rhs, spec.out, spec.precision, vector_bits, has_byte_products())
    return quad, attrs.evolve(dot, k=dot.k // 4), words


def _storage(dtype: str) -> str:
    return dtype.removeprefix("u")


class Tiling(enum.IntEnum):
    """Positions in the args block behind those of `Arg`: what the kernels are told besides sizes and strides.

    `Arg.WORKSPACE` is the packed right operand, written by the pack launch; 0 if there is none. Strides are in bytes.
    """

    PACKED_BATCH0 = len(Arg)
    PACKED_BATCH1 = len(Arg) + 1
    TASK_ROWS = len(Arg) + 2  # a task is this many rows ...
    TASK_COLS = len(Arg) + 3  # ... and columns of one batch item; rows vary fastest, then columns, then batch
    BLOCK_ROWS = len(Arg) + 4  # cache blocking inside a run of tasks
    BLOCK_COLS = len(Arg) + 5
    LHS_MODE = len(Arg) + 6  # a Mode: DIRECT or SCRATCH
    RHS_MODE = len(Arg) + 7  # a Mode
    SCRATCH_LHS = len(Arg) + 8  # byte offsets into the scratch memory; at 0 are the sums of one register tile
    SCRATCH_RHS = len(Arg) + 9
    SCRATCH_OUT = len(Arg) + 10
    SCRATCH_TREE = len(Arg) + 11  # blocks of k that wait for their neighbours


class Mode(enum.IntEnum):
    """Where the inner loop reads an operand from."""

    DIRECT = 0  # where it lies
    SCRATCH = 1  # a copy that the same task makes
    WORKSPACE = 2  # a copy that the pack launch made


@attrs.frozen
class DotLaunch:
    """One launch: `kernel` is "pack", "dot", "row" (a dot with M = 1), "block_row" (that with weights in blocks) or
    "block_words" (whose rows are interleaved); `batch1`: items of the inner batch dimension that it visits; `tiling`
    are the words of `Tiling`."""

    kernel: Literal["pack", "dot", "row", "block_row", "block_words"]
    tasks: int
    batch1: int
    tiling: tuple[int, ...]

    def __getitem__(self, which: Tiling) -> int:
        return self.tiling[which - len(Arg)]

    @property
    def name(self) -> str:
        """Of the kernel, among those of the backend."""
        return "dot" if self.kernel == "dot" else f"dot_{self.kernel}"


@attrs.frozen
class DotPlan:
    """The launches of one product, in order, and the memory they need.

    `workspace_bytes` is one buffer that lives from the first launch to the last (64-byte aligned); `scratch_bytes` is
    needed by each thread.
    """

    launches: tuple[DotLaunch, ...]
    workspace_bytes: int
    scratch_bytes: int


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@functools.lru_cache(256)
def dot_plan(dot: Dot, strides: DotStrides, vector_bits: int, whole_rows: bool = False) -> DotPlan:
    """Cut one product into launches, each of whose tasks are ``whole_rows`` where that is asked for.

    Depends on sizes and strides only, never on the number of threads.
    """
    spec, dot, strides = for_tiles(dot, strides, vector_bits)
    m, n, k = dot.m, dot.n, dot.k
    batches = dot.batches
    if batches * m * n == 0:
        return DotPlan((), 0, 0)
    if spec.blocks is not None:
        return _block_row_plan(spec, dot) if m == 1 and k > 0 else _blocks_plan(spec, dot, _copy_pays(dot, strides.lhs))
    along_n, along_k = (stride == item_size(spec.right) for stride in reversed(strides.rhs[2:]))
    if m == 1 and k > 0 and n >= spec.tile_cols and (along_n or along_k):
        return _row_plan(spec, dot)
    size, lanes = item_size(spec.accumulator), spec.lanes
    padded_n = _round_up(n, spec.tile_cols)
    rhs_bytes = _round_up(k, lanes) * padded_n * size

    # Tasks: rows where there are enough of them, else columns too; whole batch items where there are many.
    columns = COLUMN_BYTES // size
    by_columns = not whole_rows and batches < 16 and m >= LARGE_ROWS and n > columns
    if (batches >= 16 and m <= 512) or m * n * k <= 1 << 14:
        task_rows, task_cols = m, padded_n
    elif by_columns:
        task_rows, task_cols = TASK_TILES * spec.tile_rows, columns
    elif m >= 64 or n <= 2 * spec.tile_cols:
        task_rows, task_cols = 8, padded_n
    else:
        task_rows, task_cols = m, 2 * spec.tile_cols
    tasks = batches * -(-m // task_rows) * -(-n // task_cols)

    direct_rhs = not spec.converts_rhs and along_n and n % lanes == 0
    block_rows, block_cols = 8 * spec.tile_rows, min(padded_n, columns if by_columns else 4096 // size)
    if direct_rhs and (m <= 32 or (k * n * size <= 1 << 16)):
        rhs_mode = Mode.DIRECT
    elif m <= 2 * spec.tile_rows or (rhs_bytes <= (1 << 19 if batches >= 16 else 1 << 16) and m <= 512):
        rhs_mode = Mode.SCRATCH
        block_rows = _round_up(m, spec.tile_rows)
    else:
        rhs_mode = Mode.WORKSPACE
    if m <= 2 * spec.tile_rows:
        block_cols = min(block_cols, spec.tile_cols)
    lhs_mode = Mode.SCRATCH if spec.converts_lhs or spec.quads or _copy_pays(dot, strides.lhs) else Mode.DIRECT

    scratch_lhs = spec.tile_rows * spec.tile_cols * size
    scratch_rhs = scratch_lhs + CHUNK * _round_up(spec.tile_rows, lanes) * size * (lhs_mode is Mode.SCRATCH)
    scratch_out = scratch_rhs + (CHUNK * block_cols * size if rhs_mode is Mode.SCRATCH else 0)
    block_bytes = block_rows * block_cols * size
    scratch_tree = scratch_out + (block_bytes if spec.converts_out else 0)

    packed_strides, temp = (0, 0), 0
    if rhs_mode is Mode.WORKSPACE:
        shared = [stride == 0 or count == 1 for stride, count in zip(strides.rhs[:2], dot.batch, strict=True)]
        inner = 1 if shared[1] else dot.batch[1]
        packed_strides = (0 if shared[0] else inner * rhs_bytes, 0 if shared[1] else rhs_bytes)
        temp = rhs_bytes * inner * (1 if shared[0] else dot.batch[0])
    tiling = (
        *packed_strides, task_rows, task_cols, block_rows, block_cols, int(lhs_mode), int(rhs_mode),
        scratch_lhs, scratch_rhs, scratch_out, scratch_tree,
    )  # fmt: skip
    launches = [DotLaunch("dot", tasks, dot.batch[1], tiling)]
    if temp:
        # Packing visits each distinct item once: a batch dimension that the operand lacks has size 1 there.
        inner = 1 if packed_strides[1] == 0 else dot.batch[1]
        pack_tasks = -(-k // CHUNK) * -(-n // (PACK_PANELS * spec.tile_cols))
        launches.insert(0, DotLaunch("pack", (temp // rhs_bytes) * pack_tasks, inner, tiling))
    return DotPlan(tuple(launches), temp, scratch_tree + levels_of(k) * block_bytes)


def _blocks_plan(spec: TileSpec, dot: Dot, copies_lhs: bool) -> DotPlan:
    """Rows times weights in blocks: tasks are columns, whose weights are unpacked once, a chunk at a time."""
    size, block_rows = item_size(spec.accumulator), _round_up(dot.m, spec.tile_rows)
    tiles = WIDE_TILES if dot.m >= spec.tile_rows and dot.n >= 16 * WIDE_TILES * spec.tile_cols else 1
    columns = tiles * spec.tile_cols
    scratch_lhs = spec.tile_rows * columns * size
    scratch_rhs = scratch_lhs + CHUNK * _round_up(spec.tile_rows, spec.lanes) * size * copies_lhs
    scratch_tree = scratch_rhs + CHUNK * columns * size
    lhs_mode = Mode.SCRATCH if copies_lhs else Mode.DIRECT
    tiling = (
        0, 0, dot.m, columns, block_rows, columns, int(lhs_mode), int(Mode.SCRATCH), scratch_lhs, scratch_rhs,
        scratch_tree, scratch_tree,
    )  # fmt: skip
    launch = DotLaunch("dot", -(-dot.n // columns), 1, tiling)
    return DotPlan((launch,), 0, scratch_tree + levels_of(dot.k) * block_rows * columns * size)


def strip_bytes(fmt: BlockFormat, lanes: int) -> int:
    """Of the words of a chunk of weights in blocks, `lanes` columns of them."""
    return -(-(CHUNK // fmt.elements * fmt.nbytes) // _WORD) * _WORD * lanes


def _block_row_plan(spec: TileSpec, dot: Dot) -> DotPlan:
    """One row times weights in blocks: tasks are tiles of columns, and two chunks of one wait as words, where these do
    not lie so in memory."""
    assert spec.blocks is not None
    columns, words = ROW_STRIPS * spec.lanes, spec.blocks.rows > 1
    waiting = 0 if words else 2 * ROW_STRIPS * strip_bytes(spec.blocks, spec.lanes)
    tiling = (0, 0, 1, columns, 1, columns, int(Mode.DIRECT), int(Mode.DIRECT), 0, 0, waiting, waiting)
    launch = DotLaunch("block_words" if words else "block_row", -(-dot.n // columns), 1, tiling)
    return DotPlan((launch,), 0, waiting + levels_of(dot.k) * columns * item_size(spec.accumulator))


def _copy_pays(dot: Dot, lhs: Ints) -> bool:
    """Whether tiles of the left operand should be copied though they could be read where they lie.

    Rows a multiple of a page apart push each other out of the nearest cache, and a stride of pages along k needs too
    many address translations; each copy is used once for every panel of columns.
    """
    row, k = (abs(stride) for stride in lhs[2:])
    if row > k:
        return dot.n > 32 and dot.m > 1 and (row + 63) % _PAGE < 127
    return dot.n > 64 and dot.k > 1 and k >= _PAGE


def _row_plan(spec: TileSpec, dot: Dot) -> DotPlan:
    """One row times a matrix: tasks are columns, blocked so that their sums stay in the nearest cache."""
    size, batches = item_size(spec.accumulator), dot.batches
    task_cols = 4 * spec.tile_cols
    block_cols = min(_round_up(dot.n, spec.lanes), 8192 // size)
    further = block_cols * size
    waiting = further + max(further, CHUNK * spec.vector_bits // 8)
    tiling = (
        0, 0, 1, task_cols, 1, block_cols, int(Mode.DIRECT), int(Mode.DIRECT), further, 0, 0, waiting,
    )  # fmt: skip
    launch = DotLaunch("row", batches * -(-dot.n // task_cols), dot.batch[1], tiling)
    return DotPlan((launch,), 0, waiting + levels_of(dot.k) * further)


def plan_of(call: KernelCall, vector_bits: int, whole_rows: bool = False) -> DotPlan:
    """How a call of `Dot` is cut."""
    assert isinstance(call.kernel, Dot)
    return dot_plan(call.kernel, strides_of(call), vector_bits, whole_rows)


def workspace(call: KernelCall, vector_bits: int) -> int:
    """Bytes for the packed right operand of a call."""
    return plan_of(call, vector_bits).workspace_bytes


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer], whole_rows: bool = False) -> list[Launch]:
    """What packs the right operand of a call, where that pays, and what multiplies."""
    assert isinstance(call.kernel, Dot)
    plan = plan_of(call, vector_bits, whole_rows)
    spec, dot, strides = for_tiles(call.kernel, strides_of(call), vector_bits)
    sizes = dot_words(dot, strides)
    lhs, rhs, out = call.accesses
    absent = Access(None, 0, ())
    packed = absent if call.workspace is None else Access(call.workspace, 0, ())
    found = []
    for launch in plan.launches:
        arrays = (absent, rhs, absent) if launch.kernel == "pack" else (lhs, rhs, out)
        words, addresses = laid_out((*arrays, packed, launch.batch1, *sizes[1:], *launch.tiling))
        kernel = LibraryKernel(launch.name, spec)
        pieces = WIDE_PIECES if launch[Tiling.TASK_COLS] < call.kernel.n else PIECES
        found.append(Launch(kernel, call, words, addresses, launch.tasks, plan.scratch_bytes, pieces=pieces))
    return found
