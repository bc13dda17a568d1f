"""Where the GPT-2-small training step goes on a GPU: its kernels by time. Run on a machine with an NVIDIA GPU.

python benchmarks/cuda_profile.py [--bfloat16] [--rows 40] [--layers 12] [--json rows.json]
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import attrs

import volta
from benchmarks import cuda_mixed, programs
from volta.runtime import devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40, help="how many kernels to print")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bfloat16", action="store_true", help="the mixed-precision step on tensor cores")
    parser.add_argument("--json", type=Path, help="write every launch")
    options = parser.parse_args()
    config = programs.TransformerConfig(50304, 768, 12, options.layers, 1024, options.batch)
    framework = programs.volta()
    state = volta.device_put(programs.step_arguments(framework, config), "cuda")
    make = cuda_mixed.mixed_step if options.bfloat16 else programs.transformer_step
    step = volta.jit(make(framework, config), donate_argnums=(0, 1, 2))
    *state, x, y = state

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        with cuda_mixed.device_level("bfloat16") if options.bfloat16 else nullcontext():
            *state, loss = step(*state, x, y)
        loss.block_until_ready()
        return time.perf_counter() - start

    print(f"first step {run():.2f} s")
    print(f"steps {', '.join(f'{1e3 * run():.1f}' for _ in range(3))} ms")
    with devices.profile() as found:
        run()
    print(found.table(options.rows))
    stats = devices.memory_stats()
    print(f"memory: peak {stats.peak:,} bytes, reserved {stats.reserved:,} in {stats.segments} segments")
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(x) for x in found.rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
