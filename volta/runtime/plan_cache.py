"""The plan cache: executables by the whole text of what they were compiled from."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from volta.core.ir import Atom, ClosedJaxpr, Literal, Names, subjaxprs
from volta.runtime.context import ExecutionContext


def program_key(
    program: ClosedJaxpr, donated: tuple[int, ...], name: str, context: ExecutionContext
) -> tuple[Any, ...]:
    """Everything that decides the plan of a program without constants.

    Two equal keys mean the same program, bit for bit: literals count by their bytes, params that are not plain values
    (functions, for one) as themselves, never by a name.
    """
    objects: list[Any] = []
    return _text(program, objects), tuple(objects), donated, name, context


def has_constants(program: ClosedJaxpr) -> bool:
    """Whether a program, or one nested in it, has constants: those are no part of its key."""
    return bool(program.consts) or any(has_constants(sub) for eqn in program.eqns for sub in subjaxprs(eqn.params))


def _text(program: ClosedJaxpr, objects: list[Any]) -> str:
    names = Names()

    def atom(a: Atom) -> str:
        if isinstance(a, Literal):
            data, aval = a.key()
            return f"{data.hex()}:{aval}"
        return names(a)

    lines = [" ".join(names.typed(v) for v in (*program.jaxpr.constvars, *program.jaxpr.invars))]
    for eqn in program.eqns:
        params = ",".join(f"{k}={_param(v, objects)}" for k, v in eqn.params.items())
        outs = " ".join(names.typed(v) for v in eqn.outputs)
        lines.append(f"{outs}={eqn.primitive.name}[{params}]({','.join(map(atom, eqn.inputs))})")
    lines.append(",".join(map(atom, program.jaxpr.outvars)))
    return "\n".join(lines)


def _param(value: Any, objects: list[Any]) -> str:
    """A param as text; what has no text that says it all is put into ``objects``."""
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, ClosedJaxpr):
        return "{" + _text(value, objects) + "}"
    if type(value) is tuple:
        return "(" + "".join(f"{_param(v, objects)}," for v in value) + ")"
    objects.append(value)
    return f"<{len(objects) - 1}>"


class PlanCache:
    """Least recently used executables, bounded by count. A hit compares the whole key, not a hash of it."""

    def __init__(self, capacity: int = 2048) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._entries: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> Any | None:
        found = self._entries.get(key)  # a dict compares keys in full
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return found

    def put(self, key: tuple[Any, ...], executable: Any) -> None:
        self._entries[key] = executable
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


PLAN_CACHE = PlanCache()
