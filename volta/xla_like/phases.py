"""Levels and phases of a loop kernel's values: what is computed once a row, and in which pass over the row.

A reduction needs the whole row before its result exists, so a kernel with reductions makes one pass over the row a
*phase*: phase 0 computes what depends on no reduction, phase k what depends on results of phase k - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from volta.ops.primitive import REGISTRY
from volta.xla_like.kernels import Compute, ConstValue, IndexValue, Instr, Load, Reduce


def is_expensive(x: Instr) -> bool:
    """Whether a value is worth keeping in scratch memory rather than computing again in the next pass."""
    return isinstance(x, Compute) and REGISTRY[x.name].cost > 1


@attrs.frozen
class Analysis:
    """For each value: ``varies`` (computed per element, else once a row), ``spread`` (may differ between the lanes of a
    vector) and its phase; and the number of phases.

    A row is what is reduced. In 'col' kernels vectors run across rows: there neither of the two implies the other.
    """

    varies: tuple[bool, ...]
    spread: tuple[bool, ...]
    phase: tuple[int, ...]
    last: int


def operands(x: Instr) -> Sequence[int]:
    if isinstance(x, Load):
        return x.terms if x.other is None else (*x.terms, x.other)
    if isinstance(x, Compute):
        return x.args
    return (x.arg,) if isinstance(x, Reduce) else ()


def analyse(mode: str, body: Sequence[Instr]) -> Analysis:
    """Levels and phases of values.

    In 'map' and 'row' kernels a value varies with the vector dimension, in 'col' kernels with the reduced one.
    """
    varies: list[bool] = []
    spread: list[bool] = []
    phase: list[int] = []
    for x in body:
        if isinstance(x, Reduce):
            varies.append(False)
            spread.append(mode == "col")  # a lane reduces its own row
            phase.append(phase[x.arg] + 1)
        elif isinstance(x, ConstValue):
            varies.append(False)
            spread.append(False)
            phase.append(0)
        else:
            pattern = x.pattern if isinstance(x, (Load, IndexValue)) else "0"
            args = operands(x)
            varies.append(pattern[-1] != "0" or any(varies[a] for a in args))
            spread.append(pattern[0] != "0" or any(spread[a] for a in args))
            phase.append(max((phase[a] for a in args), default=0))
    return Analysis(tuple(varies), tuple(spread), tuple(phase), max(phase, default=0))


def needed(body: Sequence[Instr], targets: Iterable[int], stop: Iterable[int] = ()) -> list[int]:
    """Values that ``targets`` are computed from, ascending, not looking behind ``stop`` or behind reductions."""
    stops, seen, todo = set(stop), set(), list(targets)
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v not in stops and not isinstance(body[v], Reduce):
            todo.extend(operands(body[v]))
    return sorted(seen)


def store_pass(body: Sequence[Instr], analysis: Analysis, stored: Sequence[int]) -> int:
    """The pass that writes per-element results: the first that has them all, if no later pass reads elements.

    (A later pass could otherwise read an input that an in-place result has overwritten.)
    """
    ready = max((analysis.phase[v] for v in stored), default=0)
    later = any(isinstance(x, Reduce) and analysis.phase[x.arg] > ready for x in body)
    return analysis.last if later else ready


def targets_of(body: Sequence[Instr], analysis: Analysis, stored: Sequence[int], phase: int) -> list[int]:
    """Values the pass ``phase`` must produce: arguments of its reductions, and what it stores for every element."""
    targets = [x.arg for x in body if isinstance(x, Reduce) and analysis.phase[x.arg] == phase]
    return targets + (list(stored) if phase == store_pass(body, analysis, stored) else [])


def choose_spills(mode: str, body: Sequence[Instr], stored: Sequence[int]) -> tuple[int, ...]:
    """Expensive per-element values that more than one pass needs."""
    analysis = analyse(mode, body)
    spills: list[int] = []
    uses: dict[int, int] = {}
    for p in range(analysis.last + 1):
        for v in needed(body, targets_of(body, analysis, stored, p)):
            uses[v] = uses.get(v, 0) + 1
    for v in reversed(range(len(body))):
        x = body[v]
        if is_expensive(x) and analysis.varies[v] and uses.get(v, 0) > 1:
            # skip values that only feed another spilled value in the later passes
            later = [
                p
                for p in range(analysis.phase[v] + 1, analysis.last + 1)
                if v in needed(body, targets_of(body, analysis, stored, p), spills)
            ]
            if later:
                spills.append(v)
    return tuple(sorted(spills))
