"""Training that goes on where it was, on any number of workers.

A state is a pytree: parameters, an optimizer's state, whatever a step takes and gives. It is kept in one file a step,
whose bytes do not say how many workers wrote it; so whoever takes it up again goes on to the same bytes.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, Literal, overload

from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.contract import DEFINITIONS
from volta.core.errors import DistributedError, FormatError
from volta.core.sharding import Mesh, NamedSharding, PartitionSpec
from volta.core.source import at_user_line
from volta.io import files, saving
from volta.io import format as fmt
from volta.io.saving import Saving
from volta.runtime import workers
from volta.runtime.sharded import ShardedArray

_NAME = re.compile(r"step-(\d{9})\.safetensors")

BLOCK = DEFINITIONS.sum_block

Folder = str | os.PathLike[str]


@overload
def save(folder: Folder, step: int, state: Any, *, keep: int = ..., asynchronous: Literal[False] = ...) -> str: ...
@overload
def save(folder: Folder, step: int, state: Any, *, keep: int = ..., asynchronous: Literal[True]) -> Saving: ...
def save(folder: Folder, step: int, state: Any, *, keep: int = 2, asynchronous: bool = False) -> str | Saving:
    """Write a state into a folder, as that after so many steps, and return the file's path.

    All workers that have arrays of the state call this, and write one file together. It appears all at once.

    Args:
        folder: where the files of a run are; it is made if it is not there.
        step: how many steps have been done.
        state: a pytree, as ``volta.io.save`` takes it.
        keep: how many of the newest files stay.
        asynchronous: return a `Saving` at once, and write beside the program. The state is saved as it is now: it may
            be donated to the next step. What lies on GPUs is copied from there first. The next ``save``, and the end of
            the program, wait for the file; ``saving.result()`` does so, on all workers, and raises what went wrong.

    Raises:
        ValueError: a step or a number of files to keep that is none.
        And as ``volta.io.save``.

    >>> import tempfile
    >>> import volta.numpy as vnp
    >>> from volta import train
    >>> folder = tempfile.mkdtemp()
    >>> _ = train.save(folder, 3, {"w": vnp.ones(2)})
    >>> train.resume(folder, {"w": vnp.zeros(2)})
    ({'w': Array([1., 1.], dtype=float32)}, 3)
    >>> saving = train.save(folder, 4, {"w": vnp.ones(2)}, asynchronous=True)
    >>> saving.result().endswith("step-000000004.safetensors")
    True
    """
    if not 0 <= step < 10**9 or keep < 1:
        raise ValueError(at_user_line(f"train.save: step {step} is to be from 0 to 10^9, keep {keep} one at least"))
    _finish()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.fsdecode(folder), f"step-{step:09d}.safetensors")
    together, here = _together(state), workers.engine().here[0]
    writes = len(together) > 1 or here == 0

    def drop_old() -> None:
        if here == together[0]:
            for old in _steps(folder)[:-keep]:
                os.unlink(os.path.join(os.fsdecode(folder), f"step-{old:09d}.safetensors"))

    if asynchronous:
        writes = len(together) > 1 or here == 0
        _unfinished.append(
            saving.begin(os.path.realpath(path), state, {"step": str(step)}, drop_old)
            if writes
            else saving.nothing(path)
        )
        return _unfinished[-1]
    if len(together) > 1 or here == 0:
        files.save(path, state, {"step": str(step)})
    drop_old()
    return path


_unfinished: list[Saving] = []
"""What is being saved beside the program, one file at most."""


def _finish() -> None:
    """Wait for what is being saved."""
    while _unfinished:
        before = _unfinished.pop()
        if not before.asked:
            before.result()


def resume(folder: Folder, state: Any) -> tuple[Any, int]:
    """The newest state that a folder has, and after how many steps it was; ``(state, 0)`` where it has none.

    Args:
        folder: where ``train.save`` has put files, on however many workers.
        state: what training begins with: its arrays say how those that are loaded are to lie.

    Raises:
        FormatError: the file is damaged, of another contract, or does not fit ``state``.
        DistributedError: workers do not see the same files.
    """
    _finish()
    steps = _steps(folder)
    step = steps[-1] if steps else 0
    together = _together(state)
    newest = workers.tell(str(step), "resuming", together)
    if int(newest) not in (*steps, 0):
        text = f"train.resume: step {newest} is the newest for worker {together[0]}, and is not in {folder!r} here"
        raise DistributedError(at_user_line(f"{text}. All workers need the same folder"))
    step = int(newest)
    if not step and 0 not in steps:
        return state, 0
    path = os.path.join(os.fsdecode(folder), f"step-{step:09d}.safetensors")
    made = files.load_metadata(path).contract
    if made != fmt.CONTRACT:
        text = f"{path}: made under contract {made}, and this is {fmt.CONTRACT}"
        way = "the run would go on with other bits. volta.io.load reads it, if that is meant"
        raise FormatError(at_user_line(f"{text}: {way}"))
    return files.load(path, like=state), step


def shardings(state: Any, mesh: Mesh, axis: str) -> Any:
    """How to cut a state along one axis of a mesh: an optimizer's state (ZeRO), parameters (FSDP).

    An array is cut along its first dimension, at multiples of 4096 elements, so that sums over it are shared as they
    lie. One that has no two such parts is left whole.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> mesh = volta.make_mesh((1,), ("data",))
    >>> volta.train.shardings({"m": vnp.zeros((512, 64))}, mesh, "data")["m"].spec
    PartitionSpec('data',)
    """
    parts = mesh.parts((axis,))

    def one(x: Any) -> NamedSharding:
        shape = tuple(x.shape)
        inner = math.prod(shape[1:])
        rows = BLOCK // math.gcd(BLOCK, inner) if inner else 0
        units = shape[0] // rows if shape and rows else 0
        if units < 2 and parts > 1 or not units:
            return NamedSharding(mesh, PartitionSpec())
        bounds = (*(rows * (units * p // parts) for p in range(parts)), shape[0])
        return NamedSharding(mesh, PartitionSpec(axis), bounds={0: bounds} if parts > 1 else {})

    return pytrees.map(one, state)


def _steps(folder: Folder) -> list[int]:
    """The steps that a folder has states of."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(os.fsdecode(name))))


def _together(state: Any) -> list[int]:
    """The workers that have arrays of a state: where they are several, those save and load it together."""
    devices = {d for x in pytrees.leaves(state) if isinstance(x, ShardedArray) for d in x.sharding.mesh.ranks}
    return sorted(workers.names().index(d) for d in devices) or [workers.engine().here[0]]


__all__ = ["Saving", "resume", "save", "shardings"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
