"""An equation of a JAX program as the rules of translation see it, and what runs a program by these rules."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr as JaxProgram
from jax.extend.core import Literal

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, UnsupportedOperationError, VoltaError
from volta.core.ir import ClosedJaxpr
from volta.core.source import Source, at_user_line, is_own
from volta.interop.jaxprs import keys
from volta.runtime.array import as_array
from volta.trace.jaxpr_trace import attributed_to, trace_to_jaxpr

Rule = Callable[..., Any]
"""``rule(equation, *values)`` gives a value, or a list or tuple of them, one for each output."""

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


@attrs.frozen(eq=False)
class Translator:
    """Runs programs of JAX's under the current trace, by a table of rules: the name of JAX's primitive -> rule.

    ``refused`` says of primitives without a rule what to do instead.
    """

    rules: Mapping[str, Rule]
    refused: Mapping[str, str]

    def run(self, program: JaxProgram, values: Sequence[Any]) -> list[Any]:
        """The program's outputs, for arguments of its types."""
        env: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return as_array(np.asarray(atom.val, atom.aval.dtype)) if isinstance(atom, Literal) else env[atom]

        env.update(zip(program.jaxpr.constvars, [constant(x) for x in program.consts], strict=True))
        env.update(zip(program.jaxpr.invars, values, strict=True))
        for eqn in program.jaxpr.eqns:
            with attributed_to(_line(eqn.source_info.traceback)):
                outs = self._apply(Equation(eqn, self), [read(a) for a in eqn.invars])
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(a) for a in program.jaxpr.outvars]

    def _apply(self, equation: Equation, values: list[Any]) -> Sequence[Any]:
        rule = self.rules.get(equation.name)
        if rule is None:
            raise equation.error(self.refused.get(equation.name, _UNKNOWN))
        try:
            if not equation.carries_programs and not equation.name.startswith("random_"):
                equation.check_types()
            out = rule(equation, *values)
        except NotImplementedError as error:
            if isinstance(error, VoltaError):
                raise
            raise equation.error(str(error)) from None
        return out if isinstance(out, (list, tuple)) else [out]

    def program(self, closed: JaxProgram, name: str) -> ClosedJaxpr:
        """A program that a primitive carries, as one of Volta's."""
        avals = [aval_of(v.aval) for v in closed.jaxpr.invars]
        return trace_to_jaxpr(lambda *xs: (self.run(closed, xs), None), avals, name, "from_jax translates")[0]


_NO_DTYPE = "there are no such dtypes: " + ", ".join(d.name for d in dtypes.ALL) + " are there"
_UNKNOWN = (
    "this operation has no translation. Compute it outside and pass the result in, call it through jax.pure_callback, "
    "or write this part with volta.numpy"
)


@attrs.frozen(eq=False)
class Equation:
    """One equation, with what rules need: its params, the types of its outputs, and programs that it carries."""

    eqn: Any
    translator: Translator

    @property
    def name(self) -> str:
        return str(self.eqn.primitive.name)

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def outs(self) -> list[ShapedArray]:
        return [aval_of(v.aval) for v in self.eqn.outvars]

    def check_types(self) -> None:
        """Refuse what gives values of a type that Volta does not have."""
        for v in self.eqn.outvars:
            try:
                aval_of(v.aval)
            except DTypeError:
                raise self.error(f"it gives {v.aval}, and {_NO_DTYPE}") from None

    @property
    def carries_programs(self) -> bool:
        return any(isinstance(x, JaxProgram) for p in self.params.values() for x in (p if _many(p) else (p,)))

    def run(self, closed: JaxProgram, *values: Any) -> list[Any]:
        return self.translator.run(closed, values)

    def program(self, closed: JaxProgram) -> ClosedJaxpr:
        return self.translator.program(closed, str(self.params.get("name", self.name)))

    def error(self, why: str) -> UnsupportedOperationError:
        """The error for what is not translated, at the line of the function that JAX traced."""
        types = ", ".join(str(v.aval) for v in self.eqn.invars)
        message = f"from_jax: {self.name}({types}): {why}"
        source = _line(self.eqn.source_info.traceback)
        return UnsupportedOperationError(at_user_line(message) if source is None else f"{message}\n{source.pointer()}")


def _many(p: Any) -> bool:
    return isinstance(p, (tuple, list))


def aval_of(aval: Any) -> ShapedArray:
    """The type of a value of JAX's: nothing is weak."""
    if not isinstance(getattr(aval, "dtype", None), np.dtype):
        if keys.is_key(aval):
            return ShapedArray(aval.shape, keys.kind_of(aval))
        raise DTypeError(at_user_line(f"from_jax: values of type {aval} have no counterpart in Volta"))
    return ShapedArray(tuple(aval.shape), dtypes.canonicalize(aval.dtype))


def constant(x: Any) -> Any:
    """A constant of a JAX program as an array."""
    return keys.from_jax(x) if keys.is_key(x) else as_array(np.asarray(x))


@functools.lru_cache(maxsize=4096)
def _line(traceback: Any) -> Source | None:
    """The innermost line of the user's in a traceback of JAX's."""
    for frame in () if traceback is None else traceback.frames:
        file = frame.file_name
        if not (file.startswith((_JAX, "<frozen ")) or is_own(file)):
            return Source(file, frame.line_num, frame.function_name)
    return None
