"""Which keys of a block the rows of a tile see, as words of 64 bits, and copies of operands into scratch memory."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, item_size
from volta.emit.loops import I8, I64, PTR, VOID, for_range, if_else, loop, offset
from volta.numba_cpu.attention_tile import at_step
from volta.numba_cpu.dot_tile import new_internal
from volta.xla_like.attention import BLOCK

SEEN_TYPE = ir.FunctionType(I64, [PTR, I64, I64, I64, I64, PTR, I64, I64])
"""``seen(words, count, width, position, step, mask, mask_row, mask_column)`` -> all words joined."""

COPY_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
"""``copy(to, source, source_row, rows)``."""


def seen_words(module: ir.Module, causal: bool, masked: bool, by_key: bool) -> ir.Function:
    """A word for each of ``count`` rows: bit j says whether the row sees key j of ``width`` (both at most 64).

    Row i stands at ``position + i * step`` from the block's first key (`step` is 0 or 1). ``by_key``: a word for each
    of ``count`` keys, whose bit i says whether row i of ``width`` sees it (`step` is 1). The mask is read at the given
    byte strides.
    """
    name = f"volta_attention_seen{'_causal' * causal}{'_masked' * masked}{'_by_key' * by_key}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, SEEN_TYPE)
    words, count, width, position, step, mask, mask_row, mask_column = function.args
    bits = _mask_bits(module) if masked else None
    inside = _low_bits(b, width)
    if by_key:
        mask_row, mask_column = mask_column, mask_row
    with loop(b, 0, count, init=[I64(0)]) as it:
        word = inside
        if causal and by_key:  # rows from i = j - position on
            before = b.sub(it.index, position)
            word = b.and_(word, b.not_(_low_bits(b, before)))
        elif causal:  # keys up to j = position + i
            word = b.and_(word, _low_bits(b, b.add(b.add(position, b.mul(it.index, step)), I64(1))))
        if bits is not None:
            word = b.and_(word, b.call(bits, [at_step(b, mask, it.index, mask_row), mask_column, width]))
        b.store(word, offset(b, words, b.shl(it.index, I64(3))), align=8)
        it.advance(b.or_(it.values[0], word))
    b.ret(it.results[0])
    return function


def _low_bits(b: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """A word whose lowest ``count`` bits are set; any integer, clipped to 0..64."""
    some = b.select(b.icmp_signed("<", count, I64(0)), I64(0), count)
    whole = b.icmp_signed(">=", some, I64(BLOCK))
    shifted = b.sub(b.shl(I64(1), b.select(whole, I64(0), some)), I64(1))
    return b.select(whole, I64(-1), shifted)


def _mask_bits(module: ir.Module) -> ir.Function:
    """``bits(pointer, stride, count)``: up to 64 booleans as the bits of a word."""
    name = "volta_attention_mask_bits"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, ir.FunctionType(I64, [PTR, I64, I64]))
    pointer, stride, count = function.args
    near = b.and_(b.icmp_signed("==", stride, I64(1)), b.icmp_signed("==", count, I64(BLOCK)))
    with if_else(b, near) as branch:
        with branch.then():
            vector = ir.VectorType(I8, BLOCK)
            there = b.icmp_unsigned("!=", b.load(pointer, align=1, typ=vector), ir.Constant(vector, None))
            branch.give(b.bitcast(there, I64))
        with branch.otherwise():
            with loop(b, 0, count, init=[I64(0)]) as it:
                here = b.load(at_step(b, pointer, it.index, stride), align=1, typ=I8)
                bit = b.zext(b.icmp_unsigned("!=", here, I8(0)), I64)
                it.advance(b.or_(it.values[0], b.shl(bit, it.index)))
            branch.give(it.results[0])
    b.ret(branch.results[0])
    return function


def copy_rows(
    module: ir.Module, dtype: str, accumulator: str, vector_bits: int, count: int, row_bytes: int
) -> ir.Function:
    """Rows of ``count`` elements, in the accumulator's dtype and ``row_bytes`` apart; zeros fill the last vector."""
    name = f"volta_attention_copy_{dtype}_{accumulator}_{vector_bits}_{count}_{row_bytes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, COPY_TYPE)
    to, source, source_row, rows = function.args
    lanes = vector_bits // (8 * item_size(accumulator))
    whole = count - count % lanes
    with for_range(b, 0, rows) as i:
        line, out = at_step(b, source, i, source_row), at_step(b, to, i, I64(row_bytes))
        move_row(b, line, out, dtype, accumulator, lanes, whole, count)
        if whole != count:
            one = Builder(b, 1)
            with for_range(b, count, whole + lanes) as j:
                zero = one.const(accumulator, 0.0)
                one.store(zero, offset(b, out, b.mul(j, I64(item_size(accumulator)))))
    b.ret_void()
    return function


def move_row(
    b: ir.IRBuilder, source: ir.Value, to: ir.Value, dtype: str, out_dtype: str, lanes: int, whole: int, count: int
) -> None:
    """Elements of one row to another place and dtype: vectors up to ``whole``, then one at a time."""
    for width, start, stop in ((lanes, 0, whole), (1, whole, count)):
        if start < stop:
            builder = Builder(b, width)
            with for_range(b, start, stop, width) as j:
                value = builder.load(offset(b, source, b.mul(j, I64(item_size(dtype)))), dtype)
                builder.store(value, offset(b, to, b.mul(j, I64(item_size(out_dtype)))), out_dtype)
