"""Several workers that run one program together.

``initialize`` makes this process one of them, or simulates several in it. Programs, meshes and arrays then span all of
them, and have the bits of one worker. docs/distributed.md says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volta.core import contract, pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import DistributedError
from volta.core.sharding import NamedSharding, PartitionSpec
from volta.core.source import at_user_line
from volta.runtime import spread, workers
from volta.runtime.sharded import ShardedArray
from volta.version import __version__

ENGINES = ("mpi", "simulated")


def initialize(num_processes: int | None = None, *, engine: str = "mpi", timeout: float = 300.0) -> None:
    """Become one of several workers, before meshes are made.

    Args:
        num_processes: how many workers there are to be. MPI's launcher knows: where it is given, it must agree.
        engine: what moves bytes between them. ``"mpi"``: processes that ``volta launch`` or an MPI launcher started; a
            process that was started by itself is one worker. ``"simulated"``: all workers in this process, in
            lock-step, for tests and laptops.
        timeout: after so many seconds without a word from another worker, that is an error.

    Raises:
        DistributedError: there is no such engine or it is not installed, workers are missing or run another version,
            or this process is a worker already.

    >>> import volta
    >>> volta.distributed.initialize(4, engine="simulated")
    >>> volta.devices()
    ['cpu:0', 'cpu:1', 'cpu:2', 'cpu:3']
    >>> volta.distributed.shutdown()
    """
    if engine not in ENGINES:
        text = f"distributed.initialize: there is no engine {engine!r}; there are {', '.join(map(repr, ENGINES))}"
        raise DistributedError(at_user_line(text))
    if engine == "simulated":
        if not isinstance(num_processes, int) or num_processes < 1:
            text = f"distributed.initialize: the simulated engine needs a number of workers, not {num_processes!r}"
            raise DistributedError(at_user_line(text))
        workers.start(workers.Simulated(num_processes))
        return
    if workers.started():
        workers.start(workers.engine())  # says that there is one
    found = workers.mpi(timeout)
    if num_processes not in (None, found.size):
        text = (
            f"distributed.initialize: {num_processes} workers are asked for, and the launcher has started {found.size}"
        )
        raise DistributedError(at_user_line(f"{text}; volta launch -n {num_processes} script.py starts as many"))
    workers.start(found)
    try:
        workers.agree(f"{__version__} {contract.ID}", "Volta's version and contract", range(found.size))
    except DistributedError:
        workers.stop()
        raise


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
