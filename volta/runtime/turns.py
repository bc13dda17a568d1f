"""A program whose arguments are cut, computed part after part by one worker, with the bits of the whole.

It is partitioned as for several workers (`volta.xla_like.partition`), whose bits do not depend on how many they are.
Here the ranks take turns: each runs its segment and keeps what the next round needs, so what a segment needs besides is
there for one rank at a time. That is gradient accumulation, for any program: sums over the batch come out as the nodes
of their trees, and are joined as the contract says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.extended import is_key
from volta.core.ir import ClosedJaxpr
from volta.core.sharding import Layout, Mesh, box_of
from volta.runtime import devices, gateway
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context
from volta.runtime.rounds import Held, pieces_of, read
from volta.runtime.sharded import empty, part_of
from volta.xla_like.keys import without_keys
from volta.xla_like.partition.partition import partition
from volta.xla_like.passes import optimize

AXIS = "parts"


def parts_of(count: int) -> Mesh:
    """A mesh of so many parts, which are no devices."""
    return Mesh(np.array([f"part:{i}" for i in range(count)]), (AXIS,))


class Turns:
    """A program compiled for parts of its arguments, on the context's device."""

    def __init__(self, program: ClosedJaxpr, count: int, layouts: Sequence[Layout | None], name: str):
        self._out_avals = program.out_avals
        layouts = [
            (*layout, None) if layout is not None and is_key(a.dtype) else layout
            for layout, a in zip(layouts, program.in_avals, strict=True)
        ]
        program = without_keys(program)
        program = optimize(program, only_inline=not current_context().options.passes)
        self.consts = program.consts
        mesh = parts_of(count)
        given = [*layouts, *(None for _ in program.consts)]
        self.partition = partition(program, mesh, given, [None] * len(program.out_avals), name)
        self._segments: dict[ClosedJaxpr, gateway.Executable] = {}
        ranks = range(count)
        self._pairs = [pieces_of(e, frozenset(ranks)) for e in self.partition.exchanges]
        for local in self.partition.locals:
            for i, segment in enumerate(local.segments):
                if segment.eqns:
                    self._segments[segment] = gateway.compile(segment, name=f"{name}.{i}")

    def __call__(self, values: Sequence[Any]) -> list[ConcreteArray]:
        """Run, on whole arguments; the results are whole."""
        found, values = self.partition, [as_array(x).stored() for x in values]
        device = _device_of(values)
        held = [self._arguments(values, rank) for rank in range(found.mesh.size)]
        for i in range(len(found.exchanges) + 1):
            for local, own in zip(found.locals, held, strict=True):
                self._segment(local.segments[i], own)
                waiting = {g.given for g in local.rounds[i]} if i < len(found.exchanges) else set()
                for var in local.drops[i]:
                    if var in own and var not in waiting:
                        del own[var]
            if i < len(found.exchanges):
                self._meet(i, held, device)
                for local, own in zip(found.locals, held, strict=True):
                    for var in local.drops[i]:
                        own.pop(var, None)
        outs = [devices.put(self._result(k, held), device) for k in range(len(found.out_avals))]
        return [x.keyed(a.dtype) if is_key(a.dtype) else x for x, a in zip(outs, self._out_avals, strict=True)]

    def _arguments(self, values: Sequence[Any], rank: int) -> Held:
        found = self.partition
        held: Held = {}
        for var, x, layout in zip(found.locals[rank].inputs, (*values, *self.consts), found.in_layouts, strict=True):
            whole = as_array(x)
            held[var] = part_of(whole, box_of(found.mesh, layout, whole.aval.shape, rank))  # type: ignore[index]
        return held

    def _segment(self, segment: ClosedJaxpr, held: Held) -> None:
        if segment.eqns:
            outs = self._segments[segment]([held[v] for v in segment.jaxpr.invars])
            held.update(zip(segment.jaxpr.outvars, outs, strict=True))  # type: ignore[arg-type]

    def _meet(self, i: int, held: Sequence[Held], device: str) -> None:
        """A round of exchanges, within this process."""
        locals_ = self.partition.locals
        met = [local.rounds[i] for local in locals_]
        sources = [[devices.fetch(read(own, g.given))._view() for g in m] for own, m in zip(held, met, strict=True)]
        made = [[empty(g.got.aval) for g in m] for m in met]
        for (source, target), pieces in self._pairs[i].items():
            for k, t in pieces:
                made[target][k][1][_index(t.put)] = sources[source][k][_index(t.taken)]
        for own, m, arrays in zip(held, met, made, strict=True):
            own.update((g.got, devices.put(x, device)) for g, (x, _) in zip(m, arrays, strict=True))

    def _result(self, k: int, held: Sequence[Held]) -> ConcreteArray:
        found = self.partition
        aval, layout = found.out_avals[k], found.out_layouts[k]
        parts = [read(own, local.outputs[k]) for own, local in zip(held, found.locals, strict=True)]
        if all(c is None for c in layout):
            return parts[0]
        out, view = empty(aval)
        for rank, x in enumerate(parts):
            view[_index(box_of(found.mesh, layout, aval.shape, rank))] = devices.fetch(x)._view()
        return out


def _device_of(values: Sequence[ConcreteArray]) -> str:
    """Where a program runs: where an argument lies that is on a GPU, or else the context's device."""
    context = current_context()
    own = f"{context.backend}:{context.device}" if context.backend == "cuda" else devices.HOST
    return next((d for x in values if (d := x.buffer().device) != devices.HOST), own)


def _index(box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in box)
