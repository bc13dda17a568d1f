"""A stand-in for NCCL beside the stand-in for NVIDIA's driver: what the engine does can be tested without GPUs.

Messages are files in a folder, whose name is the unique id. As in NCCL, who joins waits for all, and the first word
with another waits for its answer; else calls only put work on the stream, and what a stream receives is there once the
other side's stream has sent it. Who calls in another order, sends other sizes than are received, or names memory that
is none, is told so.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.numba_cuda.fake_driver import FakeDriver
from volta.runtime import nccl_api

SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 2, 4, 5


class FakeNccl:
    """One process's NCCL. ``fail[name] = code`` makes the next call fail; ``deaf``: what is sent to it never comes."""

    def __init__(self, driver: FakeDriver, version: int = 22800):
        self.driver, self.version = driver, version
        self.log: list[str] = []
        self.fail: dict[str, int] = {}
        self.bytes = {"ncclSend": 0, "ncclRecv": 0}
        self.state, self.aborted = 0, False
        self.local = threading.local()
        self.numbers: dict[tuple[int, int], Iterator[int]] = {}  # of messages, by sender and receiver
        found = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._watched(name))
            for name, arguments in nccl_api.SIGNATURES.items()
        }
        self.functions = SimpleNamespace(**found, fake=self)

    def _watched(self, name: str) -> Any:
        function = getattr(self, name)

        def call(*args: Any) -> int:
            if name != "ncclCommGetAsyncError":
                self.log.append(name)
            if name not in self.fail:
                return function(*args)
            self.local.wrong = self.fail.pop(name)
            return self.local.wrong

        return call

    def ncclGetVersion(self, out: int) -> int:
        ctypes.c_int.from_address(out).value = self.version
        return 0

    def ncclGetUniqueId(self, out: int) -> int:
        folder = tempfile.mkdtemp(prefix="fake-nccl-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        ctypes.memmove(out, folder.encode().ljust(nccl_api.ID_BYTES, b"\0"), nccl_api.ID_BYTES)
        return 0

    def ncclCommInitRank(self, out: int, size: int, id_: nccl_api.UniqueId, rank: int) -> int:
        self.folder, self.size, self.rank = Path(bytes(id_.data).rstrip(b"\0").decode()), size, rank
        self.device = self.driver.local.device  # that of the context that is current
        (self.folder / f"joined-{rank}").touch()
        ctypes.c_void_p.from_address(out).value = 0xC0DE + rank
        return self._come([f"joined-{r}" for r in range(size)])

    def _come(self, names: list[str]) -> int:
        """Wait for files."""
        until = time.monotonic() + 30
        while not all((self.folder / name).exists() for name in names):
            if self.aborted or time.monotonic() > until:
                return SYSTEM_ERROR
            time.sleep(0.001)
        return 0

    def ncclCommGetAsyncError(self, comm: int, out: int) -> int:
        ctypes.c_int.from_address(out).value = self.state
        return 0

    def ncclCommAbort(self, comm: int) -> int:
        self.aborted = True
        return 0

    def ncclGroupStart(self) -> int:
        if getattr(self.local, "group", None) is not None:
            return INVALID_USAGE
        self.local.group = []
        return 0

    def ncclGroupEnd(self) -> int:
        """A group is of the thread that has begun it."""
        if getattr(self.local, "group", None) is None:
            return INVALID_USAGE
        group, self.local.group = self.local.group, None
        if getattr(self.local, "wrong", 0):
            return self.local.wrong
        pairs = [(self.rank, peer) if name == "ncclSend" else (peer, self.rank) for name, _, _, peer, _ in group]
        for a, b in pairs:
            (self.folder / f"{a}-{b}-from-{self.rank}").touch()
        code = self._come([f"{a}-{b}-from-{r}" for a, b in pairs for r in (a, b)])
        for (name, address, nbytes, _, stream), pair in zip(group if not code else (), pairs, strict=False):
            number = next(self.numbers.setdefault(pair, itertools.count()))
            file = self.folder / "{}-{}-{}".format(*pair, number)
            work = self._send if name == "ncclSend" else self._receive
            self.driver.push(stream, lambda w=work, f=file, a=address, n=nbytes: w(f, a, n))
            self.bytes[name] += nbytes
        return code

    def _asked(self, name: str, address: int, nbytes: int, kind: int, peer: int, stream: int) -> int:
        own = self.driver.objects[stream].device == self.device
        inside = self.driver._inside(address, nbytes)
        if (
            kind != nccl_api.BYTE
            or not 0 <= peer < self.size
            or peer == self.rank
            or not own
            or not inside
            or not nbytes
        ):
            return INVALID_ARGUMENT
        if getattr(self.local, "group", None) is None:
            return INVALID_USAGE
        self.local.group.append((name, address, nbytes, peer, stream))
        return 0

    def ncclSend(self, address: int, nbytes: int, kind: int, peer: int, comm: int, stream: int) -> int:
        return self._asked("ncclSend", address, nbytes, kind, peer, stream)

    def ncclRecv(self, address: int, nbytes: int, kind: int, peer: int, comm: int, stream: int) -> int:
        return self._asked("ncclRecv", address, nbytes, kind, peer, stream)

    def _send(self, file: Path, address: int, nbytes: int) -> int:
        if not self.aborted:
            beside = file.with_suffix(f".{os.getpid()}")
            beside.write_bytes(ctypes.string_at(address, nbytes))
            beside.rename(file)
        return 0

    def _receive(self, file: Path, address: int, nbytes: int) -> Iterator[int]:
        while not file.exists() and not self.aborted:
            yield 0
        if not self.aborted:
            data = file.read_bytes()
            if len(data) != nbytes:
                yield 700  # NCCL would wait, or write what is no memory
                return
            ctypes.memmove(address, data, nbytes)
            file.unlink()
        yield 0
