"""How a matrix product is cut into launches and tasks on the CPU: pure data, decided from sizes and strides alone.

The bits of DOT do not depend on anything decided here. Each output element is the sum, in ascending order, of chunks of
`CHUNK` products; each chunk is one chain of FMAs in ascending k that starts at +0.0. Longer sums than `BLOCK` products
are cut into such blocks, which combine in a binary tree of adjacent pairs. Tiles, tasks, packing and threads only
choose which elements are computed when and by whom.
"""

import enum
from collections.abc import Sequence
from typing import Literal, get_args

import attrs

from volta.core.contract import DEFINITIONS

CHUNK = DEFINITIONS.dot_chunk
"""Length of one FMA chain, part of the definition of DOT."""

BLOCK = DEFINITIONS.dot_block
"""Products whose chunks are added one after the other, likewise."""

CHUNKS = BLOCK // CHUNK
"""Chunks of a block."""

_PAGE = 4096

Precision = Literal["default", "highest", "tf32", "bf16"]

_ITEM_SIZES = {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
_NARROW_FLOATS = ("float16", "bfloat16", "float32")


def item_size(dtype: str) -> int:
    """Bytes of one element in memory."""
    return _ITEM_SIZES[dtype]


@attrs.frozen
class DotSpec:
    """What one compiled dot kernel is for. Sizes and strides are run-time arguments, not part of it.

    `precision` "highest" takes float16, bfloat16 or float32 operands, multiplies and adds in float64, and rounds once.
    "tf32" and "bf16" are for tensor cores alone: no definition says their bits.
    `vector_bits` (512, 256 or 128) is the register width of the machine; it never changes a bit of the result.
    Raises ``ValueError`` for a combination that DOT does not define.
    """

    lhs: str
    rhs: str
    out: str
    precision: Precision = "default"
    vector_bits: int = 512

    def __attrs_post_init__(self) -> None:
        for dtype in (self.lhs, self.rhs, self.out):
            if dtype not in _ITEM_SIZES:
                raise ValueError(f"dot is not defined for {dtype}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {get_args(Precision)}, got {self.precision!r}")
        if self.vector_bits not in (128, 256, 512):
            raise ValueError(f"vector_bits must be 128, 256 or 512, got {self.vector_bits}")
        floats = [dtype in (*_NARROW_FLOATS, "float64") for dtype in (self.lhs, self.rhs, self.out)]
        if any(floats) != all(floats):
            raise ValueError(f"dot mixes integers and floats: {self.lhs} and {self.rhs} to {self.out}")
        if self.precision != "default" and not all(d in _NARROW_FLOATS for d in (self.lhs, self.rhs, self.out)):
            raise ValueError(
                f"precision {self.precision!r} is for float32 and narrower, got {self.lhs}, {self.rhs}, {self.out}"
            )
        if all(floats) and "float64" in (self.lhs, self.rhs) and self.out != "float64":
            raise ValueError(f"a float64 product must have a float64 result, got {self.out}")

    @property
    def accumulator(self) -> str:
        """The dtype in which products are formed and added."""
        if "int" in self.out:
            return "int64" if item_size(self.out) == 8 else "int32"  # sums wrap around, so the sign does not matter
        return "float64" if self.precision == "highest" or self.out == "float64" else "float32"

    @property
    def lanes(self) -> int:
        """Accumulators in one vector register."""
        return self.vector_bits // (8 * item_size(self.accumulator))

    @property
    def tile_rows(self) -> int:
        """Rows of the largest register tile; 32 registers leave room for 28 accumulators, 16 for 12."""
        return 14 if self.vector_bits == 512 else 6

    @property
    def tile_cols(self) -> int:
        """Columns of a register tile: two vectors."""
        return 2 * self.lanes

    @property
    def converts_lhs(self) -> bool:
        """Whether elements of the left operand must be converted before they are multiplied."""
        return _storage(self.lhs) != _storage(self.accumulator)

    @property
    def converts_rhs(self) -> bool:
        """Whether elements of the right operand must be converted before they are multiplied."""
        return _storage(self.rhs) != _storage(self.accumulator)

    @property
    def converts_out(self) -> bool:
        """Whether sums are kept apart from the output, and converted when they are complete."""
        return _storage(self.out) != _storage(self.accumulator)


def _storage(dtype: str) -> str:
    return dtype.removeprefix("u")


class Arg(enum.IntEnum):
    """Positions in the args block of both dot kernels. Strides are in bytes."""

    LHS = 0  # addresses
    RHS = 1
    OUT = 2
    PACKED = 3  # the packed right operand, written by the pack launch; 0 if there is none
    BATCH1 = 4  # sizes; the size of batch dimension 0 follows from the number of tasks
    M = 5
    N = 6
    K = 7
    LHS_BATCH0 = 8
    LHS_BATCH1 = 9
    LHS_M = 10
    LHS_K = 11
    RHS_BATCH0 = 12
    RHS_BATCH1 = 13
    RHS_K = 14
    RHS_N = 15
    OUT_BATCH0 = 16
    OUT_BATCH1 = 17
    OUT_M = 18  # the output's columns are contiguous
    PACKED_BATCH0 = 19
    PACKED_BATCH1 = 20
    TASK_ROWS = 21  # a task is this many rows ...
    TASK_COLS = 22  # ... and columns of one batch item; rows vary fastest, then columns, then batch
    BLOCK_ROWS = 23  # cache blocking inside a run of tasks
    BLOCK_COLS = 24
    LHS_MODE = 25  # a Mode: DIRECT or SCRATCH
    RHS_MODE = 26  # a Mode
    SCRATCH_LHS = 27  # byte offsets into the scratch memory; at 0 are the sums of one register tile
    SCRATCH_RHS = 28
    SCRATCH_OUT = 29
    SCRATCH_TREE = 30  # blocks of k that wait for their neighbours


class Mode(enum.IntEnum):
    """Where the inner loop reads an operand from."""

    DIRECT = 0  # where it lies
    SCRATCH = 1  # a copy that the same task makes
    TEMP = 2  # a copy that the pack launch made


OPERANDS = ("lhs", "rhs", "out", "packed")
"""What the first four arguments are: the plan binds the addresses."""


@attrs.frozen
class DotLaunch:
    """One launch: `kernel` is "pack", "dot" or "row" (a dot with M = 1).

    `args` is the args block from position 4 (``Arg.BATCH1``) on; the first four are the addresses of `OPERANDS`.
    """

    kernel: Literal["pack", "dot", "row"]
    tasks: int
    args: tuple[int, ...]


@attrs.frozen
class DotPlan:
    """The launches of one product, in order, and the memory they need.

    `temp_bytes` is one buffer that lives from the first launch to the last ("packed", 64-byte aligned);
    `scratch_bytes` is needed by each thread. With `swapped`, bind the right operand as "lhs" and the left as "rhs",
    and run kernels built for ``swap(spec)``.
    """

    launches: tuple[DotLaunch, ...]
    temp_bytes: int
    scratch_bytes: int
    swapped: bool = False


@attrs.frozen
class DotShape:
    """Sizes and byte strides of one product of (b0, b1, m, k) and (b0, b1, k, n).

    Two batch dimensions, each with any stride in each array (0 for an operand that lacks it); the output's columns
    are contiguous.
    """

    batch: tuple[int, int]
    m: int
    n: int
    k: int
    lhs_strides: tuple[int, int, int, int]  # b0, b1, m, k
    rhs_strides: tuple[int, int, int, int]  # b0, b1, k, n
    out_strides: tuple[int, int, int]  # b0, b1, m


def levels_of(k: int) -> int:
    """How many partial sums of blocks of k wait at once, at most, for those that they are added to."""
    return (max(1, -(-k // BLOCK)) - 1).bit_length()


def swap(spec: DotSpec) -> DotSpec:
    """The spec of the transposed product."""
    return attrs.evolve(spec, lhs=spec.rhs, rhs=spec.lhs)


def contiguous_shape(
    spec: DotSpec, batch: tuple[int, int], m: int, n: int, k: int, *, lhs_t: bool = False, rhs_t: bool = False
) -> DotShape:
    """The `DotShape` of row-major contiguous operands; with `lhs_t` the left one is stored as (k, m), and so on."""
    a, b, c = item_size(spec.lhs), item_size(spec.rhs), item_size(spec.out)
    lhs = (a, m * a) if lhs_t else (k * a, a)
    rhs = (b, k * b) if rhs_t else (n * b, b)
    return DotShape(
        batch, m, n, k,
        (batch[1] * m * k * a, m * k * a, *lhs), (batch[1] * k * n * b, k * n * b, *rhs),
        (batch[1] * m * n * c, m * n * c, n * c),
    )  # fmt: skip


def fold_batch(
    sizes: Sequence[int], lhs: Sequence[int], rhs: Sequence[int], out: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Merge any number of batch dimensions (sizes and byte strides of each array) to two.

    Returns sizes and strides of the two, or None where the strides do not allow it: then an operand must be copied.
    """
    dims: list[tuple[int, int, int, int]] = []
    for size, *strides in zip(sizes, lhs, rhs, out, strict=True):
        if size == 1:
            continue
        if dims and all(outer == size * inner for outer, inner in zip(dims[-1][1:], strides, strict=True)):
            dims[-1] = (dims[-1][0] * size, *strides)  # type: ignore[assignment]
        else:
            dims.append((size, *strides))  # type: ignore[arg-type]
    if len(dims) > 2:
        return None
    dims = [(1, 0, 0, 0)] * (2 - len(dims)) + dims
    first, second = dims
    return tuple((first[i], second[i]) for i in range(4))  # type: ignore[return-value]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _canonical(spec: DotSpec, s: DotShape) -> DotShape:
    """Strides of dimensions of size 1 as if contiguous, and rows of all batch items as one matrix where they are."""
    a, b = item_size(spec.lhs), item_size(spec.rhs)
    (b0, b1), (la0, la1, lm, lk), (rb0, rb1, rk, rn) = s.batch, s.lhs_strides, s.rhs_strides
    o0, o1, om = s.out_strides
    m = s.m
    lk, rn = (a if s.k == 1 else lk), (b if s.n == 1 else rn)
    rk = b if s.k == 1 and rn != b else rk
    if b1 > 1 and m >= 1 and rb1 == 0 and la1 == m * lm and o1 == m * om:
        m, b1, la1, o1 = m * b1, 1, 0, 0
    if b1 == 1 and b0 > 1 and rb0 == 0 and la0 == m * lm and o0 == m * om:
        m, b0, la0, o0 = m * b0, 1, 0, 0
    lm = a if m == 1 and lk != a else lm
    return DotShape((b0, b1), m, s.n, s.k, (la0, la1, lm, lk), (rb0, rb1, rk, rn), (o0, o1, om))


def tensor_args(spec: DotSpec, shape: DotShape) -> tuple[int, ...]:
    """The args block, from ``Arg.BATCH1`` on, of a product on tensor cores: one launch, nothing packed."""
    s = _canonical(spec, shape)
    args = (s.batch[1], s.m, s.n, s.k, *s.lhs_strides, *s.rhs_strides, *s.out_strides)
    return args + (0,) * (len(Arg) - len(OPERANDS) - len(args))


def dot_plan(spec: DotSpec, shape: DotShape) -> DotPlan:
    """Cut one product into launches. Depends on sizes and strides only, never on the number of threads."""
    s = _canonical(spec, shape)
    if s.n == 1 and s.m > 1 and s.out_strides[2] == item_size(spec.out):
        # A column is computed as a row: then vectors run along m, and x * y + z is the same number as y * x + z.
        lb0, lb1, lm, lk = s.lhs_strides
        rb0, rb1, rk, rn = s.rhs_strides
        turned = DotShape(s.batch, 1, s.m, s.k, (rb0, rb1, rn, rk), (lb0, lb1, lk, lm), s.out_strides)
        return attrs.evolve(_plan(swap(spec), _canonical(swap(spec), turned)), swapped=True)
    return _plan(spec, s)


def _plan(spec: DotSpec, s: DotShape) -> DotPlan:
    batches, m, n, k = s.batch[0] * s.batch[1], s.m, s.n, s.k
    if batches * m * n == 0:
        return DotPlan((), 0, 0)
    along_n, along_k = (stride == item_size(spec.rhs) for stride in reversed(s.rhs_strides[2:]))
    if m == 1 and k > 0 and n >= spec.tile_cols and (along_n or along_k):
        return _row_plan(spec, s)
    size, lanes = item_size(spec.accumulator), spec.lanes
    padded_n = _round_up(n, spec.tile_cols)
    rhs_bytes = _round_up(k, lanes) * padded_n * size

    # Tasks: rows where there are enough of them, else columns too; whole batch items where there are many.
    if (batches >= 16 and m <= 512) or m * n * k <= 1 << 14:
        task_rows, task_cols = m, padded_n
    elif m >= 64 or n <= 2 * spec.tile_cols:
        task_rows, task_cols = 8, padded_n
    else:
        task_rows, task_cols = m, 2 * spec.tile_cols
    tasks = batches * -(-m // task_rows) * -(-n // task_cols)

    direct_rhs = not spec.converts_rhs and along_n and n % lanes == 0
    block_rows, block_cols = 8 * spec.tile_rows, min(padded_n, 4096 // size)
    if direct_rhs and (m <= 32 or (k * n * size <= 1 << 16)):
        rhs_mode = Mode.DIRECT
    elif m <= 2 * spec.tile_rows or (rhs_bytes <= (1 << 19 if batches >= 16 else 1 << 16) and m <= 512):
        rhs_mode = Mode.SCRATCH
        block_rows = _round_up(m, spec.tile_rows)
    else:
        rhs_mode = Mode.TEMP
    if m <= 2 * spec.tile_rows:
        block_cols = min(block_cols, spec.tile_cols)
    lhs_mode = Mode.SCRATCH if spec.converts_lhs or _copy_pays(s) else Mode.DIRECT

    scratch_lhs = spec.tile_rows * spec.tile_cols * size
    scratch_rhs = scratch_lhs + CHUNK * _round_up(spec.tile_rows, lanes) * size * (lhs_mode is Mode.SCRATCH)
    scratch_out = scratch_rhs + (CHUNK * block_cols * size if rhs_mode is Mode.SCRATCH else 0)
    block_bytes = block_rows * block_cols * size
    scratch_tree = scratch_out + (block_bytes if spec.converts_out else 0)

    packed_strides, temp = (0, 0), 0
    if rhs_mode is Mode.TEMP:
        shared = [stride == 0 or count == 1 for stride, count in zip(s.rhs_strides[:2], s.batch, strict=True)]
        inner = 1 if shared[1] else s.batch[1]
        packed_strides = (0 if shared[0] else inner * rhs_bytes, 0 if shared[1] else rhs_bytes)
        temp = rhs_bytes * inner * (1 if shared[0] else s.batch[0])
    args = (
        s.batch[1], m, n, k, *s.lhs_strides, *s.rhs_strides, *s.out_strides, *packed_strides,
        task_rows, task_cols, block_rows, block_cols, int(lhs_mode), int(rhs_mode),
        scratch_lhs, scratch_rhs, scratch_out, scratch_tree,
    )  # fmt: skip
    launches = [DotLaunch("dot", tasks, args)]
    if temp:
        # Packing visits each distinct item once: a batch dimension that the operand lacks has size 1 there.
        pack_args = (1 if packed_strides[1] == 0 else s.batch[1], *args[1:])
        launches.insert(0, DotLaunch("pack", (temp // rhs_bytes) * (padded_n // spec.tile_cols), pack_args))
    return DotPlan(tuple(launches), temp, scratch_tree + levels_of(k) * block_bytes)


def _copy_pays(s: DotShape) -> bool:
    """Whether tiles of the left operand should be copied though they could be read where they lie.

    Rows a multiple of a page apart push each other out of the nearest cache, and a stride of pages along k needs too
    many address translations; each copy is used once for every panel of columns.
    """
    row, k = (abs(stride) for stride in s.lhs_strides[2:])
    if row > k:
        return s.n > 32 and s.m > 1 and (row + 63) % _PAGE < 127
    return s.n > 64 and s.k > 1 and k >= _PAGE


def _row_plan(spec: DotSpec, s: DotShape) -> DotPlan:
    """One row times a matrix: tasks are columns, blocked so that their sums stay in the nearest cache."""
    size, batches = item_size(spec.accumulator), s.batch[0] * s.batch[1]
    task_cols = 4 * spec.tile_cols
    block_cols = min(_round_up(s.n, spec.lanes), 8192 // size)
    further = block_cols * size
    waiting = further + max(further, CHUNK * spec.vector_bits // 8)
    args = (
        s.batch[1], 1, s.n, s.k, *s.lhs_strides, *s.rhs_strides, *s.out_strides, 0, 0,
        1, task_cols, 1, block_cols, int(Mode.DIRECT), int(Mode.DIRECT), further, 0, 0, waiting,
    )  # fmt: skip
    launch = DotLaunch("row", batches * -(-s.n // task_cols), args)
    return DotPlan((launch,), 0, waiting + levels_of(s.k) * further)
