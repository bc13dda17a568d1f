"""What happens between two segments of a partitioned program: the bytes of a round's exchanges move.

Within the process they are copied, to other processes the engine moves them; from and to where the workers' arrays lie,
which is the host's memory or that of GPUs. Each pair of workers that have something for each other has one message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from volta.core.ir import Atom, Literal, Var
from volta.core.sharding import Box
from volta.runtime import devices, workers
from volta.runtime.array import ConcreteArray, as_array, intern_aval
from volta.runtime.sharded import empty
from volta.xla_like.partition.exchange import Exchange, Transfer
from volta.xla_like.partition.local import Partitioned

Held = dict[Var, ConcreteArray]
"""A rank's values."""


@attrs.define
class Traffic:
    """What a process has moved since it was started, in bytes: counted where it is moved, not planned."""

    sent: int = 0
    received: int = 0
    rounds: int = 0


TRAFFIC = Traffic()


@attrs.frozen(eq=False)
class Piece:
    """What one transfer moves: of the exchange with number ``k`` in the round."""

    k: int
    transfer: Transfer
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.transfer.nbytes(self.itemsize)


class Rounds:
    """The rounds of a program, for the ranks of this process, each of which is the worker ``numbers[rank]``."""

    def __init__(self, partition: Partitioned, ranks: Sequence[int], numbers: Sequence[int]):
        self._partition, self._ranks, self._numbers = partition, tuple(ranks), tuple(numbers)
        self._pieces = [self._of(together) for together in partition.exchanges]
        self._move = self._on_host if workers.engine().kind == "cpu" else self._on_devices

    def _of(self, exchanges: Sequence[Exchange]) -> dict[tuple[int, int], list[Piece]]:
        """What each pair of ranks, of which one is here, moves in a round, in one order that both know."""
        found: dict[tuple[int, int], list[Piece]] = {}
        for k, e in enumerate(exchanges):
            for t in e.transfers:
                if t.source in self._ranks or t.target in self._ranks:
                    found.setdefault((t.source, t.target), []).append(Piece(k, t, e.aval.dtype.itemsize))
        return found

    def __len__(self) -> int:
        return len(self._pieces)

    def run(self, i: int, held: dict[int, Held], what: str) -> None:
        """Make the exchanges of round i, from and into what ranks hold; ``what`` is for errors."""
        TRAFFIC.rounds += 1
        self._move(i, held, what)

    def _counted(self, pair: tuple[int, int], nbytes: int) -> None:
        if pair[0] != pair[1]:
            TRAFFIC.sent += nbytes * (pair[0] in self._ranks)
            TRAFFIC.received += nbytes * (pair[1] in self._ranks)

    # -- in the host's memory ------------------------------------------------------------------------------------------

    def _on_host(self, i: int, held: dict[int, Held], what: str) -> None:
        views: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        for r in self._ranks:
            for k, g in enumerate(self._partition.locals[r].rounds[i]):
                out, view = empty(g.got.aval)
                views[r, k] = read(held[r], g.given)._view(), view
                held[r][g.got] = out
        outgoing, incoming = {}, {}
        later: list[tuple[np.ndarray, np.ndarray]] = []
        for (source, target), pieces in self._pieces[i].items():
            given = [views[source, p.k][0][_index(p.transfer.taken)] for p in pieces if source in self._ranks]
            places = [views[target, p.k][1][_index(p.transfer.put)] for p in pieces if target in self._ranks]
            if given and places:
                for place, piece in zip(places, given, strict=True):
                    place[...] = piece
                self._counted((source, target), sum(x.nbytes for x in given))
            elif given:
                message = np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in given])
                outgoing[self._numbers[target]] = message
                self._counted((source, target), message.nbytes)
            else:
                message = incoming[self._numbers[source]] = np.empty(sum(p.nbytes for p in pieces), np.uint8)
                self._counted((source, target), message.nbytes)
                at = 0
                for place, p in zip(places, pieces, strict=True):
                    later.append((place, message[at : at + p.nbytes].view(place.dtype).reshape(place.shape)))
                    at += p.nbytes
        workers.engine().swap(outgoing, incoming, what)
        for place, piece in later:
            place[...] = piece

    # -- in that of GPUs -----------------------------------------------------------------------------------------------

    def _on_devices(self, i: int, held: dict[int, Held], what: str) -> None:
        engine: Any = workers.engine()
        memory = {r: devices.gpu(engine.device(self._numbers[r])) for r in self._ranks}
        arrays: dict[tuple[int, int], tuple[ConcreteArray, ConcreteArray]] = {}
        for r in self._ranks:
            stream = memory[r].stream()
            for k, g in enumerate(self._partition.locals[r].rounds[i]):
                given = _ready(read(held[r], g.given), memory[r].name, stream)
                out = ConcreteArray(intern_aval(g.got.aval), devices.empty(g.got.aval.nbytes, stream), 0)
                arrays[r, k] = given, out
                held[r][g.got] = out
        outgoing: dict[int, list[tuple[int, int]]] = {}
        incoming: dict[int, list[tuple[int, int]]] = {}
        kept: list[_Span] = []  # until the engine has moved what is in them
        for (source, target), pieces in self._pieces[i].items():
            for p in pieces:
                taken = put = None
                if source in memory:
                    taken = _Span(memory[source], arrays[source, p.k][0], p.transfer.taken)
                if target in memory:
                    put = _Span(memory[target], arrays[target, p.k][1], p.transfer.put)
                self._counted((source, target), p.nbytes)
                if taken and put:
                    put.take(taken)
                elif taken:
                    outgoing.setdefault(self._numbers[target], []).append((taken.packed(), p.nbytes))
                    kept.append(taken)
                elif put:
                    incoming.setdefault(self._numbers[source], []).append((put.landing(), p.nbytes))
                    kept.append(put)
        for device in dict.fromkeys(memory.values()):  # a process that sends has one
            engine.move(outgoing, incoming, device.stream(), what)
        for span in kept:
            span.unpack()


