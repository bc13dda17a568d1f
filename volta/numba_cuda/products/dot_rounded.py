"""Weights in blocks of few bits as bfloat16, for tensor cores: in registers, or as an array that a kernel makes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import lru_cache

from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.dot_args import at
from volta.emit.loops import I32, I64, if_then, load_arg, offset
from volta.numba_cuda.codegen import ptx_round
from volta.numba_cuda.codegen.threads import block_index, device_pointer, new_entry, thread_index
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.products.dot_numbers import PERIOD, PeriodNumbers, ThreadNumbers, has_smaller, periods
from volta.numba_cuda.products.dot_problem import Problem
from volta.numba_cuda.products.dot_tensor_load import LINE, PIECE
from volta.xla_like.dot import CHUNK
from volta.xla_like.kernels import Access

LINES = CHUNK // PERIOD
"""Lines of bfloat16 that a block makes, of a period each."""

_THREADS = 256
_GROUPS = 8  # of a block, whose factors are picked from two words
_ELEMENTS = PIECE // 2  # of a piece
_LANES = PERIOD // 2 // _ELEMENTS  # of a line: a thread has a piece of either half


@lru_cache
def unpacks(fmt: BlockFormat) -> bool:
    """Whether a format's blocks are chunks of k whose lines are made by the same instructions, those of either half by
    lanes side by side, and whose bytes lie so that lanes read them from different banks."""
    whole = fmt.elements == CHUNK and fmt.rows == 1 and fmt.nbytes % (2 * PIECE) == PIECE
    if not whole or not has_smaller(fmt) or periods(fmt) is None:
        return False
    pairs = (
        (lane, x, y)
        for half in (0, PERIOD // 2)
        for lane in range(_LANES)
        for i in range(half, half + _ELEMENTS)
        for x, y in zip(fmt.pieces(i), fmt.pieces(i + lane * _ELEMENTS), strict=True)
    )
    beside = all((y.byte - x.byte, y.shift) == (lane * _ELEMENTS, x.shift) for lane, x, y in pairs)
    return beside and len(fmt.scale.groups) == _GROUPS


def pieces(
    b: ir.IRBuilder, fmt: BlockFormat, block: ir.Value, number: ir.Value, firsts: Iterable[int],
    lane: ir.Value | None = None,
) -> list[ir.Value]:  # fmt: skip
    """The pieces of a line (an i64) of a block that begin with some elements, or, of a ``lane``, that many pieces
    further: rounded to bfloat16.

    They are made of numbers that are 2^48 times smaller, which takes an instruction less for two: numbers are multiples
    of 2^-24, so smaller ones are no subnormal bfloat16, and rounding commutes with the power of two.
    """
    header = ThreadNumbers(b, fmt, block, 0, True, True)
    factors = header.group_factors(header.packed(), number, len(fmt.scale.groups) // LINES)
    own = block if lane is None else offset(b, block, b.mul(lane, I64(_ELEMENTS)))
    numbers, found = PeriodNumbers(b, fmt, own, number, factors, True, lane is None), []
    for first in firsts:
        piece = ir.Constant(ir.VectorType(I32, _ELEMENTS // 2), ir.Undefined)
        for i in range(_ELEMENTS // 2):
            low, high = (numbers.element(first + 2 * i + j) for j in range(2))
            pair = ptx_round.larger_pair(b, ptx_round.round_pair(b, low, high, "bfloat16"))
            piece = b.insert_element(piece, pair, I32(i))
        found.append(piece)
    return found


def unpacked(problem: Problem, room: Access, ctx: LaunchContext) -> Launch:
    """The launch that makes a right operand in blocks an array (n, k) of bfloat16."""
    dot, fmt = problem.dot, problem.dot.spec.blocks
    assert fmt is not None
    lanes = dot.n * dot.k // PERIOD * _LANES
    build = functools.partial(_build, fmt=fmt)
    return ctx.step(
        f"volta_unpack_{fmt.name}", f"unpack {fmt.name}", build, -(-lanes // _THREADS), _THREADS,
        [problem.rhs, room, lanes], [problem.rhs], [room],
    )  # fmt: skip


def _build(module: ir.Module, name: str, fmt: BlockFormat) -> ir.Function:
    """Add a kernel whose args are the address of blocks, that of the array, and how many lanes there are.

    Neighbouring lanes write neighbouring pieces: 64 bytes of a line, whole sectors.
    """
    function, b = new_entry(module, name, _THREADS)
    blocks, out, count = (load_arg(b, function.args[0], i) for i in range(3))
    number = b.add(b.mul(block_index(b), I64(_THREADS)), thread_index(b))
    with if_then(b, b.icmp_signed("<", number, count)):
        line, lane = b.udiv(number, I64(_LANES)), b.urem(number, I64(_LANES))
        block = at(b, device_pointer(b, blocks), (b.udiv(line, I64(LINES)), I64(fmt.nbytes)))
        to = at(b, device_pointer(b, out), (line, I64(LINE)), (lane, I64(PIECE)))
        firsts = (0, PERIOD // 2)
        for first, piece in zip(firsts, pieces(b, fmt, block, b.urem(line, I64(LINES)), firsts, lane), strict=True):
            b.store(piece, offset(b, to, 2 * first), align=PIECE)
    b.ret_void()
    return function
