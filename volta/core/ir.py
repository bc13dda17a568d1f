"""The IR: a typed, pure program in SSA form, printed like a jaxpr.

A :class:`Jaxpr` maps ``constvars`` and ``invars`` to ``outvars`` through equations in order. Nested programs (the body
of a ``jit`` call, of a ``checkpoint``, later of loops and conditionals) are :class:`ClosedJaxpr` values among an
equation's params, so a new region-carrying primitive needs no new kind of node.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.constants import constant
from volta.core.floats import standard
from volta.core.source import Source


class Var:
    """A variable: identity is its name. ``str`` is only meaningful inside a printed program."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval})"


class Literal:
    """A scalar constant written into an equation. ``value`` is a NumPy scalar of ``aval.dtype`` (shape ``()``)."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: ShapedArray):
        self.value = constant(value, aval.dtype)
        self.aval = aval

    def key(self) -> tuple[bytes, ShapedArray]:
        """Equal keys mean equal bits (−0.0 and +0.0 differ, one NaN equals itself)."""
        return np.asarray(self.value).tobytes(), self.aval

    def __repr__(self) -> str:
        return f"Literal({self})"

    @standard
    def __str__(self) -> str:
        kind = self.aval.dtype
        value = float(self.value) if dtypes.is_float(kind) else self.value.item()  # complex numbers too
        return f"{value}:{self.aval.short()}"


Atom = Var | Literal


@attrs.frozen(slots=True, eq=False)
class Eqn:
    """``outputs = primitive[params](inputs)``, with the user's line it came from."""

    primitive: Any  # ops.Primitive; core knows only its name and `abstract`
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: dict[str, Any]
    source: Source | None = None

    def replace(self, **changes: Any) -> Eqn:
        return attrs.evolve(self, **changes)


@attrs.frozen(slots=True, eq=False)
class Jaxpr:
    """An open program: ``constvars`` are bound by the :class:`ClosedJaxpr` around it."""

    constvars: tuple[Var, ...]
    invars: tuple[Var, ...]
    eqns: tuple[Eqn, ...]
    outvars: tuple[Atom, ...]

    def __str__(self) -> str:
        return print_jaxpr(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_jaxpr(self)

    def replace(self, **changes: Any) -> Jaxpr:
        return attrs.evolve(self, **changes)


@attrs.frozen(slots=True, eq=False)
class ClosedJaxpr:
    """A program with its constants (concrete arrays, or tracers while an outer trace is live)."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...]

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.jaxpr.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.jaxpr.outvars]

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        return self.jaxpr.eqns

    def __str__(self) -> str:
        return print_jaxpr(self.jaxpr)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_jaxpr(self.jaxpr)


def subjaxprs(params: dict[str, Any]) -> Iterator[ClosedJaxpr]:
    """The programs nested in an equation's params, in order."""
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item


# -- printing ----------------------------------------------------------------------------------------------------------


def _letters(n: int) -> str:
    text = ""
    while True:
        text = chr(ord("a") + n % 26) + text
        n = n // 26 - 1
        if n < 0:
            return text


class Names:
    """Names for variables in order of first appearance: a, b, …, z, aa, ab, …"""

    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def __call__(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return str(atom)
        name = self._names.get(atom)
        if name is None:
            name = self._names[atom] = _letters(len(self._names))
        return name

    def typed(self, var: Atom) -> str:
        return f"{self(var)}:{var.aval.short()}"


def format_param(value: Any) -> str:
    """A param as text that is the same in every process."""
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        body = str(value).replace("\n", "\n    ")
        return "{\n    " + body + "\n  }"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        inner = ", ".join(format_param(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return str(value)


def format_eqn(eqn: Eqn, names: Names) -> str:
    outs = " ".join(names.typed(v) for v in eqn.outputs) or "_"
    params = " ".join(f"{k}={format_param(v)}" for k, v in eqn.params.items() if v is not None)
    args = " ".join(names(a) for a in eqn.inputs)
    return f"{outs} = {eqn.primitive.name}{'[' + params + ']' if params else ''} {args}".rstrip()


def print_jaxpr(jaxpr: Jaxpr, mark: int | None = None) -> str:
    """The program as text; ``mark`` points an arrow at one equation (used in error messages)."""
    names = Names()
    consts = " ".join(names.typed(v) for v in jaxpr.constvars)
    args = " ".join(names.typed(v) for v in jaxpr.invars)
    lines = [f"{{ lambda {consts + ' ' if consts else ''}; {args} . let".replace("  ", " ")]
    for i, eqn in enumerate(jaxpr.eqns):
        lines.append((" -> " if i == mark else "    ") + format_eqn(eqn, names))
    outs = ", ".join(names(v) for v in jaxpr.outvars)
    lines.append(f"  in ({outs}{',' if len(jaxpr.outvars) == 1 else ''}) }}")
    return "\n".join(lines)


# Said with the program itself: converted notebooks bring no style that makes <pre> monospaced.
MONOSPACED = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;line-height:1.3"


def html_jaxpr(jaxpr: Jaxpr) -> str:
    """The program as HTML, for notebooks: operations stand out, and pointing at one shows the user's line."""
    head = html.escape(print_jaxpr(jaxpr.replace(eqns=())).splitlines()[0])
    names = Names()
    for var in (*jaxpr.constvars, *jaxpr.invars):
        names(var)
    lines = [head]
    for eqn in jaxpr.eqns:
        outs, _, call = format_eqn(eqn, names).partition(" = ")
        operation, rest = html.escape(eqn.primitive.name), html.escape(call[len(eqn.primitive.name) :])
        where = html.escape(str(eqn.source or ""), quote=True)
        lines.append(f'<span title="{where}">    {html.escape(outs)} = <b>{operation}</b>{rest}</span>')
    outs = ", ".join(names(v) for v in jaxpr.outvars)
    lines.append(html.escape(f"  in ({outs}{',' if len(jaxpr.outvars) == 1 else ''}) }}"))
    return f'<pre style="{MONOSPACED}">' + "\n".join(lines) + "</pre>"


# -- building ----------------------------------------------------------------------------------------------------------


def used_vars(eqns: Sequence[Eqn], outvars: Sequence[Atom]) -> set[Var]:
    """Variables that are read by an equation or returned (for membership tests only: never iterate over it)."""
    used = {v for v in outvars if isinstance(v, Var)}
    for eqn in eqns:
        used.update(v for v in eqn.inputs if isinstance(v, Var))
    return used
