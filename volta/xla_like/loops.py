"""From a group of nodes to the call of a loop kernel: the body in SSA form, and every access in strides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.contract import DEFINITIONS
from volta.core.source import Source
from volta.ops.primitive import REGISTRY
from volta.xla_like.constants import constant_of
from volta.xla_like.groups import Group
from volta.xla_like.kernels import (
    Access,
    CombineKernel,
    Compute,
    GivenValue,
    IndexValue,
    Instr,
    KernelCall,
    Load,
    LoopKernel,
    Reduce,
    Store,
)
from volta.xla_like.nodes import Const, Iota, Node, Operand, Ref, Val
from volta.xla_like.placing import NOWHERE, Place
from volta.xla_like.plan import Buffer
from volta.xla_like.views import Ints, merge, prod, row_major, strides_over

BLOCK = DEFINITIONS.sum_block
"""Elements of one block of SUM: part of its definition (docs/determinism.md)."""


@attrs.frozen
class _ElementAccess:
    """What a load or an index (``val`` None) touches: offset and strides over the group's dims, in elements."""

    val: Val | None
    itemsize: int
    offset: int
    strides: Ints
    terms: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class _Stored:
    """A value that the kernel writes; ``part`` of a reduction's state."""

    val: Val
    level: str
    value: int
    part: int


@attrs.define(eq=False)
class _Body:
    """A kernel body under construction."""

    group: Group
    instrs: list[Instr] = attrs.field(factory=list)
    accesses: dict[int, _ElementAccess] = attrs.field(factory=dict)  # by position of the load or index
    values: dict[Val, int] = attrs.field(factory=dict)
    sources: dict[int, Source | None] = attrs.field(factory=dict)  # by position
    _known: dict[Any, int] = attrs.field(factory=dict)

    def emit(self, instr: Instr, key: Any = None) -> int:
        if key is not None and key in self._known:
            return self._known[key]
        self.instrs.append(instr)
        if key is not None:
            self._known[key] = len(self.instrs) - 1
        return len(self.instrs) - 1

    def strides(self, operand: Operand) -> Ints:
        """Strides over the group's dims of an operand viewed in the space's shape or in the rows' shape."""
        group = self.group
        if group.reduced > 1 and prod(operand.view.shape) == group.rows:
            kept = iter(strides_over(operand.view, group.kept_dims()))
            return tuple(0 if m else next(kept) for m in group.mask())
        return strides_over(operand.view, group.dims)

    def constant(self, x: Const, reader: str) -> int:
        instr, bits = constant_of(x.value, x.dtype, reader)
        known = ("const", instr, bits)
        if bits is not None and known not in self._known:
            self.accesses[len(self.instrs)] = _ElementAccess(None, 1, bits, (0,) * len(self.group.dims))
        return self.emit(instr, known)

    def operand(self, x: Operand, reader: str = "") -> int:
        """The value of an operand of the operation ``reader``."""
        if isinstance(x, Const):
            return self.constant(x, reader)
        if isinstance(x, Iota):
            strides = self.strides(x)
            known = ("iota", x.dtype, strides, x.view.offset)
            if known not in self._known:
                self.accesses[len(self.instrs)] = _ElementAccess(None, 1, x.view.offset, strides)
            return self.emit(IndexValue(x.dtype, ""), known)
        if x.val in self.values:
            value = self.values[x.val]
            instr = self.instrs[value]
            if isinstance(instr, Reduce) and instr.kind.startswith("arg") and x.dtype != dtypes.int64:
                convert = ("convert_element_type", (value,), x.dtype, (("new_dtype", x.dtype),))
                return self.emit(Compute(*convert), ("op", *convert))  # a position is an int64 until it is stored
            return value
        return self.load(x, (), (), "")

    def load(
        self, x: Ref, terms: tuple[int, ...], scale: tuple[tuple[int, int], ...], fill: str, other: int | None = None
    ) -> int:
        strides = self.strides(x)
        known = ("load", x.val, strides, x.view.offset, terms, scale, fill, other)
        if known not in self._known:
            self.accesses[len(self.instrs)] = _ElementAccess(x.val, x.dtype.itemsize, x.view.offset, strides, scale)
        return self.emit(Load(x.dtype, "", terms, fill, other), known)

    def node(self, node: Node) -> None:
        before = len(self.instrs)
        self._node(node)
        self.sources.update((i, node.source) for i in range(before, len(self.instrs)))

    def _node(self, node: Node) -> None:
        if node.kind == "gather":
            table = node.operands[0]
            assert isinstance(table, Ref)
            scale, fill = node.params["terms"], node.params["fill"]
            terms = tuple(self.operand(i) for i in node.operands[1 : 1 + len(scale)])
            if fill == "other":
                result = self.load(table, terms, scale, "", self.operand(node.operands[-1]))
            else:
                result = self.load(table, terms, scale, fill)
        elif node.kind == "reduce":
            arg = self.operand(node.operands[0])
            meaning = REGISTRY[node.name].reduction
            assert meaning is not None
            result = self.emit(Reduce(meaning.combine, arg, node.operands[0].dtype))
        else:
            args = tuple(self.operand(x, node.name) for x in node.operands)
            if node.name == "copy":
                self.values[node.outputs[0]] = args[0]
                return
            params = tuple(sorted((k, v) for k, v in node.params.items() if k != "weak_type"))
            result = self.emit(
                Compute(node.name, args, node.outputs[0].dtype, params),
                ("op", node.name, args, node.outputs[0].dtype, params),
            )
        self.values[node.outputs[0]] = result


