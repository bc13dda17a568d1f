"""Suites over a whole model: inference, and training down to the bytes of the checkpoint."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from volta import io, optim, random
from volta.api.devices import device_put
from volta.core import pytrees
from volta.runtime.context import execution_context
from volta.testing.transformer import Transformer
from volta.verify.checks import Check, Named, Setting, compare, same

_MODEL = Transformer()


def _fresh() -> Any:
    return pytrees.map(np.asarray, _MODEL.init(random.key(0)))


def inference(setting: Setting) -> Iterator[Check]:
    """Logits of the tiny transformer, and again after its parameters were saved and loaded."""
    params = _fresh()
    tokens = np.asarray(_MODEL.draw(random.key(1))[0])

    def found() -> Iterator[Named]:
        yield "logits", _MODEL.logits, (params, tokens)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            io.save(path, device_put(params, setting.device))
            yield "logits after saving and loading", _MODEL.logits, (pytrees.map(np.asarray, io.load(path)), tokens)

    yield from compare(setting, found())


def training(setting: Setting) -> Iterator[Check]:
    """Steps of Adam with clipping: equal checkpoint files from the CPU and from the device, with the numbers on record
    (a file names its format and its contract, so its own bytes may change while no number does)."""
    steps = 1000 if setting.full else 100
    files: dict[str, bytes] = {}
    trees: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in dict.fromkeys(("cpu", setting.device)):
            path = Path(folder) / f"{device.replace(':', '_')}.safetensors"
            figures = train(device, steps, path)
            files[device], trees[device] = path.read_bytes(), pytrees.map(np.asarray, io.load(path))
            falls = figures["last_loss"] < 0.8 * figures["first_loss"]
            yield Check(f"loss falls on {device}", problem="" if falls else f"losses {figures}", figures=figures)
    raw = {device: np.frombuffer(data, np.uint8) for device, data in files.items()}
    yield same(f"checkpoint file after {steps} steps", raw[setting.device], raw["cpu"])
    program = np.frombuffer(repr((_MODEL, steps)).encode(), np.uint8)
    yield same(f"numbers after {steps} steps", trees[setting.device], trees["cpu"], program)


def train(device: str, steps: int, path: Path, kernels: str | None = None) -> dict[str, Any]:
    """Train the tiny transformer and save it with the optimizer's state; gives figures for the record.

    ``kernels`` are those of the steps (`volta.execution_context`).
    """
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-3))
    params = device_put(_fresh(), device)
    state = device_put(optimizer.init(_fresh()), device)
    key = device_put(random.key(2), device)
    step, losses = _MODEL.make_step(optimizer), []
    start = time.perf_counter()
    with execution_context(kernels=kernels):
        for i in range(steps):
            params, state, loss = step(params, state, random.fold_in(key, i))
            if i == 0:
                losses.append(float(loss))
                first = time.perf_counter() - start
    losses.append(float(loss))
    each = (time.perf_counter() - start - first) / max(1, steps - 1)
    io.save(path, {"params": params, "optimizer": state})
    return {"first_loss": losses[0], "last_loss": losses[1], "first_step_s": first, "step_ms": 1e3 * each}
