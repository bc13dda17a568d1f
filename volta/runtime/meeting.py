"""How workers that no MPI launcher has started find each other: over TCP, at an address that all of them know.

The first worker listens there. Each of the others says who it is, and is told who is there and what the first one has
brought for all. The connections stay open: where one ends, so has the worker behind it, and the first one tells the
others.
"""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs

from volta.core.errors import DistributedError
from volta.core.source import at_user_line

_LONGEST = 1 << 20
"""Bytes of a line: whoever sends a longer one is no worker."""

_AGAIN = 0.05
"""Seconds between two tries to reach the first worker."""


@attrs.frozen
class Launched:
    """What a process is told of the workers that it is one of, by `volta launch` or whoever starts it."""

    address: str  # host:port of the first worker
    size: int
    number: int
    secret: str = ""  # which all of them know
    listening: int | None = None  # the first worker's socket, where its launcher has opened it

    def environment(self, engine: str) -> dict[str, str]:
        """As environment variables, for a process to be started."""
        found = {
            "VOLTA_ENGINE": engine,
            "VOLTA_COORDINATOR": self.address,
            "VOLTA_NUM_PROCESSES": str(self.size),
            "VOLTA_PROCESS_ID": str(self.number),
            "VOLTA_SECRET": self.secret,
        }
        return found if self.listening is None else {**found, "VOLTA_LISTENING": str(self.listening)}


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """What this process's environment says; None where it says nothing.

    Raises:
        DistributedError: it says a part of it, or what makes no sense.
    """
    if "VOLTA_COORDINATOR" not in environ:
        return None
    try:
        listening = environ.get("VOLTA_LISTENING")
        return checked(
            Launched(
                environ["VOLTA_COORDINATOR"],
                int(environ["VOLTA_NUM_PROCESSES"]),
                int(environ["VOLTA_PROCESS_ID"]),
                environ.get("VOLTA_SECRET", ""),
                None if listening is None else int(listening),
            )
        )
    except (KeyError, ValueError) as error:
        text = "distributed.initialize: VOLTA_COORDINATOR is set, and with it VOLTA_NUM_PROCESSES and VOLTA_PROCESS_ID"
        raise DistributedError(at_user_line(f"{text} must be numbers ({error}); volta launch sets them")) from None


def checked(found: Launched) -> Launched:
    """The same, if it makes sense; DistributedError if not."""
    host, colon, port = found.address.rpartition(":")
    if not host or not port.isdigit():
        text = f"distributed.initialize: coordinator_address is host:port of the first worker, not {found.address!r}"
        raise DistributedError(at_user_line(text))
    if not 0 <= found.number < found.size:
        text = f"distributed.initialize: process_id {found.number} is not one of {found.size} workers, from 0 on"
        raise DistributedError(at_user_line(text))
    return found


