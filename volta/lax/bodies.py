"""What loops and branches share: the functions that they run, as programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.api.arguments import flat_outputs, name_of, values_of
from volta.api.limits import check as check_limits
from volta.api.limits import limit_of_conversion
from volta.core import dtypes, pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.extended import is_key
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.pytrees import TreeSpec
from volta.ops.base import bind_named, settled
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.tracer import concrete_of


@attrs.frozen(eq=False)
class Traced:
    program: ClosedJaxpr
    tree: TreeSpec


def trace(
    fun: Callable[..., Any],
    tree: TreeSpec,
    avals: Sequence[ShapedArray],
    doing: str,
    carried: Sequence[ShapedArray] | None = None,
) -> Traced:
    """The program of ``fun``, which takes the arguments of a call as a pytree.

    Of a loop's body the first results are carried on: a Python number among them takes the type in which it is
    ``carried``. Those behind are stacked, and so arrays.
    """
    name = name_of(fun)

    def flat(*leaves: Any) -> tuple[list[Any], TreeSpec]:
        returned = fun(*pytrees.unflatten(tree, leaves))
        outs, out_tree = flat_outputs(returned, name)
        if carried is not None:
            k = len(carried)
            kept = [a.dtype for a in carried] + [dtypes.settled(x.aval.dtype, x.aval.weak_type) for x in outs[k:]]
            limits = tuple(limit_of_conversion(x.aval, dtype) for x, dtype in zip(outs, kept, strict=False))
            check_limits(pytrees.leaves(returned), limits, name, lambda: [f"output{p}" for p in paths(out_tree)])
            outs = [*map(_as_carried, outs[:k], carried), *map(settled, outs[k:])]
        return outs, out_tree

    return Traced(*trace_to_jaxpr(flat, avals, name, doing))


def _as_carried(x: Any, aval: ShapedArray) -> Any:
    own = get_aval(x)
    if not dtypes.is_number(own.dtype, own.weak_type) or dtypes.is_number(aval.dtype, aval.weak_type):
        return x
    if is_key(aval.dtype) or dtypes.promote((own.dtype, True), (aval.dtype, False))[0] != aval.dtype:
        return x  # refused where types are compared
    return bind_named("convert_element_type", x, new_dtype=aval.dtype, weak_type=aval.weak_type)


def values(tree: Any, what: str) -> tuple[list[Any], TreeSpec]:
    leaves, structure = pytrees.flatten(tree)
    return values_of(leaves, what, lambda: pytrees.leaf_paths(tree)), structure


def paths(tree: TreeSpec) -> list[str]:
    return pytrees.leaf_paths(pytrees.unflatten(tree, list(range(tree.num_leaves))))


def known(x: Any) -> bool:
    """Whether a value is there while the program is traced."""
    return not isinstance(x, Array) or concrete_of(x) is not None
