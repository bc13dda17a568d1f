"""optax's own tests, run on Volta by ``volta.as_jax``: ``python scripts/conformance/optax_tests.py CHECKOUT``.

CHECKOUT is a checkout of google-deepmind/optax. Needed besides: chex, absl-py and what these import, without JAX.
Prints how many tests of each folder pass and which fail; fails itself where one fails that ``optax_differences.txt``
does not declare, or one passes that it does. ``--json FILE`` keeps the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FOLDERS = "losses projections schedules transforms tree_utils".split()
DECLARED = Path(__file__).with_name("optax_differences.txt")


def declared() -> dict[str, str]:
    """Tests that fail, with the reason of each."""
    lines = [line for line in DECLARED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {test.strip(): reason.strip() for test, _, reason in (line.partition(":") for line in lines)}


def run(checkout: Path, folder: str, workers: str) -> dict[str, str]:
    """What became of each test of a folder: passed, skipped or failed."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-p", "volta.as_jax", "-p", "no:cacheprovider", "-n", workers, "-q",
            "--tb=no", "--continue-on-collection-errors", f"--junitxml={report}", f"optax/{folder}",
        ]  # fmt: skip
        path = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
        subprocess.run(
            command, cwd=checkout, env={**os.environ, "PYTHONPATH": path}, check=False, stdout=subprocess.DEVNULL
        )
        cases = ElementTree.parse(report).iter("testcase")
        found: dict[str, str] = {}
        for case in cases:
            bad = any(case.find(kind) is not None for kind in ("failure", "error"))
            name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}".removeprefix(".")
            became = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            found[name] = "failed" if found.get(name) == "failed" else became
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("-n", dest="workers", default="0", help="pytest's workers")
    options = parser.parse_args()
    counts: dict[str, dict[str, int]] = {}
    failed: list[str] = []
    for folder in FOLDERS:
        found = run(options.checkout.resolve(), folder, options.workers)
        counts[folder] = {kind: list(found.values()).count(kind) for kind in ("passed", "skipped", "failed")}
        failed += [name for name, became in found.items() if became == "failed"]
        print(f"{folder:12} " + "  ".join(f"{kind} {n}" for kind, n in counts[folder].items()), flush=True)
    total = {kind: sum(c[kind] for c in counts.values()) for kind in ("passed", "skipped", "failed")}
    print("in all       " + "  ".join(f"{kind} {n}" for kind, n in total.items()))
    reasons = declared()
    for name in failed:
        print(f"  {name}: {reasons.get(name, 'NOT DECLARED')}")
    mended = [name for name in reasons if name not in failed]
    for name in mended:
        print(f"  {name}: passes, but is declared to fail")
    if options.json:
        options.json.write_text(json.dumps({"folders": counts, "in all": total, "failed": failed}, indent=1) + "\n")
    return 1 if mended or any(name not in reasons for name in failed) else 0


if __name__ == "__main__":
    sys.exit(main())
