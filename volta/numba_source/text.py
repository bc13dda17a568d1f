"""Python text under construction: lines with indents, and the functions and tables that they call."""

from __future__ import annotations

import builtins
import hashlib
import keyword
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from volta.numba_source.dialects import NJIT, Dialect
from volta.numba_source.words import ON_GRIDS, WORDS

STATEMENTS = "    "


class Lines:
    """Lines of one function; inside of `block` they are indented."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str, comment: str = "") -> None:
        self.lines.append(STATEMENTS * self._depth + text + (f"  # {comment}" if comment else ""))

    @contextmanager
    def block(self, head: str, comment: str = "") -> Iterator[None]:
        """The lines written inside stand below ``head``, which ends with a colon."""
        self.line(head, comment)
        self._depth += 1
        yield
        self._depth -= 1

    def new_name(self, stem: str = "t") -> str:
        """A name that no line has yet."""
        self._names += 1
        return f"{stem}{self._names}"

    def text(self) -> str:
        return "\n".join(self.lines)


@attrs.define(eq=False)
class Module:
    """What a kernel's text consists of: tables and functions by name, in the order in which they were asked for."""

    dialect: Dialect = NJIT
    tables: dict[str, str] = attrs.field(factory=dict)
    functions: dict[str, str] = attrs.field(factory=dict)

    def table(self, dtype: str, numbers: Sequence[str]) -> str:
        """The name of a table of constants, each given as text, as is the dtype."""
        body = ", ".join(numbers)
        name = f"table_{hashlib.sha256(f'{dtype} {body}'.encode()).hexdigest()[:8]}"
        self.tables[name] = f"{name} = np.array([{body}], {dtype})"
        return name

    def function(self, name: str, parameters: Sequence[str], body: Sequence[str], comment: str) -> str:
        """The name under which a function of this text is known: the wanted one, or with a number where that is taken.

        ``comment`` is its docstring.
        """
        if keyword.iskeyword(name) or hasattr(builtins, name) or name in WORDS | ON_GRIDS:
            name += "_of"
        number, chosen = 1, name
        while True:
            text = function_text(self.dialect.function, chosen, parameters, body, comment)
            if self.functions.setdefault(chosen, text) == text:
                return chosen
            number += 1
            chosen = f"{name}_{number}"


def function_text(decorator: str, name: str, parameters: Sequence[str], body: Sequence[str], comment: str) -> str:
    """A function for Numba to compile; where it is run as it stands, the decorator leaves it as it is."""
    head = [decorator, f"def {name}({', '.join(parameters)}):", f'{STATEMENTS}"""{comment}"""']
    return "\n".join([*head, *(STATEMENTS + line for line in body)])
