"""The peak bytes of a training step and of an inference step never grow beyond what is on record.

After a change that is meant: VOLTA_UPDATE_GOLDEN=1 python -m pytest tests/golden, then read the difference.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import numpy as np

import volta
from volta import optim, random
from volta.numba_cpu.schedule import Schedule
from volta.xla_like.compile import build_plan
from volta.xla_like.plan import ExecutionPlan

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "peak_bytes.json"


def _plans() -> dict[str, ExecutionPlan]:
    """Made for a machine with 512-bit registers, so that they are the same on every machine."""
    spec = importlib.util.spec_from_file_location("transformer", HERE.parents[1] / "examples" / "tiny_transformer.py")
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    params, key = model.init_params(random.key(0)), random.key(1)
    optimizer = optim.adam(1e-3)
    corpus, tokens = np.zeros(4096, np.uint8), np.zeros((1, model.LENGTH), np.int32)
    train = model.make_step(optimizer).lower(params, optimizer.init(params), key, corpus)
    infer = volta.jit(model.forward).lower(params, tokens)
    return {
        name: build_plan(stage.traced.jaxpr, donated=stage.traced.donated, scheduler=Schedule(vector_bits=512))[0]
        for name, stage in (("train", train), ("infer", infer))
    }


def test_peak_bytes_do_not_grow() -> None:
    plans = _plans()
    found = {name: {"peak": p.peak_live_bytes, "arena": p.arena_bytes} for name, p in plans.items()}
    if os.environ.get("VOLTA_UPDATE_GOLDEN") == "1":
        BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    for name, plan in plans.items():
        by_class = plan.bytes_by_class()
        assert 0 < found[name]["arena"] < found[name]["peak"] == sum(by_class.values())
        for what, nbytes in found[name].items():
            assert nbytes <= baseline[name][what], f"{name}: {what} grew from {baseline[name][what]} to {nbytes} bytes"
    memory = {b.placement for b in plans["train"].buffers}
    assert memory >= {"host_input", "device_parameter", "device_output", "device_temporary"}
    assert plans["train"].transfers == {"host_to_device": 0, "device_to_host": 0}


def test_planning_pays() -> None:
    """Without reuse of memory the same steps would take several times the arena."""
    for name, plan in _plans().items():
        temps = sum(b.nbytes for b in plan.buffers if b.kind == "temp")
        assert plan.arena_bytes * 2 < temps, name
