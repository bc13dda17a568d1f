"""Interleaved arrays on the CPU: real and imaginary parts, or the parts of a transform, side by side in memory.

Accesses that together touch every element of a stretch, each the same one of every few, are read and written as whole
vectors, and their lanes exchanged in registers. The memory touched is the same, so are the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I32, I64, offset
from volta.xla_like.kernels import Access, KernelCall, Load, LoopKernel
from volta.xla_like.views import Ints

MOST = 16
"""Of how many accesses lanes are exchanged in registers."""


@attrs.frozen
class Weave:
    """Accesses that are interleaved, by position in the body (loads) or among the stores, in the order of memory."""

    loads: tuple[Ints, ...] = ()
    stores: tuple[Ints, ...] = ()

    def text(self) -> str:
        return "".join(
            f"\n  {what} {' '.join(map(str, group))} together"
            for what, groups in (("load", self.loads), ("store", self.stores))
            for group in groups
        )


PLAIN = Weave()


def weave_of(call: KernelCall) -> Weave:
    """Which accesses of a 'map' call are interleaved."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    if kernel.mode != "map":
        return PLAIN
    memory = [i for i, x in enumerate(kernel.body) if hasattr(x, "pattern")]
    loads, stores = [], []
    for i, access in zip(memory, call.accesses, strict=False):
        x = kernel.body[i]
        if isinstance(x, Load) and x.pattern[0] == "?" and not x.terms:
            loads.append((i, access, x.dtype.itemsize))
    for k, (s, access) in enumerate(zip(kernel.stores, call.accesses[len(memory) :], strict=True)):
        if s.pattern[0] == "?" and not s.terms:
            stores.append((k, access, s.dtype.itemsize))
    return Weave(_groups(loads), _groups(stores))


def _groups(accesses: Sequence[tuple[int, Access, int]]) -> tuple[Ints, ...]:
    alike: dict[tuple[int | None, Ints, int], dict[int, int]] = {}
    for number, access, size in accesses:
        alike.setdefault((access.buffer, access.strides, size), {}).setdefault(access.offset, number)
    found: list[Ints] = []
    for (_, strides, size), at in alike.items():
        count, rest = divmod(strides[-1], size)
        if rest or not 2 <= count <= MOST:
            continue
        left = dict(sorted(at.items()))
        while left:
            first = next(iter(left))
            group = [left.pop(first + n * size, None) for n in range(count)]
            if None not in group:
                found.append(tuple(group))  # type: ignore[arg-type]
    return tuple(sorted(found))


def load(lanes: Builder, pointer: ir.Value, dtype: str, count: int, few: ir.Value | None) -> list[Value]:
    """The values of ``count`` interleaved accesses, the first one at ``pointer``, of ``few`` lanes or of all."""
    b, vectors = lanes.irbuilder, []
    for n in range(count):
        here = offset(b, pointer, I64(n * lanes.lanes * item_size(dtype)))
        mask = _mask(b, lanes, n, count, few)
        vectors.append(lanes.load(here, dtype) if mask is None else lanes.load_masked(here, dtype, mask))
    return [Value(x, vectors[0].dtype, lanes) for x in apart(b, [v.ir for v in vectors], lanes.lanes)]


def store(lanes: Builder, values: Sequence[Value], pointer: ir.Value, dtype: str, few: ir.Value | None) -> None:
    """Write the values of interleaved accesses whose first one writes at ``pointer``."""
    b = lanes.irbuilder
    woven = together(b, [v.ir for v in values], lanes.lanes)
    for n, x in enumerate(woven):
        here = offset(b, pointer, I64(n * lanes.lanes * item_size(dtype)))
        mask, value = _mask(b, lanes, n, len(values), few), Value(x, values[0].dtype, lanes)
        if mask is None:
            lanes.store(value, here, dtype)
        else:
            lanes.store_masked(value, here, mask, dtype)


def _mask(b: ir.IRBuilder, lanes: Builder, n: int, count: int, few: ir.Value | None) -> ir.Value | None:
    """Which lanes of the n-th vector of memory belong to the first ``few`` elements of each access."""
    if few is None:
        return None
    limit = b.sub(b.mul(few, I32(count)), I32(n * lanes.lanes))
    return (lanes.iota("int32") < lanes.splat(Builder(b, 1).value(limit, "int32"))).ir


def _shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def _factor(n: int) -> int:
    return next(p for p in range(2, n + 1) if n % p == 0)


def together(b: ir.IRBuilder, xs: Sequence[ir.Value], lanes: int) -> list[ir.Value]:
    """The first elements of all vectors, then the second ones, and so on, in as many vectors."""
    if len(xs) == 1:
        return list(xs)
    p = _factor(len(xs))
    parts = [together(b, xs[i::p], lanes) for i in range(p)]
    return [v for row in zip(*parts, strict=True) for v in _prime_together(b, row, lanes)]


def _prime_together(b: ir.IRBuilder, xs: Sequence[ir.Value], lanes: int) -> list[ir.Value]:
    p, out = len(xs), []
    for n in range(p):
        places = [divmod(n * lanes + i, p) for i in range(lanes)]  # (lane, member) of each element
        value = _shuffle(b, xs[0], xs[1], [lane + lanes * (m == 1) for lane, m in places])
        for k in range(2, p):
            value = _shuffle(b, value, xs[k], [lanes + lane if m == k else i for i, (lane, m) in enumerate(places)])
        out.append(value)
    return out


def apart(b: ir.IRBuilder, xs: Sequence[ir.Value], lanes: int) -> list[ir.Value]:
    """What `together` has put together."""
    if len(xs) == 1:
        return list(xs)
    p = _factor(len(xs))
    rows = [_prime_apart(b, xs[i : i + p], lanes) for i in range(0, len(xs), p)]
    out: list[ir.Value | None] = [None] * len(xs)
    for i, members in enumerate(zip(*rows, strict=True)):
        out[i::p] = apart(b, members, lanes)
    return out


def _prime_apart(b: ir.IRBuilder, xs: Sequence[ir.Value], lanes: int) -> list[ir.Value]:
    p, out = len(xs), []
    for m in range(p):
        places = [divmod(i * p + m, lanes) for i in range(lanes)]  # (vector, lane) of each element
        value = _shuffle(b, xs[0], xs[1], [lane + lanes * (n == 1) for n, lane in places])
        for k in range(2, p):
            value = _shuffle(b, value, xs[k], [lanes + lane if n == k else i for i, (n, lane) in enumerate(places)])
        out.append(value)
    return out
