"""Kernel descriptions: pure data that a backend turns into code, and the calls that run them.

A :class:`LoopKernel` is generic over sizes: its text names operations, dtypes and, for each access, only whether the
innermost stride is 0, one element, or anything (``0``, ``1``, ``?``). Sizes, strides and addresses are arguments of a
:class:`KernelCall`, so layers share kernels and a new batch size compiles nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.floats import standard
from volta.core.ir import format_param
from volta.core.source import Source
from volta.xla_like.views import Ints

if TYPE_CHECKING:
    from volta.xla_like.plan import ExecutionPlan


@attrs.frozen(slots=True)
class Load:
    """Read memory. ``terms`` are values added to the address as clamped indices; ``fill``: out of range
    is NaN or an extreme integer ('fill'), 0 ('zero'), whatever there is, as nobody looks ('any'), the value ``other``,
    or (all empty) the clamped element."""

    dtype: np.dtype
    pattern: str  # of the vector dimension and, in 'col' kernels, of the reduced one after it
    terms: tuple[int, ...] = ()
    fill: str = ""
    other: int | None = None


@attrs.frozen(slots=True)
class IndexValue:
    """``offset + sum(stride * index)`` as ``dtype``."""

    dtype: np.dtype
    pattern: str


@attrs.frozen(slots=True)
class GivenValue(IndexValue):
    """A constant that a call gives, as the bits (`bits_of`) in its access's offset: another one needs no other code."""

    pattern: str = "00"


@attrs.frozen(slots=True)
class ConstValue:
    """A constant of the kernel's own, as the bytes of a scalar of ``dtype``."""

    dtype: np.dtype
    data: bytes

    @property
    @standard
    def number(self) -> Any:
        return np.frombuffer(self.data, self.dtype)[0].item()


@attrs.frozen(slots=True)
class Compute:
    """Apply an elementwise primitive's meaning to earlier values."""

    name: str
    args: tuple[int, ...]
    dtype: np.dtype
    params: tuple[tuple[str, Any], ...] = ()


@attrs.frozen(slots=True)
class Reduce:
    """Reduce a value over the reduced dimension: 'sum', 'prod', 'max', 'min', 'and', 'or', 'argmax', 'argmin'."""

    kind: str
    arg: int
    dtype: np.dtype


def bits_of(data: bytes) -> int:
    """The bytes of a scalar as an integer of 64 bits."""
    return int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


@standard
def number_of(dtype: np.dtype, bits: int) -> Any:
    """The number that `bits_of` gave the bits of."""
    return np.frombuffer(bits.to_bytes(8, "little", signed=True), dtype)[0].item()


def fill_value(dtype: np.dtype, fill: str) -> Any:
    """What is read for an index out of range: ``fill`` is 'zero' or 'fill'."""
    if fill == "zero":
        return 0
    if dtype.kind in "bu":
        return dtypes.highest(dtype)
    return dtypes.lowest(dtype) if dtype.kind == "i" else np.nan


Instr = Load | IndexValue | ConstValue | Compute | Reduce


@attrs.frozen(slots=True)
class Store:
    """Write a value: at 'elem' level for every element, at 'row' level once a row."""

    value: int
    dtype: np.dtype
    pattern: str
    level: str
    part: int = 0  # of a reduction's state (argmax by blocks stores a value and an index)
    terms: tuple[int, ...] = ()  # values, the same for the whole kernel, added to the address as clamped indices


def _terms(terms: tuple[int, ...]) -> str:
    return "".join(f" + %{t}" for t in terms)


@attrs.frozen(slots=True, cache_hash=True)
class LoopKernel:
    """A loop over ``rank`` kept dimensions and, unless mode is 'map', one reduced dimension.

    mode 'map': the last kept dimension is the vector dimension. 'row': the reduced dimension is innermost and the
    vector dimension. 'col': the last kept dimension is the vector dimension, inside the reduced one. ``by_blocks``:
    a row is reduced in blocks of 4096, each of which gives a partial result; a :class:`CombineKernel` finishes them.
    """

    mode: str
    rank: int
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    by_blocks: bool = False

    def text(self) -> str:
        kind = f"{self.mode}{' by blocks' if self.by_blocks else ''}"
        lines = [f"loop {kind} rank={self.rank}"]
        for i, x in enumerate(self.body):
            if isinstance(x, Reduce):
                what = f"{x.kind} {dtypes.short_name(x.dtype)} %{x.arg}"
            elif isinstance(x, Load):
                fill = f" else %{x.other}" if x.other is not None else x.fill and " " + x.fill
                what = f"load {dtypes.short_name(x.dtype)} [{x.pattern}]{_terms(x.terms)}{fill}"
            elif isinstance(x, GivenValue):
                what = f"given {dtypes.short_name(x.dtype)}"
            elif isinstance(x, IndexValue):
                what = f"index {dtypes.short_name(x.dtype)} [{x.pattern}]"
            elif isinstance(x, ConstValue):
                what = f"const {dtypes.short_name(x.dtype)} {x.number} 0x{x.data[::-1].hex()}"
            else:
                params = " ".join(f"{k}={format_param(v)}" for k, v in x.params)
                args = " ".join(f"%{a}" for a in x.args)
                what = f"{x.name}{'[' + params + ']' if params else ''} {dtypes.short_name(x.dtype)} {args}"
            lines.append(f"  %{i} = {what}")
        for s in self.stores:
            place = f"{s.level} {dtypes.short_name(s.dtype)} [{s.pattern}]{_terms(s.terms)}"
            lines.append(f"  store {place} %{s.value}{'.1' * s.part}")
        return "\n".join(lines)


