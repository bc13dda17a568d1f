"""Hopper's copies of boxes of a tensor to shared memory (``cp.async.bulk.tensor``), and the maps that describe them.

A tensor map is 128 bytes, at multiples of 128, in device memory. How they are laid out belongs to the machine code of
capability 9.0: the assembler turns ``tensormap.replace`` into stores of these very fields. So a map is made with a
plan, but for its first word, the tensor's address.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I32, I64, PTR, VOID, for_range, intrinsic, minimum, offset
from volta.numba_cuda.codegen.ptx_mbarrier import host_complete
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register, shared_address

MAP_WORDS = 16
RANK = 4
LINE = 128
"""Bytes of a line of a box, whose pieces of 16 bytes are exchanged by the line's number modulo 8."""

_PIECE = 16
_ELEMENTS = {1: 0, 2: 1, 4: 2}  # codes of unsigned integers: elements are copied as they are
_SWIZZLE = 3  # over 128 bytes


def map_words(item: int, sizes: Sequence[int], strides: Sequence[int], lines: int) -> list[int]:
    """A map of a tensor of four dimensions, innermost first, whose boxes are `lines` lines of 128 bytes.

    ``strides`` are those of the outer three, in bytes, positive multiples of 16. Word 0 is the tensor's address, also
    such a multiple, and is 0 here. Elements of `item` bytes beyond the tensor are read as zeros.
    """
    assert len(sizes) == RANK and len(strides) == RANK - 1 and 1 <= lines <= 256
    assert all(0 < s < 1 << 40 and s % _PIECE == 0 for s in strides), strides
    words = [0] * (2 * MAP_WORDS)
    words[2] = (RANK - 1) << 4 | _ELEMENTS[item] << 7 | _SWIZZLE << 13
    for i, stride in enumerate(strides):
        words[3 + i] = (stride >> 4) & 0xFFFFFFFF
        words[7] |= stride >> 36 << 4 * i
    for i, size in enumerate(sizes):
        words[8 + i] = size - 1
    words[13] = (LINE // item - 1) << 24
    words[14] = lines - 1
    words[16], words[18] = lines * LINE, 8 * LINE  # what the driver adds: a box, and what a swizzle repeats after
    return [words[i] | words[i + 1] << 32 for i in range(0, 2 * MAP_WORDS, 2)]


def _copy(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    to, tensor, barrier, *place = args
    copy = "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
    values = [shared_address(b, to), b.ptrtoint(tensor, I64), shared_address(b, barrier), *place]
    assembly(b, f"{copy} [$0], [$1, {{$3, $4, $5, $6}}], [$2];", "r,l,r,r,r,r,r,~{memory}", VOID, values)


def _host_copy(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    to, tensor, barrier, *place = args

    def field(number: int, shift: int = 0, mask: int = 0xFFFFFFFF) -> ir.Value:
        word = b.load(offset(b, tensor, 4 * number), typ=I32, align=4)
        return b.zext(b.and_(b.lshr(word, I32(shift)), I32(mask)), I64)

    where = [b.sext(x, I64) for x in place]
    item = b.shl(I64(1), field(2, 7, 7))
    source = b.inttoptr(b.load(tensor, typ=I64, align=8), PTR)
    sizes = [b.add(field(8 + i), I64(1)) for i in range(RANK)]
    inside = None
    for i in range(RANK - 1):
        stride = b.or_(b.shl(field(3 + i), I64(4)), b.shl(field(7, 4 * i, 15), I64(36)))
        source = offset(b, source, b.mul(where[1 + i], stride))
        if i:
            here = b.icmp_unsigned("<", where[1 + i], sizes[1 + i])
            inside = here if inside is None else b.and_(inside, here)
    line_stride = b.or_(b.shl(field(3), I64(4)), b.shl(field(7, 0, 15), I64(36)))
    lines = b.add(field(14, 0, 255), I64(1))
    padded = intrinsic(b.module, "volta.host.copy_padded", VOID, [PTR, PTR, I64, I64])
    with for_range(b, 0, lines) as line:
        there = b.and_(inside, b.icmp_unsigned("<", b.add(where[1], line), sizes[1]))
        for piece in range(LINE // _PIECE):
            first = b.add(b.mul(where[0], item), I64(piece * _PIECE))
            left = minimum(b, b.sub(b.mul(sizes[0], item), first), _PIECE)
            valid = b.select(b.and_(there, b.icmp_signed(">", left, I64(0))), left, I64(0))
            at = offset(b, offset(b, source, b.mul(line, line_stride)), first)
            exchanged = b.xor(b.and_(line, I64(7)), I64(piece))
            own = offset(b, to, b.add(b.mul(line, I64(LINE)), b.mul(exchanged, I64(_PIECE))))
            b.call(padded, [own, at, valid, I64(_PIECE)])
    host_complete(b, barrier, b.mul(lines, I64(LINE)))


def _acquire(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    text = "fence.proxy.tensormap::generic.acquire.sys [$0], 128; prefetch.tensormap [$0];"
    assembly(b, text, "l,~{memory}", VOID, [b.ptrtoint(args[0], I64)])


_ACQUIRE = register(Op("acquire_map", VOID, (PTR,), _acquire, lambda b, args: None))
_COPY = register(Op("copy_box", VOID, (PTR, PTR, PTR, *[I32] * RANK), _copy, _host_copy))


def copy_box(
    b: ir.IRBuilder, to: ir.Value, tensor: ir.Value, place: Sequence[ir.Value], barrier: ir.Value
) -> None:  # fmt: skip
    """Begin to copy the box of a mapped tensor that begins at `place` (four i32, innermost first); one thread does.

    `to` is a multiple of 1024 bytes. The bytes of the box, all of them, are counted by `barrier` as they come.
    """
    call(b, _COPY, [to, tensor, barrier, *place])


def acquire_map(b: ir.IRBuilder, tensor: ir.Value) -> None:
    """See the map as it was before the launch, since the copy engine keeps maps by their addresses, and fetch it.

    The thread that uses the map calls.
    """
    call(b, _ACQUIRE, [tensor])
