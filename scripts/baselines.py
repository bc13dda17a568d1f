"""Keeps what programs cost in counts on record, and says what moved: python scripts/baselines.py [--look]

The record is tests/golden/counts.json: for each program equations, kernels (each is compiled once), launches, planned
bytes and emitted instructions, on both backends. tests/golden/test_counts.py fails where one grows. ``--look`` only
says what would move.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.counting import RECORD, TRACED, counts, moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", action="store_true", help="leave the record as it is")
    look = parser.parse_args().look
    before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    now = {name: counts(name) for name in TRACED}
    print("\n".join(moved(before, now)) or "nothing moved")
    if not look:
        RECORD.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
