"""What happens between two segments of a partitioned program: the bytes of a round's exchanges move.

Within the process they are copied, to other processes the engine moves them: here in the host's memory, with one
message for each pair of workers that have something for each other; `device_round` does so in GPUs' memories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import attrs
import numpy as np

from volta.core.ir import Atom, Literal, Var
from volta.core.sharding import Box
from volta.runtime import workers
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.sharded import empty
from volta.xla_like.partition.exchange import Exchange, Transfer
from volta.xla_like.partition.local import Given

Held = dict[Var, ConcreteArray]
"""A rank's values."""


@attrs.define
class Traffic:
    """What a process has moved since it was started, in bytes: counted where it is moved, not planned."""

    sent: int = 0
    received: int = 0
    rounds: int = 0


TRAFFIC = Traffic()


Wait = Callable[[], None]
"""Waits until a round's bytes are there; raises DistributedError where they are not to come."""

Pair = tuple[int, int]
"""The rank that something comes from, and that it goes to."""

Piece = tuple[int, Transfer]
"""What is moved, with the number of its exchange in the round."""

Met = Mapping[int, Sequence[Given]]
"""What each rank of this process gives and gets in a round."""


def pieces_of(exchanges: Sequence[Exchange], here: frozenset[int]) -> dict[Pair, list[Piece]]:
    """What each pair of ranks, of which one is here, moves in a round, in one order that both know."""
    found: dict[Pair, list[Piece]] = {}
    for k, e in enumerate(exchanges):
        for t in e.transfers:
            if t.source in here or t.target in here:
                found.setdefault((t.source, t.target), []).append((k, t))
    return found


class HostRound:
    """A round in the host's memory, for ranks each of which is the worker ``numbers[rank]``."""

    def __init__(self, met: Met, pairs: Mapping[Pair, list[Piece]], numbers: Sequence[int]):
        self._met, self._pairs, self._numbers = met, pairs, numbers

    def run(self, held: Mapping[int, Held], what: str) -> Wait | None:
        """Make the exchanges, from and into what ranks hold; ``what`` is for errors. Nothing is left to wait for."""
        views: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        for r, met in self._met.items():
            for k, g in enumerate(met):
                out, view = empty(g.got.aval)
                views[r, k] = read(held[r], g.given)._view(), view
                held[r][g.got] = out
        outgoing: dict[int, np.ndarray] = {}
        incoming: dict[int, np.ndarray] = {}
        later: list[tuple[np.ndarray, np.ndarray]] = []
        for (source, target), pieces in self._pairs.items():
            taken = [views[source, k][0][_index(t.taken)] for k, t in pieces if source in self._met]
            places = [views[target, k][1][_index(t.put)] for k, t in pieces if target in self._met]
            for place, piece in zip(places, taken, strict=False):
                place[...] = piece
            if not places:
                message = np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in taken])
                outgoing[self._numbers[target]] = message
            elif not taken:
                message = incoming[self._numbers[source]] = np.empty(sum(x.nbytes for x in places), np.uint8)
                ends = accumulate(x.nbytes for x in places)
                for x, end in zip(places, ends, strict=True):
                    later.append((x, message[end - x.nbytes : end].view(x.dtype).reshape(x.shape)))
            if source != target:
                TRAFFIC.sent += sum(x.nbytes for x in taken)
                TRAFFIC.received += sum(x.nbytes for x in places)
        TRAFFIC.rounds += 1
        workers.engine().swap(outgoing, incoming, what)
        for place, piece in later:
            place[...] = piece
        return None


def read(held: Held, atom: Atom) -> ConcreteArray:
    """A value that a rank holds."""
    return as_array(atom.value) if isinstance(atom, Literal) else held[atom]


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in box)
