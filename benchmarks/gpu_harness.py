"""What the GPU benchmarks share: contenders that take turns, their data, a training run, and the table of results."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import harness, programs

Row = dict[str, Any]
"""``name``, ``seconds`` {contender: median}, and ``bytes`` or ``flops`` of the task where a rate makes sense,
``errors`` {contender: largest} where those matter."""

ROUNDS = 7


def turns(
    contenders: Mapping[str, Callable[[], Any]], wait: Callable[[Any], object], each: float = 0.02
) -> dict[str, float]:
    """Median seconds of a call: contenders take turns, each for about ``each`` seconds of calls in a row."""
    repeat, times = {}, {name: [] for name in contenders}
    for name, run in contenders.items():
        wait(run())
        wait(run())
        start = time.perf_counter()
        wait(run())
        repeat[name] = max(1, min(2000, int(each / (time.perf_counter() - start))))
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            wait(run())
            start = time.perf_counter()
            for _ in range(repeat[name]):
                out = run()
            wait(out)
            times[name].append((time.perf_counter() - start) / repeat[name])
    return {name: statistics.median(taken) for name, taken in times.items()}


def ready(result: Any) -> Any:
    """Wait until a result of any contender is there."""
    while isinstance(result, dict | list | tuple):
        result = next(iter(result.values())) if isinstance(result, dict) else result[-1]
    if hasattr(result, "block_until_ready"):
        return result.block_until_ready()
    import torch

    return torch.cuda.synchronize()


def volta_on(*arrays: Any) -> tuple[Any, ...]:
    import volta

    return tuple(volta.device_put(x, "cuda") for x in arrays)


def jax_on(*arrays: Any) -> tuple[Any, ...]:
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    return tuple(jax.device_put(x) for x in arrays)


def draw(*shape: int, seed: int = 0) -> Any:
    """Normal float32 numbers; large arrays repeat the first four million (and one, so that rows differ)."""
    return np.resize(np.random.default_rng(seed).standard_normal((1 << 22) + 1, dtype=np.float32), shape)


GPT2_SMALL = programs.TransformerConfig(vocabulary=50304, width=768, heads=12, layers=12, length=1024, batch=8)


def train(
    framework: Any, make: Callable[..., Any], config: Any, place: Callable[[Any], Any], steps: int = 6
) -> tuple[float, float, float]:
    """Seconds of the first step (compilation included) and of a later one, and the last loss."""
    p, m, v, x, y = place(programs.step_arguments(framework, config))
    step = framework.jit(make(framework, config), donate_argnums=(0, 1, 2))
    laps = []
    for _ in range(steps):
        start = time.perf_counter()
        p, m, v, loss = step(p, m, v, x, y)
        last = float(loss)
        laps.append(time.perf_counter() - start)
    return laps[0], statistics.median(laps[2:]), last


PEERS = ("jax", "jax, bfloat16", "cublas", "torch", "serial", "apart", "copy")


def _errors_text(errors: Mapping[str, float]) -> str:
    """Volta's error and a peer's, as shares of the product of sizes."""
    return ", ".join(f"{name} {error:.1e}" for name, error in errors.items())


def show(rows: list[Row]) -> str:
    """A table: times, ratios (below 1.00 Volta took less) and rates."""
    peers = [p for p in PEERS if any(p in row.get("seconds", {}) for row in rows)]
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([f"{row['name']}: {row['error']}"] + [""] * (2 + 2 * len(peers)))
            continue
        taken = row["seconds"]
        rate = "-"
        if "bytes" in row:
            rate = f"{row['bytes'] / taken['volta'] / 1e12:.2f} TB/s"
        elif "flops" in row:
            rate = f"{row['flops'] / taken['volta'] / 1e12:.1f} TFLOP/s"
        if "errors" in row:
            row = {**row, "name": f"{row['name']}, errors {_errors_text(row['errors'])}"}
        times = [harness.seconds_text(taken.get(p)) for p in ("volta", *peers)]
        lines.append([row["name"], *times, *(harness.ratio_text(taken["volta"], taken.get(p)) for p in peers), rate])
    return harness.table(["medians", "volta", *peers, *(f"volta/{p}" for p in peers), "volta's rate"], lines)
