"""Products inside one block of attention: tiles of a few rows by one or two vectors, each element one chain of FMAs.

The depth of a chain is either fixed (scores: the elements of a head) or at most 64 with a word of bits for each row
that says which steps it takes part in (values: the visible keys of a row). A step that a row does not take part in
leaves its sums as they are, whatever the operands hold there.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import item_size, scalar_type
from volta.emit.loops import (
    I1,
    I64,
    PTR,
    VOID,
    fma,
    for_range,
    if_else,
    if_then,
    intrinsic,
    load_arg,
    loop,
    minimum,
    offset,
    splat,
)
from volta.numba_cpu.dot_tile import new_internal
from volta.xla_like.attention import BLOCK

TILE_TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, PTR, I64, PTR, I64, I64, I64, I64])
"""``tile(c, c_row, a, a_row, a_k, b, b_k, seen, first, low, high, last)``; strides in bytes."""

PRODUCT_TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, PTR, I64, I64, PTR])
"""``product(c, c_row, a, a_row, a_k, b, b_k, rows, seen)``; strides in bytes."""


def tile_rows(vector_bits: int) -> int:
    """Rows of the large tile: with two vectors of columns its sums fill half of the registers."""
    return 8 if vector_bits == 512 else 4


def _tile(module: ir.Module, dtype: str, vector_bits: int, rows: int, vectors: int) -> ir.Function:
    """``c[row] = chain over k of a[row, k] * b[k]``, steps low..high for every row, the others by the rows' words."""
    name = f"volta_attention_tile_{dtype}_{vector_bits}_{rows}x{vectors}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, TILE_TYPE)
    c, c_row, a, a_row, a_k, b_pointer, b_k, seen, first, low, high, last = function.args
    size = item_size(dtype)
    lanes = vector_bits // (8 * size)
    vector = ir.VectorType(scalar_type(dtype), lanes)
    words = [load_arg(b, seen, row) for row in range(rows)]
    sums: list[ir.Value] = [ir.Constant(vector, None)] * (rows * vectors)
    for start, stop, masked in ((first, low, True), (low, high, False), (high, last, True)):
        init = [at_step(b, b_pointer, start, b_k), at_step(b, a, start, a_k), *sums]
        with loop(b, start, stop, init=init) as it:
            b_now, a_now, *inside = it.values
            columns = [b.load(offset(b, b_now, v * vector_bits // 8), align=size, typ=vector) for v in range(vectors)]
            pointer = a_now
            for row in range(rows):
                pointer = pointer if row == 0 else offset(b, pointer, a_row)
                x = splat(b, b.load(pointer, align=size, typ=vector.element), lanes)
                mask = _lanes_of_bit(b, words[row], it.index, lanes) if masked else None
                for v in range(vectors):
                    at = row * vectors + v
                    new = fma(b, x, columns[v], inside[at])
                    inside[at] = new if mask is None else b.select(mask, new, inside[at])
            it.advance(offset(b, b_now, b_k), offset(b, a_now, a_k), *inside)
        sums = it.results[2:]
    for row in range(rows):
        for v in range(vectors):
            b.store(sums[row * vectors + v], offset(b, c, v * vector_bits // 8), align=size)
        c = offset(b, c, c_row)
    b.ret_void()
    return function


def at_step(b: ir.IRBuilder, pointer: ir.Value, index: ir.Value, stride: ir.Value) -> ir.Value:
    return offset(b, pointer, b.mul(index, stride))


def _lanes_of_bit(b: ir.IRBuilder, word: ir.Value, index: ir.Value, lanes: int) -> ir.Value:
    """One bit of a word in every lane of a mask."""
    every = b.ashr(b.shl(word, b.sub(I64(63), index)), I64(63))
    return b.bitcast(b.trunc(every, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))


def product(module: ir.Module, dtype: str, vector_bits: int, vectors: int, depth: int | None) -> ir.Function:
    """The function (internal to the module, added once) for any number of rows by ``vectors`` vectors of columns.

    Every chain has ``depth`` steps; or, where that is None, those of the row's word in ``seen``. With a depth, columns
    are the bits of these words, and what no row of a tile sees may stay uncomputed. Rows of the last tile may be
    computed twice. Rows of b lie `b_k` apart and may be read to the end of their vectors.
    """
    name = f"volta_attention_product_{dtype}_{vector_bits}_{vectors}_{'seen' if depth is None else depth}"
    found = module.globals.get(name)
    if found is not None:
        return found
    height = tile_rows(vector_bits)
    widths = {h: _widths(vectors, most) for h, most in ((height, 2), (1, 4))}
    tiles = {(h, w): _tile(module, dtype, vector_bits, h, w) for h in widths for w in sorted(set(widths[h]))}
    function, b = new_internal(module, name, PRODUCT_TYPE)
    c, c_row, a, a_row, a_k, b_pointer, b_k, rows, seen = function.args

    def row_of_tiles(h: int, row: ir.Value) -> None:
        words = offset(b, seen, b.shl(row, I64(3)))
        steps = _steps(b, words, h) if depth is None else [I64(0), I64(0), I64(depth), I64(depth)]
        to, source, at = at_step(b, c, row, c_row), at_step(b, a, row, a_row), b_pointer
        some, column, lanes = _joined(b, words, h)[1], 0, vector_bits // (8 * item_size(dtype))
        for w in widths[h]:
            wanted = I1(True)
            if depth is not None:  # columns are keys: leave out those that no row of the tile sees
                bits = ((1 << w * lanes) - 1) << column * lanes
                wanted = b.icmp_signed("!=", b.and_(some, I64(bits)), I64(0))
            with if_then(b, wanted):
                b.call(tiles[h, w], [to, c_row, source, a_row, a_k, at, b_k, words, *steps])
            to, at = offset(b, to, w * vector_bits // 8), offset(b, at, w * vector_bits // 8)
            column += w

    with if_else(b, b.icmp_signed(">=", rows, I64(height))) as branch:
        with branch.then():
            with for_range(b, 0, rows, height) as row:
                row_of_tiles(height, minimum(b, row, b.sub(rows, I64(height))))
        with branch.otherwise():
            with for_range(b, 0, rows) as row:
                row_of_tiles(1, row)
    b.ret_void()
    return function


def _widths(vectors: int, most: int) -> list[int]:
    """Powers of two up to ``most`` that add up to a number of vectors: one row needs several to hide an FMA's time."""
    widths: list[int] = []
    while vectors:
        widths.append(min(most, 1 << (vectors.bit_length() - 1)))
        vectors -= widths[-1]
    return widths


def _steps(b: ir.IRBuilder, words: ir.Value, rows: int) -> list[ir.Value]:
    """Where a tile's steps begin, where all rows take part from and to, and where they end.

    Bits that all rows have are looked for at the beginning (keys up to a row's position) or the end (rows from a key's
    position on), whichever is longer.
    """
    every, some = _joined(b, words, rows)
    lead, trail = (_zeros(b, way, b.not_(every)) for way in ("cttz", "ctlz"))
    first, last = _zeros(b, "cttz", some), b.sub(I64(BLOCK), _zeros(b, "ctlz", some))
    from_start = b.icmp_signed(">=", lead, trail)
    none = b.icmp_signed("==", some, I64(0))
    answers = (
        (I64(0), first), (I64(0), b.sub(I64(BLOCK), trail)), (lead, I64(BLOCK)), (last, I64(BLOCK)),
    )  # fmt: skip
    return [b.select(none, I64(0), b.select(from_start, x, y)) for x, y in answers]


def _joined(b: ir.IRBuilder, words: ir.Value, rows: int) -> tuple[ir.Value, ir.Value]:
    """The bits that all words have, and those that any of them has."""
    every = some = load_arg(b, words, 0)
    for row in range(1, rows):
        word = load_arg(b, words, row)
        every, some = b.and_(every, word), b.or_(some, word)
    return every, some


def _zeros(b: ir.IRBuilder, way: str, word: ir.Value) -> ir.Value:
    """Zero bits at one end of a word, 64 for a word of zeros."""
    i1 = ir.IntType(1)
    return b.call(intrinsic(b.module, f"llvm.{way}.i64", I64, [I64, i1]), [word, i1(0)])


def vectors_of(count: int, lanes: int) -> int:
    """Vectors that hold ``count`` elements."""
    return -(-count // lanes)
