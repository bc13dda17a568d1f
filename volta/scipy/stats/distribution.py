"""What a distribution is: functions of a standard variable and of shapes, and what follows from them.

A record says the functions that it knows, of ``y = (x - loc) / scale``; the others follow: a density is the exponential
of its logarithm, a share above is 1 less the share below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from volta.core.array import Array
from volta.core.source import at_user_line
from volta.numpy import binary, ufuncs
from volta.numpy.promotion import float_operands
from volta.ops import lax

Function = Callable[..., Any]

_OF_SHARES = ("ppf", "isf")


def _logarithm_of(name: str) -> Function:
    return lambda self, *args: ufuncs.log(self.standard(name)(*args))


def _exponential_of(name: str) -> Function:
    return lambda self, *args: ufuncs.exp(self.standard(name)(*args))


def _rest_of(name: str) -> Function:
    return lambda self, *args: binary.subtract(1.0, self.standard(name)(*args))


FOLLOWS: dict[str, tuple[tuple[str, Function], ...]] = {
    "logpdf": (("pdf", _logarithm_of("pdf")),),
    "pdf": (("logpdf", _exponential_of("logpdf")),),
    "logpmf": (("pmf", _logarithm_of("pmf")),),
    "pmf": (("logpmf", _exponential_of("logpmf")),),
    "cdf": (("logcdf", _exponential_of("logcdf")), ("sf", _rest_of("sf"))),
    "sf": (("logsf", _exponential_of("logsf")), ("cdf", _rest_of("cdf"))),
    "logcdf": (("cdf", _logarithm_of("cdf")), ("sf", lambda self, *args: ufuncs.log1p(-self.standard("sf")(*args)))),
    "logsf": (("sf", _logarithm_of("sf")), ("cdf", lambda self, *args: ufuncs.log1p(-self.standard("cdf")(*args)))),
    "isf": (("ppf", lambda self, q, *shapes: self.standard("ppf")(binary.subtract(1.0, q), *shapes)),),
}
"""From what else a function can be had, in the order in which that is tried."""


@attrs.frozen(eq=False, repr=False)
class Distribution:
    """A family of distributions under SciPy's names: ``norm.logpdf(x, loc, scale)``.

    Arguments are arrays that broadcast, or numbers; integers become float32, and results have their common float dtype.
    Shapes come before ``loc`` and ``scale``. Where ``x`` is outside of the support the density is 0.
    """

    name: str
    shapes: tuple[str, ...]
    known: Mapping[str, Function]
    support: Callable[..., Any] | None = None  # of y and the shapes: where there is a density
    inside: Callable[..., Any] | None = None  # a value of y that is inside, for what is computed outside
    scaled: bool = True
    valid: Callable[..., Any] | None = None  # of the shapes

    def __repr__(self) -> str:
        return f"<distribution {self.name}({', '.join(self.parameters)})>"

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.shapes, "loc", *(("scale",) if self.scaled else ()))

    def standard(self, function: str) -> Function:
        """A function of the standard variable and the shapes."""
        if function in self.known:
            return self.known[function]
        for source, how in FOLLOWS.get(function, ()):
            if source in self.known:
                return lambda *args: how(self, *args)
        raise AttributeError(
            at_user_line(f"{self.name} has no {function}; it has {', '.join(self.functions())}"),
            name=function,
            obj=self,
        )

    def functions(self) -> tuple[str, ...]:
        """The functions that there are."""
        there = [f for f in FOLLOWS if f in self.known or any(s in self.known for s, _ in FOLLOWS[f])]
        return tuple(sorted({*self.known, *there}))

    def __dir__(self) -> list[str]:
        return [*self.functions(), "name", "shapes"]

    def __getattr__(self, function: str) -> Callable[..., Array]:
        if function.startswith("_"):
            raise AttributeError(function)
        standard = self.standard(function)
        first = "q" if function in _OF_SHARES else "x" if self.scaled else "k"
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {"loc": 0, "scale": 1}
        signature = inspect.Signature(
            [inspect.Parameter(first, kind)]
            + [inspect.Parameter(p, kind, default=defaults.get(p, inspect.Parameter.empty)) for p in self.parameters]
        )

        def of_array(*args: Any, **kwargs: Any) -> Array:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            operands = float_operands(f"{self.name}.{function}", *given.arguments.values())
            return self._value(function, standard, *operands)

        of_array.__name__ = of_array.__qualname__ = function
        of_array.__doc__ = f"``{function}`` of {self.name}, element by element."
        of_array.__signature__ = signature  # type: ignore[attr-defined]
        return of_array

    def _value(self, function: str, standard: Function, x: Any, *parameters: Any) -> Array:
        count = len(self.shapes)
        shapes, loc = parameters[:count], parameters[count]
        scale = parameters[count + 1] if self.scaled else None
        if function in _OF_SHARES:
            share = binary.logical_and(binary.greater_equal(x, 0), binary.less_equal(x, 1))
            y = standard(binary.where_three(share, x, 0.5), *shapes)
            if scale is not None:
                y, share = binary.multiply(y, scale), binary.logical_and(share, binary.greater(scale, 0))
            return self._nan_unless(share, binary.add(y, loc), shapes)
        y = binary.subtract(x, loc)
        if scale is not None:
            y = binary.divide(y, scale)
        density = function in ("logpdf", "pdf", "logpmf", "pmf")
        if not density or self.support is None:
            out = standard(y, *shapes)
        else:
            there = self.support(y, *shapes)
            safe = y if self.inside is None else binary.where_three(there, y, self.inside(*shapes))
            outside = -float("inf") if function.startswith("log") else 0.0
            out = binary.where_three(there, standard(safe, *shapes), outside)
        if scale is not None and density:
            log = function == "logpdf"
            out = binary.subtract(out, ufuncs.log(scale)) if log else binary.divide(out, scale)
        fine = binary.equal(y, y)
        return self._nan_unless(
            fine if scale is None else binary.logical_and(fine, binary.greater(scale, 0)), out, shapes
        )

    def _nan_unless(self, fine: Any, out: Any, shapes: tuple[Any, ...]) -> Array:
        if self.valid is not None:
            fine = binary.logical_and(fine, self.valid(*shapes))
        return binary.where_three(fine, out, float("nan"))


def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return binary.add(binary.maximum(x, 0), ufuncs.log1p(ufuncs.exp(lax.neg(ufuncs.absolute(x)))))
