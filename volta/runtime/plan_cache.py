"""The plan cache: executables by the whole text of what they were compiled from."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from volta.core.ir import ClosedJaxpr, Literal, Names, Var, format_param
from volta.runtime.context import ExecutionContext


def program_key(
    program: ClosedJaxpr, donated: tuple[int, ...], name: str, context: ExecutionContext
) -> tuple[Any, ...]:
    """Everything that decides a plan. Two equal keys mean the same program, bit for bit (literals by their bytes)."""
    return _text(program), donated, name, context


def _text(program: ClosedJaxpr) -> str:
    names = Names()

    def atom(a: Any) -> str:
        if isinstance(a, Literal):
            data, aval = a.key()
            return f"{data.hex()}:{aval}"
        return names(a)

    lines = [" ".join(names.typed(v) for v in (*program.jaxpr.constvars, *program.jaxpr.invars))]
    for eqn in program.eqns:
        params = []
        for k, v in eqn.params.items():
            params.append(f"{k}={_text(v) if isinstance(v, ClosedJaxpr) else format_param(v)}")
        outs = " ".join(names.typed(v) for v in eqn.outputs)
        lines.append(f"{outs}={eqn.primitive.name}[{','.join(params)}]({','.join(map(atom, eqn.inputs))})")
    lines.append(",".join(atom(a) if isinstance(a, (Var, Literal)) else str(a) for a in program.jaxpr.outvars))
    return "\n".join(lines)


class PlanCache:
    """Least recently used executables, bounded by count. A hit compares the whole key, not a hash of it."""

    def __init__(self, capacity: int = 4096) -> None:
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
