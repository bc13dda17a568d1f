"""The body of a loop kernel as text: the args block, loads, operations and stores, one line each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import attrs

from volta.emit.builder import Value, compute_dtype
from volta.emit.loop_body import LoopBody, given, in_range
from volta.numba_source.builder import HALVES, TextBuilder
from volta.numba_source.functions import calculated, function_name
from volta.numba_source.python_ir import Token, text_of
from volta.numba_source.text import Lines, Module
from volta.xla_like.kernels import (
    Compute,
    ConstValue,
    GivenValue,
    IndexValue,
    Instr,
    Load,
    LoopKernel,
    Store,
    fill_value,
)


@attrs.frozen
class AccessNames:
    """The names of what an access of the kernel is given: its address (or number), strides in bytes, index terms."""

    base: str
    strides: tuple[str, ...]  # kept axes, then the reduced one
    terms: tuple[tuple[str, str], ...]  # (byte stride, largest index)


@attrs.frozen
class Index:
    """Where in the loops a value is computed: names of the indices along the vector axis and a 'col' kernel's
    reduced one."""

    vector: str | None = None
    reduced: str | None = None


ONCE = Index()


class BodyText(LoopBody):
    """Writes the body of one kernel; ``notes`` says of values by number what is written beside them."""

    def __init__(self, kernel: LoopKernel, module: Module, notes: Mapping[int, str]) -> None:
        super().__init__(kernel)
        self.module, self.notes = module, notes
        self.lines = Lines()
        self.b = TextBuilder(self.lines, module)
        self.said = ""  # the note of the line before
        self.args: list[list[str]] = []  # names of the args block, in lines that belong together
        self._name_args()

    # -- the args block ------------------------------------------------------------------------------------------------

    def _name_args(self) -> None:
        k = self.kernel
        self.sizes = [*(f"n{d}" for d in range(k.rank)), *(("length",) if k.mode != "map" else ())]
        self.args.append(self.sizes)
        axes = [*(f"d{d}" for d in range(k.rank)), *(("dr",) if k.mode != "map" else ())]
        self.places: list[AccessNames] = []
        inputs = 0
        for x in [*(k.body[i] for i in self.memory), *k.stores]:
            number = len(self.places) - len(self.memory) if isinstance(x, Store) else inputs
            inputs += not isinstance(x, Store)
            base = f"{'out' if isinstance(x, Store) else 'in'}{number}"
            strides = tuple(f"{base}_{axis}" for axis in axes)
            count = 0 if isinstance(x, IndexValue) else len(x.terms)  # type: ignore[union-attr]
            terms = tuple((f"{base}_t{t}", f"{base}_top{t}") for t in range(count))
            self.places.append(AccessNames(base, strides, terms))
            self.args.append([base, *strides, *(name for pair in terms for name in pair)])
        self.args.append(["chunk"] if k.mode == "map" else [])

    def header(self, body: Sequence[str]) -> list[str]:
        """Lines that name the words of the args block which the body reads."""
        used = set(re.findall(r"\w+", "\n".join(body)))
        lines, at = [], 0
        what = [f"sizes{' (the last one is that of the reduced axis)' if self.kernel.mode != 'map' else ''}"]
        what += [_said(self.kernel.body[i]) for i in self.memory] + [_said(s) for s in self.kernel.stores]
        what.append("elements of a task")
        for names, said in zip(self.args, what, strict=True):
            read = [(name, at + i) for i, name in enumerate(names) if name in used]
            at += len(names)
            if read:
                left, right = ", ".join(n for n, _ in read), ", ".join(f"args[{i}]" for _, i in read)
                lines.append(f"{left} = {right}  # {said}")
        return lines

    # -- values --------------------------------------------------------------------------------------------------------

    def rows(self, outer: Sequence[str]) -> None:
        """Addresses at an outer index (names of the indices of the kept axes that it covers)."""
        names = []
        constants = [isinstance(self.kernel.body[i], GivenValue) for i in self.memory]
        for place, constant in zip_longest(self.places, constants):
            if outer and not constant:
                steps = [f"{i} * {s}" for i, s in zip(outer, place.strides, strict=False)]
                self.lines.line(f"{place.base}_row = {' + '.join([place.base, *steps])}")
            names.append(f"{place.base}_row" if outer and not constant else place.base)
        self.row = dict(zip(self.memory, names, strict=False))
        self.stores = names[len(self.memory) :]

    def note(self, i: int) -> str:
        """What is written beside value ``i``: nothing where the line before says it."""
        said, self.said = self.said, self.notes.get(i, "")
        return self.said if self.said != said else ""

    def evaluate(self, which: Sequence[int], values: dict[int, Value], at: Index) -> None:
        """Compute values ``which`` (ascending) into ``values``."""
        for i in which:
            if i not in values:
                values[i] = self._value(i, values, at)

    def _value(self, i: int, values: dict[int, Value], at: Index) -> Value:
        x: Instr = self.kernel.body[i]
        name = f"v{i}"
        if isinstance(x, ConstValue):
            return self.b.const(x.dtype.name, x.number)
        if isinstance(x, Compute):
            return self._compute(x, [values[a] for a in x.args], name, self.note(i))
        if isinstance(x, GivenValue):
            return self._given(x, self.row[i], name)
        assert isinstance(x, (Load, IndexValue))
        return self._index(i, x, name, at) if isinstance(x, IndexValue) else self._load(i, x, name, values, at)

    def _compute(self, x: Compute, args: list[Value], name: str, note: str) -> Value:
        dtype, special = x.dtype.name, self.special(x)
        label = function_name(x.name, x.params, args[0].dtype if args else compute_dtype(dtype))
        label = special.__name__ if special is not None else label
        if dtype in HALVES:
            label += f"_{HALVES[dtype]}"
        return calculated(self.b, label, lambda b, *operands: self.computed(x, b, operands), args, [name], note)[0]

    def _given(self, x: GivenValue, word: str, name: str) -> Value:
        """A constant from its bits."""
        values = [self.b.token(word, "int64")]
        label = function_name("constant", (), x.dtype.name)
        return calculated(self.b, label, lambda b, word: given(x, b, word.ir), values, [name])[0]

    def _distance(self, i: int, place: AccessNames, pattern: str, itemsize: int, at: Index) -> list[str]:
        """What is added to a row's address, as terms of a sum."""
        steps = []
        if at.reduced is not None and pattern[-1] != "0":
            steps.append(f"{at.reduced} * {place.strides[-1]}")
        if at.vector is not None and pattern[0] != "0":
            near = pattern[0] == "1" and itemsize
            steps.append(f"{at.vector} * {itemsize if near else place.strides[self.vector_axis]}")
        return steps

    def _index(self, i: int, x: IndexValue, name: str, at: Index) -> Value:
        place = self.places[self.memory.index(i)]
        number = " + ".join([self.row[i], *self._distance(i, place, x.pattern, 0, at)])
        value = self.b.token(f"i64({number})", "int64")
        if x.dtype.name == "int64":
            return self.b.named(name, value)
        label = function_name("convert_element_type", (("new_dtype", x.dtype),), "int64")
        return calculated(self.b, label, lambda b, v: b.cast(v, x.dtype.name), [value], [name])[0]

    def _clamped(
        self, name: str, x: Load | Store, place: AccessNames, values: dict[int, Value]
    ) -> tuple[list[str], str]:
        """The steps of index terms, and whether every index is in range."""
        steps, inside = [], []
        for t, (stride, top) in zip(x.terms, place.terms, strict=True):
            term = values[t]
            results = [f"{name}_at{t}", f"{name}_in{t}"]
            label = function_name("in_range", (), term.dtype)
            calculated(self.b, label, in_range, [term, self.b.token(top, "int64")], results)
            steps.append(f"{results[0]} * {stride}")
            inside.append(results[1])
        return steps, " & ".join(inside)

    def _load(self, i: int, x: Load, name: str, values: dict[int, Value], at: Index) -> Value:
        place, dtype = self.places[self.memory.index(i)], x.dtype.name
        steps, inside = self._clamped(name, x, place, values)
        steps += self._distance(i, place, x.pattern, x.dtype.itemsize, at)
        distance = " + ".join(steps) or "0"
        found = self.b.named(name, *calculated_read(self.b, self.row[i], distance, dtype), self.note(i))
        if not inside or x.fill in ("", "any") and x.other is None:
            return found
        fill = self.b.const(found.dtype, fill_value(x.dtype, x.fill)) if x.other is None else values[x.other]
        return self.b.named(name, self.b.token(f"where({inside}, {name}, {text_of(fill.ir)})", found.dtype))

    def store(self, number: int, value: Value, values: dict[int, Value], at: Index, row: str | None = None) -> None:
        """Write a value; ``row`` is the address at the current outer index."""
        s: Store = self.kernel.stores[number]
        place, dtype = self.places[len(self.memory) + number], s.dtype.name
        if value.dtype != compute_dtype(dtype):
            label = function_name("convert_element_type", (("new_dtype", s.dtype),), value.dtype)
            (value,) = calculated(self.b, label, lambda b, v: b.cast(v, dtype), [value], [f"{place.base}_value"])
        steps, _ = self._clamped(place.base, s, place, values)
        steps += self._distance(number, place, s.pattern if s.level == "elem" else s.pattern[0], s.dtype.itemsize, at)
        self.b.write(value, row or self.stores[number], " + ".join(steps) or "0", dtype)

    # -- pieces of loops -----------------------------------------------------------------------------------------------

    def unravel(self, number: str, sizes: Sequence[str]) -> list[str]:
        """A linear index as one index an axis, under the names i0, i1, …"""
        names = [f"i{d}" for d in range(len(sizes))]
        for d in range(len(sizes) - 1, 0, -1):
            self.lines.line(f"{names[d]} = {number} % {sizes[d]}")
            self.lines.line(f"{'rest'} = {number} // {sizes[d]}")
            number = "rest"
        if sizes:
            self.lines.line(f"i0 = {number}")
        return names


def calculated_read(b: TextBuilder, base: str, distance: str, dtype: str) -> tuple[Value]:
    """An element of memory, as the expression that reads it."""
    inside = TextBuilder(Lines(), b.module)
    x = inside.read(base, distance, dtype)
    first, *rest = (line.partition(" = ")[2] for line in inside.lines.lines)
    if rest:  # a bool is a byte in memory
        first = f"{first} != i8(0)"
    return (Value(Token(first, x.ir.type), x.dtype, b),)


def _said(x: Instr | Store) -> str:
    """What an access of the kernel is, for the line that names its words."""
    if isinstance(x, Store):
        return f"stores {x.dtype.name}, {'every element' if x.level == 'elem' else 'once a row'}"
    if isinstance(x, GivenValue):
        return f"a constant, {x.dtype.name}"
    assert isinstance(x, (Load, IndexValue))
    return f"{'loads' if isinstance(x, Load) else 'an index as'} {x.dtype.name}"
