"""Checks on this machine that programs give the bits that they give everywhere, and prints a verdict.

Each suite runs small programs on the device and compares their bits with the CPU's and with the digests that the
project keeps. Without a GPU it checks the CPU against the digests.

    volta verify                          every suite, quick, on the GPU if there is one
    volta verify inference training       some suites
    volta verify --full --json out.json   more data, 1,000 training steps, a record of everything
    volta verify --exhaustive functions   all 2^32 inputs of every float32 function
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from volta.core import contract
from volta.core.errors import DeviceError, VoltaError
from volta.runtime import devices
from volta.verify import (
    budget,
    checks,
    kernels,
    laws,
    levels,
    loops,
    matrices,
    memory,
    model,
    parity,
    runtime,
    variants,
)
from volta.version import __version__

SUITES: dict[str, checks.Suite] = {
    "functions": parity.functions,
    "primitives": parity.primitives,
    "reductions": parity.reductions,
    "products": parity.products,
    "indexing": parity.indexing,
    "attention": parity.attention,
    "matrices": matrices.matrices,
    "loops": loops.loops,
    "laws": laws.laws,
    "variants": variants.variants,
    "kernels": kernels.kernels,
    "levels": levels.levels,
    "inference": model.inference,
    "training": model.training,
    "memory": memory.memory,
    "budget": budget.budget,
    "runtime": runtime.runtime,
}


class RecordError(VoltaError, OSError):
    """The record of `volta verify` cannot be written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda if there is a GPU)")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--full", action="store_const", const="full", dest="effort", help="more data and steps")
    effort.add_argument(
        "--exhaustive", action="store_const", const="exhaustive", dest="effort", help="and every float32 input"
    )
    parser.add_argument("--json", type=Path, help="write a record of every check")
    parser.add_argument("--keep", action="store_true", help="write this run's digests into the project's record")


def run(options: argparse.Namespace) -> int:
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        print(f"volta verify: no suite {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    setting = checks.Setting(_device(options.device), options.effort or checks.QUICK)
    record = checks.kept()
    print(f"Volta {__version__}, contract {contract.ID}, device {_describe(setting.device)}", flush=True)
    found: dict[str, list[checks.Check]] = {}
    seconds: dict[str, float] = {}
    if options.json:  # before the work, which would be lost with a path that cannot be written
        _write(options.json, _record(setting, found, seconds))
    for name in options.suites or SUITES:
        start = time.perf_counter()
        found[name] = [
            check if options.keep else checks.against_record(name, check, record) for check in SUITES[name](setting)
        ]
        seconds[name] = time.perf_counter() - start
        _say(name, found[name], seconds[name])
        if options.json:  # after each suite, so that a run that is cut short leaves what it did
            _write(options.json, _record(setting, found, seconds))
    if options.keep:
        _keep(found, record)
    failed = sum(bool(check.problem) for checks_of in found.values() for check in checks_of)
    total = sum(len(checks_of) for checks_of in found.values())
    print(f"verdict: {'all ' if not failed else f'{failed} of '}{total} checks {'passed' if not failed else 'FAILED'}")
    return 1 if failed else 0


def _device(asked: str | None) -> str:
    if asked is not None:
        return devices.resolve(asked).split(":")[0] if asked in ("cpu", "cuda") else devices.resolve(asked)
    try:
        devices.cuda()
    except DeviceError as error:
        print(f"no GPU, so the CPU is checked alone: {error}")
        return "cpu"
    return "cuda"


def _describe(device: str) -> str:
    if device == "cpu":
        return f"cpu ({platform.machine()})"
    info = devices.gpu(devices.resolve(device)).info
    return f"{device} ({info.name}, compute capability {'.'.join(map(str, info.capability))})"


def _say(name: str, found: list[checks.Check], seconds: float) -> None:
    failed = [check for check in found if check.problem]
    elements, differ = sum(c.elements for c in found), sum(c.differ for c in found)
    line = f"{name:12s} {len(found):5d} checks  {elements:15,d} elements  {differ:6,d} differ  {seconds:7.1f} s"
    print(f"{line}  {'ok' if not failed else 'FAILED'}", flush=True)
    for check in found:
        if check.says:
            print(f"    {check.says}", flush=True)
    for check in failed[:5]:
        print(f"    {check.name}: {check.problem}", flush=True)
    if len(failed) > 5:
        print(f"    and {len(failed) - 5} more")


def _write(path: Path, record: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"the record cannot be written: {error}") from None


def _record(setting: checks.Setting, found: dict[str, list[checks.Check]], seconds: dict[str, float]) -> dict[str, Any]:
    """Everything as JSON: a summary of each suite, failures and figures in full."""
    suites = {}
    for name, every in found.items():
        suites[name] = {
            "checks": len(every),
            "elements": sum(c.elements for c in every),
            "differ": sum(c.differ for c in every),
            "seconds": round(seconds[name], 2),
            "failed": [attrs.asdict(c) for c in every if c.problem],
            "figures": {c.name: c.figures for c in every if c.figures},
        }
    return {
        "volta": __version__,
        "contract": contract.ID,
        "device": _describe(setting.device),
        "effort": setting.effort,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "suites": suites,
    }


def _keep(found: dict[str, list[checks.Check]], record: dict[str, list[str]]) -> None:
    new = {f"{suite}/{c.name}": [c.inputs, c.digest] for suite, every in found.items() for c in every if c.digest}
    kept = {key: value for key, value in record.items() if key.split("/")[0] not in found} | new
    lines = {"contract": contract.ID, "numpy": np.__version__, "programs": dict(sorted(kept.items()))}
    checks.RECORD.write_text(json.dumps(lines, indent=0) + "\n", encoding="utf-8")
