"""Several workers that run one program together.

``initialize`` makes this process one of them, or simulates several in it. Programs, meshes and arrays then span all of
them, and have the bits of one worker. docs/distributed.md says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import DistributedError
from volta.core.sharding import NamedSharding, PartitionSpec
from volta.core.source import at_user_line
from volta.runtime import spread, workers
from volta.runtime.sharded import ShardedArray

ENGINES = ("simulated",)


def initialize(num_processes: int | None = None, *, engine: str | None = None) -> None:
    """Become one of several workers, before meshes are made.

    Args:
        num_processes: how many workers there are to be.
        engine: what moves bytes between them: ``"simulated"`` runs all of them in this process, in lock-step.

    Raises:
        DistributedError: there is no such engine, or this process is a worker already.

    >>> import volta
    >>> volta.distributed.initialize(4, engine="simulated")
    >>> volta.devices()
    ['cpu:0', 'cpu:1', 'cpu:2', 'cpu:3']
    >>> volta.distributed.shutdown()
    """
    if engine not in ENGINES:
        text = f"distributed.initialize: there is no engine {engine!r}; there are {', '.join(map(repr, ENGINES))}"
        raise DistributedError(at_user_line(text))
    if not isinstance(num_processes, int) or num_processes < 1:
        text = f"distributed.initialize: the simulated engine needs a number of workers, not {num_processes!r}"
        raise DistributedError(at_user_line(text))
    workers.start(workers.Simulated(num_processes))


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
