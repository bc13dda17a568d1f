"""Which kernel a product runs, and how it is shared out: decided from sizes and strides alone, never by measuring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs

from volta.numba_cuda.processors import filling
from volta.numba_cuda.products.dot_block_parts import unit_of
from volta.numba_cuda.products.dot_build import shared_bytes
from volta.numba_cuda.products.dot_epilogue import fits
from volta.numba_cuda.products.dot_problem import Problem
from volta.numba_cuda.products.dot_split import part_sizes, slots_of
from volta.numba_cuda.products.dot_stream import StreamVariant, span_of, streams
from volta.numba_cuda.products.dot_tile import Along, DotVariant, OperandLayout, Tile
from volta.numba_cuda.products.dot_unpack import UnpackVariant
from volta.numba_cuda.products.dot_vector import VectorVariant
from volta.xla_like.dot import BLOCK, CHUNK, CHUNKS, Dot, DotSpec, item_size, levels_of
from volta.xla_like.kernels import Access


@attrs.frozen
class _Chip:
    """A GPU: multiprocessors, shared memory of a block and of a multiprocessor, asynchronous copies, and the k of
    the best instruction of its float64 tensor cores (0: they do not pay)."""

    processors: int
    block_bytes: int
    processor_bytes: int
    direct: bool
    mma: int


_CHIPS = {
    "7.0": _Chip(80, 96 << 10, 96 << 10, False, 0),
    "7.5": _Chip(68, 64 << 10, 64 << 10, False, 0),
    "8.0": _Chip(108, 163 << 10, 164 << 10, True, 4),
    "8.6": _Chip(84, 99 << 10, 100 << 10, True, 0),
    "8.9": _Chip(128, 99 << 10, 100 << 10, True, 0),
    "9.0": _Chip(132, 227 << 10, 228 << 10, True, 8),
}


def _chip(capability: str) -> _Chip:
    chip = _CHIPS[capability.removesuffix("a")]
    return attrs.evolve(chip, processors=filling(chip.processors))


_Rates = dict[Tile, tuple[float, float, float, float]]

_FMA: _Rates = {
    Tile(128, 128, 8, 16, 8, stages=3, blocks=2): (55.0, 54.2, 53.5, 51.7),
    Tile(128, 128, 16, 8, 8, stages=3, blocks=1): (51.8, 51.1, 50.3, 49.5),
    Tile(64, 128, 16, 8, 8, stages=3, blocks=2): (52.5, 50.9, 49.8, 47.3),
    Tile(64, 64, 16, 8, 8, stages=3, blocks=4): (48.5, 47.4, 44.8, 44.6),
    Tile(32, 64, 16, 8, 4, stages=3, blocks=6): (45, 43.7, 39, 34),
    Tile(32, 64, 16, 4, 4, stages=2, blocks=4): (40, 37, 31.7, 30),
    Tile(16, 64, 16, 4, 4, stages=2, blocks=8): (38, 36.6, 25.5, 24),
}
_FMA_LONG: _Rates = {
    Tile(64, 64, 8, 4, 4, stages=2, blocks=2): (20, 20, 20, 20),
    Tile(32, 32, 8, 4, 4, stages=2, blocks=4): (14, 14, 14, 14),
}
_MMA: _Rates = {
    Tile(64, 128, 16, 8, 8, stages=3, blocks=2, mma=8): (58.4, 58.1, 54.4, 52.7),
    Tile(128, 128, 16, 8, 8, stages=3, blocks=1, mma=8): (58.3, 57.5, 58, 55.7),
    Tile(64, 64, 16, 8, 8, stages=3, blocks=4, mma=8): (52, 52, 50, 49),
    Tile(32, 64, 16, 4, 4, stages=3, blocks=4, mma=8): (42, 40, 40, 38),
}
_MMA_LONG: _Rates = {
    Tile(128, 128, 8, 8, 8, stages=4, blocks=1, mma=8): (54, 55, 53, 52),
    Tile(64, 128, 8, 8, 8, stages=3, blocks=2, mma=8): (50, 50, 49, 31),
    Tile(64, 128, 8, 8, 4, stages=4, blocks=1, mma=8): (50, 50, 49, 31),
    Tile(64, 64, 8, 8, 8, stages=3, blocks=2, mma=8): (43, 43, 43, 30),
    Tile(32, 64, 8, 4, 4, stages=3, blocks=4, mma=8): (35, 35, 35, 28),
}
"""Tiles, and how many TFLOP/s an H200 makes of them where there is work for all of it: with neither operand along k,
the left one, the right one, both. Whole numbers below 50 are estimates."""

_BYTES_A_SECOND, _LAUNCH = 2.5e12, 4e-6
"""What the scratch memory of a product in parts and its second launch cost."""

_HANDED_A_SECOND, _HANDOVER = 7e12, 3e-6
"""What serial split-K costs: totals are read and written, and a tile's blocks wait for each other."""

