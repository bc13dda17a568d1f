"""Bodies of loop kernels as a thread of a GPU computes them, and what their accesses allow: how wide, how far."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.bodies import AccessArgs, BodyEmitter
from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, if_else, load_arg, load_args
from volta.numba_cuda.codegen.threads import CONSTANT_SPACE, device_pointer
from volta.numba_cuda.loops.scalars import WIDEST, ThreadBuilder, builder_of
from volta.xla_like.kernels import Access, Compute, IndexValue, KernelCall, Load, LoopKernel, Store

SMALL = (1 << 31) - 1
"""Sizes and strides up to this are computed with in 32 bits."""


class ThreadEmitter(BodyEmitter):
    """A body whose accesses lie in device memory; ``own`` points to its words in the args of its call.

    ``narrow``: every stride of every access fits 32 bits, so that an index takes one multiplication to become bytes.
    """

    def __init__(self, b: ir.IRBuilder, own: ir.Value, kernel: LoopKernel, narrow: bool = False) -> None:
        super().__init__(b, own, kernel, CONSTANT_SPACE)
        self._narrow = narrow
        if narrow:
            self.sizes = [narrowed(b, n) for n in self.sizes]
            for place in self.places:
                place.strides = [narrowed(b, s) for s in place.strides]
                place.terms = [(narrowed(b, s), narrowed(b, top)) for s, top in place.terms]

    def builder(self, lanes: int) -> ThreadBuilder:
        return ThreadBuilder(self.b, lanes, self.constant_space)

    def pointer(self, at: int) -> ir.Value:
        return device_pointer(self.b, load_arg(self.b, self.args, at))

    def read_if(
        self, condition: ir.Value, which: Sequence[int], values: dict[int, Value], lanes: int,
        row: dict[int, ir.Value], index: ir.Value | None, reduced: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Evaluate loads where a condition holds; elsewhere they touch no memory, and give zeros."""
        b, found = self.b, dict(values)
        wanted = [i for i in which if i not in values]
        with if_else(b, condition) as branch:
            with branch.then():
                self.evaluate(wanted, found, lanes, row, index, reduced)
                branch.give(*[found[i].ir for i in wanted])
            with branch.otherwise():
                branch.give(*[ir.Constant(found[i].ir.type, None) for i in wanted])
        for i, merged in zip(wanted, branch.results, strict=True):
            values[i] = self.builder(found[i].builder.lanes).value(merged, found[i].dtype)

    def _index(
        self, i: int, x: IndexValue, b: Builder, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        found = super()._index(i, x, b, row, index, reduced)
        return b.value(narrowed(self.b, found.ir), found.dtype) if self._narrow and found.dtype == "int64" else found

    def _in_32_bits(self, x: Load | Store) -> bool:
        """Whether the terms of an access are indices of the loop that fit 32 bits."""
        return self._narrow and all(type(self.kernel.body[t]) is IndexValue for t in x.terms)  # no given constant

    def _clamped(self, values: dict[int, Value], x: Load | Store, place: AccessArgs, b: Builder) -> tuple[Value, Value]:
        if not self._in_32_bits(x):
            return super()._clamped(values, x, place, b)
        total, inside, one = b.const("int64", 0), b.const("bool", True), Builder(self.b, 1)
        for t, (stride, top) in zip(x.terms, place.terms, strict=True):
            at = b.cast(self._widened(values[t], b), "int32")
            largest = b.splat(one.value(self.b.trunc(top, I32), "int32"))
            inside = inside & (at >= 0) & (at <= largest)
            total = total + b.cast(b.max(b.min(at, largest), 0), "int64") * b.splat(one.value(stride, "int64"))
        return total, inside

    def _value(
        self, i: int, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        x = self.kernel.body[i]
        varies = self.analysis.varies
        if isinstance(x, Compute) and x.name == "div" and varies[x.args[0]] and not varies[x.args[1]]:
            top, bottom = (values[a] for a in x.args)
            if top.dtype == "float32":
                return self._divided(x, top, bottom, lanes)
        return super()._value(i, values, lanes, row, index, reduced)

    def _divided(self, x: Compute, top: Value, bottom: Value, lanes: int) -> Value:
        """A quotient by what is the same for many elements: LLVM takes the reciprocal out of the loop."""
        b = self.builder(lanes)
        above = builder_of(bottom).reciprocal_above(bottom)
        result = b.divide_by(self._widened(top, b), self._widened(above, b))
        return b.round_to_half(result, x.dtype.name) if x.dtype.name in ("float16", "bfloat16") else result


def narrowed(b: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """An i64, or a vector of them, that is known to fit 32 bits, in a form from which LLVM sees that."""
    kind = ir.VectorType(I32, word.type.count) if isinstance(word.type, ir.VectorType) else I32
    return b.sext(b.trunc(word, kind), word.type)


def accesses_of(kernel: LoopKernel, call_accesses: Sequence[Access]) -> list[tuple[Load | Store | IndexValue, Access]]:
    """A kernel's loads, indices and stores beside what they touch in a call."""
    found = [x for x in kernel.body if isinstance(x, (Load, IndexValue))]
    return list(zip([*found, *kernel.stores], call_accesses, strict=True))


def is_narrow(call: KernelCall) -> bool:
    """Whether sizes, strides and indices fit 32 bits."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    if any(n > SMALL for n in call.sizes):
        return False
    for x, a in accesses_of(kernel, call.accesses):
        if any(abs(n) > SMALL for n in (*a.strides, *(m for term in a.terms for m in term))):
            return False
        if type(x) is IndexValue:
            reach = sum(abs(stride) * n for stride, n in zip(a.strides, call.sizes, strict=False))
            if abs(a.offset) + reach > SMALL:
                return False
    return True


def widest(call: KernelCall, size: int, dim: int, most: int) -> int:
    """Neighbouring elements of dimension `dim`, of `size`, that every access reads or writes as one: at most `most`."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    lanes = most
    while lanes > 1 and not _fits(call, kernel, size, dim, lanes):
        lanes //= 2
    return lanes


def _fits(call: KernelCall, kernel: LoopKernel, size: int, dim: int, lanes: int) -> bool:
    if size % lanes:
        return False
    for x, access in accesses_of(kernel, call.accesses):
        if isinstance(x, IndexValue) or x.pattern[0] != "1":
            continue
        if isinstance(x, Store) and x.level == "row" and kernel.mode == "row":
            continue
        width = min(WIDEST, lanes * x.dtype.itemsize)
        strides = (n for d, n in enumerate(access.strides) if d != dim)
        if any(n % width for n in (access.offset, *strides, *(stride for stride, _ in access.terms))):
            return False
    return True


def words_of(kernel: LoopKernel) -> int:
    """Words of a call's args: sizes, and bases, strides and terms of accesses."""
    accesses = [x for x in (*kernel.body, *kernel.stores) if isinstance(x, (Load, IndexValue, Store))]
    terms = sum(len(x.terms) for x in accesses if not isinstance(x, IndexValue))
    dims = kernel.rank + (kernel.mode != "map")
    return dims + len(accesses) * (1 + dims) + 2 * terms


def division_words(sizes: Sequence[int]) -> list[int]:
    """For each size but the first a multiplier and a shift that divide numbers below 2^31 by it.

    With s = ceil(log2 d) and m = floor(2^(31 + s) / d) + 1 < 2^32, n m / 2^(31 + s) exceeds n / d by at most
    n / 2^(31 + s) < 1 / d.
    """
    words = []
    for d in sizes[1:]:
        shift = 31 + (d - 1).bit_length()
        words += [(1 << shift) // d + 1 if d & (d - 1) else 1 << (shift - d.bit_length() + 1), shift]
    return words


def unravel(b: ir.IRBuilder, args: ir.Value, first: int, linear: ir.Value, sizes: Sequence[ir.Value]) -> list[ir.Value]:
    """A linear index below 2^31 as one index a dimension, by the `division_words` at word `first`."""
    out: list[ir.Value] = []
    for d in range(len(sizes) - 1, 0, -1):
        multiplier, shift = load_args(b, args, 2, first + 2 * (d - 1))
        above = b.lshr(b.mul(linear, b.zext(b.trunc(multiplier, I32), I64)), shift)
        above = narrowed(b, above)  # so that a multiplication by a stride takes one instruction
        out.append(narrowed(b, b.sub(linear, b.mul(above, sizes[d]))))
        linear = above
    return [*([linear] if sizes else []), *reversed(out)]


def position(b: ir.IRBuilder, reduced: ir.Value, lanes: int) -> Value:
    """The int64 positions of a thread's neighbouring elements."""
    many, one = ThreadBuilder(b, lanes), Builder(b, 1)
    start = many.splat(one.value(reduced, "int64"))
    return start + many.iota("int64") if lanes > 1 else start
