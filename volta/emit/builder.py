"""The one scalar emitter: a small vocabulary of exactly defined operations, written as LLVM instructions.

Both backends compute every element through this class, with vectors on the CPU and scalars on CUDA, so that the same
program has the same bits on both. Every operation is either exact, correctly rounded (IEEE 754, nearest even), or
defined here for the inputs that LLVM leaves undefined (integer division by zero, shifts out of range, float to int
out of range). There are no fast-math flags and no calls of a math library; only intrinsics that become instructions.

A value's kind is one of 'bool', 'int8'..'int64', 'uint8'..'uint64', 'float32', 'float64'. float16 and bfloat16 exist
only in memory: a load widens to float32 and a store rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from volta.emit.arithmetic import Arithmetic
from volta.emit.values import (
    HALF_DTYPES,
    Value,
    bit_width,
    compute_dtype,
    is_float,
    is_integer,
    is_signed,
    item_size,
    scalar_type,
)
from volta.emit.values import ValueLike as ValueLike

__all__ = [
    "HALF_DTYPES",
    "Builder",
    "Value",
    "bit_width",
    "compute_dtype",
    "is_float",
    "is_integer",
    "is_signed",
    "item_size",
    "scalar_type",
]


class Builder(Arithmetic):
    """Emits at the position of an llvmlite `ir.IRBuilder`; a value has `lanes` lanes (1: an LLVM scalar).

    `while_any` (used by the remainder of floats) opens new basic blocks: whoever emits around this builder must
    read `irbuilder.block` after emitting, not before.
    """

    def __init__(self, irbuilder: ir.IRBuilder, lanes: int = 1, constant_space: int = 0) -> None:
        """`constant_space` is LLVM's address space for tables of constants (CUDA's is 4)."""
        super().__init__(irbuilder, lanes)
        self.constant_space = constant_space

    # Lanes.

    def splat(self, scalar: Value) -> Value:
        """A value of a one-lane builder in every lane of this one."""
        if self.lanes == 1:
            return Value(scalar.ir, scalar.dtype, self)
        lane_type = ir.VectorType(scalar_type(scalar.dtype), self.lanes)
        undefined = ir.Constant(lane_type, ir.Undefined)
        first = self.irbuilder.insert_element(undefined, scalar.ir, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return Value(self.irbuilder.shuffle_vector(first, undefined, mask), scalar.dtype, self)

    def iota(self, dtype: str) -> Value:
        """The index of each lane: 0, 1, ..., lanes - 1."""
        if self.lanes == 1:
            return self.const(dtype, 0)
        if is_float(dtype):
            return self.cast(self.iota("int32"), dtype)
        return Value(ir.Constant(self.type_of(dtype), list(range(self.lanes))), dtype, self)

    def lane(self, x: Value, index: int) -> Value:
        """One lane of `x`, as a value of a one-lane builder."""
        return Value(self._extract(x.ir, index), x.dtype, self._one_lane())

    def _extract(self, vector: ir.Value, index: int) -> ir.Value:
        return vector if self.lanes == 1 else self.irbuilder.extract_element(vector, ir.IntType(32)(index))

    def _insert(self, vector: ir.Value, scalar: ir.Value, index: int) -> ir.Value:
        return scalar if self.lanes == 1 else self.irbuilder.insert_element(vector, scalar, ir.IntType(32)(index))

    # Memory.

    def memory_type(self, dtype: str) -> ir.Type:
        return (
            ir.IntType(bit_width(dtype) if dtype != "bool" else 8)
            if not is_float(dtype) or dtype in HALF_DTYPES
            else scalar_type(dtype)
        )

    def _point(self, pointer: ir.Value, target: ir.Type) -> ir.Value:
        """The pointer as one to `target`: an opaque pointer is one already."""
        wanted = target.as_pointer(pointer.type.addrspace)
        return pointer if pointer.type.is_opaque or pointer.type == wanted else self.irbuilder.bitcast(pointer, wanted)

    def _read(self, pointer: ir.Value, type_: ir.Type, align: int) -> ir.Value:
        return self.irbuilder.load(self._point(pointer, type_), align=align, typ=type_)

    def load(self, pointer: ir.Value, dtype: str, align: int = 0) -> Value:
        """`lanes` neighbouring elements of memory kind `dtype` (half kinds arrive as float32).

        `align` is what the address is a multiple of, where that is more than an element's size.
        """
        raw = self._read(pointer, self.widen(self.memory_type(dtype)), align or item_size(dtype))
        return self.from_memory(raw, dtype)

    def store(self, x: Value, pointer: ir.Value, dtype: str | None = None, align: int = 0) -> None:
        """Write `lanes` neighbouring elements; `dtype` names the memory kind where that is not the value's own."""
        dtype = dtype or x.dtype
        raw = self.to_memory(x, dtype)
        self.irbuilder.store(raw, self._point(pointer, raw.type), align=align or item_size(dtype))

    def load_masked(self, pointer: ir.Value, dtype: str, mask: ir.Value) -> Value:
        """Like `load`, of the lanes in ``mask`` (a vector of i1) alone; the others are 0 and touch no memory."""
        kind = self.widen(self.memory_type(dtype))
        align = ir.IntType(32)(item_size(dtype))
        name = f"llvm.masked.load.v{self.lanes}{self._suffix(dtype)}.p0"
        raw = self._call(name, kind, [pointer, align, mask, ir.Constant(kind, None)])
        return self.from_memory(raw, dtype)

    def store_masked(self, x: Value, pointer: ir.Value, mask: ir.Value, dtype: str | None = None) -> None:
        """Like `store`, of the lanes in ``mask`` alone."""
        dtype = dtype or x.dtype
        raw = self.to_memory(x, dtype)
        name = f"llvm.masked.store.v{self.lanes}{self._suffix(dtype)}.p0"
        self._call(name, ir.VoidType(), [raw, pointer, ir.IntType(32)(item_size(dtype)), mask])

    def _suffix(self, dtype: str) -> str:
        whole = not is_float(dtype) or dtype in HALF_DTYPES
        return f"i{8 * item_size(dtype)}" if whole else f"f{8 * item_size(dtype)}"

    def _call(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        function = self.irbuilder.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(result, [a.type for a in arguments])
            function = ir.Function(self.irbuilder.module, signature, name)
        return self.irbuilder.call(function, arguments)

    def _lane_pointer(self, pointer: ir.Value, offset: ir.Value, dtype: str) -> ir.Value:
        byte = self._point(pointer, ir.IntType(8))
        moved = self.irbuilder.gep(byte, [offset], source_etype=ir.IntType(8))
        return self._point(moved, self.memory_type(dtype))

    def load_at(self, pointer: ir.Value, offsets: Sequence[ir.Value], dtype: str) -> Value:
        """One element per lane, at `offsets[lane]` bytes (i64) after the pointer."""
        raw: ir.Value = ir.Constant(self.widen(self.memory_type(dtype)), ir.Undefined)
        for lane in range(self.lanes):
            where = self._lane_pointer(pointer, offsets[lane], dtype)
            raw = self._insert(raw, self._read(where, self.memory_type(dtype), item_size(dtype)), lane)
        return self.from_memory(raw, dtype)

    def store_at(self, x: Value, pointer: ir.Value, offsets: Sequence[ir.Value], dtype: str | None = None) -> None:
        """Write one element per lane, lane 0 first, at `offsets[lane]` bytes (i64) after the pointer."""
        dtype = dtype or x.dtype
        raw = self.to_memory(x, dtype)
        for lane in range(self.lanes):
            where = self._lane_pointer(pointer, offsets[lane], dtype)
            self.irbuilder.store(self._extract(raw, lane), where, align=item_size(dtype))

    def offsets(self, x: Value) -> list[ir.Value]:
        """The lanes of an int64 value, in the form that `load_at` and `store_at` take."""
        return [self._extract(x.ir, lane) for lane in range(self.lanes)]

    def _strided(self, byte_stride: ir.Value) -> list[ir.Value]:
        word = ir.IntType(64)
        return [self.irbuilder.mul(byte_stride, word(lane)) if lane > 1 else (byte_stride if lane else word(0))
                for lane in range(self.lanes)]  # fmt: skip

    def load_strided(self, pointer: ir.Value, byte_stride: ir.Value, dtype: str) -> Value:
        """One element per lane, `byte_stride` bytes (i64) apart."""
        return self.load_at(pointer, self._strided(byte_stride), dtype)

    def store_strided(self, x: Value, pointer: ir.Value, byte_stride: ir.Value, dtype: str | None = None) -> None:
        """Write one element per lane, `byte_stride` bytes (i64) apart, lane 0 first."""
        self.store_at(x, pointer, self._strided(byte_stride), dtype)

    # Loops.

    def while_any(self, condition: Callable[[Value], Value], body: Callable[[Value], Value], start: Value) -> Value:
        """Repeat `body` on the lanes for which `condition` holds until it holds for none; the others keep theirs."""
        before = self.irbuilder.block
        head = self.irbuilder.append_basic_block("while")
        inside = self.irbuilder.append_basic_block("body")
        after = self.irbuilder.append_basic_block("done")
        self.irbuilder.branch(head)
        self.irbuilder.position_at_end(head)
        phi = self.irbuilder.phi(start.ir.type)
        phi.add_incoming(start.ir, before)
        state = Value(phi, start.dtype, self)
        active = condition(state)
        self.irbuilder.cbranch(self._any(active), inside, after)
        self.irbuilder.position_at_end(inside)
        following = self.select(active, body(state), state)
        phi.add_incoming(following.ir, self.irbuilder.block)
        self.irbuilder.branch(head)
        self.irbuilder.position_at_end(after)
        return state

    def where_any(
        self, condition: Value, compute: Callable[[], Sequence[Value]], usual: Sequence[Value]
    ) -> list[Value]:
        """`compute()` on the lanes where the condition holds, elsewhere `usual`; it runs only if some lane needs it."""
        before = self.irbuilder.block
        inside, after = (self.irbuilder.append_basic_block(name) for name in ("some", "all"))
        self.irbuilder.cbranch(self._any(condition), inside, after)
        self.irbuilder.position_at_end(inside)
        found = [self.select(condition, x, y) for x, y in zip(compute(), usual, strict=True)]
        end = self.irbuilder.block
        self.irbuilder.branch(after)
        self.irbuilder.position_at_end(after)
        return [self._joined(y, before, x, end) for x, y in zip(found, usual, strict=True)]

    def _joined(self, one: Value, from_one: ir.Block, other: Value, from_other: ir.Block) -> Value:
        """What a value is where two blocks meet."""
        joined = self.irbuilder.phi(one.ir.type)
        joined.add_incoming(one.ir, from_one)
        joined.add_incoming(other.ir, from_other)
        return Value(joined, one.dtype, self)

    def rarely(
        self,
        condition: Value,
        rare: Callable[..., Sequence[Value]],
        inputs: Sequence[Value],
        usual: Sequence[Value],
    ) -> list[Value]:
        """`rare(b, *inputs)` on the lanes where the condition holds, elsewhere `usual`.

        `rare` is emitted for one lane (its `b` is a one-lane builder) and runs lane by lane, only if some lane needs
        it: small code for cases that hardly occur. A value never depends on its neighbours.
        """
        irb, word = self.irbuilder, ir.IntType(64)
        before = irb.block
        inside, after = irb.append_basic_block("rare"), irb.append_basic_block("usual")
        if self.lanes == 1:
            irb.cbranch(condition.ir, inside, after)
            irb.position_at_end(inside)
            found = [v.ir for v in rare(self, *inputs)]
            inside_end = irb.block
            irb.branch(after)
        else:
            with irb.goto_entry_block():
                given = [irb.alloca(v.ir.type) for v in inputs]
                results = [irb.alloca(v.ir.type) for v in usual]
            irb.cbranch(self._any(condition), inside, after)
            irb.position_at_end(inside)
            for value, place in zip((*inputs, *usual), (*given, *results), strict=True):
                irb.store(value.ir, place)
            loop, lane_block, skip = (irb.append_basic_block(name) for name in ("lanes", "lane", "next"))
            irb.branch(loop)
            irb.position_at_end(loop)
            lane = irb.phi(word)
            lane.add_incoming(word(0), inside)
            irb.cbranch(irb.extract_element(condition.ir, lane), lane_block, skip)
            irb.position_at_end(lane_block)
            one = self._one_lane()
            scalars = [
                one.load_at(place, [irb.mul(lane, word(item_size(v.dtype)))], v.dtype)
                for v, place in zip(inputs, given, strict=True)
            ]
            for value, place in zip(rare(one, *scalars), results, strict=True):
                one.store_at(value, place, [irb.mul(lane, word(item_size(value.dtype)))])
            irb.branch(skip)
            irb.position_at_end(skip)
            following = irb.add(lane, word(1))
            lane.add_incoming(following, skip)
            done = irb.append_basic_block("done")
            irb.cbranch(irb.icmp_signed("<", following, word(self.lanes)), loop, done)
            irb.position_at_end(done)
            found = [irb.load(place, typ=v.ir.type) for v, place in zip(usual, results, strict=True)]
            inside_end = irb.block
            irb.branch(after)
        irb.position_at_end(after)
        return [self._joined(x, before, Value(y, x.dtype, self), inside_end) for x, y in zip(usual, found, strict=True)]

    def lookup(self, table: Sequence[int | float], dtype: str, index: Value) -> Value:
        """`table[index]` in every lane, the table being constants of kind `dtype` and the index an int64 in range."""
        module = self.irbuilder.module
        texts = [str(self.scalar_const(dtype, number).ir.get_reference()) for number in table]
        name = f"table.{dtype}." + hashlib.sha256(" ".join(texts).encode()).hexdigest()[:16]
        if name not in module.globals:
            array = ir.ArrayType(scalar_type(dtype), len(texts))
            constant = ir.GlobalVariable(module, array, name, addrspace=self.constant_space)
            constant.initializer = ir.Constant(array, [self.scalar_const(dtype, number).ir for number in table])
            constant.global_constant = True
            constant.linkage = "internal"
        start = self.irbuilder.bitcast(module.globals[name], ir.IntType(8).as_pointer(self.constant_space))
        return self.load_at(start, self.offsets(index * item_size(dtype)), dtype)

    def scalar_const(self, dtype: str, number: Any) -> Value:
        """A constant as a value of a one-lane builder."""
        return self._one_lane().const(dtype, number)

    def _one_lane(self) -> Builder:
        return Builder(self.irbuilder, 1, self.constant_space)

    def _any(self, x: Value) -> ir.Value:
        if self.lanes == 1:
            return x.ir
        return self.intrinsic("vector.reduce.or", "bool", x.ir, result=ir.IntType(1))

    def rem(self, x: ValueLike, y: ValueLike) -> Value:
        """Remainder of the truncated quotient, exact, with the sign of x; of integers x rem 0 = x."""
        x, y = self._pair(x, y)
        return self._rem_floats(x, y) if is_float(x.dtype) else self.divide_integers(x, y)[1]

    def _rem_floats(self, x: Value, y: Value) -> Value:
        """Long division: a step takes off as many bits of the quotient as one fma can remove exactly."""
        dtype = x.dtype
        mantissa = 23 if dtype == "float32" else 52
        integer = "int32" if dtype == "float32" else "int64"
        divisor = abs(y)
        proper = self.is_finite(x) & (divisor != 0.0) & ~self.isnan(y)
        small = divisor == float("inf")
        divisor = self.select(small, 1.0, divisor)
        normal = self.bitcast(divisor * 2.0 ** (mantissa + 1), integer)
        exponent = self.bitcast(divisor, integer) >> mantissa
        exponent = self.select(exponent == 0, (normal >> mantissa) - (mantissa + 1), exponent)

        def step(rest: Value) -> Value:
            gap = (self.bitcast(rest, integer) >> mantissa) - exponent
            # A quotient of at most `mantissa` bits is an exact integer, off by at most one: the rest is exact.
            shift = self.max(gap - (mantissa - 1), 0)
            half = shift >> 1
            scaled = divisor * self._power_of_two(half, dtype) * self._power_of_two(shift - half, dtype)
            quotient = self.trunc(rest / scaled)
            rest = self.fma(-quotient, scaled, rest)
            return self.select(rest < 0.0, rest + scaled, rest)

        def unfinished(rest: Value) -> Value:
            return proper & ~small & (rest >= divisor)

        rest = self.while_any(unfinished, step, abs(x))
        result = self.copysign(rest, x)
        return self.select(proper, result, float("nan"))

    def _power_of_two(self, exponent: Value, dtype: str) -> Value:
        mantissa, bias = (23, 127) if dtype == "float32" else (52, 1023)
        return self.bitcast((exponent + bias) << mantissa, dtype)