@attrs.frozen(slots=True, cache_hash=True)
class CombineKernel:
    """Finish a reduction from one partial result a block: an adjacent-pair binary tree over the blocks."""

    kind: str
    dtype: np.dtype  # of the reduced values
    out_dtype: np.dtype

    def text(self) -> str:
        return f"combine {self.kind} {dtypes.short_name(self.dtype)} -> {dtypes.short_name(self.out_dtype)}"


@attrs.frozen(slots=True, cache_hash=True)
class LibraryKernel:
    """A kernel that a backend writes by hand, as its schedule names it. Plans have operations, not these."""

    name: str
    spec: Any  # hashable; its text is canonical

    def text(self) -> str:
        return f"{self.name} {self.spec}"


class Operation:
    """What a call computes that is no loop: a hashable record of sizes and properties by name.

    Nothing in it says how. The call's accesses are its operands, then its results, with their strides; a backend's
    schedule turns the call into launches of kernels.
    """

    @property
    def name(self) -> str:
        """The class of kernels that it needs, by which a backend finds its handler."""
        raise NotImplementedError

    @property
    def shown(self) -> str:
        """How reports name it."""
        return self.name

    def details(self) -> str:
        """Sizes and properties, as a plan's text has them."""
        return ""

    def text(self) -> str:
        return f"{self.name} {self.details()}".rstrip()


@attrs.frozen
class Joined(Operation):
    """Several calls that a backend runs as one: the call's parts, in their order."""

    @property
    def name(self) -> str:
        return "joined"


Kernel = LoopKernel | CombineKernel | LibraryKernel | Operation


def kernel_name(kernel: Kernel) -> str:
    """A symbol from a hash of the kernel's text: the same in every process."""
    return f"volta_{_stem(kernel)}_{hashlib.sha256(kernel.text().encode()).hexdigest()[:16]}"


def _stem(kernel: Kernel) -> str:
    return kernel.mode if isinstance(kernel, LoopKernel) else kernel_class(kernel)


def kernel_class(kernel: Kernel) -> str:
    """The class of a kernel, by which backends find its handler: 'loop', 'combine', or the operation's name."""
    if isinstance(kernel, LoopKernel):
        return "loop"
    return "combine" if isinstance(kernel, CombineKernel) else kernel.name


def describe(kernel: Kernel) -> str:
    """What a kernel does in a few words: the operations it fuses, for reports."""
    if isinstance(kernel, LoopKernel):
        names = [x.name if isinstance(x, Compute) else x.kind for x in kernel.body if isinstance(x, (Compute, Reduce))]
        shown = " ".join(names[:6]) + (f" …+{len(names) - 6}" if len(names) > 6 else "")
        return f"{kernel.mode}({shown or 'copy'})"
    if isinstance(kernel, CombineKernel):
        return kernel.text()
    if isinstance(kernel, Operation):
        return kernel.shown
    return str(getattr(kernel.spec, "shown", kernel.name))


@attrs.frozen(slots=True)
class Access:
    """What one load, index or store of a kernel touches in a call: a buffer (None for an index, or for a constant that
    is given), in bytes."""

    buffer: int | None
    offset: int
    strides: Ints
    terms: tuple[tuple[int, int], ...] = ()  # (byte stride, largest index) per term


@attrs.frozen(slots=True)
class KernelCall:
    """One run of a kernel, or one operation: sizes, and accesses (of a loop the loads and indices in body order, then
    the stores; of an operation its operands, then its results).

    ``sizes`` are those of a loop's kept dimensions, then the reduced one's ('row', 'col'); an `Operation` has its sizes
    itself. How work is cut into tasks, blocks and tiles is each backend's affair. ``workspace`` is a buffer of as many
    bytes as the backend's schedule asked for. ``elided``: what is to be copied is there already, nothing runs.
    ``sources`` says of each value of a loop kernel's body where the user asks for it; no code depends on it.
    """

    kernel: Kernel
    sizes: Ints
    accesses: tuple[Access, ...]
    reads: Ints  # buffer ids
    writes: Ints
    label: str = ""
    inplace: tuple[tuple[int, int], ...] = ()  # (read, written) buffers that may share memory
    parts: tuple[KernelCall, ...] = ()  # calls that run as one: see `Joined`
    plans: tuple[ExecutionPlan, ...] = ()  # of a loop or a choice (see control.py): what it runs
    workspace: int | None = None
    elided: bool = False
    sources: tuple[Source | None, ...] = attrs.field(default=(), eq=False)

    def each(self) -> tuple[KernelCall, ...]:
        """The calls of kernels that this call consists of."""
        return self.parts or (self,)

    def nested(self) -> Iterator[KernelCall]:
        """This call, and every call of the plans that it runs, at any depth."""
        yield self
        for plan in self.plans:
            for call in plan.calls:
                yield from call.nested()

    def given(self) -> list[Any]:
        """The constants that the call gives to its kernel, or to those of its parts."""
        found: list[Any] = []
        for call in self.each():
            if isinstance(call.kernel, LoopKernel):
                memory = (x for x in call.kernel.body if isinstance(x, (Load, IndexValue)))
                pairs = zip(memory, call.accesses, strict=False)
                found += [number_of(x.dtype, a.offset) for x, a in pairs if isinstance(x, GivenValue)]
        return found

    def describe(self) -> str:
        """What the call does in a few words, for reports."""
        return " → ".join(describe(c.kernel) for c in self.each())

    def details(self) -> str:
        """Sizes and properties by name, for reports."""
        operations = [c.kernel.details() for c in self.each() if isinstance(c.kernel, Operation)]
        if operations:
            return " ".join(operations)
        given = f" given={self.given()}" if self.given() else ""
        return f"sizes={self.sizes}{given}{' elided' * self.elided} {kernel_name(self.kernel)}"
