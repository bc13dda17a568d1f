"""Map kernels on a GPU: a thread computes a few groups of neighbouring elements."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from llvmlite import ir

from volta.emit.builder import Value
from volta.emit.loops import I64, for_range, if_else, if_then, minimum
from volta.numba_cuda.codegen.threads import block_index, new_entry, product, thread_index
from volta.numba_cuda.loops.nests_body import (
    SMALL,
    ThreadEmitter,
    division_words,
    is_narrow,
    narrowed,
    unravel,
    widest,
    words_of,
)
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import Compute, KernelCall, Load, LoopKernel
from volta.xla_like.phases import is_expensive
from volta.xla_like.views import prod

THREADS = 256
LANES = 4
"""Neighbouring elements that a thread computes together, where every access allows it."""

LIGHT = 40
"""Bodies of at most this many operations are emitted for all groups of a thread at once, others in a loop."""

COSTLY = 12
"""Bodies of more operations than this may take longer than reading and writing, and those with a costly operation."""

COSTLY_GROUPS = 4
"""Groups that a thread computes where that takes longer than reading and writing them."""

FILLED = 1 << 20
"""Elements from which a thread takes several groups: below, more threads hide more of the latency."""


@attrs.frozen
class Bound:
    """How many registers a costly body may have: those of `resident` blocks of `threads` fill a multiprocessor.

    Left to itself the driver's assembler takes as many as let it do the most at once, and one or two blocks remain.
    ``groups`` for a thread, emitted at once, or ``looped``.
    """

    threads: int
    resident: int
    groups: int
    looped: bool = False


LEAN = Bound(128, 12, COSTLY_GROUPS)
"""40 registers: with 32 the next group's read would not begin before the last result."""

WIDE = Bound(256, 6, 2)
"""40 too, of which two groups' results leave enough."""

MIDDLE = Bound(256, 5, 2)
"""48."""

HEAVY = Bound(256, 4, 2)
"""64."""

LOOPED, LONG = Bound(256, 4, COSTLY_GROUPS, looped=True), Bound(256, 3, COSTLY_GROUPS, looped=True)
"""64 and 80."""

_NAMES = {
    LEAN: "exp log tanh erf sqrt",  # in float32 throughout
    WIDE: "logistic log1p log2 log10 rsqrt cosh asin atan sin cos",  # in float64 or with several residuals
    MIDDLE: "cbrt acos pow",
    HEAVY: "sinh asinh acosh atanh tan atan2",
    LOOPED: "erf_inv",
    LONG: "lgamma digamma",
}
BOUNDS = {name: bound for bound, names in _NAMES.items() for name in names.split()}
"""By a body's costly operations; each measured on an H200."""


@attrs.frozen
class MapVariant:
    """How a map is shared out: neighbours in a group, groups a thread, and whether 32 bits hold all indices.

    ``tail``: the last elements, fewer than a group, are computed one by one. ``bound``: on its registers.
    """

    lanes: int
    groups: int
    narrow: bool
    tail: bool
    bound: Bound | None = None

    @property
    def threads(self) -> int:
        return self.bound.threads if self.bound else THREADS

    def suffix(self) -> str:
        bound = f"b{self.bound.threads}x{self.bound.resident}{'o' * self.bound.looped}" if self.bound else ""
        return f"{self.lanes}x{self.groups}{'n' * self.narrow}{'t' * self.tail}{bound}"


