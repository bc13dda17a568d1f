"""Programs whose sizes are symbols: found from the same function traced at several sizes, and put in numbers again.

A document (see `document`) of such a program is one in which some integers are ``{"$size": [...]}``: what they are at
every size that was traced, as one polynomial of the symbols, or a multiple of one that was divided and rounded down. A
literal that is such an integer has ``{"$number": [...]}`` in place of its bytes. What differs from size to size and is
no such integer (how many operations there are, which, a constant array) is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import attrs
import numpy as np

from volta.core.errors import FormatError
from volta.core.sizes import Size, gathered
from volta.programs import values

Values = Mapping[str, int]
_KEY, _NUMBER = "$size", "$number"
_EXACT = 1 << 53
_PARTS = 8
"""Sizes rounded down are found for divisors up to this: of each, all rests are among the sizes that are traced."""
_TRACED = (0, 1, 2, 3, 7, 11, 12, 31, 44, 127, 999, 4098)
"""Above a symbol's least: odd and even, of all rests by small numbers, powers of two, of every magnitude."""
_FEW = 16
"""A symbol of so few sizes is traced at each."""


class Differs(Exception):
    """Programs of two sizes differ in more than integers: ``equation`` is the number of the first where they do."""

    def __init__(self, what: str, equation: int | None = None) -> None:
        super().__init__(what)
        self.what, self.equation = what, equation