class _Span:
    """A box of an array in a GPU's memory, which may have to be packed to be sent and unpacked once it is there."""

    def __init__(self, device: Any, x: ConcreteArray, box: Box):
        self.device, self.itemsize = device, x.aval.dtype.itemsize
        self.box = devices.cuda().boxes.Box(x.aval.shape, box)
        self.address = x.buffer().address
        self.nbytes = self.itemsize * math.prod(self.box.sizes)
        self._packed: Any = None  # memory for its elements in one piece
        self._landed = False

    def _copy(self, to: int, put: Any, source: int, taken: Any) -> None:
        devices.cuda().boxes.copy(self.device, to, put, source, taken, self.itemsize, self.device.stream())

    def packed(self) -> int:
        """Where its elements are in one piece."""
        address = self.landing()
        if self._packed is not None:
            self._copy(address, devices.cuda().boxes.whole(self.box.sizes), self.address, self.box)
            self._landed = False
        return address

    def landing(self) -> int:
        """Where its elements may be put in one piece, to be unpacked later."""
        if self.box.in_one_piece:
            return self.address + int(self.box.start(self.itemsize))
        self._packed = devices.empty(self.nbytes, self.device.stream())
        self._landed = True
        return int(self._packed.address)

    def unpack(self) -> None:
        """Put what has landed in its place."""
        if self._landed:
            whole = devices.cuda().boxes.whole(self.box.sizes)
            self._copy(self.address, self.box, self._packed.address, whole)

    def take(self, other: _Span) -> None:
        """The elements of another span of this process."""
        if other.device is self.device:
            self._copy(self.address, self.box, other.address, other.box)
            return
        here, there = self.device.stream(), other.device.stream()
        source, to = other.packed(), self.landing()
        here.wait_for(there.mark())
        self.device.copy_from(other.device, to, source, self.nbytes, here)
        self.unpack()
        there.wait_for(here.mark())  # before the memory is used again


def _ready(x: ConcreteArray, device: str, stream: Any) -> ConcreteArray:
    """A value in a device's memory, for a stream to read, once what it comes from is known to have ended well."""
    x = devices.place(x, device, stream)
    buffer = x.buffer()
    if buffer.stretch is not None:
        buffer.wait(x.aval)  # type: ignore[attr-defined]
    if buffer.stream is not stream:
        devices.visible_to(buffer, stream)
    return x


def read(held: Held, atom: Atom) -> ConcreteArray:
    """A value that a rank holds."""
    return as_array(atom.value) if isinstance(atom, Literal) else held[atom]


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in box)
