"""Programs on several GPUs of one host beside one of them: the bits, the time, and exchanges beside NCCL's own sum.

    python benchmarks/distributed.py                       on all GPUs, through NCCL
    python benchmarks/distributed.py --json record.json    write a record too
    python benchmarks/distributed.py --cpu                 the bits of the CPU as well, which takes minutes

Each row is a process, or one a GPU (`volta launch --engine nccl`). Times are of calls in a row, waited for at the end.
"""

import argparse
import ctypes
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks import harness, programs  # noqa: E402
from benchmarks.gpu_harness import GPT2_SMALL  # noqa: E402

STEPS = 6
LONG = 125_000_000
"""Elements of what is summed over the workers: half a gigabyte."""


def gpt2(steps: int = STEPS) -> dict[str, Any]:
    """Steps of Adam on the GPT-2-small shape, the batch and Adam's state cut over the workers (ZeRO): seconds of one,
    and the bits after one and after all."""
    import volta
    from volta.sharding import NamedSharding, make_mesh
    from volta.sharding import PartitionSpec as P

    fw = programs.volta()
    p, m, v, x, y = programs.step_arguments(fw, GPT2_SMALL)
    several = volta.distributed.is_initialized()
    if several:
        mesh = make_mesh((volta.process_count(),), ("data",))
        whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        cut = volta.train.shardings(m, mesh, "data")
        places = (volta.tree.map(lambda x: whole, p), cut, cut)
        p, m, v = volta.device_put((p, m, v), places)
        x, y = volta.device_put((x, y), rows)
        step = volta.jit(
            programs.transformer_step(fw, GPT2_SMALL),
            out_shardings=(*places, whole),
            donate_argnums=(0, 1, 2),
        )
    else:
        p, m, v, x, y = volta.device_put((p, m, v, x, y), volta.devices(volta.default_backend())[0])
        step = volta.jit(programs.transformer_step(fw, GPT2_SMALL), donate_argnums=(0, 1, 2))
    laps, losses, digests = [], [], []
    for i in range(steps):
        start = time.perf_counter()
        p, m, v, loss = step(p, m, v, x, y)
        losses.append(float(loss))
        volta.tree.leaves(p)[0].block_until_ready()
        laps.append(time.perf_counter() - start)
        if i in (0, steps - 1):
            digests.append(digest(p))
    found = {"seconds": statistics.median(laps[2:] or laps), "first": laps[0], "losses": losses, "digests": digests}
    if several:
        plan = step.lower(p, m, v, x, y).compile().plan
        found["sent"] = plan.bytes_sent(volta.process_index())
        found["rounds"] = len(plan.partition.exchanges)
    return found


def digest(tree: Any) -> str:
    import volta

    one = hashlib.sha256()
    for x in volta.tree.leaves(tree):
        one.update(np.ascontiguousarray(np.asarray(x)).view(np.uint8))
    return one.hexdigest()


def sums() -> list[dict[str, Any]]:
    """Half a gigabyte of each worker's summed, to all and to a part each, beside ncclAllReduce of as much."""
    import volta
    import volta.numpy as vnp
    from volta.runtime import rounds, workers
    from volta.sharding import NamedSharding, make_mesh
    from volta.sharding import PartitionSpec as P

    engine: Any = workers.engine()
    size = volta.process_count()
    mesh = make_mesh((size,), ("data",))
    own = np.resize(np.arange(1 << 20, dtype=np.int32) + volta.process_index(), (1, LONG))
    x = volta.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own, (size, LONG))
    rows = []
    for name, spec in (("exchange and fold, to all", P()), ("exchange and fold, a part each", P("data"))):
        f = volta.jit(lambda x: vnp.sum(x, 0), out_shardings=NamedSharding(mesh, spec))
        plan = f.lower(x).compile().plan
        f(x).block_until_ready()
        before = rounds.TRAFFIC.sent
        seconds = timed(lambda f=f: f(x), lambda out: out.block_until_ready())
        calls = REPEATS * LAPS + 1
        assert rounds.TRAFFIC.sent - before == calls * plan.bytes_sent(volta.process_index())
        rows.append({"name": name, "seconds": {"volta": seconds}, "sent": plan.bytes_sent(volta.process_index())})
    rows[0]["seconds"]["nccl"] = all_reduced(engine)
    return rows


REPEATS, LAPS = 10, 5


