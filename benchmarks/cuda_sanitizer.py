"""NVIDIA's compute-sanitizer over the kernel suites: accesses out of bounds, races in shared memory, barriers.

    python benchmarks/cuda_sanitizer.py                                  all tools over all suites, as a table
    python benchmarks/cuda_sanitizer.py --json out.json --tools memcheck --suites products

Needs a GPU and compute-sanitizer on the path. The suites are those of `volta verify`; a run fails if a bit differs or
the sanitizer says anything. The suite of loops is not among them: inside of a graph's nodes with a condition racecheck
takes the shared memory of one kernel and of the next for the same (memcheck is clean there).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck", "synccheck")
SUITES = ("inference", "indexing", "products", "attention", "variants", "levels")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_CHECKS = re.compile(r"verdict: all (\d+) checks passed")
_GPU = re.compile(r"device cuda \((.*?)\)")


def run(tool: str, suite: str, timeout: float) -> dict[str, Any]:
    """One tool over one suite."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, sys.executable, "-m", "volta", "verify", "--device", "cuda", suite],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"tool": tool, "suite": suite, "verdict": f"not done in {timeout:.0f} s"}
    summary, checks, gpu = (p.search(done.stdout) for p in (_SUMMARY, _CHECKS, _GPU))
    found = int(next(g for g in summary.groups() if g is not None)) if summary else -1
    clean = done.returncode == 0 and found == 0 and checks is not None
    record = {"tool": tool, "suite": suite, "verdict": "clean" if clean else "not clean", "found": found}
    record |= {"checks": int(checks[1]) if checks else 0, "seconds": round(time.perf_counter() - start, 1)}
    if not clean:
        record["output"] = (done.stdout + done.stderr)[-2000:]
    return record | {"gpu": gpu[1] if gpu else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--suites", nargs="+", default=list(SUITES))
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one tool over one suite")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("cuda_sanitizer: compute-sanitizer is not on the path", file=sys.stderr)
        return 2
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True, check=True).stdout
    rows = []
    for suite in options.suites:
        for tool in options.tools:
            rows.append(run(tool, suite, options.timeout))
            print(*(rows[-1].get(k, "") for k in ("tool", "suite", "verdict", "checks", "seconds")), flush=True)
            if options.json:
                record = {"gpu": rows[0].get("gpu", ""), "compute_sanitizer": version.strip().splitlines()[-1]}
                runs = [{k: v for k, v in row.items() if k != "gpu"} for row in rows]
                options.json.write_text(json.dumps(record | {"runs": runs}, indent=1) + "\n")
    return 0 if all(row["verdict"] == "clean" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
