"""Several workers that run one program together.

``initialize`` makes this process one of them, or simulates several in it. Programs, meshes and arrays then span all of
them, and have the bits of one worker. docs/distributed.md says how.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from volta.core import contract, pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import DistributedError
from volta.core.sharding import NamedSharding, PartitionSpec
from volta.core.source import at_user_line
from volta.runtime import devices, nccl, spread, workers
from volta.runtime.meeting import Launched, checked, launched
from volta.runtime.sharded import ShardedArray
from volta.version import __version__

ENGINES = ("mpi", "nccl", "simulated")


def initialize(
    num_processes: int | None = None, *, engine: str | None = None, timeout: float = 300.0,
    coordinator_address: str | None = None, process_id: int | None = None, device: str = "cpu",
) -> None:  # fmt: skip
    """Become one of several workers, before meshes are made.

    Args:
        num_processes: how many workers there are to be. A launcher knows: where it is given, it must agree.
        engine: what moves bytes between them; without it, what `volta launch` was told, or ``"mpi"``: processes that
            ``volta launch`` or an MPI launcher started, on CPUs; a process that was started by itself is one worker.
            ``"nccl"``: processes with an NVIDIA GPU each, started by ``volta launch --engine nccl`` or by hand.
            ``"simulated"``: all workers in this process, in lock-step, for tests and laptops.
        timeout: after so many seconds without a word from another worker, that is an error.
        coordinator_address: with NCCL and no launcher, ``"host:port"`` of the first worker, which listens there.
        process_id: with NCCL and no launcher, the number of this worker, from 0 on.
        device: what simulated workers compute on, ``"cpu"`` or ``"cuda"``: they take turns at the GPUs that there are.

    Raises:
        DistributedError: there is no such engine or it is not installed, workers are missing or run another version,
            there are fewer GPUs than workers, or this process is a worker already.

    >>> import volta
    >>> volta.distributed.initialize(4, engine="simulated")
    >>> volta.devices()
    ['cpu:0', 'cpu:1', 'cpu:2', 'cpu:3']
    >>> volta.distributed.shutdown()
    """
    engine = engine or os.environ.get("VOLTA_ENGINE", "mpi")
    if engine not in ENGINES:
        text = f"distributed.initialize: there is no engine {engine!r}; there are {', '.join(map(repr, ENGINES))}"
        raise DistributedError(at_user_line(text))
    if engine != "nccl" and not (coordinator_address is None and process_id is None):
        text = "distributed.initialize: coordinator_address and process_id are for the engine 'nccl'"
        raise DistributedError(at_user_line(f"{text}; {engine!r} knows who is there"))
    if engine == "simulated":
        _simulate(num_processes, device)
        return
    if workers.started():
        workers.start(workers.engine())  # says that there is one
    if engine == "nccl":
        found: workers.Engine = nccl.Nccl(_told(num_processes, coordinator_address, process_id), timeout)
    else:
        found = workers.mpi(timeout)
    _check_size(num_processes, found.size)
    workers.start(found)
    try:
        workers.agree(f"{__version__} {contract.ID}", "Volta's version and contract", range(found.size))
    except DistributedError:
        workers.stop()
        raise


def _simulate(size: int | None, device: str) -> None:
    if not isinstance(size, int) or size < 1:
        text = f"distributed.initialize: the simulated engine needs a number of workers, not {size!r}"
        raise DistributedError(at_user_line(text))
    if device not in ("cpu", "cuda"):
        text = f"distributed.initialize: simulated workers compute on 'cpu' or 'cuda', not {device!r}"
        raise DistributedError(at_user_line(text))
    if device == "cuda":
        devices.cuda()  # says why there is none
    workers.start(workers.Simulated(size, device))


def _told(size: int | None, address: str | None, number: int | None) -> Launched:
    """Who this process is among the workers: by a launcher, or by its arguments."""
    if address is None and number is None:
        found = launched()
        if found is not None:
            _check_size(size, found.size)
            return found
    if size is None or address is None or number is None:
        text = "distributed.initialize: the engine 'nccl' needs `volta launch -n 2 --engine nccl script.py`, or all of"
        raise DistributedError(at_user_line(f"{text} coordinator_address, num_processes and process_id"))
    return checked(Launched(address, size, number))


def _check_size(wanted: int | None, found: int) -> None:
    if wanted not in (None, found):
        text = f"distributed.initialize: {wanted} workers are asked for, and the launcher has started {found}"
        raise DistributedError(at_user_line(f"{text}; volta launch -n {wanted} script.py starts as many"))


def is_initialized() -> bool:
    """Whether this process is one of several workers."""
    return workers.started()


def shutdown() -> None:
    """Be alone again. Arrays that lie on several workers are of no use afterwards."""
    workers.stop()


def process_allgather(x: Any) -> Any:
    """The leaves of a pytree, whole on every process: what lies on several workers is brought together.

    >>> import volta
    >>> volta.distributed.process_allgather(volta.numpy.arange(3)).tolist()
    [0, 1, 2]
    """

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, ShardedArray):
            return leaf
        return spread.put(leaf, NamedSharding(leaf.sharding.mesh, PartitionSpec())).assembled()

    return pytrees.map(whole, x)


__all__ = ["initialize", "is_initialized", "process_allgather", "shutdown"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
