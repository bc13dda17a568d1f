"""What the benchmark programs share: fair timing, a description of the machine, plain tables, JSON records.

Imports no framework at the top: thread counts are read from the environment when a framework is imported.
"""

import gc
import importlib.metadata
import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))  # so that the benchmarks run from a checkout, installed or not
PACKAGES = ("numba", "llvmlite", "numpy", "jax", "jaxlib", "torch", "llama-cpp-python")


SETTLE = 0.1
"""Seconds before each sample: idle threads of the contender before go to sleep first (OpenBLAS's spin for 50 ms, and
longer on some machines)."""

_LONGEST, _IDLE = 2.0, 0.1
"""Seconds after which a sample is taken all the same, and the share of a processor that threads at rest may take."""


def settle() -> None:
    """Wait until no thread of this process is busy."""
    end = time.perf_counter() + _LONGEST
    while True:
        busy, start = time.process_time(), time.perf_counter()
        time.sleep(SETTLE)
        now = time.perf_counter()
        if time.process_time() - busy < _IDLE * (now - start) or now > end:
            return


def use_threads(count: int) -> None:
    """Give every framework the same `count` threads. Call before importing any of them."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VOLTA_NUM_THREADS"):
        os.environ[name] = str(count)
    if hasattr(os, "sched_setaffinity"):  # the only setting XLA's CPU client follows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def machine(threads: int) -> dict[str, Any]:
    """Where and with what a record was made."""
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
        flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    except OSError:
        flags = []
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    versions["volta"] = runpy.run_path(str(ROOT / "volta" / "version.py"))["__version__"]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads,
        "vectors": sorted(flag for flag in flags if flag in ("avx2", "avx512f", "amx_tile", "asimd", "sve")),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
    }


def commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True
    )
    return answer.stdout.strip() or "unknown"


def alternate(
    contenders: Mapping[str, Callable[[], object]], seconds: float, min_rounds: int = 5, sample: float = 0.005
) -> dict[str, dict[str, float]]:
    """Time the contenders in turn (A B C A B C ...), so that a busy spell of the machine meets all of them.

    A sample is one call, or as many as fill `sample` seconds; its value is the time of one call. Runs for about
    `seconds` in all. Returns {contender: {median, min, samples, calls}} in seconds.
    """
    repeat = {}
    for name, run in contenders.items():
        run()  # compiles
        run()
        start = time.perf_counter()
        run()
        repeat[name] = max(1, int(sample / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or any(len(taken) < min_rounds for taken in times.values()):
            for name, run in contenders.items():
                calls = range(repeat[name])
                settle()
                run()
                start = time.perf_counter()
                for _ in calls:
                    run()
                times[name].append((time.perf_counter() - start) / repeat[name])
    finally:
        if collecting:
            gc.enable()
    return {
        name: {"median": statistics.median(taken), "min": min(taken), "samples": len(taken), "calls": repeat[name]}
        for name, taken in times.items()
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the rest to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]

    def show(line: Sequence[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        return "  ".join([line[0].ljust(widths[0]), *numbers]).rstrip()

    return "\n".join([show(header), "  ".join("-" * width for width in widths), *map(show, rows)])


def seconds_text(value: float | None) -> str:
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 100 * scale else f"{value / scale:.0f} {unit}"
    return f"{value * 1e9:.0f} ns"


def ratio_text(value: float | None, to: float | None) -> str:
    return "-" if not value or not to else f"{value / to:.2f}"


def save(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
