"""The engine of GPUs, over stand-ins for NVIDIA's driver and for NCCL."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

import volta
from tests.numba_cuda.conftest import install  # noqa: F401
from tests.runtime.fake_nccl import FakeNccl
from volta.core.errors import DistributedError
from volta.runtime import devices, meeting, nccl, nccl_api, workers


class Workers:
    """Several workers as threads of this process, each with a device and an NCCL of its own."""

    def __init__(self, driver, monkeypatch):
        self.driver = driver
        self.made: dict[str, FakeNccl] = {}
        self.change = lambda fake: None
        monkeypatch.setattr(nccl, "source", [self._source])

    def _source(self):
        fake = self.made[threading.current_thread().name] = FakeNccl(self.driver)
        self.change(fake)
        return fake.functions

    def run(self, size, work, timeout=20.0, missing=()):
        """``work(engine)`` on each worker; what they give or raise."""
        door = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{door.getsockname()[1]}"
        found: list = [None] * size

        def one(number):
            try:
                listening = door.detach() if number == 0 else None
                engine = nccl.Nccl(meeting.Launched(address, size, number, "s", listening), timeout)
                try:
                    found[number] = work(engine)
                finally:
                    engine.close()
            except BaseException as error:
                found[number] = error

        threads = [threading.Thread(target=one, args=(i,), name=str(i)) for i in range(size) if i not in missing]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        for fake in self.made.values():
            fake.aborted = True  # so that nobody waits any more
        return found

    def fake(self, engine) -> FakeNccl:
        return self.made[str(engine.here[0])]


@pytest.fixture
def several(install, monkeypatch):  # noqa: F811
    monkeypatch.setattr(nccl, "_LAST_WORDS", 0.2)
    return Workers(install(devices=3), monkeypatch)


def test_bytes_move_from_memory_to_memory(several) -> None:
    """Between every two of three workers, in several pieces of different sizes, after what the stream has to do."""

    def work(engine):
        me, (gpu,) = engine.here[0], [devices.gpu(engine.device(engine.here[0]))]
        stream, others = gpu.stream(), [w for w in range(3) if w != engine.here[0]]
        sizes = (1, 100, 0, 4097)
        data = {w: [np.full(n, 16 * me + w, np.uint8) for n in sizes] for w in others}
        out = {w: [devices.empty(n, stream) for n in sizes] for w in others}
        got = {w: [devices.empty(n, stream) for n in sizes] for w in others}
        for w in others:
            for x, buffer in zip(data[w], out[w], strict=True):
                gpu.to_device(buffer.address, x.ctypes.data, x.nbytes, stream)
        spans = [{w: [(b.address, b.nbytes) for b in bs] for w, bs in found.items()} for found in (out, got)]
        wait = engine.move(*spans, stream, "a test")
        later = devices.empty(4097, stream)
        gpu.copy(later.address, got[others[0]][3].address, 4097, stream)  # work behind comes after
        wait()
        host = np.empty(4097, np.uint8)
        for w in others:
            for n, buffer in zip(sizes, got[w], strict=True):
                gpu.to_host(host.ctypes.data, buffer.address, n, stream)
                assert (host[:n] == 16 * w + me).all()
        gpu.to_host(host.ctypes.data, later.address, 4097, stream)
        assert (host == 16 * others[0] + me).all()
        return engine.device(me), several.fake(engine).bytes, [x for x in several.fake(engine).log if "Comm" not in x]

    found = several.run(3, work)
    each = 2 * (1 + 100 + 4097)
    calls = ["ncclGroupStart", *["ncclSend"] * 6, *["ncclRecv"] * 6, "ncclGroupEnd"]
    for number, (device, moved, log) in enumerate(found):
        assert device == f"cuda:{number}" and moved == {"ncclSend": each, "ncclRecv": each}
        assert log[-14:] == calls, log
    assert not several.driver.violations


def test_small_messages_of_the_host_go_the_same_way(several) -> None:
    def work(engine):
        me = engine.here[0]
        got = np.zeros(3, np.int64)
        engine.swap({1 - me: np.arange(3) + 10 * me}, {1 - me: got}, "a test")
        return got.tolist()

    assert several.run(2, work) == [[10, 11, 12], [0, 1, 2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fake: setattr(fake, "version", 21000), "2.14 or newer"),
        (lambda fake: fake.fail.update(ncclCommInitRank=1), "ncclUnhandledCudaError"),
        (lambda fake: fake.fail.update(ncclGetVersion=3), "ncclInternalError"),
        (lambda fake: fake.fail.update(ncclSend=4), "in a test: NCCL failed with ncclInvalidArgument"),
        (lambda fake: fake.fail.update(ncclGroupEnd=6), "in a test: NCCL failed with ncclRemoteError"),
    ],
)
def test_what_nccl_says_is_named(several, change, said) -> None:
    several.change = change
    found = several.run(2, _hello, timeout=3)
    assert all(isinstance(x, DistributedError) for x in found), found
    assert said in str(found[0]) or "ended" in str(found[0])
    assert any(said in str(x) for x in found)


def _hello(engine) -> list[int]:
    got = np.zeros(1, np.int64)
    engine.swap({1 - engine.here[0]: np.ones(1, np.int64)}, {1 - engine.here[0]: got}, "a test")
    return got.tolist()


def test_an_error_that_comes_later_is_seen_by_who_waits(several) -> None:
    def work(engine):
        if engine.here[0]:
            time.sleep(1)
            return None
        threading.Timer(0.5, lambda: setattr(several.fake(engine), "state", 6)).start()
        return _hello(engine)

    found = several.run(2, work)
    assert "ncclRemoteError" in str(found[0])


def test_who_waits_for_a_silent_worker_says_so_and_gives_up(several) -> None:
    silent = threading.Event()

    def work(engine):
        if engine.here[0] == 1:
            silent.wait(30)
            return "silent"
        try:
            engine._timeout = 1.0
            return _hello(engine)
        except DistributedError as error:
            assert several.fake(engine).aborted
            with pytest.raises(DistributedError, match="has given up before"):
                _hello(engine)
            return str(error)
        finally:
            silent.set()

    found = several.run(2, work)
    assert "worker 0 has waited 1 s for worker 1, in a test" in found[0] and found[1] == "silent", found


def test_who_waits_for_a_worker_that_has_ended_is_told(several) -> None:
    """The first worker sees it, and tells those that have no connection to it."""

    def work(engine):
        me = engine.here[0]
        if me == 2:
            return "ended"
        got = np.zeros(1, np.int64)
        engine.swap({}, {2: got}, "a test")

    found = several.run(3, work)
    for i in (0, 1):
        assert f"worker {i} waits for worker 2, in a test, which has ended" in str(found[i]), found
    assert found[2] == "ended"


def test_workers_that_do_not_come_are_named(several) -> None:
    found = several.run(3, _hello, timeout=1, missing=(1,))
    assert "after 1 s workers 1 of 3 have not come" in str(found[0])
    assert "worker 2 has waited 1 s at most for the first worker" in str(found[2])


def test_more_workers_than_gpus(install, monkeypatch) -> None:  # noqa: F811
    found = Workers(install(devices=1), monkeypatch).run(2, _hello, timeout=1)
    assert "which has 1 GPUs: each worker needs one of its own" in str(found[1])
    assert isinstance(found[0], DistributedError)


def test_strangers_at_the_door_are_sent_away() -> None:
    door = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{door.getsockname()[1]}"
    first = meeting.Launched(address, 2, 0, "right", door.detach())
    found: list = []
    thread = threading.Thread(target=lambda: found.append(meeting.meet(first, 20, lambda: "brought")))
    thread.start()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"worker": 1}\n', b"[]\n", b'"x"\n'):
        with socket.create_connection(meeting_address(address)) as stranger:
            stranger.sendall(said)
    for wrong in (meeting.Launched(address, 2, 1, "wrong"), meeting.Launched(address, 3, 2, "right")):
        with pytest.raises(DistributedError, match="takes this process for none of its workers"):
            meeting.meet(wrong, 20, str)
    other = meeting.meet(meeting.Launched(address, 2, 1, "right"), 20, str)
    thread.join(20)
    assert other.brought == found[0].brought == "brought" and len(other.hosts) == 2
    assert not found[0].ended() and not other.ended()
    other.close()
    assert found[0].ended() == {1}
    found[0].close()


def meeting_address(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


def test_what_a_launcher_says_is_read_and_checked() -> None:
    told = meeting.Launched("here:1", 3, 2, "s", 7)
    assert meeting.launched(told.environment("nccl")) == told
    assert meeting.launched({}) is None
    for change, said in (
        ({"VOLTA_PROCESS_ID": "3"}, "process_id 3 is not one of 3"),
        ({"VOLTA_PROCESS_ID": "x"}, "must be numbers"),
        ({"VOLTA_COORDINATOR": "here"}, "host:port"),
    ):
        with pytest.raises(DistributedError, match=said):
            meeting.launched({**told.environment("nccl"), **change})


def test_without_nccl_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(nccl_api, "library", lambda: "libnone.so")
    with pytest.raises(DistributedError, match=r"pip install 'volta\[nccl\]'"):
        volta.distributed.initialize(1, engine="nccl", coordinator_address="127.0.0.1:1", process_id=0)
    assert not workers.started()
    with pytest.raises(DistributedError, match="or all of coordinator_address"):
        volta.distributed.initialize(engine="nccl")
    with pytest.raises(DistributedError, match="are for the engine 'nccl'"):
        volta.distributed.initialize(2, engine="simulated", process_id=1)
