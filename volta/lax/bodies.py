"""What loops and branches share: the functions that they run, as programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.api.arguments import flat_outputs, name_of, values_of
from volta.core import pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr
from volta.core.pytrees import PyTreeDef
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.tracer import concrete_of


@attrs.frozen(eq=False)
class Traced:
    program: ClosedJaxpr
    tree: PyTreeDef


def trace(fun: Callable[..., Any], tree: PyTreeDef, avals: Sequence[ShapedArray], doing: str) -> Traced:
    """The program of ``fun``, which takes the arguments of a call as a pytree."""
    name = name_of(fun)

    def flat(*leaves: Any) -> tuple[list[Any], PyTreeDef]:
        return flat_outputs(fun(*pytrees.unflatten(tree, leaves)), name)

    return Traced(*trace_to_jaxpr(flat, avals, name, doing))


def values(tree: Any, what: str) -> tuple[list[Any], PyTreeDef]:
    leaves, structure = pytrees.flatten(tree)
    return values_of(leaves, what, lambda: pytrees.leaf_paths(tree)), structure


def paths(tree: PyTreeDef) -> list[str]:
    return pytrees.leaf_paths(pytrees.unflatten(tree, list(range(tree.num_leaves))))


def known(x: Any) -> bool:
    """Whether a value is there while the program is traced."""
    return not isinstance(x, Array) or concrete_of(x) is not None
