"""Products of small matrices by a whole warp, on tensor cores, and the loads that go with them.

Which element of a matrix a lane holds is fixed by PTX. With g = lane / 4 and t = lane % 4, register i of a lane holds

==============  ========================================  =============================  =========================
shape           A, (row, k)                               B, (k, column)                 C and D, (row, column)
==============  ========================================  =============================  =========================
m8n8k4 f64      (g, t)                                    (t, g)                         (g, 2t + i)
m16n8k4…16 f64  (g + 8 (i % 2), t + 4 (i / 2))            (t + 4 i, g)                   (g + 8 (i / 2), 2t + i % 2)
m16n8k8 tf32    (g + 8 (i % 2), t + 4 (i / 2))            (t + 4 i, g)                   as above
m16n8k16 bf16, f16 (g + 8 (i % 2), 2t + {0, 1} + 8 (i / 2))  (2t + {0, 1} + 8 i, g)         as above
m16n8k32 s8      (g + 8 (i % 2), 4t + {0…3} + 16 (i / 2))   (4t + {0…3} + 16 i, g)         as above
==============  ========================================  =============================  =========================

In float64 each result is a chain of fused multiply-adds over ascending k that begins at C (measured, see
docs/determinism.md): a strict operation. So is s8, whose sums are integers. bf16 and tf32 sum in an order of the GPU's
own, so they are below strict, and what the host computes for them has the right value but not the right bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.loops import I16, I32, I64, fma, intrinsic, offset
from volta.numba_cuda.codegen.ptx_ops import Op, call, exchange, host_lane, register, shuffle

F32, F64 = ir.FloatType(), ir.DoubleType()
_SHARED = ir.PointerType(addrspace=3)

Read = Callable[[ir.Value, int], ir.Value]


def _struct(kind: ir.Type, count: int) -> ir.LiteralStructType:
    return ir.LiteralStructType([kind] * count)


def _pack(b: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    out: ir.Value = ir.Constant(_struct(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        out = b.insert_value(out, value, i)
    return out


def _unpack(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    return [b.extract_value(value, i) for i in range(len(value.type.elements))]


def _mma_op(
    name: str, llvm: str, a: int, operand: ir.Type, bs: int, result: ir.Type, cs: int, depth: int,
    left: Callable[[int, int], tuple[int, int]], right: Callable[[int], tuple[int, int]],
    number: Callable[[ir.IRBuilder, ir.Value, int], ir.Value], packed: ir.Type | None = None,
) -> Op:  # fmt: skip
    """``left(half, k)`` and ``right(k)`` say where an element of A (row g or g + 8) or B lies: (lane of four, place).

    A place is a register, or for packed operands the number of elements in those before it plus which of its own;
    ``number`` takes the value out.
    ``packed`` is LLVM's type of such a register where that is no i32.
    """
    per = {16: 2, 32: 4}.get(depth, 1) if operand is I32 else 1

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        if packed is not None:
            args = [b.bitcast(x, packed) if x.type == operand else x for x in args]
        return b.call(intrinsic(b.module, llvm, _struct(result, cs), [x.type for x in args]), args)

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        def use(read: Read) -> ir.Value:
            lane = host_lane(b)
            group, four = b.lshr(lane, I32(2)), b.and_(lane, I32(3))
            sums = []
            for i in range(cs):
                total = args[a + bs + i]
                column = b.add(b.shl(four, I32(1)), I32(i % 2))
                for k in range(depth):
                    (t, place), (u, other) = left(i // 2, k), right(k)
                    x = number(b, read(b.add(b.shl(group, I32(2)), I32(t)), place // per), place % per)
                    y = number(b, read(b.add(b.shl(column, I32(2)), I32(u)), a + other // per), other % per)
                    total = b.add(total, b.mul(x, y)) if result is I32 else fma(b, x, y, total)
                sums.append(total)
            return _pack(b, sums)

        return exchange(b, args[: a + bs], use)

    return register(Op(name, _struct(result, cs), (*(operand,) * (a + bs), *(result,) * cs), ptx, host))


def _half_of(b: ir.IRBuilder, word: ir.Value, half: int) -> ir.Value:
    """A bfloat16 of a pair, as a float32."""
    return b.bitcast(b.shl(word, I32(16)) if half == 0 else b.and_(word, I32(0xFFFF0000)), F32)


def _half_of_f16(b: ir.IRBuilder, word: ir.Value, half: int) -> ir.Value:
    """A float16 of a pair, as a float32."""
    return b.fpext(b.bitcast(b.trunc(b.lshr(word, I32(16 * half)), I16), ir.HalfType()), F32)


def _byte(b: ir.IRBuilder, word: ir.Value, number: int) -> ir.Value:
    """A signed byte of four, as an i32."""
    return b.ashr(b.shl(word, I32(24 - 8 * number)), I32(24))


def _tf32(b: ir.IRBuilder, word: ir.Value, _: int) -> ir.Value:
    return b.bitcast(b.and_(word, I32(0xFFFFE000)), F32)


MMA_F64 = {
    (8, 8, 4): _mma_op(
        "mma_m8n8k4_f64", "llvm.nvvm.mma.m8n8k4.row.col.f64", 1, F64, 1, F64, 2, 4,
        lambda half, k: (k, 0), lambda k: (k, 0), lambda b, x, _: x,
    ),
    **{
        (16, 8, depth): _mma_op(
            f"mma_m16n8k{depth}_f64", f"llvm.nvvm.mma.m16n8k{depth}.row.col.f64", depth // 2, F64, depth // 4, F64, 4,
            depth, lambda half, k: (k % 4, 2 * (k // 4) + half), lambda k: (k % 4, k // 4), lambda b, x, _: x,
        )
        for depth in (4, 8, 16)
    },
}  # fmt: skip

MMA_TF32 = _mma_op(
    "mma_m16n8k8_tf32", "llvm.nvvm.mma.m16n8k8.row.col.tf32", 4, I32, 2, F32, 4, 8,
    lambda half, k: (k % 4, 2 * (k // 4) + half), lambda k: (k % 4, k // 4), _tf32,
)  # fmt: skip

MMA_BF16 = _mma_op(
    "mma_m16n8k16_bf16", "llvm.nvvm.mma.m16n8k16.row.col.bf16", 4, I32, 2, F32, 4, 16,
    lambda half, k: (k % 8 // 2, 2 * (2 * (k // 8) + half) + k % 2), lambda k: (k % 8 // 2, 2 * (k // 8) + k % 2),
    _half_of,
)  # fmt: skip

MMA_F16 = _mma_op(
    "mma_m16n8k16_f16", "llvm.nvvm.mma.m16n8k16.row.col.f32.f32", 4, I32, 2, F32, 4, 16,
    lambda half, k: (k % 8 // 2, 2 * (2 * (k // 8) + half) + k % 2), lambda k: (k % 8 // 2, 2 * (k // 8) + k % 2),
    _half_of_f16, ir.VectorType(ir.HalfType(), 2),
)  # fmt: skip

MMA_S8 = _mma_op(
    "mma_m16n8k32_s8", "llvm.nvvm.mma.m16n8k32.row.col.s8", 4, I32, 2, I32, 4, 32,
    lambda half, k: (k % 16 // 4, 4 * (2 * (k // 16) + half) + k % 4), lambda k: (k % 16 // 4, 4 * (k // 16) + k % 4),
    _byte,
)  # fmt: skip


def mma(
    b: ir.IRBuilder, op: Op, a: Sequence[ir.Value], other: Sequence[ir.Value], c: Sequence[ir.Value]
) -> list[ir.Value]:
    """D = A B + C, each matrix as this lane's registers of it.

    ``MMA_F64[8, 8, 4]`` needs compute capability 8.0, as do `MMA_TF32`, `MMA_BF16`, `MMA_F16` and `MMA_S8`;
    ``MMA_F64[16, 8, …]`` needs 9.0.
    """
    return _unpack(b, call(b, op, [*a, *other, *c]))


# -- 8 × 8 matrices of 16-bit elements from shared memory ------------------------------------------------------------


def _ldmatrix_op(count: int, transposed: bool) -> Op:
    llvm = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.b16.p3"
    kind = _struct(I32, count) if count > 1 else I32

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.call(intrinsic(b.module, llvm, kind, [_SHARED]), [b.addrspacecast(args[0], _SHARED)])

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        def use(read: Read) -> ir.Value:
            lane = host_lane(b)
            group, pair = b.lshr(lane, I32(2)), b.shl(b.and_(lane, I32(3)), I32(1))

            def element(matrix: int, row: ir.Value, column: ir.Value) -> ir.Value:
                line = b.inttoptr(read(b.add(row, I32(8 * matrix)), 0), ir.PointerType())
                return b.zext(b.load(offset(b, line, b.zext(b.shl(column, I32(1)), I64)), typ=I16), I32)

            words = []
            for matrix in range(count):
                places = [(group, pair), (group, b.add(pair, I32(1)))]
                low, high = (element(matrix, *(p[::-1] if transposed else p)) for p in places)
                words.append(b.or_(low, b.shl(high, I32(16))))
            return _pack(b, words) if count > 1 else words[0]

        return exchange(b, [b.ptrtoint(args[0], I64)], use)

    return register(Op(f"ldmatrix_x{count}{'_trans' * transposed}", kind, (ir.PointerType(),), ptx, host))


_LDMATRIX = {(count, trans): _ldmatrix_op(count, trans) for count in (1, 2, 4) for trans in (False, True)}


def load_matrices(b: ir.IRBuilder, row: ir.Value, count: int, transposed: bool = False) -> list[ir.Value]:
    """1, 2 or 4 matrices of 8 × 8 two-byte elements: lane 8 j + i gives the address of row i of matrix j.

    This lane gets of each matrix elements (g, 2t) and (g, 2t + 1) as an i32, or those of the transposed matrix.
    """
    found = call(b, _LDMATRIX[count, transposed], [row])
    return _unpack(b, found) if count > 1 else [found]


def gather_piece(b: ir.IRBuilder, lane: ir.Value, words: Sequence[ir.Value]) -> ir.Value:
    """Four neighbouring lanes have an i32 each of four times four: they exchange them, and each gets four that lie next
    to each other, as a vector: lane t those of ``words[t % 4]``."""
    words = list(words)
    for distance in (1, 2):
        upper = b.icmp_signed("!=", b.and_(lane, I32(distance)), I32(0))
        for i in (0, 2) if distance == 1 else (0, 1):
            low, high = words[i], words[i + distance]
            found = shuffle(b, "bfly", b.select(upper, low, high), I32(distance))
            words[i], words[i + distance] = b.select(upper, found, low), b.select(upper, high, found)
    piece: ir.Value = ir.Constant(ir.VectorType(I32, 4), ir.Undefined)
    for i, word in enumerate(words):
        piece = b.insert_element(piece, word, I32(i))
    return piece
