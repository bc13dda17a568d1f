"""What workers in processes run in `tests/runtime/test_mpi.py` and `test_nccl_workers.py`: each prints a line that the
test reads. Not a test itself. Workers of NCCL have GPUs; or stand-ins for GPUs and for NCCL, where the test says so.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import io, train
from volta.io import format as fmt
from volta.numba_cuda.device.driver import counters
from volta.runtime import nccl, rounds, workers
from volta.sharding import NamedSharding, PartitionSpec, make_mesh
from volta.testing import digest

P = PartitionSpec
ROWS = 2 * 4096 + 77
LEAF = 1 << 16


def program(x):
    return x.T @ vnp.tanh(x), vnp.sum(x, 0), x * 2, vnp.max(x)


def data():
    return np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)


def shared():
    """The program over all workers, and each worker's part brought by itself."""
    mesh = make_mesh((volta.process_count(),), ("data",))
    rows = NamedSharding(mesh, P("data"))
    x = data()
    mine = rows.devices_indices_map(x.shape)[mesh.ranks[volta.process_index()]]
    placed = volta.make_array_from_process_local_data(rows, x[mine], x.shape)
    f = volta.jit(program)
    plan = f.lower(placed).compile().plan
    f(placed)  # when a program is compiled, workers compare it
    me, (sent, received) = volta.process_index(), (rounds.TRAFFIC.sent, rounds.TRAFFIC.received)
    moved, copied = dict(FAKE.bytes) if FAKE else {}, (counters.host_to_device, counters.device_to_host)
    out = f(placed)
    moved = {name: FAKE.bytes[name] - n for name, n in moved.items()}
    want = plan.bytes_sent(me), plan.bytes_received(me)
    assert (rounds.TRAFFIC.sent - sent, rounds.TRAFFIC.received - received) == want
    assert not FAKE or tuple(moved.values()) == want, "what NCCL has moved is what the plan says"
    assert (counters.host_to_device, counters.device_to_host) == copied, "nothing goes through the host"
    assert volta.process_count() == 1 or not out[2].is_fully_addressable
    return mesh, placed, volta.distributed.process_allgather(out)


def donating(mesh, x):
    """Steps whose state is donated: segments write over it, also between two rounds of exchanges, and no bit moves."""

    def step(w, m, x):
        m = 0.5 * m + x.T @ vnp.tanh(x @ w)
        return w - 1e-4 * m, m, vnp.sum(w)

    whole, columns = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "data"))
    state = np.linspace(-1, 1, 8 * 512, dtype=np.float32).reshape(8, 512)
    ends, peaks = [], []
    for donated in ((), (0, 1)):
        f = volta.jit(step, out_shardings=(whole, columns, whole), donate_argnums=donated)
        w, m = volta.device_put((state, state), (whole, columns))
        peaks.append(f.lower(w, m, x).compile().plan.peak_live_bytes)
        for _ in range(3):
            old, places = (w, m), {k: part.buffer().address for k, part in m.parts().items()}
            w, m, total = f(w, m, x)
            assert [a.is_deleted() for a in old] == [bool(donated)] * 2
            assert not donated or {k: part.buffer().address for k, part in m.parts().items()} == places
        ends.append(digest(volta.distributed.process_allgather((w, m, total))))
    assert ends[0] == ends[1] and peaks[1] <= peaks[0]


FAKE = None


def stand_in():
    """Stand-ins for a driver of three GPUs and for NCCL."""
    global FAKE
    from tests.numba_cuda.fake_driver import FakeDriver
    from tests.runtime.fake_nccl import FakeNccl

    driver = FakeDriver(devices=3).install(pytest.MonkeyPatch())
    FAKE = FakeNccl(driver)
    nccl.source.append(lambda: FAKE.functions)
    return driver


def main(what, place=""):
    driver = stand_in() if os.environ.get("VOLTA_TEST_STAND_IN") else None
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "VOLTA_PROCESS_ID")
    if what == "version" and "1" in [os.environ.get(name) for name in names]:
        volta.distributed.__version__ = "0.0"
    volta.distributed.initialize(4 if what == "missing" else None, timeout=120.0)
    me = volta.process_index()
    mesh, placed, out = shared()
    if what == "program":
        volta.jit(lambda x: x + me)(placed)
    if what == "hang":  # patience is for compiling, which may take long on a busy machine
        volta.distributed.process_allgather(placed)
        workers.engine()._timeout = 5.0
        if me == 1:
            time.sleep(60)
        volta.distributed.process_allgather(placed)
    if what == "dies":
        volta.distributed.process_allgather(placed)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        volta.distributed.process_allgather(placed)
    if what == "subset":
        if me:  # the first worker takes no part
            some = make_mesh((mesh.size - 1,), ("data",), devices=mesh.ranks[1:])
            x = volta.device_put(data(), NamedSharding(some, P("data")))
            assert digest(volta.distributed.process_allgather(volta.jit(program)(x))) == digest(out)
        volta.distributed.process_allgather(placed)  # it is there until they are done: who ends early has died
    if what == "save":  # one file, which all of them write: that of one worker, byte for byte
        columns = volta.device_put(data(), NamedSharding(mesh, P(None, "data")))
        state = {"rows": placed, "columns": columns, "plain": vnp.ones(3), "n": me * 0}
        fmt._LEAF = LEAF  # so that there is a share for each
        io.save(place, state)
        begun = train.save(place + "-run", 1, state, asynchronous=True)
        assert digest(volta.distributed.process_allgather(volta.jit(program)(placed))) == digest(out)
        assert begun.result().endswith("1.safetensors")
        back = io.load(place, like=state)
        assert back["columns"].sharding == columns.sharding and not back["rows"].is_fully_addressable
        assert digest(volta.distributed.process_allgather(back)) == digest(
            {"rows": data(), "columns": data(), "plain": np.ones(3, np.float32), "n": 0}
        )
    if what == "donating":
        donating(mesh, placed)
    if what == "unwritable":
        with pytest.raises(volta.errors.DistributedError if me else FileNotFoundError):
            io.save(os.path.join(place, "absent", "file"), {"x": placed})
    assert driver is None or not driver.violations
    print("RESULT " + json.dumps({"worker": me, "of": volta.process_count(), "digest": digest(out)}), flush=True)
    volta.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
