"""A round of exchanges between workers on GPUs, from memory to memory.

What can be known before is: offsets, sizes, and which pieces lie in one piece and go as they are. The others are packed
before they are sent, or unpacked once they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from volta.core.sharding import Box
from volta.runtime import devices, workers
from volta.runtime.array import ConcreteArray, intern_aval
from volta.runtime.rounds import TRAFFIC, Held, Met, Pair, Piece, Wait, read

ExchangeKey = tuple[int, int]
"""A rank, and the number of an exchange in the round."""


@attrs.frozen(eq=False)
class _Part:
    """A part of an array that is moved: its bytes begin at ``start``, or are packed and unpacked by ``steps``."""

    place: ExchangeKey
    start: int
    nbytes: int
    steps: tuple[Any, ...] | None


@attrs.frozen(eq=False)
class _Copy:
    """A piece that stays in the process: from one rank to another, on one device by ``steps``."""

    taken: _Part
    put: _Part
    steps: tuple[Any, ...] | None


class DeviceRound:
    """A round in the memory of GPUs, for ranks each of which is the worker ``numbers[rank]``."""

    def __init__(self, met: Met, pairs: Mapping[Pair, list[Piece]], numbers: Sequence[int]):
        engine: Any = workers.engine()
        self._met, self._engine = met, engine
        self._gpus = {r: devices.gpu(engine.device(numbers[r])) for r in met}
        self._avals = {(r, k): intern_aval(g.got.aval) for r, gs in met.items() for k, g in enumerate(gs)}
        self._copies: list[_Copy] = []
        self._sent: dict[int, list[_Part]] = {}
        self._got: dict[int, list[_Part]] = {}
        for (source, target), pieces in pairs.items():
            for k, t in pieces:
                taken = self._part((source, k), t.taken, True) if source in met else None
                put = self._part((target, k), t.put, False) if target in met else None
                if taken and put:
                    self._copies.append(_Copy(taken, put, self._direct(taken, t.taken, put, t.put)))
                elif taken:
                    self._sent.setdefault(numbers[target], []).append(taken)
                elif put:
                    self._got.setdefault(numbers[source], []).append(put)

    def _box(self, place: ExchangeKey, box: Box, given: bool) -> Any:
        met = self._met[place[0]][place[1]]
        return devices.cuda().boxes.Box((met.given if given else met.got).aval.shape, box)

    def _part(self, place: ExchangeKey, box: Box, given: bool) -> _Part:
        boxes, found, itemsize = devices.cuda().boxes, self._box(place, box, given), self._itemsize(place)
        packed = boxes.whole(found.sizes)
        steps = None
        if not found.in_one_piece:
            steps = boxes.steps(packed, found, itemsize) if given else boxes.steps(found, packed, itemsize)
        return _Part(place, found.start(itemsize), found.nbytes(itemsize), steps)

    def _itemsize(self, place: ExchangeKey) -> int:
        return self._avals[place].dtype.itemsize

    def _direct(self, taken: _Part, taken_box: Box, put: _Part, put_box: Box) -> tuple[Any, ...] | None:
        if self._gpus[taken.place[0]] is not self._gpus[put.place[0]]:
            return None
        boxes = self._box(put.place, put_box, False), self._box(taken.place, taken_box, True)
        found: tuple[Any, ...] = devices.cuda().boxes.steps(*boxes, self._itemsize(put.place))
        return found

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, held: Mapping[int, Held], what: str) -> Wait | None:
        """Have the exchanges made, from and into what ranks hold, before what their streams are given later.

        ``what`` is for errors. Returns what waits until all is there, if other processes take part.
        """
        given: dict[ExchangeKey, ConcreteArray] = {}
        got: dict[ExchangeKey, ConcreteArray] = {}
        for r, met in self._met.items():
            gpu, stream = self._gpus[r], self._gpus[r].stream()
            for k, g in enumerate(met):
                given[r, k] = _ready(read(held[r], g.given), gpu.name, stream)
                aval = self._avals[r, k]
                held[r][g.got] = got[r, k] = ConcreteArray(aval, devices.empty(aval.nbytes, stream), 0)
        for c in self._copies:
            self._copy(c, given[c.taken.place], got[c.put.place])
        TRAFFIC.rounds += 1
        if not self._sent and not self._got:
            return None
        kept: list[Any] = []  # until the stream has been given what moves it
        outgoing = {w: [self._packed(x, given[x.place], kept) for x in parts] for w, parts in self._sent.items()}
        landed: list[tuple[_Part, Any]] = []
        incoming = {w: [self._landing(x, got[x.place], landed) for x in parts] for w, parts in self._got.items()}
        (gpu,) = dict.fromkeys(self._gpus.values())  # a process that has something for another has one worker
        wait: Wait = self._engine.move(outgoing, incoming, gpu.stream(), what)
        TRAFFIC.sent += sum(n for spans in outgoing.values() for _, n in spans)
        TRAFFIC.received += sum(n for spans in incoming.values() for _, n in spans)
        for part, buffer in landed:
            self._unpack(part, got[part.place], buffer)
        return wait

    def _packed(self, part: _Part, x: ConcreteArray, kept: list[Any]) -> tuple[int, int]:
        """Where a part's bytes are in one piece, and how many."""
        address = x.buffer().address
        if part.steps is None:
            return address + part.start, part.nbytes
        gpu = self._gpus[part.place[0]]
        buffer = devices.empty(part.nbytes, gpu.stream())
        devices.cuda().boxes.run(gpu, part.steps, buffer.address, address, gpu.stream())
        kept.append(buffer)
        return buffer.address, part.nbytes

    def _landing(self, part: _Part, x: ConcreteArray, landed: list[tuple[_Part, Any]]) -> tuple[int, int]:
        """Where a part's bytes may be put in one piece, and how many."""
        if part.steps is None:
            return x.buffer().address + part.start, part.nbytes
        buffer = devices.empty(part.nbytes, self._gpus[part.place[0]].stream())
        landed.append((part, buffer))
        return buffer.address, part.nbytes

    def _unpack(self, part: _Part, x: ConcreteArray, buffer: Any) -> None:
        gpu = self._gpus[part.place[0]]
        devices.cuda().boxes.run(gpu, part.steps, x.buffer().address, buffer.address, gpu.stream())

    def _copy(self, c: _Copy, x: ConcreteArray, out: ConcreteArray) -> None:
        """A piece within the process."""
        if c.taken.place[0] != c.put.place[0]:
            TRAFFIC.sent += c.taken.nbytes
            TRAFFIC.received += c.put.nbytes
        here, there = self._gpus[c.put.place[0]], self._gpus[c.taken.place[0]]
        if c.steps is not None:
            devices.cuda().boxes.run(here, c.steps, out.buffer().address, x.buffer().address, here.stream())
            return
        kept: list[Any] = []
        landed: list[tuple[_Part, Any]] = []
        (source, _), (to, nbytes) = self._packed(c.taken, x, kept), self._landing(c.put, out, landed)
        here.stream().wait_for(there.stream().mark())
        here.copy_from(there, to, source, nbytes, here.stream())
        for part, buffer in landed:
            self._unpack(part, out, buffer)
        there.stream().wait_for(here.stream().mark())  # before the memory is used again


def _ready(x: ConcreteArray, device: str, stream: Any) -> ConcreteArray:
    """A value in a device's memory, for a stream to read, once what it comes from is known to have ended well."""
    x = devices.place(x, device, stream)
    buffer = x.buffer()
    if buffer.stretch is not None:
        x.block_until_ready()
    if buffer.stream is not stream:
        devices.visible_to(buffer, stream)
    return x