def choose_map(call: KernelCall) -> MapVariant:
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    sizes = call.sizes[: kernel.rank]
    total, inner = prod(sizes), sizes[-1]
    narrow = is_narrow(call) and total <= SMALL - THREADS * 16
    tail = kernel.rank == 1 and inner % LANES > 0 and inner > LANES
    lanes = widest(call, inner - inner % LANES if tail else inner, kernel.rank - 1, LANES) if narrow else 1
    tail = tail and lanes > 1
    loads = sum(isinstance(x, Load) for x in kernel.body)
    groups = max(1, (COSTLY_GROUPS if is_costly(kernel) or not loads else 4 // lanes) // max(1, loads))
    if total < filling(FILLED):
        groups = 1
    bound = bound_of(kernel) if groups > 1 else None
    return MapVariant(lanes, bound.groups if bound else groups, narrow, tail, bound)


def operations(kernel: LoopKernel) -> list[str]:
    return [x.name for x in kernel.body if isinstance(x, Compute)]


def costly_operations(kernel: LoopKernel) -> list[str]:
    return [x.name for x in kernel.body if isinstance(x, Compute) and is_expensive(x)]


def is_costly(kernel: LoopKernel) -> bool:
    """Whether computing an element may take longer than reading and writing it."""
    return len(operations(kernel)) > COSTLY or bool(costly_operations(kernel))


def bound_of(kernel: LoopKernel) -> Bound | None:
    """The bound for a costly body of moderate length, in float32 throughout but for what functions do inside."""
    costly = costly_operations(kernel)
    loads = sum(isinstance(x, Load) for x in kernel.body)
    plain = all(x.dtype.name in ("float32", "bool") for x in kernel.body)
    more = [x for x in costly if BOUNDS.get(x) != LEAN]
    if not is_costly(kernel) or not plain or len(operations(kernel)) > LIGHT:
        return None
    if len(more) > 1:  # computed at once they need more than one after the other
        return None
    found = BOUNDS.get(more[0]) if more else LEAN
    if found == WIDE and len(costly) > 1:
        found = MIDDLE if loads < 2 else HEAVY
    return found if loads < 2 or found in (MIDDLE, HEAVY, LONG) else None  # the others are too tight for two operands


def grid_of_map(call: KernelCall, v: MapVariant) -> int:
    total = prod(call.sizes[: call.kernel.rank])  # type: ignore[union-attr]  # a loop kernel
    return -(-(total // v.lanes) // (v.threads * v.groups))


def extra_words(call: KernelCall, v: MapVariant) -> list[int]:
    """What the kernel's args hold beyond a call's own: how to divide by the sizes."""
    sizes = list(call.sizes[: call.kernel.rank])  # type: ignore[union-attr]  # a loop kernel
    sizes[-1] = max(1, sizes[-1] // v.lanes)
    return division_words(sizes) if v.narrow else []


def build_map(module: ir.Module, name: str, kernel: LoopKernel, v: MapVariant) -> ir.Function:
    """A thread computes `groups` groups of `lanes` neighbours, the width of a block apart."""
    function, b = new_entry(module, name, v.threads, v.bound.resident if v.bound else None)
    e = ThreadEmitter(b, function.args[0], kernel, v.narrow)
    dims = list(e.sizes[: kernel.rank])
    if v.lanes > 1:
        dims[-1] = b.lshr(dims[-1], I64(v.lanes.bit_length() - 1))
    whole = product(b, dims)
    start = b.add(b.mul(block_index(b), I64(v.threads * v.groups)), thread_index(b))
    which = e.pass_values([s.value for s in kernel.stores])

    def element(linear: ir.Value, lanes: int) -> Callable[[], None]:
        """Compute the group with a number (an element, if ``lanes`` is 1); what is returned writes it."""
        if lanes == 1 and v.tail:
            outer, index = [], linear
        elif v.narrow:
            *outer, index = unravel(b, e.args, words_of(kernel), linear, dims)
        else:
            *outer, index = e.unravel(linear, dims)
        if lanes > 1:
            index = b.shl(index, I64(lanes.bit_length() - 1))
        if v.narrow:
            index = narrowed(b, index)
        row, stores = e.row_bases(outer)
        values: dict[int, Value] = {}
        e.evaluate(e.invariant(), values, 1, row, None)
        e.evaluate(which, values, lanes, row, index)

        def write() -> None:
            for k, s in enumerate(kernel.stores):
                e.store(k, s, values[s.value], lanes, stores[k], index, values)

        return write

    def one_by_one() -> None:
        stop = minimum(b, b.add(start, I64(v.threads * v.groups)), whole)
        with for_range(b, start, stop, v.threads) as linear:
            element(linear, v.lanes)()

    if v.groups == 1:
        with if_then(b, b.icmp_signed("<", start, whole)):
            element(start, v.lanes)()
    elif len(operations(kernel)) > LIGHT or (v.bound and v.bound.looped):
        one_by_one()
    else:  # loads of several groups are in flight at once; stores come last, since they may be in place
        ends = b.add(start, I64(v.threads * (v.groups - 1)))
        with if_else(b, b.icmp_signed("<", ends, whole)) as branch:
            with branch.then():
                for write in [element(b.add(start, I64(i * v.threads)), v.lanes) for i in range(v.groups)]:
                    write()
            with branch.otherwise():
                one_by_one()
    if v.tail:
        shift = I64(v.lanes.bit_length() - 1)
        rest = b.add(b.shl(whole, shift), thread_index(b))
        first = b.icmp_signed("==", block_index(b), I64(0))
        with if_then(b, b.and_(first, b.icmp_signed("<", rest, e.sizes[kernel.rank - 1]))):
            element(rest, 1)()
    b.ret_void()
    return function
