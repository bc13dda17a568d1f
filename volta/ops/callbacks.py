"""Calls of Python functions from inside of programs: ``pure_callback``, ``io_callback`` and ``debug.callback``.

A program that calls Python is run in parts, which are compiled, with the calls between them, in the order of the
program (``volta.runtime.parts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import ArgumentError, NotDifferentiableError, UnsupportedOperationError
from volta.core.ir import ClosedJaxpr, Eqn, subjaxprs
from volta.core.source import at_user_line
from volta.ops import base
from volta.ops.primitive import Family, Primitive, Zero, register

__all__: list[str] = []  # their functions are volta.pure_callback, volta.debug and volta.experimental

VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")


@attrs.frozen(eq=False, repr=False)
class HostCall:
    """A Python function from NumPy arrays to NumPy arrays, of the types ``out_avals``.

    ``effect``: what it does beside its results counts, so it is called though nobody reads these; ``kind`` is the name
    of what the user has called.
    """

    kind: str
    name: str
    function: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
    out_avals: tuple[ShapedArray, ...]
    effect: bool
    ordered: bool = False
    vmap_method: str | None = None

    def __repr__(self) -> str:
        return self.name


def _abstract(*avals: ShapedArray, call: HostCall) -> list[ShapedArray]:
    return list(call.out_avals)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: HostCall) -> Any:
    if call.out_avals and not all(isinstance(t, Zero) for t in tangents):
        raise NotDifferentiableError(
            at_user_line(
                f"{call.kind} of `{call.name}` is differentiated here, and Volta cannot look into what it computes: "
                "give it a rule by volta.custom_jvp or custom_vjp, or apply volta.lax.stop_gradient to its arguments"
            )
        )
    outs = callback_p.bind(*primals, call=call)
    return outs, [base.zero_like(x) for x in outs]


def _batch(args: Sequence[Any], dims: Sequence[int | None], size: int, *, call: HostCall) -> Any:
    if call.ordered:
        raise ArgumentError(
            at_user_line(
                f"{call.kind} of `{call.name}` is ordered, and the examples of vmap have no order: leave that out"
            )
        )
    method = call.vmap_method
    if method is None:
        raise UnsupportedOperationError(
            at_user_line(
                f"{call.kind} of `{call.name}` under vmap: say by vmap_method how it takes a batch: 'sequential' (a "
                "call for each example), 'expand_dims' or 'broadcast_all' (one call for all, along axis 0)"
            )
        )
    mapped = [d is not None for d in dims]
    moved = [x if d is None else base.move_axis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    if method == "expand_dims":
        moved = [x if m else base.reshape_to(x, (1, *base.shape_of(x))) for x, m in zip(moved, mapped, strict=True)]
        function = call.function
    elif method == "broadcast_all":
        moved = [x if m else base.to_front(x, None, size) for x, m in zip(moved, mapped, strict=True)]
        function = call.function
    else:
        function = _each(call.function, mapped, size, call.out_avals)
    avals = tuple(a.update(shape=(size, *a.shape)) for a in call.out_avals)
    outs = callback_p.bind(*moved, call=attrs.evolve(call, function=function, out_avals=avals))
    return outs, [0] * len(outs)


def _each(
    function: Callable[..., Any], mapped: Sequence[bool], size: int, avals: Sequence[ShapedArray]
) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    """One call for each example, in their order."""

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = [function([x[i] if m else x for x, m in zip(arrays, mapped, strict=True)]) for i in range(size)]
        return [
            np.stack([np.asarray(row[k], a.dtype) for row in rows]) if rows else np.zeros((0, *a.shape), a.dtype)
            for k, a in enumerate(avals)
        ]

    return run


callback_p = register(
    Primitive(
        "callback",
        Family.CALLBACK,
        _abstract,
        _jvp,
        _batch,
        multiple_results=True,
        doc="Calls a Python function on the host.",
    )
)


def has_effect(eqn: Eqn) -> bool:
    """Whether an equation does something beside its results."""
    if eqn.primitive is callback_p:
        return bool(eqn.params["call"].effect)
    return any(has_effects(program) for program in subjaxprs(eqn.params))


@lru_cache(maxsize=4096)
def has_effects(program: ClosedJaxpr) -> bool:
    return any(map(has_effect, program.eqns))


def calls_python(eqn: Eqn) -> bool:
    """Whether an equation, or one in a program that it carries, calls a Python function."""
    return eqn.primitive is callback_p or any(
        calls_python(inner) for program in subjaxprs(eqn.params) for inner in program.eqns
    )


def refuse_io(programs: Iterable[ClosedJaxpr], why: str, kinds: Sequence[str] = ("io_callback", "check")) -> None:
    """Refuse programs with an ``io_callback`` or a check where it would be called though the user's program does not
    come to it.

    Raises:
        UnsupportedOperationError: with ``why`` that is so.
    """
    for program in programs:
        for eqn in program.eqns:
            kind = eqn.params["call"].kind if eqn.primitive is callback_p else None
            if kind in kinds:
                way = ". Map the checked function: vmap(checkify(f))" if kind == "check" else ""
                raise UnsupportedOperationError(at_user_line(f"{kind} of `{eqn.params['call'].name}`: {why}{way}"))
            refuse_io(subjaxprs(eqn.params), why, kinds)