_HALVED = 20e-6
"""What it costs besides that tiles are computed by halves."""

_ENDS = 0.07
"""Of the time of a chunk: what it takes to begin and end a tile of `_MANY` sums a thread."""

_AT_ONCE = 3
"""So many blocks may be at a tile at once: more of them wait long for each other."""

_FEW, _SLICED, _SLOWER = 2, 2.5e-6, 1.06
"""Tiles for each multiprocessor up to which chunks of a tile are computed side by side, and what that costs: the sums
are added, and the groups of threads wait for each other."""

_OTHERS = 80
"""Registers of a thread besides its sums."""

_MANY = 128
"""Sums of a thread from which few warps keep a multiprocessor busy."""

_HELD = 64
"""Chunks of k of weights in blocks whose sums a block of threads holds at once, at most."""

_CUT = 1.05
"""Tiles are cut only where that should be faster by this."""


def blocks_of(tile: Tile, dot: Dot) -> int:
    return dot.batches * -(-dot.m // tile.rows) * -(-dot.n // tile.cols)


@attrs.frozen
class DotChoice:
    """How a product runs: its kernel, tiles that one block computes each, and of the others the chunks of a part (0:
    there are no others, or they are computed by serial split-K). Such whole tiles share ``tree_slots``, where they need
    any."""

    variant: DotVariant
    whole: int
    per: int = 0
    tree_slots: int = 1


def choose_vector(problem: Problem, capability: str) -> VectorVariant | None:
    """The kernel for few rows times a matrix of many columns, where the matrix lies so that it can be read at speed."""
    dot, (*_, rhs_k, rhs_n) = problem.dot, problem.rhs.strides
    chip, chunks, size = _chip(capability), -(-dot.k // CHUNK), item_size(dot.spec.rhs)
    if dot.m > 8 or not dot.k or dot.n < 32:
        return None
    rows = 1 << (dot.m - 1).bit_length()
    beside = min(16 if rows <= 2 else 8, 1 << (chunks - 1).bit_length())
    made = partial(VectorVariant, rows, beside, levels=_places(dot.k), epilogue=problem.epilogue)
    options: list[VectorVariant] = []
    if rhs_n == size:
        wides = (wide for wide in (4, 2, 1) if dot.n % wide == 0)
        options = [made(w, "line") for w in wides if w == 1 or problem.aligned(w * size, problem.rhs, rhs_k)]
    elif rhs_k == size and chip.direct and problem.aligned(16, problem.rhs, rhs_n):
        options = [made(1, "k", pieces) for pieces in (3, 2)]
    fitting = [v for v in options if v.shared_bytes(dot.spec) <= chip.block_bytes]
    if rhs_n == size:
        fitting = [v for v in fitting if v.blocks(dot.n, dot.batches) >= chip.processors] or fitting[-1:]
    found = next(iter(fitting), None)
    if found is not None and (found.blocks(dot.n, dot.batches) >= 16 or chunks <= 8):
        return attrs.evolve(found, together=_together(problem, found.wide))
    return None


def _places(k: int) -> int:
    """For how many levels of DOT's tree shared memory has places: one kernel serves many k."""
    levels = levels_of(k)
    return levels and max(4, 1 << (levels - 1).bit_length())


def choose_unpack(problem: Problem, capability: str, columns: int) -> tuple[StreamVariant | UnpackVariant, int]:
    """The kernel for few rows times weights in blocks of few bits, and its blocks of threads, where so many columns are
    computed side by side."""
    stream = _choose_stream(problem, capability)
    if stream is not None:
        n, processors = problem.dot.n, _chip(capability).processors
        return stream, max(1, min(processors * n // columns, stream.tiles(n)))
    unpack = _choose_in_blocks(problem, capability)
    return unpack, unpack.blocks(problem.dot.n)


def _choose_stream(problem: Problem, capability: str) -> StreamVariant | None:
    """The kernel whose bytes stream through Hopper's multiprocessors, where they have room for the rows and for two
    parts of each warp."""
    dot, chip, fmt = problem.dot, _chip(capability), problem.dot.spec.blocks
    assert fmt is not None
    far = problem.rhs.strides[3]
    if capability != "9.0a" or dot.k % CHUNK or not streams(fmt) or unit_of(fmt, far) != 16:
        return None
    if max(dot.n, abs(far)) >= 1 << 30:  # counted in 32 bits
        return None
    rows, chunks = 1 << (dot.m - 1).bit_length(), dot.k // CHUNK
    made = partial(StreamVariant, rows, chunks, stages=2, span=span_of(chunks), epilogue=problem.epilogue)
    # Two columns a lane share what is read of the left operand: of a token of 7 billion parameters 0.94 of the time
    # (H200, one row). More rows have no registers for them.
    shapes = [(8, 2)] * (rows == 1) + [(16, 1), (12, 1), (8, 1)]
    options = (made(warps=warps, wide=wide) for warps, wide in shapes)
    found = next((v for v in options if v.shared_bytes(dot.spec) <= chip.block_bytes), None)
    return found and attrs.evolve(found, dense=found.segments == 1 and found.part_bytes(fmt) == found.pitch(fmt) == far)


def _choose_in_blocks(problem: Problem, capability: str) -> UnpackVariant:
    """The kernel whose blocks share out k: warps for all chunks, as many as leave room for a second block beside; a
    warp that takes several has the next one's bytes copied meanwhile, where they find room."""
    dot, chip, fmt = problem.dot, _chip(capability), problem.dot.spec.blocks
    assert fmt is not None
    rows, chunks = 1 << (dot.m - 1).bit_length(), -(-dot.k // CHUNK)
    full, levels = dot.k % CHUNK == 0, _places(dot.k)
    unit = unit_of(fmt, problem.rhs.strides[3])
    many = min(CHUNKS, 1 << (chunks - 1).bit_length())
    held = many if chunks <= CHUNKS or rows > 2 else _HELD
    options = [
        UnpackVariant(rows, warps, stages, held, unit, full, levels, problem.epilogue)
        for warps in (many, many // 2, many // 4, 1)
        if warps
        for stages in ((2, 1) if chunks > warps else (1,))
    ]
    blocks = -(-options[0].blocks(dot.n) // chip.processors)  # of a multiprocessor
    beside = min(2, blocks)
    return next((v for v in options if beside * v.shared_bytes(dot.spec) <= chip.block_bytes), options[-1])


def choose(problem: Problem, capability: str) -> DotChoice:
    """The tile that should finish first, whether some tiles are cut, and how the operands get into them."""
    chip, spec = _chip(capability), problem.dot.spec
    if chip.mma and spec.accumulator == "float64":
        table = _MMA_LONG if "float64" in (spec.lhs, spec.rhs) else _MMA
        tiles = {attrs.evolve(tile, mma=chip.mma): rates for tile, rates in table.items()}
    else:
        tiles = _FMA_LONG if item_size(spec.accumulator) == 8 else _FMA
    found = [way for tile, rates in tiles.items() for way in _ways(problem, chip, tile, rates)]
    assert found, (spec, capability)
    return min(found, key=lambda way: way[0])[1]


def _ways(
    problem: Problem, chip: _Chip, tile: Tile, rates: tuple[float, float, float, float]
) -> Iterator[tuple[float, DotChoice]]:
    """How a product can run in tiles of a kind, and the seconds that should take."""
    dot, spec = problem.dot, problem.dot.spec
    v = _variant(problem, chip, tile)
    nbytes, size, many = shared_bytes(spec, v), item_size(spec.accumulator), _sums(tile) >= _MANY
    if nbytes > chip.block_bytes:
        return
    rate = rates[(v.lhs.along == "k") + 2 * (v.rhs.along == "k")]
    blocks, chunks = blocks_of(tile, dot), -(-dot.k // CHUNK)
    held = max(1, min(tile.blocks, chip.processor_bytes // (nbytes + 1024)))
    slots = held * chip.processors
    waves, rest = divmod(blocks, slots)
    if v.short and many:
        rate *= 0.9  # sums are written from registers in a row, in the banks of their operands
    if v.short:
        rate *= min(1.0, 0.8 + 0.1 * held)  # short blocks need others beside them while they begin and end
    chunk = 2e-12 * tile.rows * tile.cols * CHUNK * chip.processors / rate  # seconds of one multiprocessor
    beside = -(-rest // chip.processors)
    last = beside / _pace(tile, beside)
    if waves and rest and many:
        last = held  # blocks that began together end together, and the next begin where these have ended
    ends = _ENDS if many or held == 1 else 0.0
    most = slots + slots // 2  # tree_slots: nobody waits for a block that began a wave and a half before
    alone = DotChoice(v, blocks)
    if v.long and blocks > most:
        alone = DotChoice(attrs.evolve(v, serial=True, halves=True), blocks, tree_slots=most)
    yield (waves * held + last) * chunk * (max(1, chunks) + ends), alone
    for slices in _slices(spec, tile, dot.k, blocks, chip):
        sliced = attrs.evolve(v, tile=attrs.evolve(tile, stages=3), slices=slices)
        if shared_bytes(spec, sliced) <= chip.block_bytes:
            cost = -(-blocks // chip.processors) * chunks * chunk / _pace(tile, slices)
            yield _SLOWER * cost + _SLICED, DotChoice(sliced, blocks)
    if chunks <= 1:
        return
    if waves and rest and (many or tile.mma):
        taken = rest + min(slots, blocks - rest)
        cost = (blocks * (chunks + ends) / slots + 0.5) * held * chunk  # no wave but the last one ends early
        moved = 2 * taken * (chunks.bit_length() - 1) * tile.rows * tile.cols * size
        halved = attrs.evolve(v, serial=True, halves=True)
        tree_slots = max(1, min(blocks - taken, most))
        yield cost + moved / _HANDED_A_SECOND + _HALVED, DotChoice(halved, blocks - taken, tree_slots=tree_slots)
    # Not two warps with 64 float64 sums a thread where k is several blocks with a ragged end: that kernel spills 35
    # registers, and gave wrong sums on an H200 (driver 580), whose place moved with the code around them.
    crowded = tile.mma and tile.threads == 64 and v.long and not v.whole
    if (tile.mma or size == 4) and not crowded:
        cost, whole, per = _cut(chip, tile, blocks, held, chunks, chunk, size)
        each = whole // chip.processors
        least = chip.processor_bytes // each - 2048 if each else 0
        split = attrs.evolve(v, split=True, least_shared=min(least, chip.block_bytes))
        yield _CUT * cost, DotChoice(split, whole, per)
        per = blocks * chunks // slots
        if v.long and chunks % CHUNKS == 0 and blocks * chunks // CHUNKS <= slots and per:
            cost = _apart(chip, tile, blocks, held, chunks, chunk, size)
            yield _CUT * cost, DotChoice(attrs.evolve(v, split=True, apart=True), 0, per)
    if many and slots <= _AT_ONCE * blocks:
        cost = _in_series(chip, tile, blocks, held, chunks, chunk)
        yield _CUT * cost, DotChoice(attrs.evolve(v, serial=True), 0)


def _sums(tile: Tile) -> int:
    """Of a thread."""
    return tile.thread_rows * tile.thread_cols


def _slices(spec: DotSpec, tile: Tile, k: int, blocks: int, chip: _Chip) -> list[int]:
    """Into how many groups of threads a block may be divided, the most first. Sums of 8 bytes and tiles of many
    sums are left whole: nobody has measured them in groups (tensor cores: their sums are float64)."""
    if k % CHUNK or blocks > _FEW * chip.processors or _sums(tile) >= _MANY or item_size(spec.accumulator) == 8:
        return []
    most = min(16 * _sums(tile), 512, 65536 // (_sums(tile) + _OTHERS)) // tile.threads
    whole = CHUNKS if k > BLOCK else k // CHUNK
    return [n for n in range(min(8, most), 1, -1) if k // CHUNK % n == whole % n == 0 and n * tile.threads >= 128]


def _in_series(chip: _Chip, tile: Tile, blocks: int, held: int, chunks: int, chunk: float) -> float:
    """Seconds that a product takes in serial split-K with blocks of one chunk."""
    slots = held * chip.processors
    waves, rest = divmod(blocks * chunks, slots)
    beside = -(-rest // chip.processors)
    moved = 2 * blocks * chunks * tile.rows * tile.cols * 4
    cost = (waves * held + beside / _pace(tile, beside)) * chunk + moved / _HANDED_A_SECOND + _LAUNCH
    return cost + _HANDOVER * min(chunks, slots / blocks)


def _pace(tile: Tile, blocks: int) -> float:
    """What so many blocks make of a multiprocessor: few warps leave it waiting, with few sums each more so."""
    base, each = {8: (1.0, 0.0), 4: (0.66, 0.15), 2: (0.0, 0.45)}[tile.threads // 32]
    if _sums(tile) >= _MANY:
        base, each = 0.86, 0.07
    return min(1.0, base + each * max(1, blocks))


def _apart(chip: _Chip, tile: Tile, blocks: int, held: int, chunks: int, chunk: float, size: int) -> float:
    """Seconds of a product of which chunks behind first parts are single parts: they fill what first parts leave."""
    slots = held * chip.processors
    waves, rest = divmod(blocks * chunks, slots)
    beside = -(-rest // chip.processors)
    moved = 2 * blocks * slots_of(chunks, waves) * tile.rows * tile.cols * size
    return (waves * held + beside / _pace(tile, beside)) * chunk + moved / _BYTES_A_SECOND + _LAUNCH


def _cut(
    chip: _Chip, tile: Tile, blocks: int, held: int, chunks: int, chunk: float, size: int
) -> tuple[float, int, int]:
    """The best way to cut tiles that do not fill all multiprocessors: seconds, tiles left whole, chunks of a part."""
    options = []
    most = min(held, blocks // chip.processors) if _sums(tile) * tile.threads >= 8192 else 0
    for each in {most, 0}:  # tiles that each multiprocessor computes whole
        whole = each * chip.processors
        cut = blocks - whole
        for per in part_sizes(chunks) if cut and cut < 4 * chip.processors else ():
            number = cut * -(-chunks // per)
            parts = -(-number // chip.processors)
            if _sums(tile) >= _MANY and number > held * chip.processors:
                parts = -(-number // (held * chip.processors)) * held  # as in `choose`
            units = parts * per / _pace(tile, min(parts, each or held))
            units += each * chunks / _pace(tile, each) if each else 0
            moved = 2 * cut * slots_of(chunks, per) * tile.rows * tile.cols * size
            options.append((units * chunk + moved / _BYTES_A_SECOND + _LAUNCH, whole, per))
    return min(options, default=(float("inf"), blocks, 0))


def _variant(problem: Problem, chip: _Chip, tile: Tile) -> DotVariant:
    dot, (*_, lhs_m, lhs_k), (*_, rhs_k, rhs_n) = problem.dot, problem.lhs.strides, problem.rhs.strides
    lhs = _operand(problem, chip, tile, problem.lhs, dot.spec.lhs, tile.rows, dot.m, lhs_m, lhs_k)
    rhs = _operand(problem, chip, tile, problem.rhs, dot.spec.rhs, tile.cols, dot.n, rhs_n, rhs_k)
    wide = _together(problem, 2 if tile.mma else 4)
    return DotVariant(
        tile, lhs, rhs, dot.k % tile.depth == 0, dot.k <= CHUNK, dot.k > BLOCK, wide, epilogue=problem.epilogue,
    )  # fmt: skip


def _together(problem: Problem, neighbours: int) -> bool:
    """Whether so many neighbours of a row of the output can be written at once, by an epilogue's loops as well."""
    if problem.dot.n % neighbours or not fits(problem.loops, neighbours):
        return False
    if problem.epilogue is not None and not problem.epilogue.stored:
        return True
    size = item_size(problem.dot.spec.out)
    return size >= 4 and problem.aligned(min(16, neighbours * size), problem.out, problem.out.strides[2])


def _operand(
    problem: Problem, chip: _Chip, tile: Tile, array: Access, dtype: str, length: int, count: int, own: int, k: int,
) -> OperandLayout:  # fmt: skip
    """How an operand of ``count`` rows or columns gets into tiles of ``length`` of them; ``own`` and ``k`` are its
    strides over these and over k."""
    nbytes = item_size(dtype)
    along: Along = "k" if k == nbytes else "line" if own == nbytes else ""
    if along == "k" and own == nbytes and problem.dot.k == 1:
        along = "line"
    staged = problem.dot.spec.accumulator
    if tile.mma and dtype != "float64":
        staged = "float32"
    direct = chip.direct and nbytes >= 4 and dtype.removeprefix("u") == staged
    most = min(16 // nbytes, tile.depth * length // tile.threads)
    width = 1
    if along and problem.aligned(most * nbytes, array, own if along == "k" else k):
        if along == "line":
            width = most if count % most == 0 else 1
        elif tile.mma if direct else problem.dot.k % most == 0:
            width = most  # direct copies that transpose an operand copy element by element
    near = min(own, k) >= 0 and length * own + tile.depth * k < 1 << 32
    return OperandLayout(along, width, dtype, staged, direct, near)
