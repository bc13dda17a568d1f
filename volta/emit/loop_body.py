"""What the body of a loop kernel says, whoever writes it, as LLVM or as text: which operation means what, and which
values are computed how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, Value
from volta.ops.primitive import REGISTRY
from volta.ops.scalar.narrower import DEPTH, narrower
from volta.xla_like.kernels import Compute, GivenValue, IndexValue, Instr, Load, LoopKernel, Reduce
from volta.xla_like.phases import Analysis, analyse, needed


class LoopBody:
    """The body of one loop kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.analysis: Analysis = analyse(kernel.mode, kernel.body)
        self.memory = [i for i, x in enumerate(kernel.body) if isinstance(x, (Load, IndexValue))]

    @property
    def vector_axis(self) -> int:
        """Position of the axis that vectors run along, among the strides."""
        return self.kernel.rank - 1 if self.kernel.mode != "row" else self.kernel.rank

    def invariant(self, phase: int | None = None) -> list[int]:
        """Values computed once a row (in one phase, or in all)."""
        a = self.analysis
        return [
            i
            for i, x in enumerate(self.kernel.body)
            if not a.varies[i] and not isinstance(x, Reduce) and (phase is None or a.phase[i] == phase)
        ]

    def pass_values(self, targets: Sequence[int], stop: Sequence[int] = ()) -> list[int]:
        """Per-element values that a pass computes for its targets."""
        return [i for i in needed(self.kernel.body, targets, stop) if self.analysis.varies[i]]

    def special(self, x: Compute) -> Callable[..., Value] | None:
        """A shorter function for an operation whose operand's range is known from what it comes from."""
        return narrower(self._chain(x)) if x.dtype.name == "float32" else None

    def computed(self, x: Compute, b: Builder, operands: Sequence[Value]) -> Value:
        """What an operation gives."""
        meaning = self.special(x) or REGISTRY[x.name].emit
        assert meaning is not None
        result: Value = meaning(b, *operands, **dict(x.params))
        half = x.dtype.name in HALF_DTYPES  # computed in float32, rounded after every operation
        return b.round_to_half(result, x.dtype.name) if half else result

    def _chain(self, x: Instr) -> list[str]:
        """The name of a float32 operation, of what its only operand comes from, and so on."""
        names: list[str] = []
        while isinstance(x, Compute) and x.dtype.name == "float32" and len(x.args) == 1 and len(names) < DEPTH:
            names.append(x.name)
            x = self.kernel.body[x.args[0]]
        return names


def given(x: GivenValue, b: Builder, word: ir.Value) -> Value:
    """A constant from its bits, a word of the args."""
    raw = b.irbuilder.trunc(word, ir.IntType(8 * x.dtype.itemsize)) if x.dtype.itemsize < 8 else word
    return b.from_memory(b.irbuilder.bitcast(raw, b.memory_type(x.dtype.name)), x.dtype.name)


def in_range(b: Builder, term: Value, largest: Value) -> tuple[Value, Value]:
    """An index clamped to 0..largest, and whether it was there already."""
    if term.dtype == "uint64":  # beyond int64 is out of range as well
        huge = term >= 1 << 63
        number = b.select(huge, -1, b.cast(term, "int64"))
        index = b.select(huge, (1 << 63) - 1, b.cast(term, "int64"))
    else:
        number = index = b.cast(term, "int64")
    inside = (number >= 0) & (number <= largest)
    return b.select(index < 0, 0, b.select(index > largest, largest, index)), inside
