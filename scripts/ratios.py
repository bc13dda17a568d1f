"""Keeps Volta's times as shares of its peers' from run to run, and says what moved beyond noise.

    python benchmarks/cpu.py && python scripts/ratios.py
    python scripts/ratios.py benchmarks/results/gpu.json --look

A record's rows become ratios, Volta's time by that of each peer. The run is put behind the others of its machine in
benchmarks/results/ratios.json and compared with the one before. A run's noise is how far its medians lie above its
fastest samples, or else twice the deviation of earlier runs of the machine; what differs by more than that of both runs
and by 5% has moved. ``--look`` keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
KEPT = RESULTS / "ratios.json"

LEAST_NOISE = 0.05
RUNS = 20
"""How many runs of a machine are kept."""

Ratios = dict[str, list[Any]]
"""By row and peer: Volta's time by the peer's, and the noise (None where it was not measured)."""


def ratios(record: Mapping[str, Any]) -> Ratios:
    """The ratios of a benchmark's record."""
    found: Ratios = {}
    for row in record["rows"]:
        values = row.get("values") or row.get("seconds") or {}
        if row.get("unit", "s") != "s" or not isinstance(values, Mapping) or "volta" not in values:
            continue
        name = f"{row.get('section', row.get('group', ''))}: {row['name']}"
        ours, our_noise = _time(values["volta"])
        for peer, value in values.items():
            theirs, noise = _time(value)
            if peer != "volta" and ours and theirs:
                both = None if noise is None or our_noise is None else our_noise + noise
                found[f"{name}, by {peer}"] = [round(ours / theirs, 4), both and round(both, 4)]
    return found


def _time(value: Any) -> tuple[float | None, float | None]:
    """Seconds, and how far the median lies above the fastest as a share."""
    if isinstance(value, Mapping):
        return value["median"], value["median"] / value["min"] - 1
    return value, None


def moved(runs: Sequence[Ratios]) -> Iterable[str]:
    """What the last run has otherwise than the one before, beyond noise; largest first."""
    *before, now = runs
    found = []
    for name, (ratio, noise) in now.items():
        earlier = [run[name] for run in before if name in run]
        if not earlier:
            continue
        old, old_noise = earlier[-1]
        if noise is None or old_noise is None:
            spread = [r for r, _ in earlier]
            both = 2 * statistics.stdev(spread) / statistics.mean(spread) if len(spread) > 2 else 0.0
        else:
            both = noise + old_noise
        change = ratio / old - 1
        if abs(change) > max(both, LEAST_NOISE):
            found.append(
                (abs(change), f"{name}: {old:.3g} -> {ratio:.3g} ({100 * change:+.0f}%, noise {100 * both:.0f}%)")
            )
    return [line for _, line in sorted(found, reverse=True)]


def where(record: Mapping[str, Any], path: Path) -> str:
    """What runs must have in common to be compared."""
    machine = record["machine"]
    described = (
        machine if isinstance(machine, str) else " ".join(str(machine.get(k, "")) for k in ("cpu", "gpu", "threads"))
    )
    return f"{path.stem}: {' '.join(described.split())}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=[RESULTS / "cpu.json"])
    parser.add_argument("--look", action="store_true", help="compare, and keep nothing")
    args = parser.parse_args()
    kept: dict[str, list[Ratios]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for path in args.records:
        record = json.loads(path.read_text(encoding="utf-8"))
        runs = kept.setdefault(where(record, path), [])
        now = ratios(record)
        if runs and runs[-1] == now:
            print(f"{path.name}: this run is on record")
            continue
        runs.append(now)
        del runs[:-RUNS]
        lines = list(moved(runs)) if len(runs) > 1 else [f"{len(now)} ratios, the first of this machine"]
        print(f"{path.name}: " + ("\n  ".join(["", *lines]) if lines else "nothing moved beyond noise"))
    if not args.look:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
