"""The memory of inference and of training on a GPU stays what is on record, and is what the plan says.

After a change that is meant: VOLTA_UPDATE_GOLDEN=1 python -m pytest tests/numba_cuda/test_memory_guard.py, then read
the difference.
"""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

import volta
from volta import optim, random
from volta.core import pytrees
from volta.numba_cuda.device.blocks import rounded
from volta.numba_cuda.device_plan import device_plan
from volta.numba_cuda.schedule import Schedule
from volta.testing.transformer import Transformer
from volta.xla_like.compile import build_plan

pytestmark = pytest.mark.turns(6)

BASELINE = Path(__file__).resolve().parents[1] / "golden" / "device_peak_bytes.json"
TOLERANCE = 0.02
"""How much a class of memory may grow, as a share of it or of half the peak, before somebody has to look: tables and
scratch change a little."""

MODELS = {
    "tiny": Transformer(),
    "middle": Transformer(vocabulary=5000, width=256, heads=8, layers=4, length=256, batch=4),
}


@functools.cache
def programs(size):
    """Programs by name, each with arguments that are zeros."""
    model, optimizer = MODELS[size], optim.adam(1e-3)

    def zeros(tree):
        return pytrees.map(lambda x: np.zeros(x.shape, x.dtype), tree)

    key = random.key(0)
    params = volta.eval_shape(model.init, key)
    state = volta.eval_shape(optimizer.init, params)
    tokens = np.zeros((1, model.length), np.int32)
    return {
        "train": (model.make_step(optimizer), (zeros(params), zeros(state), key)),
        "infer": (volta.jit(model.logits), (zeros(params), tokens)),
    }


@functools.cache
def plans(size):
    out = {}
    for name, (f, args) in programs(size).items():
        stage = f.lower(*args)
        plan, _ = build_plan(stage.traced.jaxpr, donated=stage.traced.donated, scheduler=Schedule())
        out[name] = device_plan(plan)
    return out


@pytest.mark.parametrize("size", MODELS)
def test_peaks_are_those_on_record(size):
    found = {name: {"peak": plan.peak_live_bytes, **plan.bytes_by_class()} for name, plan in plans(size).items()}
    record = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if os.environ.get("VOLTA_UPDATE_GOLDEN") == "1":
        record[size] = found
        BASELINE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, by_class in found.items():
        for what, nbytes in by_class.items():
            before = record[size][name][what]
            most = before + TOLERANCE * max(before, record[size][name]["peak"] / 2)
            assert nbytes <= most, f"{size} {name}: {what} grew from {before:,} to {nbytes:,} bytes"
    assert found["train"]["input"] > 3 * found["infer"]["input"] // 2  # parameters, and two moments of each


@pytest.mark.parametrize("size", MODELS)
def test_the_state_of_training_takes_no_second_copy(size):
    """Parameters and moments are donated: a step returns them where they lay, but for an array that is read late."""
    plan = plans(size)["train"]
    assert plan.bytes_by_class()["output"] < 0.06 * plan.bytes_by_class()["input"]
    placements = {b.placement for b in plan.buffers}
    assert {"device_parameter", "device_temporary", "gradient", "device_output", "host_input"} <= placements
    assert plan.transfers["host_to_device"] <= 64  # the key
    by_placement = plan.bytes_by_placement()
    assert by_placement["gradient"] and by_placement["device_parameter"] > 2 * by_placement["gradient"]
    for name, nbytes in by_placement.items():
        assert f"{name:<24}{nbytes:>16,}" in plan.memory_report()


@pytest.mark.parametrize("name", ["infer", "train"])
def test_what_is_measured_is_what_is_planned(gpu, name):
    """The pool holds, at most during a call, what the plan says: no allocation is beside the plan."""
    if hasattr(gpu.api, "fake"):
        gpu.api.fake.run_kernels = False  # memory is what counts here
    f, args = programs("tiny")[name]
    args = volta.device_put(args, "cuda")
    before = gpu.pool.stats().live
    with volta.default_device("cuda"):
        compiled = f.lower(*args).compile()
    plan = compiled.plan
    held = gpu.pool.stats().live - before
    constants = plan.bytes_by_class()["const"]
    arguments = sum(rounded(plan.buffers[b].nbytes) for b in plan.inputs)
    assert (held, arguments) == (constants, plan.bytes_by_class()["input"])
    gpu.pool.reset_peak()
    out = compiled(*args)
    stats = gpu.pool.stats()
    assert stats.peak - before + arguments == plan.peak_live_bytes
    for _ in range(3):  # later calls: the same, with what they replaced given back first
        if name == "train":
            params, state, loss = out
            del out, loss
            out = compiled(params, state, args[2])
        else:
            del out
            out = compiled(*args)
    assert gpu.pool.stats().peak == stats.peak
