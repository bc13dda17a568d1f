"""Words of four bytes: products of int8 whose sums a processor adds up four at a time (`QuadSpec`).

Where the processor has an instruction for that (AVX-512 VNNI), one side's bytes are unsigned. So those of the left
operand are flipped, which adds 128 to each, and what a row of zeros then gives is taken off again. Elsewhere words are
taken apart to 16 bits, whose products any x86 adds in pairs. Sums wrap around, so all of this has the same bits.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I16, I32, intrinsic
from volta.numba_cpu.dot_schedule import QuadSpec, TileSpec

_ZEROS = 0x80808080
"""Four zeros, flipped."""


def flips(spec: TileSpec) -> bool:
    """Whether kernels multiply flipped words."""
    return isinstance(spec, QuadSpec) and spec.flipped


def kind_of(spec: TileSpec) -> str:
    """What the names of functions that multiply tell apart."""
    return spec.accumulator + "_quads" * spec.quads + "_flipped" * flips(spec)


def flip(b: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """Words with 128 added to each byte, as unsigned ones."""
    return b.xor(words, flipped_zeros(words.type))


def flipped_zeros(kind: ir.Type) -> ir.Value:
    """Words of zeros, flipped."""
    return ir.Constant(kind, [_ZEROS] * kind.count if isinstance(kind, ir.VectorType) else _ZEROS)


def multiply_add_flipped(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Add the products of words' bytes, those of x flipped; a vector of them."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * x.type.count}"
    return b.call(intrinsic(b.module, name, z.type, [z.type] * 3), [z, x, y])


def multiply_add_words(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Add the products of words' bytes."""
    if not isinstance(x.type, ir.VectorType):
        for byte in range(4):
            low, high = (b.ashr(b.shl(w, I32(24 - 8 * byte)), I32(24)) for w in (x, y))
            z = b.add(z, b.mul(low, high))
        return z
    halves = ir.VectorType(I16, 2 * x.type.count)
    eight = ir.Constant(halves, [8] * halves.count)
    left, right = (b.bitcast(w, halves) for w in (x, y))
    odd = b.ashr(left, eight), b.ashr(right, eight)
    even = b.ashr(b.shl(left, eight), eight), b.ashr(b.shl(right, eight), eight)
    return b.add(b.add(z, _pairs(b, *even)), _pairs(b, *odd))


def _pairs(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Products of 16 bits, added in pairs: LLVM knows this as one instruction."""
    count = x.type.count // 2
    wide, indices = ir.VectorType(I32, count), ir.VectorType(I32, count)
    products = []
    for first in (0, 1):
        mask = ir.Constant(indices, list(range(first, 2 * count, 2)))
        left, right = (b.sext(b.shuffle_vector(w, w, mask), wide) for w in (x, y))
        products.append(b.mul(left, right))
    return b.add(*products)
