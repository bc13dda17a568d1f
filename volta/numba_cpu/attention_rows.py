"""What attention does with the rows of a block between its products: weights, cotangents of scores, and merging."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit import attention_merge
from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I1, I64, PTR, VOID, for_range, if_else, if_then, load_arg, offset
from volta.emit.reducers import Reducer, across_lanes
from volta.numba_cpu.attention_tile import at_step
from volta.numba_cpu.dot_tile import new_internal
from volta.ops import REGISTRY
from volta.xla_like.attention import BLOCK

ROWS_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, PTR, I64, I64])
"""``weigh(scores, seen, block_m, block_l, scale, rows)``."""

MERGE_TYPE = ir.FunctionType(VOID, [PTR] * 7 + [I64, I64])
"""``merge(m, l, sum, block_m, block_l, part, seen, row_bytes, rows)``."""

BACK_TYPE = ir.FunctionType(VOID, [PTR] * 6 + [I64, I64])
"""``back(scores, weights, seen, m, l, delta, scale, rows)``."""

ADD_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64])
"""``add(sum, part, seen, row_bytes, rows)``."""


class Row:
    """A row of 64 elements in memory, as vectors."""

    def __init__(self, b: ir.IRBuilder, dtype: str, vector_bits: int) -> None:
        self.size = item_size(dtype)
        self.lanes = vector_bits // (8 * self.size)
        self.parts = BLOCK // self.lanes
        self.b, self.dtype = b, dtype
        self.builder, self.one = Builder(b, self.lanes), Builder(b, 1)

    def load(self, pointer: ir.Value) -> list[Value]:
        step = self.lanes * self.size
        return [self.builder.load(offset(self.b, pointer, i * step), self.dtype) for i in range(self.parts)]

    def store(self, values: Sequence[Value], pointer: ir.Value) -> None:
        for i, value in enumerate(values):
            self.builder.store(value, offset(self.b, pointer, i * self.lanes * self.size))

    def masks(self, word: ir.Value) -> list[Value]:
        """A word's bits as a boolean for each element."""
        kind = ir.VectorType(I1, self.lanes)
        bits = [self.b.trunc(self.b.lshr(word, I64(i * self.lanes)), ir.IntType(self.lanes)) for i in range(self.parts)]
        return [self.builder.value(self.b.bitcast(x, kind), "bool") for x in bits]

    def scalar(self, bits: ir.Value) -> Value:
        """An argument that holds the bits of a number."""
        integer = ir.IntType(8 * self.size)
        raw = bits if self.size == 8 else self.b.trunc(bits, integer)
        return self.one.value(self.b.bitcast(raw, self.one.type_of(self.dtype)), self.dtype)

    def sum(self, values: Sequence[Value]) -> Value:
        """SUM of the contract over 64 lanes: halves are added, 32, 16, 8, 4, 2, 1."""
        parts = list(values)
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [x + y for x, y in zip(parts[:half], parts[half:], strict=True)]
        return across_lanes(self.b, Reducer("sum", self.dtype), (parts[0],))[0]

    def max(self, values: Sequence[Value]) -> Value:
        """MAX of the contract: a NaN wins, +0 is above -0. Both are looked for apart from the comparisons."""
        b, builder, one = self.b, self.builder, self.one
        nan = values[0] != values[0]
        for x in values[1:]:
            nan = nan | (x != x)
        tops = list(values)
        while len(tops) > 1:
            half = len(tops) // 2
            tops = [builder.select(x > y, x, y) for x, y in zip(tops[:half], tops[half:], strict=True)]
        top = across_lanes(b, _Plain(self.dtype), (tops[0],))[0]
        with if_else(b, (top == 0.0).ir) as branch:
            with branch.then():
                bits = "int32" if self.size == 4 else "int64"
                plus = builder.bitcast(values[0], bits) == 0
                for x in values[1:]:
                    plus = plus | (builder.bitcast(x, bits) == 0)
                branch.give(one.select(one.value(builder._any(plus), "bool"), one.const(self.dtype, 0.0), -0.0).ir)
            with branch.otherwise():
                branch.give(top.ir)
        top = one.value(branch.results[0], self.dtype)
        return one.select(one.value(builder._any(nan), "bool"), float("nan"), top)


class _Plain(Reducer):
    """The larger of two numbers by one comparison, for values known to be no NaN and zeros of either sign."""

    def __init__(self, dtype: str) -> None:
        super().__init__("max", dtype)

    def combine(self, b: Builder, x: tuple[Value, ...], y: tuple[Value, ...]) -> tuple[Value, ...]:
        return (b.select(x[0] > y[0], x[0], y[0]),)


def _exp(builder: Builder, x: Value) -> Value:
    emit = REGISTRY["exp"].emit
    assert emit is not None
    result: Value = emit(builder, x)
    return result


def _found(module: ir.Module, name: str) -> ir.Function | None:
    found: ir.Function | None = module.globals.get(name)
    return found


