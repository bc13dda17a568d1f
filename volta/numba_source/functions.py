"""One line an operation: ``v5 = tanh(v4)``. What takes more than a line becomes a function of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.emit.builder import Value
from volta.numba_source.builder import TextBuilder
from volta.numba_source.python_ir import Token, text_of
from volta.numba_source.text import Lines

Meaning = Callable[..., "Value | Sequence[Value]"]
"""``meaning(builder, *values)``: what an operation gives, in the vocabulary."""

_PARAMETERS = "xyzw"


def calculated(
    b: TextBuilder, name: str, meaning: Meaning, values: Sequence[Value], results: Sequence[str], comment: str = ""
) -> list[Value]:
    """The results of an operation, under the given names: by an expression where one line says it, else by a call.

    ``name`` is what the function is called; where another one of this text is called so, it gets a number.
    """
    parameters = [f"{_PARAMETERS[i] if i < len(_PARAMETERS) else f'x{i}'}" for i in range(len(values))]
    trial = TextBuilder(Lines(), b.module)
    given = [trial.token(p, v.dtype) for p, v in zip(parameters, values, strict=True)]
    found = _as_list(meaning(trial, *given))
    if len(found) == 1 and (not trial.lines.lines or _says_all(trial, found[0])):
        here = TextBuilder(Lines(), b.module)
        (result,) = _as_list(meaning(here, *(Value(v.ir, v.dtype, here) for v in values)))
        expression = here.lines.lines[0].partition(" = ")[2] if here.lines.lines else text_of(result.ir)
        b.lines.line(f"{results[0]} = {expression}", comment)
    else:
        trial.lines.line("return " + ", ".join(text_of(x.ir) for x in found))
        kinds = ", ".join(v.dtype for v in values)
        documentation = f"{name}, of {kinds}."
        function = b.module.function(name, parameters, trial.lines.lines, documentation)
        b.lines.line(f"{', '.join(results)} = {function}({', '.join(text_of(v.ir) for v in values)})", comment)
    return [Value(Token(r, x.ir.type), x.dtype, b) for r, x in zip(results, found, strict=True)]


def expression(b: TextBuilder, name: str, meaning: Meaning, values: Sequence[Value]) -> str:
    """What `calculated` writes behind the equals sign, for one result."""
    inside = TextBuilder(Lines(), b.module)
    calculated(inside, name, meaning, values, ["_"])
    return inside.lines.lines[0].partition(" = ")[2]


def _says_all(b: TextBuilder, result: Value) -> bool:
    """Whether one line is all there is, and gives the result."""
    return len(b.lines.lines) == 1 and b.lines.lines[0].startswith(f"{text_of(result.ir)} = ")


def _as_list(found: Value | Sequence[Value]) -> list[Value]:
    return [found] if isinstance(found, Value) else list(found)


def function_name(name: str, params: Sequence[tuple[str, Any]], dtype: str) -> str:
    """What the function of a primitive is called: with its params, and its dtype where that is not float32."""
    words = [name, *(_word(value) for _, value in params)]
    if dtype != "float32":
        words.append(dtypes.short_name(np.dtype(bool) if dtype == "bool" else dtypes.canonicalize(dtype)))
    return re.sub(r"\W+", "_", "_".join(words)).strip("_")


def _word(value: Any) -> str:
    return dtypes.short_name(value) if isinstance(value, np.dtype) else str(value)