class _Line:
    """A connection that lines of JSON go over."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self._read = b""

    def send(self, message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def lines(self) -> list[Any] | None:
        """What has come, without waiting; None once the other side has ended."""
        try:
            while select.select([self.socket], [], [], 0)[0]:
                data = self.socket.recv(1 << 16)
                if not data or len(self._read) > _LONGEST:
                    return None
                self._read += data
                *whole, self._read = self._read.split(b"\n")
                if whole:
                    return [json.loads(line) for line in whole]
        except (OSError, ValueError):
            return None
        return []

    def close(self) -> None:
        self.socket.close()


class Meeting:
    """The workers that have met, as one of them sees it. Make one with `meet`."""

    def __init__(self, lines: dict[int, _Line], hosts: list[str], brought: str):
        self._lines = lines
        self.hosts = hosts  # of all workers
        self.brought = brought  # what the first one had for all
        self._ended: set[int] = set()

    def ended(self) -> set[int]:
        """The workers that are known to have ended."""
        for number, line in list(self._lines.items()):
            found = line.lines()
            for message in found or ():
                self._ended.update(message["ended"])
            if found is None:
                self._ended.add(number)
                self._lines.pop(number).close()
                for other in self._lines.values():
                    with suppress(OSError):  # it has ended as well, which is seen next
                        other.send({"ended": [number]})
        return self._ended

    def close(self) -> None:
        _close(self._lines.values())
        self._lines = {}


def meet(found: Launched, timeout: float, bring: Callable[[], str]) -> Meeting:
    """Find the others. ``bring`` makes what the first worker has for all of them.

    Raises:
        DistributedError: workers are missing after so many seconds, or the first one cannot be reached.
    """
    until = time.monotonic() + timeout
    return _first(found, timeout, until, bring) if found.number == 0 else _other(found, timeout, until)


def _first(found: Launched, timeout: float, until: float, bring: Callable[[], str]) -> Meeting:
    host, port = found.address.rsplit(":", 1)
    here = socket.gethostname()
    brought, hosts, lines = bring(), {0: here}, dict[int, _Line]()
    try:
        if found.listening is not None:
            door = socket.socket(fileno=found.listening)
        else:
            door = socket.create_server((host, int(port)), backlog=max(16, found.size))
    except OSError as error:
        text = f"distributed.initialize: the first worker cannot listen at {found.address} ({error})"
        raise DistributedError(at_user_line(text)) from None
    strangers: list[_Line] = []
    with door:
        while len(hosts) < found.size:
            if time.monotonic() > until:
                _close([*strangers, *lines.values()])
                missing = ", ".join(str(i) for i in range(found.size) if i not in hosts)
                text = f"distributed.initialize: after {timeout:g} s workers {missing} of {found.size} have not come"
                raise DistributedError(
                    at_user_line(f"{text} to {found.address}; initialize(timeout=...) sets how long")
                )
            ready, _, _ = select.select([door, *(x.socket for x in strangers)], [], [], 0.2)
            if door in ready:
                strangers.append(_Line(door.accept()[0]))
            for line in [x for x in strangers if x.socket in ready]:
                said = line.lines()
                if said == []:
                    continue
                strangers.remove(line)
                number = _who(said, found)
                if number is None or number in hosts:
                    line.close()  # none of ours
                else:
                    hosts[number], lines[number] = said[0]["host"], line  # type: ignore[index]
    _close(strangers)
    by_number = [hosts[i] for i in range(found.size)]
    for line in lines.values():
        with suppress(OSError):  # it has ended, which is seen where somebody waits for it
            line.send({"hosts": by_number, "brought": brought})
    return Meeting(lines, by_number, brought)


def _close(lines: Iterable[_Line]) -> None:
    for line in lines:
        line.close()


def _who(said: Any, found: Launched) -> int | None:
    """The number of a worker that has introduced itself; None for whoever is none."""
    try:
        number, secret = said[0]["worker"], said[0]["secret"]
        known = hmac.compare_digest(str(secret).encode(), found.secret.encode())
        fits = isinstance(said[0]["host"], str) and said[0]["of"] == found.size and 0 < number < found.size
        return number if known and fits else None
    except (TypeError, KeyError, IndexError):
        return None


def _other(found: Launched, timeout: float, until: float) -> Meeting:
    line, why = _reached(found.address, until)
    if line is not None:
        line.send({"worker": found.number, "of": found.size, "secret": found.secret, "host": socket.gethostname()})
        why = "it has not answered"
        while time.monotonic() < until:
            said = line.lines()
            if said:
                return Meeting({0: line}, said[0]["hosts"], said[0]["brought"])
            if said is None:
                why = "it has ended, or takes this process for none of its workers"
                break
            select.select([line.socket], [], [], 0.2)
        line.close()
    text = f"distributed.initialize: worker {found.number} has waited {timeout:g} s at most for the first worker"
    raise DistributedError(at_user_line(f"{text} at {found.address}: {why}"))


def _reached(address: str, until: float) -> tuple[_Line | None, str]:
    """A connection, which is tried for until somebody listens; or why there is none."""
    host, port = address.rsplit(":", 1)
    why = "it was not tried"
    while (left := until - time.monotonic()) > 0:
        try:
            return _Line(socket.create_connection((host, int(port)), timeout=left)), ""
        except OSError as error:
            why = str(error)
            time.sleep(_AGAIN)
    return None, why
