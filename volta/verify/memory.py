"""What memory programs take on a device: as planned, given back, and what happens when there is none left."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta import optim, random
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.core import pytrees
from volta.core.errors import OutOfMemoryError
from volta.runtime import devices
from volta.runtime import memory as host
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.transformer import Transformer
from volta.verify.checks import Check, Setting

_MODEL = Transformer()
_SIDE = 256
"""Rows and columns of the small arrays."""


def memory(setting: Setting) -> Iterator[Check]:
    """Planned peaks against measured ones; on a GPU also the pool's thrift, transfers, and running out of memory."""
    pool = host.default_pool() if setting.device == "cpu" else devices.pool(setting.device)
    for name in ("inference", "training"):
        yield _planned_is_measured(name, setting, pool)
    if setting.device != "cpu":
        yield _few_allocations(setting, pool)
        yield _nothing_moves(setting)
        yield _running_out(setting, pool)


def _settle(pool: Any) -> None:
    """Drop what other programs left: none of it may come back to the pool, or serve, while something is measured."""
    PLAN_CACHE.clear()  # full, it would drop an executable, and its tables, for each new one
    gc.collect()
    pool.trim()


def _planned_is_measured(name: str, setting: Setting, pool: Any) -> Check:
    """The pool's peak during calls, against the plan's. The host's pool rounds sizes up by at most an eighth."""
    optimizer = optim.adam(1e-3)
    params = _MODEL.init(random.key(0))
    tokens = np.asarray(_MODEL.draw(random.key(1))[0])
    f: Any = jit(_MODEL.logits)
    args: tuple[Any, ...] = (params, tokens)
    if name == "training":
        f, args = _MODEL.make_step(optimizer), (params, optimizer.init(params), random.key_data(random.key(2)))
    args = device_put(pytrees.map(np.asarray, args), setting.device)
    _settle(pool)
    before = pool.stats().live
    with devices.default_device(setting.device):
        compiled = f.lower(*args).compile()
    arguments = sum(x.nbytes for x in pytrees.leaves(args))
    pool.reset_peak()
    peaks = []
    for _ in range(3):
        out = compiled(*args)
        peaks.append(pool.stats().peak - before + arguments)
        if name == "training":
            args = (*out[:2], args[2])
        del out
    scratch = compiled.plan.bytes_by_class().get("scratch", 0)  # of threads of the CPU: no memory of the pool
    planned = compiled.peak_live_bytes - scratch
    slack = (
        planned // 8 + 64 * len(compiled.plan.buffers) if setting.device == "cpu" else 512 * len(compiled.plan.inputs)
    )
    figures = {"planned": planned, "measured": peaks[0], "after three calls": peaks[-1]}
    right = abs(peaks[0] - planned) <= slack and len(set(peaks)) == 1
    return Check(f"{name}: peak bytes", problem="" if right else f"not as planned: {figures}", figures=figures)


def _few_allocations(setting: Setting, pool: Any) -> Check:
    """A hundred operations ask the driver for memory fewer than ten times."""
    _settle(pool)
    x = device_put(np.ones((_SIDE, _SIDE), np.float32), setting.device)
    before = pool.stats().allocations
    for i in range(100):
        x = x + i
    count = pool.stats().allocations - before
    return Check("allocations of 100 operations", problem="" if count < 10 else f"{count}", figures={"count": count})


def _nothing_moves(setting: Setting) -> Check:
    """A compiled call on the device's arrays copies no data between host and device."""
    x = device_put(np.ones((_SIDE, _SIDE), np.float32), setting.device)
    f = jit(lambda x: vnp.tanh(x) @ x)
    y = f(x)
    counters = devices.cuda().driver.counters
    before = counters.host_to_device, counters.device_to_host
    y = f(y)
    y.block_until_ready()
    moved = counters.host_to_device - before[0], counters.device_to_host - before[1]
    return Check("bytes moved by a call", problem="" if moved == (0, 0) else f"{moved}", figures={"bytes": sum(moved)})


def _running_out(setting: Setting, pool: Any) -> Check:
    """Too large a program is an error that says what it needs; donated arguments stay, and smaller programs run."""
    x = device_put(np.ones((1024, 1024), np.float32), setting.device)
    large = jit(lambda x: vnp.sum(vnp.broadcast_to(x, (64, 1024, 1024)).sort(0) @ x), donate_argnums=0)
    problem = "no error"
    _settle(pool)
    with devices.memory_limit(pool.stats().reserved + (1 << 25), setting.device):
        try:
            large(x)
        except OutOfMemoryError as error:
            problem = "" if "RESOURCE_EXHAUSTED" in str(error) else f"the error does not say so: {error}"
        if not problem and (x.is_deleted() or float(jit(vnp.sum)(x)) != 1024 * 1024):
            problem = "a donated argument is gone after a failed call"
    return Check("running out of memory", problem=problem)
