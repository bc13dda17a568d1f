"""What a program has whose sizes are symbols: their ranges, where they are read, and the program for all of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from volta.core.errors import ArgumentError, FormatError, ShapeError
from volta.core.ir import ClosedJaxpr
from volta.core.sizes import LEAST, MOST, Size
from volta.core.source import at_user_line
from volta.io.format import compact
from volta.programs.document import Reader
from volta.programs.sizes import Values, in_numbers, result_shapes, said, shape_of

Ranges = Mapping[str, tuple[int, int]]


def told(size: Any) -> bool:
    """Whether a size says what its symbol is."""
    return isinstance(size, Size) and size.affine


def ranges_of(shapes: Sequence[Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """From what to what each symbol of shapes may be.

    Raises:
        ArgumentError: by two shapes a symbol may be different things, or no size tells which it is.
    """
    sizes = [x for shape in shapes for x in shape if isinstance(x, Size)]
    found: dict[str, tuple[int, int]] = {}
    for size in sizes:
        for name in size.symbols:
            of = size.ranges.get(name, (LEAST, MOST))
            if found.setdefault(name, of) != of:
                raise ArgumentError(at_user_line(f"export: {name} has other constraints in another shape"))
    known = {size.symbols[0] for size in sizes if told(size)}
    for name in found:
        if name not in known:
            raise ArgumentError(at_user_line(f"export: no size is {name} itself, a multiple of it or a sum with it"))
    return found


@attrs.frozen(eq=False)
class Symbolic:
    """A program for all sizes: ``document`` is the program (see `sizes`), ``constants`` are its arrays."""

    ranges: Ranges
    document: dict[str, Any] = attrs.field(repr=False)
    constants: Sequence[Any] = attrs.field(repr=False)

    @property
    def least(self) -> dict[str, int]:
        """The least sizes."""
        return {name: least for name, (least, _) in self.ranges.items()}

    @functools.cached_property
    def shapes(self) -> list[tuple[Any, ...]]:
        """The shapes of the arguments."""
        return [shape_of(kind[1], self.ranges) for kind in self.document["inputs"]]

    def values(self, found: Sequence[tuple[int, ...]], paths: Sequence[str], name: str) -> dict[str, int]:
        """What the symbols are for arguments of these shapes.

        Raises:
            ShapeError: they are none of the program's.
        """
        values: dict[str, int] = {}
        for shape, wanted, path in zip(found, self.shapes, paths, strict=True):
            for number, size in zip(shape, wanted, strict=False):
                if told(size):
                    solved = size.solved(number)
                    if solved is None:
                        raise self._refused(wanted, path, shape, name, f"no {size} is {number}")
                    values.setdefault(size.symbols[0], solved)
        for shape, wanted, path in zip(found, self.shapes, paths, strict=True):
            if shape != tuple(x.at(values) if isinstance(x, Size) else x for x in wanted):
                raise self._refused(wanted, path, shape, name, said(values))
        self.check(values, name)
        return values

    def _refused(self, wanted: Sequence[Any], path: str, shape: tuple[int, ...], name: str, why: str) -> ShapeError:
        text = f"`{name}` was exported for the shape ({', '.join(map(str, wanted))}) as {path}, got {shape} ({why})"
        return ShapeError(at_user_line(text))

    def check(self, values: Values, name: str) -> None:
        """Raise ShapeError where a symbol is not in its range, and ArgumentError where they are others."""
        if {*values} != {*self.ranges}:
            raise ArgumentError(at_user_line(f"`{name}` has the symbols {', '.join(self.ranges)}, got {said(values)}"))
        for symbol, (least, most) in self.ranges.items():
            if not least <= values[symbol] <= most:
                raise ShapeError(
                    at_user_line(
                        f"`{name}` was exported for {symbol} from {least:,} to {most:,}, got {values[symbol]:,}: "
                        f"export it with other constraints: symbolic_shape(..., constraints=['{symbol} <= {most * 2}'])"
                    )
                )

    def program(self, values: Values) -> ClosedJaxpr:
        """The program at values of the symbols, verified. Raises FormatError where it is none."""
        try:
            return Reader(self.constants).whole(in_numbers(self.document, values))
        except RecursionError:
            raise FormatError("corrupt: a program nested too deep") from None

    def shapes_of_results(self) -> list[tuple[Any, ...]]:
        """The shapes of the results."""
        return [shape_of(shape, self.ranges) for shape in result_shapes(self.document)]

    def to_stored(self) -> str:
        """What a file has of the symbols besides the document, as JSON."""
        return compact({name: list(both) for name, both in self.ranges.items()})


def from_stored(text: Any, document: Any, constants: Sequence[Any]) -> Symbolic:
    """Raises FormatError for what `Symbolic.to_stored` never gives, and for a document that is no program."""
    try:
        ranges = {name: (least, most) for name, (least, most) in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise FormatError("corrupt: the symbols of a program are none") from None
    if not ranges or not all(type(a) is int and type(b) is int and 0 < a <= b for a, b in ranges.values()):
        raise FormatError("corrupt: a symbol of a program has no range")
    found = Symbolic(ranges, document, constants)
    found.program(found.least)
    if {size.symbols[0] for shape in found.shapes for size in shape if told(size)} != {*ranges}:
        raise FormatError("corrupt: a symbol of a program is no argument's size")
    found.shapes_of_results()
    return found
