"""The engine of GPUs: NCCL moves bytes between processes that have one GPU each, from memory to memory.

Only sends and receives are used. NCCL's own sums follow the topology and the size of messages, so they have no place
here: every addition is a kernel of Volta's. No call of NCCL waits; the worker does, and so it can say for whom.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from volta.core.errors import DeviceError, DistributedError
from volta.core.source import at_user_line
from volta.runtime import devices, nccl_api
from volta.runtime.meeting import Launched, Meeting, meet
from volta.runtime.workers import Spans

_PATIENCE = 5e-5
"""Seconds between two looks, once it takes a while."""

_LAST_WORDS = 2.0
"""Seconds in which what a worker that has ended sent before may still come."""

_ENDING = 10.0
"""Seconds that giving up may take."""

source: list[Callable[[], SimpleNamespace]] = [nccl_api.load]
"""What gives NCCL's functions: tests put a stand-in on top."""


class Nccl:
    """One worker a process, with a GPU of its own."""

    name, kind = "nccl", "cuda"

    def __init__(self, launched: Launched, timeout: float):
        """Meet the others, and join them.

        Raises:
            DistributedError: NCCL is not installed, workers are missing, or there are fewer GPUs than workers here.
        """
        self.size, self.here = launched.size, (launched.number,)
        self._api, self._timeout, self._broken = source[-1](), timeout, ""
        self._comm = ctypes.c_void_p()
        self._known: set[tuple[str, int]] = set()  # who has been sent to, and heard from
        version = ctypes.c_int()
        self._check(self._api.ncclGetVersion(ctypes.byref(version)))
        if version.value < nccl_api.OLDEST:
            text = f"distributed.initialize: NCCL {version.value} is installed, and 2.14 or newer is needed"
            raise DistributedError(at_user_line(f"{text}: pip install 'volta[nccl]'"))
        self._meeting: Meeting = meet(launched, timeout, self._new_id)
        try:
            self._gpu = devices.gpu(self._own_device(launched))
            self._joined(launched)
        except BaseException:
            self._meeting.close()
            raise

    def _new_id(self) -> str:
        made = nccl_api.UniqueId()
        self._check(self._api.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made.data).hex()

    def _own_device(self, launched: Launched) -> str:
        """Workers on one machine take its GPUs in their order."""
        hosts = self._meeting.hosts
        place = hosts[: launched.number].count(hosts[launched.number])
        try:
            there = devices.names("cuda")
        except DeviceError as error:
            raise DistributedError(at_user_line(f"distributed.initialize: the engine 'nccl' has {error}")) from None
        if place >= len(there):
            text = f"distributed.initialize: worker {launched.number} is number {place + 1} on {hosts[launched.number]}"
            raise DistributedError(
                at_user_line(f"{text}, which has {len(there)} GPUs: each worker needs one of its own")
            )
        return there[place]

    def _joined(self, launched: Launched) -> None:
        id_ = nccl_api.UniqueId.from_buffer_copy(bytes.fromhex(self._meeting.brought))
        comm = ctypes.c_void_p()
        others = [w for w in range(self.size) if w != launched.number]
        join = functools.partial(self._api.ncclCommInitRank, ctypes.byref(comm), self.size, id_, launched.number)
        self._beside(join, others, "joining the others")
        self._comm = comm

    def device(self, worker: int) -> str:
        return str(self._gpu.name)

    # -- moving bytes --------------------------------------------------------------------------------------------------

    def move(
        self, outgoing: Mapping[int, Spans], incoming: Mapping[int, Spans], stream: Any, what: str
    ) -> Callable[[], None]:
        """Have pieces of the GPU's memory sent and received after a stream's work, and before what it is given later.

        Returns what waits until all is there. It raises DistributedError where a worker stays silent or has ended, or
        NCCL fails; from then on nothing is moved.
        """
        peers = sorted({*outgoing, *incoming})
        if self._broken:
            raise DistributedError(at_user_line(f"in {what}: this worker has given up before: {self._broken}"))
        before = stream.mark()
        new = {("to", w) for w in outgoing} | {("from", w) for w in incoming}
        call = functools.partial(self._group, outgoing, incoming, stream)
        if new <= self._known:
            self._check(call(), f"in {what}: ")
        else:  # with whom it has had no word yet, NCCL connects, and waits
            before.wait()
            self._beside(call, peers, what)
            self._known |= new
        after = stream.mark()

        def wait() -> None:
            before.wait()  # for this worker's own work nobody else is to blame
            self._until(after.passed, peers, what)

        return wait

    def _group(self, outgoing: Mapping[int, Spans], incoming: Mapping[int, Spans], stream: Any) -> int:
        """Have NCCL put all of it on the stream; what it answers."""
        self._gpu.enter()
        codes = [self._api.ncclGroupStart()]
        for function, found in ((self._api.ncclSend, outgoing), (self._api.ncclRecv, incoming)):
            for worker, spans in sorted(found.items()):
                for address, nbytes in spans:
                    if nbytes:
                        codes.append(function(address, nbytes, nccl_api.BYTE, worker, self._comm, stream.handle))
        codes.append(self._api.ncclGroupEnd())
        return next((code for code in codes if code), nccl_api.SUCCESS)

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        """As `move`, of the host's memory: by way of the GPU's, so for few bytes."""
        stream = self._gpu.main
        there: list[dict[int, Any]] = [
            {worker: devices.empty(data.nbytes, stream) for worker, data in found.items()}
            for found in (outgoing, incoming)
        ]
        kept = {worker: np.ascontiguousarray(data) for worker, data in outgoing.items()}
        for worker, data in kept.items():
            self._gpu.to_device(there[0][worker].address, data.ctypes.data, data.nbytes, stream)
        spans = [{worker: [(x.address, x.nbytes)] for worker, x in found.items()} for found in there]
        self.move(spans[0], spans[1], stream, what)()
        for worker, data in incoming.items():
            out = np.empty(data.nbytes, np.uint8)
            self._gpu.to_host(out.ctypes.data, there[1][worker].address, data.nbytes, stream)
            data[...] = out.view(data.dtype).reshape(data.shape)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _beside(self, call: Callable[[], int], peers: Iterable[int], what: str) -> None:
        """Make a call of NCCL's that may wait for others, while this thread looks after these."""
        answers: list[int] = []

        def work() -> None:
            self._gpu.enter()
            answers.append(call())

        threading.Thread(target=work, daemon=True).start()
        self._until(lambda: bool(answers), peers, what)
        self._check(answers[0], f"in {what}: ")

    def _state(self) -> int:
        """What NCCL knows of what it has put on the stream."""
        if not self._comm:
            return nccl_api.SUCCESS
        state = ctypes.c_int()
        self._check(self._api.ncclCommGetAsyncError(self._comm, ctypes.byref(state)))
        return state.value

    def _until(self, done: Callable[[], bool], peers: Iterable[int], what: str) -> None:
        begun, looks, ended = time.monotonic(), 0, float("inf")
        while not done():
            looks += 1
            if looks < 1000:
                continue
            time.sleep(_PATIENCE)
            if looks % 64:
                continue
            now = time.monotonic()
            self._check(self._state(), f"in {what}: ")
            gone = sorted(self._meeting.ended().intersection(peers))
            if gone:
                ended = min(ended, now)
            names = ", ".join(f"for worker {w}" for w in gone or peers)
            mine = f"worker {self.here[0]}"
            if now - ended > _LAST_WORDS:
                self._give_up(f"{mine} waits {names}, in {what}, which has ended")
            if now - begun > self._timeout:
                way = "it has ended, hangs or runs something else; initialize(timeout=...) sets how long is too long"
                self._give_up(f"{mine} has waited {self._timeout:g} s {names}, in {what}: {way}")

    def _check(self, code: int, where: str = "") -> None:
        if code not in (nccl_api.SUCCESS, nccl_api.IN_PROGRESS):
            self._give_up(where + _said(code))

    def _give_up(self, why: str) -> None:
        """End what is under way, and raise the error."""
        self._broken = self._broken or why
        self._abort()
        raise DistributedError(at_user_line(why))

    def _abort(self) -> None:
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:  # beside us, as it might wait for ever: the process is to say why and end
            ending = threading.Thread(target=self._aborted, args=(comm,), daemon=True)
            ending.start()
            ending.join(_ENDING)

    def _aborted(self, comm: ctypes.c_void_p) -> None:
        self._gpu.enter()
        self._api.ncclCommAbort(comm)

    def close(self) -> None:
        """Leave the others. Those that still wait for this worker are told that it has ended."""
        self._abort()
        self._meeting.close()


def _said(code: int) -> str:
    return f"NCCL failed with {nccl_api.ERRORS.get(code, f'error {code}')}; NCCL_DEBUG=WARN says more"
