"""Reductions in text: 64 lanes, lanes that combine by halving, and the tree of adjacent pairs over blocks of 4096.

The order is the bit contract's (`volta.emit.reducers` says it in full). Here it stands in Python: a kernel's text fills
lanes, and three short functions do what is the same in every kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta.emit.builder import Value
from volta.emit.reducers import BLOCK, LANES, Reducer
from volta.numba_source.builder import TextBuilder, array_dtype
from volta.numba_source.functions import calculated
from volta.numba_source.python_ir import text_of
from volta.numba_source.text import Lines, Module

TREE = 48
"""Blocks that wait at once: as deep as any tree is."""


class ReductionText:
    """One reduction of a kernel: its arrays of lanes and waiting blocks, by the names of ``number``."""

    def __init__(self, module: Module, reducer: Reducer, number: int | str = "") -> None:
        self.module, self.reducer = module, reducer
        self.top = f"top{number}"  # how many blocks wait
        self.parts = [f"{number}", f"{number}_at"][: len(reducer.state_dtypes)]
        self.label = reducer.kind if reducer.dtype == "float32" else f"{reducer.kind}_{reducer.dtype}"

    def _arrays(self, stem: str) -> list[str]:
        return [stem + part for part in self.parts]

    def arrays(self, lines: Lines, tree: bool = True) -> None:
        """Make the arrays; without blocks there is no tree."""
        for stem, size in (("lanes", LANES), *((("tree", TREE),) if tree else ())):
            for name, dtype in zip(self._arrays(stem), self.reducer.state_dtypes, strict=True):
                lines.line(f"{name} = {self.module.dialect.array(size, array_dtype(dtype))}")

    def clear(self, b: TextBuilder) -> None:
        """Every lane begins as what changes nothing."""
        for name, value in zip(self._arrays("lanes"), self.reducer.identity(b), strict=True):
            b.lines.line(f"{name}[:] = {text_of(value.ir)}")

    def absorb(self, b: TextBuilder, lane: str, value: Value, position: str) -> None:
        """Combine an element, which stands at ``position`` of what is reduced, into a lane."""
        new = self.reducer.element(b, value, lambda: b.token(position, "int64"))
        self._combine(b, self._arrays("lanes"), lane, [text_of(x.ir) for x in new])

    def _values(self, b: TextBuilder, texts: Sequence[str]) -> list[Value]:
        return [b.token(text, d) for text, d in zip(texts, self.reducer.state_dtypes, strict=True)]

    def _combine(self, b: TextBuilder, arrays: Sequence[str], place: str, with_: Sequence[str]) -> None:
        """``array[place]`` combined with what comes later."""
        count = len(arrays)
        here = [f"{name}[{place}]" for name in arrays]
        values = self._values(b, [*here[:count]]) + self._values(b, with_)
        calculated(b, self.label, lambda b, *x: self.reducer.combine(b, x[:count], x[count:]), values, here)

    def _function(self, stem: str, arrays: str, more: Sequence[str], lines: Lines, comment: str) -> str:
        return self.module.function(f"{stem}_{self.label}", [*self._parameters(arrays), *more], lines.lines, comment)

    def _parameters(self, stem: str) -> list[str]:
        return [stem, f"{stem}_at"][: len(self.parts)]

    def folded(self) -> str:
        """The call that combines the lanes, as text."""
        b = TextBuilder(Lines(), self.module)
        lanes = self._parameters("lanes")
        b.lines.line(f"half = {LANES // 2}")
        with b.lines.block("while half > 0:"), b.lines.block("for lane in range(half):"):
            self._combine(b, lanes, "lane", [f"{name}[lane + half]" for name in lanes])
        b.lines.lines.insert(len(b.lines.lines), "    half //= 2")
        b.lines.line("return " + ", ".join(f"{name}[0]" for name in lanes))
        comment = f"{LANES} lanes combined by halving: lane l with lane l + {LANES // 2}, and so on."
        name = self._function("fold", "lanes", (), b.lines, comment)
        return f"{name}({', '.join(self._arrays('lanes'))})"

    def _join(self, b: TextBuilder, tree: Sequence[str]) -> None:
        self._combine(b, tree, "top - 2", [f"{name}[top - 1]" for name in tree])
        b.lines.line("top -= 1")

    def pushed(self, block: str, states: Sequence[str], trees: Sequence[str] = ()) -> str:
        """The call that adds the result of a block to the tree, as text: it gives the new ``top``."""
        b = TextBuilder(Lines(), self.module)
        tree, new = self._parameters("tree"), self._parameters("new")
        for name, value in zip(tree, new, strict=True):
            b.lines.line(f"{name}[top] = {value}")
        b.lines.line("top += 1")
        with b.lines.block("while block & 1:"):
            self._join(b, tree)
            b.lines.line("block >>= 1")
        b.lines.line("return top")
        comment = "The result of block 0, 1, 2, ... joins those that wait: adjacent pairs, and pairs of pairs."
        name = self._function("push", "tree", ("top", "block", *new), b.lines, comment)
        return f"{name}({', '.join([*(trees or self._arrays('tree')), self.top, block, *states])})"

    def finished(self, trees: Sequence[str] = ()) -> str:
        """The call that combines what is left in the tree, as text."""
        b = TextBuilder(Lines(), self.module)
        tree = self._parameters("tree")
        with b.lines.block("while top > 1:"):
            self._join(b, tree)
        b.lines.line("return " + ", ".join(f"{name}[0]" for name in tree))
        name = self._function("finish", "tree", ("top",), b.lines, "The blocks that wait, combined from the last on.")
        return f"{name}({', '.join([*(trees or self._arrays('tree')), self.top])})"

    def states(self, b: TextBuilder, call: str, stem: str) -> list[Value]:
        """The parts of a state that a call gives, under names."""
        names = [stem, f"{stem}_at"][: len(self.parts)]
        b.lines.line(f"{', '.join(names)} = {call}")
        return self._values(b, names)


__all__ = ["BLOCK", "LANES", "TREE", "ReductionText"]
