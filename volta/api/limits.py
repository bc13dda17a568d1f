"""Which Python integers a traced function can take: those that fit the dtypes they meet.

``x + 300`` is an OverflowError where ``x`` is uint8. As an argument of a jitted function 300 is not known while the
function is traced, so the program says what its arguments must fit, and each call is checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.constants import known_integer, limit_of_conversion
from volta.core.ir import ClosedJaxpr, Eqn, Literal
from volta.core.source import at_user_line

Limits = tuple[tuple[np.dtype, ...], ...]
"""For each argument the integer dtypes that it is converted to as a Python number; empty where there is none at all."""


def limits_of(program: ClosedJaxpr) -> Limits:
    """What the arguments of a program must fit, also within its calls, loops and branches."""
    found: dict[Any, tuple[np.dtype, ...]] = dict.fromkeys(program.jaxpr.invars, ())
    for eqn in program.jaxpr.eqns:
        for atom, wanted in zip(eqn.inputs, _wanted(eqn), strict=False):
            if not isinstance(atom, Literal) and atom in found:
                found[atom] = _both(found[atom], wanted)
    return tuple(found.values()) if any(found.values()) else ()


def together(*limits: Limits) -> Limits:
    """What fits all of them."""
    columns = itertools.zip_longest(*limits, fillvalue=())
    return tuple(_both(*column) for column in columns)


def _both(*wanted: tuple[np.dtype, ...]) -> tuple[np.dtype, ...]:
    return tuple(dict.fromkeys(itertools.chain(*wanted)))


def _wanted(eqn: Eqn) -> Limits:
    """What the operands of an equation must fit."""
    params = eqn.params
    if eqn.primitive.name == "convert_element_type":
        return (limit_of_conversion(eqn.inputs[0].aval, params["new_dtype"]),)
    if eqn.primitive.name == "cond":
        return ((), *together(*map(limits_of, params["branches"])))
    if eqn.primitive.name == "while":
        n, k = params["cond_nconsts"], params["body_nconsts"]
        tests, body = (limits_of(params[which]) for which in ("cond_jaxpr", "body_jaxpr"))
        tested, used = ((*limits[:m], *[()] * (m - len(limits))) for limits, m in ((tests, n), (body, k)))
        return (*tested, *used, *together(tests[n:], body[k:]))
    return limits_of(params["jaxpr"]) if "jaxpr" in params else ()  # a call, a scan: its operands are its arguments


def check(leaves: Sequence[Any], limits: Limits, name: str, paths: Callable[[], list[str]]) -> None:
    """Refuse a Python integer that does not fit.

    Raises:
        OverflowError: naming the argument, its value and the dtype.
    """
    for i, (x, wanted) in enumerate(zip(leaves, limits, strict=False)):  # no limits: nothing is limited
        number = known_integer(x) if wanted else None
        if number is None:
            continue
        for dtype in wanted:
            held = dtypes.iinfo(dtype)
            if not held.min <= number <= held.max:
                what = f"{number} does not fit {dtype}, which holds {held.min} to {held.max}: {paths()[i]} of `{name}` "
                why = (
                    "meets other numbers, and operators between numbers have int64. Pass numpy.uint64(...)"
                    if dtype == dtypes.int64
                    else "meets an array of that dtype. Use a wider dtype, x.astype('int64'), or pass numpy.int64(...)"
                )
                raise OverflowError(at_user_line(what + why))
