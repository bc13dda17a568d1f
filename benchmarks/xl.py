"""A model too large for a device's memory, trained within it by computing values again: time per token beside the
largest plain batch.

    python benchmarks/xl.py --device cuda                        the GPT-2-XL shape, 1.6 billion parameters, Adam
    python benchmarks/xl.py --layers 4 --width 64 --heads 4 --length 64 --vocabulary 256 --batches 8 32 --budget 6MB

The first batch is trained by its plain plan, then within the budget too where that is less than it needs, and must give
the same bits. The others are trained within the budget. Weights are made where they lie.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import volta  # noqa: E402
import volta.numpy as vnp  # noqa: E402
from benchmarks import harness, programs  # noqa: E402
from volta.testing.bits import digest  # noqa: E402

STEPS = 4


def arguments(c: programs.TransformerConfig) -> tuple[Any, ...]:
    """Weights that are small and differ, Adam's zeros, and tokens."""
    wave = volta.jit(lambda n, a: 0.02 * vnp.sin(vnp.arange(n, dtype="float32") * a), static_argnums=0)
    count = iter(range(1, 10_000))

    def weights(*shape: int) -> Any:
        size = 1
        for n in shape:
            size *= n
        return wave(size, 0.7 + next(count) / 1000).reshape(shape)

    w = c.width
    params = {
        "emb": weights(c.vocabulary, w), "pos": weights(c.length, w), "lnf": vnp.ones(w),
        "layers": [
            {"ln1": vnp.ones(w), "ln2": vnp.ones(w), "wqkv": weights(w, 3 * w), "wo": weights(w, w),
             "w1": weights(w, 4 * w), "w2": weights(4 * w, w)}
            for _ in range(c.layers)
        ],
    }  # fmt: skip
    tokens = vnp.arange(c.batch * c.length, dtype="int32").reshape(c.batch, c.length)
    zeros = [volta.tree.map(vnp.zeros_like, params) for _ in range(2)]
    return params, *zeros, tokens * 7 % c.vocabulary, tokens * 11 % c.vocabulary


def train(c: programs.TransformerConfig, budget: int | None) -> dict[str, Any]:
    """Some steps: seconds of the plan and of a step, and the bits."""
    p, m, v, x, y = arguments(c)
    step = volta.jit(programs.transformer_step(programs.volta(), c), donate_argnums=(0, 1, 2), memory_budget=budget)
    begin = time.perf_counter()
    plan = step.lower(p, m, v, x, y).compile().plan
    made = time.perf_counter() - begin
    laps, losses = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        p, m, v, loss = step(p, m, v, x, y)
        losses.append(float(loss))
        laps.append(time.perf_counter() - begin)
    again, more = plan.computed_again
    return {
        "batch": c.batch, "budget": budget, "peak": plan.peak_live_bytes, "compile": made,
        "seconds": statistics.median(laps[1:]), "tokens": c.batch * c.length, "again": again, "more work": more,
        "bits": digest([*map(vnp.asarray, losses), p["lnf"], p["layers"][0]["w1"]]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    shape = {"layers": 48, "width": 1600, "heads": 25, "length": 1024, "vocabulary": 50304}
    for name, default in shape.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[12, 24])
    parser.add_argument("--budget", default="120 GiB")
    parser.add_argument("--same-bits", action="store_true", help="train the first batch within less than it needs too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with volta.default_device(options.device):
        first, *others = (
            programs.TransformerConfig(batch=b, **{name: getattr(options, name) for name in shape})
            for b in options.batches
        )
        runs: list[tuple[Any, Any]] = [(first, None), *((c, options.budget) for c in others)]
        for c, budget in runs:
            rows.append(train(c, budget))
            show(rows)
        if options.same_bits:
            rows.append(train(first, rows[0]["peak"] * 3 // 4))
            show(rows)
            assert rows[-1]["bits"] == rows[0]["bits"], "other bits within the budget"
    if options.json:
        about = harness.machine(0)
        about["commit"] = harness.commit()
        options.json.write_text(json.dumps({"machine": about, "device": options.device, "rows": rows}, indent=1) + "\n")


def show(rows: list[dict[str, Any]]) -> None:
    """The last row, and its time per token beside the first's."""
    row, plain = rows[-1], rows[0]["seconds"] / rows[0]["tokens"]
    each = row["seconds"] / row["tokens"]
    print(
        f"batch {row['batch']}, budget {row['budget']}: peak {row['peak'] / 2**30:.2f} GiB, {row['again']} operations "
        f"again, {row['more work']:.1%} more work; compiled in {row['compile']:.1f} s; a step {row['seconds']:.3f} s, "
        f"{each * 1e6:.2f} µs a token: {each / plain:.2f} of the plain plan's",
        flush=True,
    )


if __name__ == "__main__":
    main()