def timed(call: Callable[[], Any], ready: Callable[[Any], Any]) -> float:
    """Seconds of one call, of several in a row: the median of some laps."""
    ready(call())
    laps = []
    for _ in range(LAPS):
        start = time.perf_counter()
        for i in range(REPEATS):
            out = call()
            if i == REPEATS - 1:
                ready(out)
            del out
        laps.append((time.perf_counter() - start) / REPEATS)
    return statistics.median(laps)


def all_reduced(engine: Any) -> float:
    """Seconds of ncclAllReduce of float32 on the engine's own communicator. Volta never calls it: its order of
    additions is the topology's."""
    from volta.runtime import devices, nccl_api

    function = ctypes.CDLL(nccl_api.library()).ncclAllReduce
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
    )  # fmt: skip
    stream = engine._gpu.main
    given, got = (devices.empty(4 * LONG, stream) for _ in range(2))

    def call() -> None:
        engine._gpu.enter()
        engine._check(function(given.address, got.address, LONG, 7, 0, engine._comm, stream.handle))

    return timed(call, lambda _: stream.synchronize())


# -- rows --------------------------------------------------------------------------------------------------------------


def work(what: str, place: Path) -> None:
    """What a worker does: its results go to a file of its own."""
    import volta

    if os.environ.get("VOLTA_ENGINE"):
        volta.distributed.initialize(timeout=120)
    if what == "one":
        with volta.default_device("cuda"):
            found: Any = gpt2()
    elif what == "cpu":
        found = gpt2(1)
    else:
        found = {"sums": sums(), "gpt2": gpt2()}
    Path(place, f"{volta.process_index()}.json").write_text(json.dumps(found))


def launched(what: str, size: int) -> list[Any]:
    """The results of each worker."""
    with tempfile.TemporaryDirectory() as place:
        own = [str(Path(__file__)), "--work", what, "--place", place]
        command = [sys.executable, *own]
        if size > 1:
            command = [sys.executable, "-m", "volta", "launch", "-n", str(size), "--engine", "nccl", *own]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
        return [json.loads(Path(place, f"{i}.json").read_text()) for i in range(size)]


def measured(size: int, cpu: bool) -> list[dict[str, Any]]:
    (one,), several = launched("one", 1), launched("several", size)
    found = [several[0]["gpt2"], *([launched("cpu", 1)[0]] if cpu else [])]
    same = all(x["gpt2"]["digests"] == one["digests"] and x["gpt2"]["losses"] == one["losses"] for x in several)
    rows = [
        {
            "name": f"GPT-2-small step on {size} GPUs",
            "seconds": {"volta": found[0]["seconds"], "one GPU": one["seconds"]},
            "first": {"volta": found[0]["first"], "one GPU": one["first"]},
            "same bits": same, "digests": one["digests"], "sent": found[0]["sent"], "rounds": found[0]["rounds"],
        },
        *several[0]["sums"],
    ]  # fmt: skip
    if cpu:
        rows[0]["same bits as on the CPU"] = found[1]["digests"][0] == one["digests"][0]
        rows[0]["seconds"]["CPU, the first"] = found[1]["first"]
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    """A table: times, and Volta's in multiples of the other's."""
    lines = []
    for row in rows:
        mine, others = row["seconds"]["volta"], {k: t for k, t in row["seconds"].items() if k != "volta"}
        other, taken = next(iter(others.items()), ("-", None))
        same = "-" if "same bits" not in row else str(row["same bits"] and row.get("same bits as on the CPU", True))
        cells = [harness.seconds_text(mine), other, harness.seconds_text(taken), harness.ratio_text(mine, taken)]
        lines.append([row["name"], *cells, f"{row['sent'] / 1e6:.0f} MB", same])
    return harness.table(["medians", "volta", "beside", "", "ratio", "a worker sends", "same bits"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write a record")
    parser.add_argument("--cpu", action="store_true", help="compare with the bits of the CPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.place)
        return
    from benchmarks import gpu
    from volta.numba_cuda.device import driver

    if driver.count() < 2:
        sys.exit(f"distributed.py: two GPUs are needed: {gpu.why_not() or 'there is one'}")
    rows = [{**row, "commit": harness.commit()} for row in measured(driver.count(), options.cpu)]
    print(show(rows), flush=True)
    if options.json:
        harness.save(options.json, {"machine": gpu.describe(), "rows": rows})


if __name__ == "__main__":
    main()
