"""Runs the Python array API's own tests on Volta, without a list of tests to skip.

    python scripts/conformance/array_api.py CHECKOUT [--max-examples 100] [--json FILE] [pytest's arguments]

``CHECKOUT`` is a clone of https://github.com/data-apis/array-api-tests whose folder ``array-api`` is a clone of
https://github.com/data-apis/array-api; pytest, hypothesis, ndindex and pytest-json-report must be installed. Prints how
many pass, and each failure with the reason that ``declared.py`` has for it. Exits 0 if every failure is declared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from declared import ARRAY_API, reason

ROOT = Path(__file__).resolve().parent.parent.parent


def run(checkout: Path, examples: int, rest: list[str]) -> dict[str, str]:
    """The outcome of each test by its name."""
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": "volta.numpy",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
        command += [f"--max-examples={examples}", "--derandomize", "--disable-deadline", "--tb=line"]
        command += ["--json-report", f"--json-report-file={report}", *rest]
        subprocess.run(command, cwd=checkout, env=environment, check=False)
        tests = json.loads(report.read_text())["tests"]
    return {test["nodeid"].split("array_api_tests/")[-1]: test["outcome"] for test in tests}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--max-examples", type=int, default=100)
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    given, rest = parser.parse_known_args()
    outcomes = run(given.checkout, given.max_examples, rest)
    failed = [name for name, outcome in outcomes.items() if outcome not in ("passed", "skipped")]
    counts = {kind: sum(o == kind for o in outcomes.values()) for kind in sorted(set(outcomes.values()))}
    for name in failed:
        print(f"{name}\n    {reason(ARRAY_API, name) or 'NOT DECLARED'}")
    print(f"array-api-tests, {given.max_examples} examples: {counts} of {len(outcomes)}")
    if given.json is not None:
        given.json.write_text(
            json.dumps({"examples": given.max_examples, "counts": counts, "failed": failed}, indent=1)
        )
    return any(reason(ARRAY_API, name) is None for name in failed)


if __name__ == "__main__":
    sys.exit(main())
