"""What products on an H200 have to do that cuBLAS' need not, counted from their plans: no GPU is needed.

    python benchmarks/cuda_products.py

tf32: the right operand is rounded to nearest and laid out along k before the product begins. Counted are the bytes that
this reads and writes; `least` is what they take at the memory's 4.8 TB/s. cuBLAS rounds to nearest as well (seen: 1 +
1.5 x 2^-11 times 1 is 1 + 2^-10), but within its kernel.

float64: behind each 256 of k a tile's sums are added to totals in shared memory, since registers hold one set alone.
Counted are the cycles in which a multiprocessor's shared memory moves these, 128 bytes each, beside those in which its
tensor cores multiply, 128 multiply-adds each.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import volta
import volta.numpy as vnp
from benchmarks import harness
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import Launch, Regions
from volta.numba_cuda.products import dot
from volta.numba_cuda.schedule import Schedule
from volta.xla_like.compile import build_plan
from volta.xla_like.dot import CHUNK
from volta.xla_like.plan import ExecutionPlan

SIZES = (1024, 2048, 4096, 8192)
MEMORY, SHARED, MULTIPLY_ADDS = 4.8e12, 128, 128  # bytes a second; bytes, and float64 multiply-adds, a cycle


def plan_of(n: int, dtype: str, precision: str | None) -> ExecutionPlan:
    level = DeterminismLevel.DEVICE if precision else DeterminismLevel.STRICT
    program = volta.make_jaxpr(lambda x, y: vnp.matmul(x, y, precision=precision))(
        *(volta.ShapeDtypeStruct((n, n), np.dtype(dtype)) for _ in range(2))
    )
    return build_plan(program, level=level, scheduler=Schedule())[0]


def moved(launch: Launch) -> int:
    """Bytes of device memory that a launch reads and writes, each once."""
    return sum(x.high - x.low for x in (*launch.reads, *launch.writes))


def rounding(n: int) -> dict[str, Any]:
    before, _ = launches_of(plan_of(n, "float32", "tf32"), "9.0a")
    return {"name": f"tf32 {n}", "bytes": moved(before), "least": moved(before) / MEMORY}


def totals(n: int) -> dict[str, Any]:
    (call,) = plan_of(n, "float64", None).calls
    tile = dot.planned(call, Regions(), "9.0a")[-1].variant.tile
    cells = tile.rows * tile.cols
    return {
        "name": f"float64 {n}", "tile": f"{tile.rows} x {tile.cols}",
        "moving": 2 * cells * 8 // SHARED, "multiplying": cells * CHUNK // MULTIPLY_ADDS,
    }  # fmt: skip


def lines() -> Iterator[list[str]]:
    for n in SIZES:
        row = rounding(n)
        yield [row["name"], f"{row['bytes'] / 1e6:.0f} MB", harness.seconds_text(row["least"])]
    for n in SIZES:
        row = totals(n)
        share = row["moving"] / row["multiplying"]
        yield [row["name"], f"{row['moving']} cycles", f"{share:.1%} of {row['multiplying']}, {row['tile']}"]


if __name__ == "__main__":
    print(harness.table(["product", "counted", "least"], list(lines())))
