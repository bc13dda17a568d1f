"""A model whose plain plan needs four times the memory there is trains within it, to the bits of the plain plan."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from volta import optim, random
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.api.planning import plan_for
from volta.core import pytrees
from volta.runtime import devices
from volta.runtime import memory as host
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.bits import digest
from volta.testing.transformer import Transformer
from volta.verify.checks import Check, Setting

TIMES = 4
"""How often the budget goes into what the plain plan needs."""

_STEPS = 3


def budget(setting: Setting) -> Iterator[Check]:
    """Training within a quarter of the memory: the same bits, within the budget as planned and as measured."""
    layers, batch = (12, 32) if setting.full else (4, 16)
    model = attrs.evolve(Transformer(), layers=layers, batch=batch)
    optimizer = optim.sgd(1e-2)
    pool: Any = host.default_pool() if setting.device == "cpu" else devices.pool(setting.device)
    state = model.init(random.key(0))
    start: Any = pytrees.map(np.asarray, (state, optimizer.init(state), random.key_data(random.key(2))))

    def step(params: Any, state: Any, key: Any) -> Any:
        return model.make_step(optimizer)(params, state, random.wrap_key_data(key))

    def trained(limit: int | None) -> tuple[str, int, float]:
        """The digest of what three steps give, the bytes that were live at most, and the seconds of the fastest."""
        run = jit(lambda *xs: step(*xs), donate_argnums=(0, 1), memory_budget=limit)
        with devices.default_device(setting.device):
            params, state, key = device_put(start, setting.device)
            run.lower(params, state, key).compile()
            PLAN_CACHE.clear()
            gc.collect()
            pool.trim()
            before, seconds = pool.stats().live, []
            own = sum(x.nbytes for x in pytrees.leaves((params, state, key)))
            pool.reset_peak()
            for _ in range(_STEPS):
                begin = perf_counter()
                params, state, loss = run(params, state, key)
                float(loss)
                seconds.append(perf_counter() - begin)
            most = pool.stats().peak - before + own
            return digest(pytrees.map(np.asarray, (params, loss))), most, min(seconds[1:])

    jitted = jit(lambda *xs: step(*xs), donate_argnums=(0, 1))
    with devices.default_device(setting.device):
        (free,) = plan_for(jitted, start)
        limit = free.peak // TIMES
        (kept,) = plan_for(jitted, start, [limit])
    plain, live, seconds = trained(None)
    if not kept.fits:
        yield Check("a quarter of the memory", problem=f"the plan needs {kept.peak:,} bytes of {limit:,}")
        return
    within, most, slower = trained(limit)
    yield Check("the bits of the plain plan", elements=1, differ=int(plain != within))
    slack = limit // 8 if setting.device == "cpu" else 0  # the host's pool rounds sizes up
    figures = {
        "plain bytes": free.peak, "measured plain": live, "budget": limit, "planned": kept.peak, "measured": most,
        "plain seconds": round(seconds, 5), "seconds": round(slower, 5), "ratio": round(slower / seconds, 3),
        "more work": round(kept.more_work, 3), "kernels": [free.calls, kept.calls],
    }  # fmt: skip
    problem = "" if most <= limit + slack else f"{most:,} bytes were live"
    yield Check("a quarter of the memory", problem=problem, figures=figures)
