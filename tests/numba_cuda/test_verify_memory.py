"""The memory suite of `volta verify` passes on a GPU, and on the stand-in for the driver."""

import pytest

from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.transformer import Transformer
from volta.verify import checks, memory

pytestmark = pytest.mark.turns(6)


class Old:
    """An executable of another suite: its tables are given back when the plan cache drops it."""

    def __init__(self, gpu):
        self.tables = gpu.pool.take(100_000, gpu.main)

    def __del__(self):
        self.tables.give_back()


@pytest.mark.turns(6)
def test_memory_is_as_planned_whatever_other_suites_left(gpu, monkeypatch):
    """A full cache drops the oldest executable for each new one; pooled memory serves what should find none."""
    for number in range(1000):
        PLAN_CACHE.put(("old", number), Old(gpu))
    monkeypatch.setattr(PLAN_CACHE, "capacity", len(PLAN_CACHE))
    if hasattr(gpu.api, "fake"):  # the host runs the kernels, a step's more than once
        monkeypatch.setattr(memory, "_MODEL", Transformer(layers=1, length=8, batch=2))
        monkeypatch.setattr(memory, "_SIDE", 64)
    gpu.pool.take(560 << 20, gpu.main).give_back()  # the arena of the program that must not fit would fit in it
    found = list(memory.memory(checks.Setting("cuda")))
    assert len(found) == 5 and not [check for check in found if check.problem]
    assert found[0].figures["measured"] > 100_000
