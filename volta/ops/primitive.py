"""What a primitive is: one record, complete or refused.

Families derive most of a record (see the modules of this package); what each rule takes and gives is fixed here.

``abstract(*avals, **params)``
    The shape rule: operand avals to the output aval (a list of them when ``multiple_results``). Raises ShapeError or
    DTypeError in the words of the operation.
``jvp(primals, tangents, **params) -> (primal_out, tangent_out)``
    Forward derivative, written with ``volta.ops.lax`` functions. A tangent may be a symbolic :class:`Zero`; so may the
    answer. The tangent part must be linear in the tangents.
``transpose(cotangents, *operands, **params) -> list``
    For primitives that occur in linear programs. Operands that the program is linear in are :class:`Linear` markers;
    gives one cotangent (or None for zero) an operand. ``cotangents`` is one value, or a list when ``multiple_results``;
    it may be Zero.
``batch(args, dims, size, **params) -> (out, out_dim)``
    The rule of ``vmap``: ``dims[i]`` is the mapped axis of ``args[i]`` or None; at least one is mapped. Lists when
    ``multiple_results``. Batching must never change a number. Collectives and primitives that carry programs get the
    trace itself instead of ``size``: it has the ``axis`` with its name. If they mean it, nothing need be mapped.
``linearize(nonzero, *primals, **params) -> (outs, nonzero_outs, linear)``
    How it is linearized where its jvp rule, split into known and unknown, will not do: primitives that carry programs.
    Runs on the parent trace; ``linear`` takes the nonzero tangents to the nonzero output tangents, and is called while
    these are recorded.
``accumulate(cotangents, held, *operands, **params) -> list``
    For primitives that continue the accumulation of the program around them: gets what each operand has gathered so far
    (a value, or Zero; None for an operand that is not linear) and gives the new totals. Operands that are one linear
    variable are one and the same marker.
``emit(b, *values, **params)``
    An elementwise primitive's meaning for one element, over the builder vocabulary of ``volta.emit.builder``.
``pairs(*operands, **params)``
    Its meaning for complex numbers: a complex operand is a `volta.ops.complexes.Pair` of real arrays, so is a complex
    answer. Written with ``volta.ops.lax`` functions; a list when ``multiple_results``. A primitive without it takes no
    complex operands. The modules of ``volta.ops.complexes`` give it.
``of_keys``
    Whether it takes random keys (`volta.core.extended`): what only moves, chooses or compares elements does, and so
    do primitives that carry programs. All others refuse them; elementwise ones by their kinds of operands.
``reduction``
    Of the reduction family: how elements combine, and what none of them give.
``kernels``
    The classes of kernels that it may run in, as backends' capability records name them; the family says.
``on_tensor_cores``
    Of a primitive with precisions of tensor cores: the class of the kernel for these, and which they are.
``cost``
    What it takes beside a plain operation such as an addition. It moves no bit: values that cost more than 1 are worth
    keeping between the passes of a kernel, those that cost little are computed again rather than stored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

import attrs

from volta.core import interp
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError
from volta.core.extended import is_key, refusal
from volta.core.source import at_user_line


class Family(enum.Enum):
    """How a primitive lowers, batches and is tested."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    MOVEMENT = "movement"
    CONTRACTION = "contraction"
    ATTENTION = "attention"
    INDEXING = "gather and scatter"
    SORTING = "sort and scan"
    KEYS = "random keys"  # between keys and their words; written as operations on integers before anything is lowered
    CONTROL = "control flow"
    CALLBACK = "callback"  # calls a Python function: programs with such a call are run in parts
    COLLECTIVE = "collective"  # means the axis of a name: vmap makes it an ordinary operation
    USER = "user's kernel"  # what it computes is not Volta's to know
    CALL = "call"  # has a `jaxpr` param and means exactly that program: lowering inlines it


@attrs.frozen
class Zero:
    """A symbolic zero tangent or cotangent of the given aval."""

    aval: ShapedArray


@attrs.frozen
class Linear:
    """Marks, for a transpose rule, an operand that the program is linear in."""

    aval: ShapedArray


@attrs.frozen
class NoDerivative:
    """Says explicitly that a primitive has no derivative, and why.

    ``zero`` means the derivative is zero wherever it exists (comparisons, rounding, integer operations): tangents
    become :class:`Zero`. Otherwise differentiating raises NotDifferentiableError with ``reason``.
    """

    reason: str
    zero: bool = False