def weigh(module: ir.Module, dtype: str, vector_bits: int) -> ir.Function:
    """Scores become weights in place; each row's largest score and sum of weights are written beside them.

    Rows that see no key of the block keep what they have, and their statistics are left as they were.
    """
    name = f"volta_attention_weigh_{dtype}_{vector_bits}"
    if (found := _found(module, name)) is not None:
        return found
    function, b = new_internal(module, name, ROWS_TYPE)
    scores, seen, block_m, block_l, scale, rows = function.args
    row = Row(b, dtype, vector_bits)
    factor = row.builder.splat(row.scalar(scale))
    with for_range(b, 0, rows) as i:
        word, line = load_arg(b, seen, i), at_step(b, scores, i, I64(BLOCK * row.size))
        with if_then(b, b.icmp_signed("!=", word, I64(0))):
            masks = row.masks(word)
            values = [x * factor for x in row.load(line)]
            values = [row.builder.select(m, x, float("-inf")) for m, x in zip(masks, values, strict=True)]
            top = row.max(values)
            wide = row.builder.splat(top)
            weights = [_exp(row.builder, x - wide) for x in values]
            weights = [row.builder.select(m, x, 0.0) for m, x in zip(masks, weights, strict=True)]
            row.store(weights, line)
            at = b.mul(i, I64(row.size))
            row.one.store(top, offset(b, block_m, at))
            row.one.store(row.sum(weights), offset(b, block_l, at))
    b.ret_void()
    return function


def merge(module: ir.Module, dtype: str, vector_bits: int, vectors: int) -> ir.Function:
    """A block's results join those of the blocks before it, for rows that see one of its keys.

    The factors of both sides take the place of the block's statistics.
    """
    name = f"volta_attention_merge_{dtype}_{vector_bits}_{vectors}"
    if (found := _found(module, name)) is not None:
        return found
    function, b = new_internal(module, name, MERGE_TYPE)
    m, l, total, block_m, block_l, part, seen, row_bytes, rows = function.args  # noqa: E741
    row = Row(b, dtype, vector_bits)
    builder = row.builder
    with for_range(b, 0, rows, row.lanes) as i:  # rows are padded to whole vectors
        at = b.mul(i, I64(row.size))
        old, new, count, added = (builder.load(offset(b, p, at), dtype) for p in (m, block_m, l, block_l))
        top = builder.max(old, new)
        keep, take = attention_merge.factors(builder, old, new, top, lambda x: _exp(builder, x))
        live = builder.load(offset(b, seen, b.shl(i, I64(3))), "int64") != 0
        joined = attention_merge.merged(builder, count, keep, added, take)
        builder.store(builder.select(live, top, old), offset(b, m, at))
        builder.store(builder.select(live, joined, count), offset(b, l, at))
        builder.store(keep, offset(b, block_m, at))
        builder.store(take, offset(b, block_l, at))
    with for_range(b, 0, rows) as i:
        with if_then(b, b.icmp_signed("!=", load_arg(b, seen, i), I64(0))):
            at = b.mul(i, I64(row.size))
            keep, take = (builder.splat(row.one.load(offset(b, p, at), dtype)) for p in (block_m, block_l))
            to, source = at_step(b, total, i, row_bytes), at_step(b, part, i, row_bytes)
            for v in range(vectors):
                here = offset(b, to, v * vector_bits // 8)
                x = builder.load(offset(b, source, v * vector_bits // 8), dtype)
                builder.store(attention_merge.merged(builder, builder.load(here, dtype), keep, x, take), here)
    b.ret_void()
    return function


def back(module: ir.Module, dtype: str, vector_bits: int) -> ir.Function:
    """Scores and products of cotangents with values become, in place, cotangents of scores and weights."""
    name = f"volta_attention_back_{dtype}_{vector_bits}"
    if (found := _found(module, name)) is not None:
        return found
    function, b = new_internal(module, name, BACK_TYPE)
    scores, weights, seen, m, l, delta, scale, rows = function.args  # noqa: E741
    row = Row(b, dtype, vector_bits)
    builder = row.builder
    factor = builder.splat(row.scalar(scale))
    with for_range(b, 0, rows) as i:
        with if_then(b, b.icmp_signed("!=", load_arg(b, seen, i), I64(0))):
            step, at = b.mul(i, I64(BLOCK * row.size)), b.mul(i, I64(row.size))
            top, count, less = (builder.splat(row.one.load(offset(b, p, at), dtype)) for p in (m, l, delta))
            s, dp = offset(b, scores, step), offset(b, weights, step)
            p = [_exp(builder, x * factor - top) / count for x in row.load(s)]
            ds = [x * (y - less) for x, y in zip(p, row.load(dp), strict=True)]
            row.store(ds, s)
            row.store(p, dp)
    b.ret_void()
    return function


def add_part(module: ir.Module, dtype: str, vector_bits: int, vectors: int) -> ir.Function:
    """``sum = sum + part`` for rows that take part in the block."""
    name = f"volta_attention_add_{dtype}_{vector_bits}_{vectors}"
    if (found := _found(module, name)) is not None:
        return found
    function, b = new_internal(module, name, ADD_TYPE)
    total, part, seen, row_bytes, rows = function.args
    builder = Builder(b, vector_bits // (8 * item_size(dtype)))
    with for_range(b, 0, rows) as i:
        with if_then(b, b.icmp_signed("!=", load_arg(b, seen, i), I64(0))):
            to, source = at_step(b, total, i, row_bytes), at_step(b, part, i, row_bytes)
            for v in range(vectors):
                here = offset(b, to, v * vector_bits // 8)
                x = builder.load(offset(b, source, v * vector_bits // 8), dtype)
                builder.store(builder.load(here, dtype) + x, here)
    b.ret_void()
    return function