def traced_sizes(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """The values of symbols for which a function is traced; the first has the least ones."""
    lists = {}
    for name, (least, most) in ranges.items():
        some = {*(least + n for n in _TRACED if least + n <= most), max(least, most - 1), most}
        lists[name] = [*range(least, most + 1)] if most - least < _FEW else sorted(some)
    found = [{name: least for name, (least, _) in ranges.items()}, {name: most for name, (_, most) in ranges.items()}]
    count = max(map(len, lists.values())) if len(lists) == 1 else 2 * max(map(len, lists.values()))
    for j in range(count):
        # Other steps for each symbol, so that none is a function of another.
        point = {
            name: sizes[(j * (2 * i + 1) + i * (j // 3)) % len(sizes)] for i, (name, sizes) in enumerate(lists.items())
        }
        if point not in found:
            found.append(point)
    return found


@attrs.frozen
class Merger:
    """Documents of one function at ``points``, made one."""

    points: Sequence[Values]
    _known: dict[tuple[int, ...], Size | None] = attrs.field(factory=dict)

    def program(self, stored: Sequence[Mapping[str, Any]], outer: bool = True) -> dict[str, Any]:
        """Raises Differs where they are no one program."""
        lists: dict[str, Any] = {key: [x[key] for x in stored] for key in ("inputs", "equations", "outputs")}
        equations = self._equations(lists["equations"], outer)
        self._same([x["constants"] for x in stored], "the arrays that it closes over are others")
        self._same([len(x) for x in lists["inputs"]], "it takes another number of arrays")
        self._same([len(x) for x in lists["outputs"]], "it gives another number of arrays")
        return {
            "constants": stored[0]["constants"],
            "inputs": [self._type(x, "an input") for x in zip(*lists["inputs"], strict=True)],
            "equations": equations,
            "outputs": [self._atom(x, "a result") for x in zip(*lists["outputs"], strict=True)],
        }

    def _equations(self, lists: Sequence[Sequence[Any]], outer: bool) -> list[Any]:
        merged = []
        for i, same in enumerate(zip(*lists, strict=False)):
            try:
                merged.append(self._equation(same))
            except Differs as error:
                raise Differs(error.what, i if outer else None) from None
        counts = [len(x) for x in lists]
        if {*counts} != {counts[0]}:
            raise Differs(
                self._between(counts, "it has {} operations at {}, and {} at {}"), len(merged) if outer else None
            )
        return merged

    def _equation(self, same: Sequence[Any]) -> list[Any]:
        names, reads, params, given = zip(*same, strict=True)
        self._same(names, "an operation is {} at {}, and {} at {}")
        name = names[0]
        self._same([(len(r), [*p], len(g)) for r, p, g in zip(reads, params, given, strict=True)], f"{name} is another")
        return [
            name,
            [self._atom(x, f"an operand of {name}") for x in zip(*reads, strict=True)],
            {key: self._value([p[key] for p in params], f"the parameter {key} of {name}") for key in params[0]},
            [self._type(x, f"a result of {name}") for x in zip(*given, strict=True)],
        ]

    def _atom(self, same: Sequence[Any], what: str) -> Any:
        if not all(isinstance(x, list) for x in same):
            self._same(same, f"{what} is another value")
            return same[0]
        kind = self._type([x[1] for x in same], what)
        data = [x[0] for x in same]
        if data == [data[0]] * len(data) or kind[1]:
            self._same(data, f"{what} is another number")
            return [data[0], kind]
        dtype = values.dtype_of(kind[0])
        numbers = [np.frombuffer(bytes.fromhex(x), dtype)[0].item() for x in data]
        found = self._number(numbers, what)
        if [_literal(found.at(point), dtype) for point in self.points] != data:
            raise Differs(f"{what} is no whole number of the sizes")
        return [_stored(found, _NUMBER), kind]

    def _type(self, same: Sequence[Any], what: str) -> list[Any]:
        self._same([(x[0], len(x[1]), x[2:]) for x in same], f"{what} is of another type")
        first = same[0]
        return [
            first[0],
            [self._integer(x, f"the shape of {what}") for x in zip(*(x[1] for x in same), strict=True)],
            *first[2:],
        ]

    def _value(self, same: Sequence[Any], what: str) -> Any:
        first = same[0]
        if all(x == first and type(x) is type(first) for x in same):
            return first
        if all(type(x) is int for x in same):
            return self._integer(same, what)
        if all(type(x) is list for x in same) and len({*map(len, same)}) == 1:
            return [self._value(x, what) for x in zip(*same, strict=True)]
        if all(type(x) is dict and [*x] == [*first] for x in same):
            ((kind, _),) = first.items()
            inner = [x[kind] for x in same]
            if kind == "program":
                return {kind: self.program(inner, outer=False)}
            if kind == "float":
                return {kind: _stored(self._number([float.fromhex(x) for x in inner], what))}
        raise Differs(f"{what} is another")

    def _number(self, numbers: Sequence[Any], what: str) -> Size:
        """Numbers that are whole, as a size."""
        if not all(type(x) in (int, float) and float(x).is_integer() for x in numbers):
            raise Differs(
                self._between(numbers, f"{what} is {{}} at {{}}, and {{}} at {{}}, no whole number of the sizes")
            )
        return self._size([int(x) for x in numbers], what)

    def _integer(self, same: Sequence[int], what: str) -> Any:
        if all(x == same[0] for x in same):
            return same[0]
        return _stored(self._size(same, what))

    def _size(self, numbers: Sequence[int], what: str) -> Size:
        key = tuple(numbers)
        if key not in self._known:
            self._known[key] = fitted(self.points, numbers)
        found = self._known[key]
        if found is None:
            raise Differs(
                self._between(numbers, f"{what} is {{}} at {{}}, and {{}} at {{}}, which is no polynomial of the sizes")
            )
        return found

    def _same(self, things: Sequence[Any], what: str) -> None:
        if any(x != things[0] for x in things):
            raise Differs(self._between(things, what) if "{" in what else what)

    def _between(self, things: Sequence[Any], what: str) -> str:
        other = next(i for i, x in enumerate(things) if x != things[0])
        return what.format(things[0], said(self.points[0]), things[other], said(self.points[other]))


def said(point: Values) -> str:
    """Values of symbols in words: ``b = 3, t = 5``."""
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def fitted(points: Sequence[Values], numbers: Sequence[int]) -> Size | None:
    """The size that is these numbers at these points, or None: a polynomial of degree 2, or a multiple of a symbol that
    is divided and rounded down."""
    names = list(points[0])
    one, two = [(n,) for n in names], [*itertools.combinations_with_replacement(names, 2)]
    sizes = [point[names[0]] for point in points]
    each = len(names) == 1 and max(sizes) - min(sizes) < len(sizes)  # then what is right at these is right at all
    for monomials in ([(), *one], [(), *one, *two]):
        found = _polynomial(points, numbers, monomials, each)
        if found is not None:
            return found
    for name in names:
        by_size = {point[name]: number for point, number in zip(points, numbers, strict=True)}
        if all(by_size[point[name]] == number for point, number in zip(points, numbers, strict=True)):
            return _rounded(by_size, name)
    return None


def _polynomial(
    points: Sequence[Values], numbers: Sequence[int], monomials: Sequence[tuple[str, ...]], each: bool
) -> Size | None:
    """By Gauss's elimination in fractions; more points than unknowns say whether it is one, or that ``each`` is one."""
    rows = [
        [Fraction(Size(((1, m),)).at(p)) for m in monomials] + [Fraction(v)]
        for p, v in zip(points, numbers, strict=True)
    ]
    width, pivots = len(monomials), 0
    for column in range(width):
        pivot = next((i for i in range(pivots, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return None  # too few points to tell
        rows[pivots], rows[pivot] = rows[pivot], rows[pivots]
        head = rows[pivots]
        rows[pivots] = head = [x / head[column] for x in head]
        for i, row in enumerate(rows):
            if i != pivots and row[column]:
                rows[i] = [x - row[column] * y for x, y in zip(row, head, strict=True)]
        pivots += 1
    if (len(rows) == width and not each) or any(row[-1] for row in rows[width:]):
        return None
    coefficients = [row[-1] for row in rows[:width]]
    divisor = lcm(*(x.denominator for x in coefficients))
    return gathered([(int(x * divisor), m) for x, m in zip(coefficients, monomials, strict=True)], divisor)


def _rounded(by_size: Mapping[int, int], name: str) -> Size | None:
    """As ``times * ((slope * b + offset) // m) + plus``, where the numbers leave but one offset."""
    for m, times in itertools.product(range(2, _PARTS + 1), range(1, _PARTS + 1)):
        plus = min(by_size.values()) % times
        if any(v % times != plus for v in by_size.values()):
            continue
        pairs = sorted((b, v // times) for b, v in by_size.items())
        (low, first), (high, last) = pairs[0], pairs[-1]
        slope = round(Fraction(m * (last - first), high - low))
        least, most = max(m * v - slope * b for b, v in pairs), min(m * v + m - 1 - slope * b for b, v in pairs)
        if slope and least == most:
            return attrs.evolve(gathered([(slope, (name,)), (least, ())], m), times=times, plus=plus)
    return None


# -- in files ----------------------------------------------------------------------------------------------------------


def _stored(size: Size, kind: str = _KEY) -> dict[str, Any]:
    return {kind: [size.divisor, size.times, size.plus, [[c, list(names)] for c, names in size.terms]]}


def shape_of(stored: Any, ranges: Mapping[str, tuple[int, int]]) -> tuple[Any, ...]:
    """A symbolic shape from JSON. Raises FormatError for what is none."""
    if not isinstance(stored, list):
        raise FormatError(f"corrupt: {stored!r:.80} is no shape")
    shape = tuple(x if type(x) is int else attrs.evolve(_size_of(x), ranges=ranges) for x in stored)
    if any(isinstance(x, Size) and not {*x.symbols} <= {*ranges} for x in shape):
        raise FormatError(f"corrupt: {stored!r:.80} is a shape of unknown symbols")
    return shape


def result_shapes(document: Mapping[str, Any]) -> list[Any]:
    """The shapes of a document's results as JSON."""
    constants = len(document["constants"])
    kinds = [*[None] * constants, *document["inputs"], *(x for equation in document["equations"] for x in equation[3])]
    return [(x[1] if isinstance(x, list) else kinds[x])[1] for x in document["outputs"]]


def _size_of(stored: Any, kind: str = _KEY) -> Size:
    try:
        divisor, times, plus, terms = stored[kind]
        whole = all(type(x) is int for x in (divisor, times, plus, *(c for c, _ in terms)))
        whole = whole and divisor > 0 and len(stored) == 1
        if whole and all(type(n) is str for _, names in terms for n in names) and max(len(n) for _, n in terms) <= 2:
            size = gathered(((c, tuple(sorted(names))) for c, names in terms), divisor)
            return attrs.evolve(size, times=times, plus=plus)
    except (TypeError, ValueError, KeyError):
        pass
    raise FormatError(f"corrupt: {stored!r:.80} is no size of symbols")


def in_numbers(stored: Any, point: Values) -> Any:
    """A document with numbers in place of sizes. Raises FormatError where that cannot be."""
    if isinstance(stored, dict):
        if _KEY in stored:
            return _at(stored, _KEY, point)
        found = {key: in_numbers(x, point) for key, x in stored.items()}
        if type(found.get("float")) is int:
            found["float"] = float(min(found["float"], _EXACT)).hex()
        return found
    if not isinstance(stored, list):
        return stored
    if len(stored) == 2 and isinstance(stored[0], dict) and _NUMBER in stored[0]:
        try:
            return [_literal(_at(stored[0], _NUMBER, point), values.dtype_of(stored[1][0])), stored[1]]
        except (TypeError, ValueError, IndexError, OverflowError):
            raise FormatError(f"corrupt: {stored!r:.80} is no number of its type") from None
    return [in_numbers(x, point) for x in stored]


def _at(stored: Any, kind: str, point: Values) -> int:
    try:
        return _size_of(stored, kind).at(point)
    except KeyError as error:
        raise FormatError(f"corrupt: a size of the unknown symbol {error!s:.40}") from None


def _literal(number: int, dtype: np.dtype) -> str:
    """The bytes of a literal."""
    return np.asarray(number).astype(dtype).tobytes().hex()
