"""Loop kernels as text: the nests 'map', 'row' and 'col' around a body, and the kernel that finishes a reduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from volta.emit.builder import Value, compute_dtype, item_size
from volta.emit.reducers import BLOCK, LANES, Reducer
from volta.numba_source.bodies import ONCE, BodyText, Index, calculated_read
from volta.numba_source.builder import HALVES, TextBuilder
from volta.numba_source.functions import calculated, function_name
from volta.numba_source.reductions import ReductionText
from volta.numba_source.text import Lines, Module
from volta.xla_like.kernels import CombineKernel, LoopKernel, Reduce
from volta.xla_like.phases import store_pass, targets_of


@attrs.frozen(eq=False)
class _Pass:
    """One pass over the reduced axis: what it reduces, computes and stores."""

    reduces: dict[int, ReductionText]
    which: list[int]
    stores: list[int]


class LoopText:
    """Writes one loop kernel into the lines of its body."""

    def __init__(self, kernel: LoopKernel, module: Module, notes: Mapping[int, str]) -> None:
        self.kernel, self.body = kernel, BodyText(kernel, module, notes)
        self.lines, self.module = self.body.lines, module
        self.passes = self._passes() if kernel.mode != "map" else []

    def text(self) -> list[str]:
        for p in self.passes:
            for reduction in p.reduces.values():
                reduction.arrays(self.lines, tree=not self.kernel.by_blocks)
        {"map": self._map, "row": self._row, "col": self._col}[self.kernel.mode]()
        return [*self.body.header(self.lines.lines), *self.lines.lines]

    def _passes(self) -> list[_Pass]:
        body, a = self.kernel.body, self.body.analysis
        elem = [s.value for s in self.kernel.stores if s.level == "elem"]
        writes_in = store_pass(body, a, elem)
        out = []
        for phase in range(a.last + 1):
            targets = targets_of(body, a, elem, phase)
            reduces = {
                i: ReductionText(self.module, Reducer(x.kind, compute_dtype(x.dtype.name)), i)
                for i, x in enumerate(body)
                if isinstance(x, Reduce) and a.phase[x.arg] == phase
            }
            stores = [k for k, s in enumerate(self.kernel.stores) if s.level == "elem"] if phase == writes_in else []
            out.append(_Pass(reduces, self.body.pass_values(targets), stores))
        return out

    # -- nests ---------------------------------------------------------------------------------------------------------

    def _map(self) -> None:
        """A task is a chunk of the last axis."""
        lines, body = self.lines, self.body
        (*outer, n), chunk = body.sizes, "chunk"
        with lines.block(f"for task in {self.module.dialect.tasks}:"):
            if outer:
                lines.line(f"chunks = ({n} + {chunk} - 1) // {chunk}")
                lines.line(f"row, start = task // chunks, task % chunks * {chunk}")
            else:
                lines.line(f"start = task * {chunk}")
            body.rows(body.unravel("row", outer))
            once: dict[int, Value] = {}
            body.evaluate(body.invariant(), once, ONCE)
            which = body.pass_values([s.value for s in self.kernel.stores])
            with lines.block(f"for i in range(start, min(start + {chunk}, {n})):"):
                values, at = dict(once), Index("i")
                body.evaluate(which, values, at)
                for k, s in enumerate(self.kernel.stores):
                    body.store(k, values[s.value], values, at)

    def _row(self) -> None:
        """A task is a row of the reduced axis, or a block of one."""
        lines, body = self.lines, self.body
        with lines.block(f"for task in {self.module.dialect.tasks}:"):
            if self.kernel.by_blocks:
                lines.line(f"blocks = (length + {BLOCK - 1}) // {BLOCK}")
                lines.line("row, block = task // blocks, task % blocks")
            body.rows(body.unravel("row" if self.kernel.by_blocks else "task", body.sizes[:-1]))
            self._phases(ONCE, lambda position: Index(position))

    def _col(self) -> None:
        """A task is a few columns, each reduced by itself, or a block of them."""
        lines, body = self.lines, self.body
        *outer, columns, _ = body.sizes
        with lines.block(f"for task in {self.module.dialect.tasks}:"):
            unit = "task"
            if self.kernel.by_blocks:
                lines.line(f"blocks = (length + {BLOCK - 1}) // {BLOCK}")
                lines.line("unit, block = task // blocks, task % blocks")
                unit = "unit"
            width = self.module.dialect.columns(self.kernel)
            lines.line(f"groups = ({columns} + {width - 1}) // {width}", f"of {width} columns")
            if outer:
                lines.line(f"row = {unit} // groups")
            lines.line(f"first = {unit} % groups * {width}")
            body.rows(body.unravel("row", outer))
            with lines.block(f"for c in range(first, min(first + {width}, {columns})):"):
                self._phases(Index("c"), lambda position: Index("c", position))

    def _phases(self, row: Index, at: Callable[[str], Index]) -> None:
        """All passes over one row, and what is stored once a row. ``at`` says where an element of it is."""
        body, kernel = self.body, self.kernel
        once: dict[int, Value] = {}
        states: dict[int, list[Value]] = {}
        body.evaluate(body.invariant(0), once, row)
        for phase, p in enumerate(self.passes):
            if p.reduces:
                states.update(self._reduced(p, once, at))
                if not kernel.by_blocks:
                    once.update((i, self._result(i, states[i])) for i in p.reduces)
            elif p.stores:
                with self.lines.block("for i in range(length):"):
                    self._elements(p, once, at("i"))
            body.evaluate(body.invariant(phase + 1), once, row)
        for k, s in enumerate(kernel.stores):
            if s.level == "row":
                if kernel.by_blocks and s.value in states:
                    place = f"{body.stores[k]} + block * {body.places[len(body.memory) + k].strides[-1]}"
                    body.store(k, states[s.value][s.part], once, row, place)
                else:
                    body.store(k, once[s.value], once, row)

    def _elements(self, p: _Pass, once: dict[int, Value], at: Index) -> dict[int, Value]:
        """One element of a pass: its values, and its stores."""
        values, self.body.said = dict(once), ""
        self.body.evaluate(p.which, values, at)
        for k in p.stores:
            self.body.store(k, values[self.kernel.stores[k].value], values, at)
        return values

    def _reduced(self, p: _Pass, once: dict[int, Value], at: Callable[[str], Index]) -> dict[int, list[Value]]:
        b, lines = self.body.b, self.lines
        if self.kernel.by_blocks:
            lines.line(f"start = block * {BLOCK}")
            self._block(p, once, at)
            return {i: r.states(b, r.folded(), f"s{i}") for i, r in p.reduces.items()}
        for i in p.reduces:
            lines.line(f"{p.reduces[i].top} = 0")
        with lines.block(f"for start in range(0, length, {BLOCK}):"):
            self._block(p, once, at)
            for i, r in p.reduces.items():
                found = r.states(b, r.folded(), f"s{i}")
                lines.line(f"{r.top} = {r.pushed(f'start // {BLOCK}', [x.ir.text for x in found])}")
        return {i: r.states(b, r.finished(), f"s{i}") for i, r in p.reduces.items()}

    def _block(self, p: _Pass, once: dict[int, Value], at: Callable[[str], Index]) -> None:
        """Element by element into the lanes: lane l takes elements l, l + 64, … of the block."""
        lines, b = self.lines, self.body.b
        for r in p.reduces.values():
            r.clear(b)
        lines.line(f"stop = min(start + {BLOCK}, length)")
        with (
            lines.block(f"for base in range(start, stop, {LANES}):"),
            lines.block(f"for lane in range(min({LANES}, stop - base)):"),
        ):
            lines.line("i = base + lane")
            values = self._elements(p, once, at("i"))
            for i, r in p.reduces.items():
                x = self.kernel.body[i]
                assert isinstance(x, Reduce)
                r.absorb(b, "lane", values[x.arg], "i")

    def _result(self, i: int, state: list[Value]) -> Value:
        """A finished reduction as a value of its dtype: what the kernel goes on with is what it would have stored."""
        x = self.kernel.body[i]
        assert isinstance(x, Reduce)
        b, dtype, name = self.body.b, x.dtype.name, f"v{i}"
        value = state[1] if x.kind.startswith("arg") else state[0]
        if dtype in HALVES and not x.kind.startswith("arg"):
            return calculated(b, "round", lambda b, v: b.round_to_half(v, dtype), [value], [name])[0]
        return b.named(name, value, self.body.note(i))


def loop_text(kernel: LoopKernel, module: Module, notes: Mapping[int, str]) -> list[str]:
    """The lines of a loop kernel's function."""
    return LoopText(kernel, module, notes).text()