def pattern_of(stride: int, size: int) -> str:
    """A stride of a dimension as kernels tell them apart: '0', '1' (one element) or '?'."""
    if size == 1:
        return "1"
    return "0" if stride == 0 else "1" if stride == 1 else "?"


def loop_calls(
    group: Group, stored: Sequence[Val], buffer_of: Callable[[Val], int], new_temp: Callable[[ShapedArray], int],
    placed: Mapping[Val, Place] = NOWHERE,
) -> list[KernelCall]:  # fmt: skip
    """The calls that compute a fused group: one loop kernel, and combines where long rows are reduced by blocks.

    Of values that are ``placed`` in another one, ``buffer_of`` gives that one's.
    """
    body = _Body(group)
    for node in group.nodes:
        body.node(node)
    mask = group.mask()
    reduced = group.reduced > 1
    mode = "map" if not reduced else "row" if group.inner == 1 else "col"
    by_blocks = reduced and group.by_blocks

    # Every access: loads and indices in body order, then stores.
    loads = sorted(body.accesses.items())
    full, row = row_major(group.dims), group.row_strides()
    stores: list[_Stored] = []
    for val in stored:
        level = group.levels[val]
        value = body.values[val]
        instr = body.instrs[value]
        parts = 2 if by_blocks and isinstance(instr, Reduce) and instr.kind.startswith("arg") else 1
        stores.extend(_Stored(val, level, value, part) for part in range(parts))
    strides = [p.strides for _, p in loads]
    for s in stores:
        of_all = strides_over(placed[s.val].view, group.dims) if s.val in placed else full
        strides.append(of_all if s.level == "elem" else row)

    kept_dims = tuple(d for d, m in zip(group.dims, mask, strict=True) if not m)
    red_dims = tuple(d for d, m in zip(group.dims, mask, strict=True) if m)
    kept, kept_strides = merge(kept_dims, [tuple(s for s, m in zip(t, mask, strict=True) if not m) for t in strides])
    red, red_strides = merge(red_dims, [tuple(s for s, m in zip(t, mask, strict=True) if m) for t in strides])
    if len(red) > 1:
        raise AssertionError(f"reduced dims {red} of a kernel cannot be walked with one stride")
    if not kept and mode != "row":
        kept, kept_strides = (1,), [(0,)] * len(strides)
    length = red[0] if red else 1
    walk = kept_strides
    if reduced:
        walk = [k + (r[0] if r else 0,) for k, r in zip(kept_strides, red_strides, strict=True)]

    def pattern(i: int) -> str:
        if mode == "map":
            return pattern_of(kept_strides[i][-1], kept[-1])
        if mode == "row":
            return pattern_of(walk[i][-1], length)
        return pattern_of(kept_strides[i][-1], kept[-1]) + ("0" if walk[i][-1] == 0 else "?")

    instrs = list(body.instrs)
    accesses: list[Access] = []
    for k, (i, p) in enumerate(loads):
        if not isinstance(instrs[i], GivenValue):
            instrs[i] = attrs.evolve(instrs[i], pattern=pattern(k))  # type: ignore[arg-type]  # loads and indices only
        accesses.append(
            Access(
                None if p.val is None else buffer_of(p.val),
                p.offset * p.itemsize,
                tuple(s * p.itemsize for s in walk[k]),
                tuple((s * p.itemsize, bound) for s, bound in p.terms),
            )
        )
    rows, blocks = group.rows, -(-length // BLOCK)
    kernel_stores: list[Store] = []
    combines: list[KernelCall] = []
    partials: dict[tuple[Val, int], int] = {}
    for k, s in enumerate(stores, len(loads)):
        instr = instrs[s.value]
        if by_blocks and isinstance(instr, Reduce):
            state = dtypes.compute_dtype(instr.dtype) if s.part == 0 else dtypes.int64  # part 1 is a position
            temp = new_temp(ShapedArray((blocks, rows), state))
            partials[s.val, s.part] = temp
            kernel_stores.append(Store(s.value, state, "1", "row", s.part))
            accesses.append(Access(temp, 0, tuple(n * state.itemsize for n in (*row_major(kept), rows))))
            continue
        kernel_stores.append(Store(s.value, s.val.dtype, pattern(k), s.level, s.part))
        item, start = s.val.dtype.itemsize, placed[s.val].view.offset if s.val in placed else 0
        accesses.append(Access(buffer_of(s.val), start * item, tuple(n * item for n in walk[k])))
    for val in stored:
        if (val, 0) in partials:
            combines.append(_combine(val, instrs[body.values[val]], partials, rows, blocks, buffer_of))

    kernel = LoopKernel(mode, len(kept), tuple(instrs), tuple(kernel_stores), by_blocks)
    call = KernelCall(
        kernel=kernel,
        sizes=kept + ((length,) if reduced else ()),
        accesses=tuple(accesses),
        reads=unique(a.buffer for a in accesses[: len(loads)]),
        writes=unique(a.buffer for a in accesses[len(loads) :]),
        label=_label(group),
        inplace=_inplace(loads, stores, accesses, placed),
        sources=tuple(body.sources.get(i) for i in range(len(instrs))),
    )
    return [call, *combines]


def _combine(
    val: Val, instr: Instr, partials: dict[tuple[Val, int], int], rows: int, blocks: int,
    buffer_of: Callable[[Val], int],
) -> KernelCall:  # fmt: skip
    assert isinstance(instr, Reduce)
    sources = [partials[val, part] for part in (0, 1) if (val, part) in partials]
    out = buffer_of(val)
    return KernelCall(
        kernel=CombineKernel(instr.kind, instr.dtype, val.dtype),
        sizes=(rows, blocks),
        accesses=tuple(Access(b, 0, ()) for b in (*sources, out)),
        reads=tuple(sources),
        writes=(out,),
        label=f"combine {instr.kind}",
    )


def reads_in_order(call: KernelCall, dims: Ints, buffer: Buffer) -> bool:
    """Whether a call that loops over ``dims`` reads a buffer's elements in their own order, wherever it reads it."""
    linear = tuple(s * buffer.aval.dtype.itemsize for s in row_major(dims))
    reads = [a for a in call.accesses if a.buffer == buffer.id]
    return all(not (a.offset or a.terms) and _same(a.strides, linear, dims) for a in reads)


def _same(strides: Ints, wanted: Ints, dims: Ints) -> bool:
    return all(n == 1 or s == w for s, w, n in zip(strides, wanted, dims, strict=True))


def unique(buffers: Iterable[int | None]) -> Ints:
    """Buffers in order of first appearance."""
    return tuple(dict.fromkeys(b for b in buffers if b is not None))


def _label(group: Group) -> str:
    source = next((n.source for n in group.nodes if n.source is not None), None)
    return "" if source is None else str(source)


def _inplace(
    loads: Sequence[tuple[int, _ElementAccess]], stores: Sequence[_Stored], accesses: Sequence[Access],
    placed: Mapping[Val, Place],
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Pairs (read buffer, written buffer) where element i is read only to compute what is written to element i."""
    pairs: list[tuple[int, int]] = []
    reads, writes = accesses[: len(loads)], accesses[len(loads) :]
    for stored, write in zip(stores, writes, strict=True):
        if stored.level != "elem" or write.buffer is None or stored.val in placed:
            continue
        for (_, place), read in zip(loads, reads, strict=True):
            source = place.val
            if (
                source is not None
                and read.buffer is not None
                and source.dtype.itemsize == stored.val.dtype.itemsize
                and source.size == stored.val.size
                and (read.offset, read.strides, read.terms) == (0, write.strides, ())
                and sum(a.buffer == read.buffer for a in reads) == 1
            ):
                pairs.append((read.buffer, write.buffer))
    return tuple(pairs)
