"""Which Python integers a traced function can take: those that fit the dtypes they meet.

``x + 300`` is an OverflowError where ``x`` is uint8. As an argument of a jitted function 300 is not known while the
function is traced, so the program says what its arguments must fit, and each call is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.ir import ClosedJaxpr, Literal, Var
from volta.core.source import at_user_line

Limits = tuple[np.dtype | None, ...]


def limits_of(program: ClosedJaxpr) -> Limits:
    """For each argument the narrowest integer dtype that it is converted to as a Python number, or None; empty where
    there is none at all."""
    found: dict[Var, np.dtype] = {}
    mine = set(program.jaxpr.invars)
    for eqn in program.jaxpr.eqns:
        for atom, dtype in zip(eqn.inputs, _wanted(eqn), strict=True):
            if isinstance(atom, Literal) or dtype is None or atom not in mine:
                continue
            before = found.get(atom)
            found[atom] = dtype if before is None or dtype.itemsize < before.itemsize else before
    return tuple(found.get(v) for v in program.jaxpr.invars) if found else ()


def _wanted(eqn: Any) -> Sequence[np.dtype | None]:
    """What the operands of an equation must fit."""
    if eqn.primitive.name == "convert_element_type":
        aval, new = eqn.inputs[0].aval, eqn.params["new_dtype"]
        narrows = dtypes.is_number(aval.dtype, aval.weak_type) and dtypes.is_integer(aval.dtype)
        return [new if narrows and dtypes.is_integer(new) else None]
    if eqn.primitive.name in ("jit", "checkpoint", "custom_derivative"):
        return limits_of(eqn.params["jaxpr"]) or [None] * len(eqn.inputs)
    return [None] * len(eqn.inputs)


def check(leaves: Sequence[Any], limits: Limits, name: str, paths: Callable[[], list[str]]) -> None:
    """Refuse a Python integer that does not fit.

    Raises:
        OverflowError: naming the argument, its value and the dtype.
    """
    for i, (x, dtype) in enumerate(zip(leaves, limits, strict=False)):  # no limits: nothing is limited
        if dtype is None or type(x) is not int:
            continue
        held = dtypes.iinfo(dtype)
        if not held.min <= x <= held.max:
            raise OverflowError(
                at_user_line(
                    f"{x} does not fit {dtype}, which holds {held.min} to {held.max}: {paths()[i]} of `{name}` meets "
                    "an array of that dtype. Use a wider dtype, x.astype('int64'), or pass numpy.int64(...)"
                )
            )