def combine_text(kernel: CombineKernel, module: Module, notes: Mapping[int, str]) -> list[str]:
    """The lines of the kernel that finishes a reduction by blocks."""
    lines = Lines()
    b = TextBuilder(lines, module)
    reduction = ReductionText(module, Reducer(kernel.kind, compute_dtype(kernel.dtype.name)))
    parts = [f"part{p}" for p in range(len(reduction.parts))]
    lines.line("rows, blocks = args[0], args[1]", "sizes")
    for p, name in enumerate(parts):
        lines.line(f"{name} = args[{2 + p}]", "of each block, each row: loads what the blocks gave")
    lines.line(f"out = args[{2 + len(parts)}]", f"stores {kernel.out_dtype.name}, once a row")
    reduction.arrays(lines)
    with lines.block(f"for row in {module.dialect.tasks}:"):
        lines.line("top = 0")
        with lines.block("for block in range(blocks):"):
            reads = [
                calculated_read(b, name, f"(block * rows + row) * {item_size(d)}", d)[0]
                for name, d in zip(parts, reduction.reducer.state_dtypes, strict=True)
            ]
            lines.line(f"top = {reduction.pushed('block', [x.ir.text for x in reads])}")
        state = reduction.states(b, reduction.finished(), "s")
        value, dtype = reduction.reducer.result(tuple(state)), kernel.out_dtype.name
        if value.dtype != compute_dtype(dtype):
            label = function_name("convert_element_type", (("new_dtype", kernel.out_dtype),), value.dtype)
            (value,) = calculated(b, label, lambda b, v: b.cast(v, dtype), [value], ["value"])
        b.write(value, "out", f"row * {kernel.out_dtype.itemsize}", dtype)
    return lines.lines
