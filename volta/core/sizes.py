"""Sizes that are symbols: ``symbolic_shape("b, 8")``, and what a program's integers are in terms of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from volta.core.errors import ArgumentError
from volta.core.source import at_user_line

Term = tuple[int, tuple[str, ...]]
"""A coefficient and the symbols that it is multiplied with, in order; those of a square stand there twice."""

LEAST, MOST = 1, 4096
"""What a symbol may be where no constraint says otherwise."""

_CONSTRAINT = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*(\d{1,18})\s*\Z")


@attrs.frozen(repr=False)
class Size:
    """``times * (polynomial // divisor) + plus``, all whole numbers, the polynomial one of symbols.

    ``ranges`` says of each symbol from what to what it may be; which counts for no equality.
    """

    terms: tuple[Term, ...]
    divisor: int = 1
    times: int = 1
    plus: int = 0
    ranges: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, eq=False)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in it, in the order of the alphabet."""
        return tuple(sorted({name for _, names in self.terms for name in names}))

    def at(self, values: Mapping[str, int]) -> int:
        """The number for values of the symbols. ``KeyError`` where one is missing."""
        total = 0
        for coefficient, names in self.terms:
            for name in names:
                coefficient *= values[name]
            total += coefficient
        return self.times * (total // self.divisor) + self.plus

    def solved(self, number: int) -> int | None:
        """The value of its one symbol for which it is a number; None where there is none. Of `affine` sizes."""
        slope, offset = self.at(dict.fromkeys(self.symbols, 1)), self.at(dict.fromkeys(self.symbols, 0))
        value, rest = divmod(number - offset, slope - offset)
        return value if not rest else None

    @property
    def affine(self) -> bool:
        """Whether it is a multiple of one symbol, plus a number."""
        whole = (self.divisor, self.times, self.plus) == (1, 1, 0)
        return whole and len(self.symbols) == 1 and all(len(names) <= 1 for _, names in self.terms)

    def __add__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: [*a, *b])

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: [*a, *((-c, names) for c, names in b)])

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    def __mul__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: [(c * d, tuple(sorted(m + n))) for c, m in a for d, n in b])

    __radd__, __rmul__ = __add__, __mul__

    def _combined(self, other: Any, how: Any) -> Any:
        if type(other) is int:
            other = Size(((other, ()),))
        if not isinstance(other, Size):
            return NotImplemented
        return gathered(how(self.terms, other.terms), ranges={**self.ranges, **other.ranges})

    def __str__(self) -> str:
        signs = {1: "", -1: "-"}
        parts = [signs.get(c, f"{c}*") + "*".join(names) if names else str(c) for c, names in self.terms]
        text = " + ".join(parts).replace("+ -", "- ") or "0"
        if self.divisor == 1:
            return text
        times, plus = f"{self.times}*" * (self.times != 1), f" + {self.plus}" * (self.plus != 0)
        return f"{times}(({text})//{self.divisor}){plus}"

    __repr__ = __str__


def gathered(terms: Iterable[Term], divisor: int = 1, ranges: Mapping[str, tuple[int, int]] | None = None) -> Size:
    """A size from terms, of which several may have the same symbols."""
    sums: dict[tuple[str, ...], int] = {}
    for coefficient, names in terms:
        sums[names] = sums.get(names, 0) + coefficient
    ordered = sorted(sums, key=lambda names: (-len(names), names))
    return Size(tuple((sums[names], names) for names in ordered if sums[names]), divisor, ranges=dict(ranges or {}))


def symbolic_shape(text: str, *, constraints: Sequence[str] = ()) -> tuple[Any, ...]:
    """A shape with sizes that are symbols, for :func:`volta.export`: its program is one for all of them.

    Args:
        text: sizes with commas between them: whole numbers, symbols, and sums and products of these, as in ``"b, 8"``
            and ``"2*b + 1, t"``.
        constraints: what symbols may be, as ``"b >= 2"`` and ``"b <= 512"``; else they are from 1 to 4,096.

    Returns:
        A tuple, of whole numbers and of symbolic sizes.

    Raises:
        ArgumentError: the text or a constraint is none.

    >>> import volta
    >>> volta.symbolic_shape("b, 8")
    (b, 8)
    >>> volta.ShapeDtypeStruct(volta.symbolic_shape("2*b, t"), "float32")
    ShapeDtypeStruct(shape=(2*b, t), dtype=float32)
    """
    try:
        body = ast.parse(f"({text},)" if text.strip() else "()", mode="eval").body
        sizes = [_size(node) for node in body.elts] if isinstance(body, ast.Tuple) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        sizes = None
    if sizes is None:
        raise ArgumentError(at_user_line(f"symbolic_shape: {text!r:.80} is no shape; write one as 'b, 8' or '2*b, t'"))
    ranges = _ranges(constraints)
    return tuple(attrs.evolve(x, ranges=ranges) if isinstance(x, Size) else x for x in sizes)


def _size(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return Size(((1, (node.id,)),))
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        left, right = _size(node.left), _size(node.right)
        if isinstance(node.op, ast.Mult):
            return left * right
        return left + right if isinstance(node.op, ast.Add) else left - right
    raise ValueError("no size")


def _ranges(constraints: Sequence[str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for text in constraints:
        match = _CONSTRAINT.match(text) if isinstance(text, str) else None
        if match is None:
            raise ArgumentError(
                at_user_line(f"symbolic_shape: {text!r:.80} is no constraint; write one as 'b >= 2' or 'b <= 512'")
            )
        name, relation, number = match[1], match[2], int(match[3])
        least, most = found.get(name, (LEAST, MOST))
        if relation[0] == ">":
            least = max(number + (relation == ">"), LEAST)
            most = max(least, most)
        else:
            most = number - (relation == "<")
        if least > most:
            raise ArgumentError(at_user_line(f"symbolic_shape: by {', '.join(constraints)} there is no {name}"))
        found[name] = (least, most)
    return found