@attrs.frozen
class Domain:
    """Where an elementwise primitive is tested: an interval of reals, and kinds of dtypes (float, int, bool)."""

    low: float = -10.0
    high: float = 10.0
    kinds: tuple[str, ...] = ("float",)


@attrs.frozen
class Reduction:
    """How a primitive of the reduction family combines elements (a kind of ``volta.emit.reducers``), and its value of
    no elements, by dtype."""

    combine: str
    of_nothing: Callable[[Any], Any]


Rule = Callable[..., Any]

_KERNELS = {
    Family.ELEMENTWISE: ("loop",),
    Family.REDUCTION: ("loop", "combine"),
    Family.MOVEMENT: ("loop",),
    Family.CONTRACTION: ("dot",),
    Family.ATTENTION: ("attention", "attention_dq", "attention_dkv"),
    Family.INDEXING: ("loop", "scatter"),
    Family.SORTING: ("sort", "scan"),
    Family.KEYS: (),
    Family.CALL: (),
    Family.CALLBACK: (),
    Family.COLLECTIVE: (),
    Family.CONTROL: ("while", "switch"),
    Family.USER: ("user",),
}

_MOVING = (Family.MOVEMENT, Family.INDEXING, Family.CONTROL, Family.CALL, Family.KEYS)

FUNCTION = 100
"""The ``cost`` of what is computed by a polynomial or a loop: more than any pass spends on computing it again."""


@attrs.frozen(eq=False, repr=False)
class Primitive:
    """The record of one operation. Create it through its family's constructor; see the module's docstring."""

    name: str
    family: Family
    abstract: Rule
    jvp: Rule | NoDerivative
    batch: Rule
    transpose: Rule | None = None
    linearize: Rule | None = None
    accumulate: Rule | None = None
    emit: Rule | None = None
    multiple_results: bool = False
    domain: Domain | None = None
    cost: int = 1
    reduction: Reduction | None = None
    doc: str = ""
    pairs: Rule | None = None
    of_keys: bool = attrs.field(default=attrs.Factory(lambda self: self.family in _MOVING, takes_self=True))
    kernels: tuple[str, ...] = attrs.field(default=attrs.Factory(lambda self: _KERNELS[self.family], takes_self=True))
    on_tensor_cores: tuple[str, str] | None = None

    @property
    def public(self) -> str:
        """Its function's name in ``volta.lax``: its own, unless that is a word of Python's (or beside those)."""
        return f"bitwise_{self.name}" if iskeyword(self.name) or self.name == "xor" else self.name

    def bind(self, *args: Any, **params: Any) -> Any:
        return interp.bind(self, *args, **params)

    def __repr__(self) -> str:
        return self.name


REGISTRY: dict[str, Primitive] = {}


def register(primitive: Primitive) -> Primitive:
    """Enter a primitive into the vocabulary, or refuse an incomplete or duplicate record (at import)."""
    if primitive.name in REGISTRY:
        raise ValueError(f"primitive {primitive.name!r} is defined twice")
    if primitive.family is Family.ELEMENTWISE and (primitive.emit is None or primitive.domain is None):
        raise ValueError(f"elementwise primitive {primitive.name!r} needs `emit` (its meaning) and a test `domain`")
    if (primitive.family is Family.REDUCTION) != (primitive.reduction is not None):
        raise ValueError(f"primitive {primitive.name!r}: the reduction family, and no other, says its `reduction`")
    if not primitive.doc:
        raise ValueError(f"primitive {primitive.name!r} needs a `doc` line")
    if not primitive.of_keys and primitive.family is not Family.ELEMENTWISE:
        object.__setattr__(primitive, "abstract", _without_keys(primitive.name, primitive.abstract))
    REGISTRY[primitive.name] = primitive
    return primitive


def _without_keys(name: str, abstract: Rule) -> Rule:
    """A shape rule that refuses random keys."""

    def rule(*avals: ShapedArray, **params: Any) -> Any:
        for aval in avals:
            if is_key(aval.dtype):
                given = ", ".join(a.short() for a in avals)
                raise DTypeError(at_user_line(f"{name}({given}): {refusal(aval.dtype)}"))
        return abstract(*avals, **params)

    return rule


def complete(primitive: Primitive, **rules: Rule) -> None:
    """Give a record a rule that only a module above its own can write (``linearize``, ``pairs``); once."""
    for name, rule in rules.items():
        if getattr(primitive, name) is not None:
            raise ValueError(f"primitive {primitive.name!r} has a {name} rule")
        object.__setattr__(primitive, name, rule)
