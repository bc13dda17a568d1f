"""``python -m tests.expressions``: draws expressions and says what differs from NumPy and JAX without being declared.

Exits 0 only if nothing does.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.expressions import references
from tests.expressions.comparing import run
from tests.expressions.differences import DECLARED, declared
from tests.expressions.drawing import draw
from tests.expressions.families import FAMILIES

KEPT = 500
"""Expressions of which JAX keeps its programs: it forgets none by itself, and 1,000 have some gigabytes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.expressions", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many expressions (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them (0)")
    parser.add_argument("--start", type=int, default=0, help="the first one's number (0)")
    parser.add_argument("--show", type=int, default=3, help="how many findings of one kind are shown (3)")
    parser.add_argument("--family", default="", choices=FAMILIES, help="of all of them (any)")
    given = parser.parse_args()
    started, seen, unmet = time.monotonic(), Counter[str](), Counter[str]()
    for number in range(given.start, given.start + given.cases):
        if number % KEPT == 0 and references.jax:
            references.jax.clear_caches()
        expression = draw(given.seed, number, given.family)
        try:
            findings = run(expression, references.jax is not None)
        except Exception:
            print(f"{expression}\n{traceback.format_exc()}")
            unmet["raised"] += 1
            continue
        for finding in findings:
            difference = declared(finding)
            if difference is not None:
                seen[difference.reason] += 1
                continue
            key = f"{finding.function} {finding.what} {finding.reference}"
            unmet[key] += 1
            if unmet[key] <= given.show:
                print(finding, flush=True)
    for difference in DECLARED:
        print(f"{seen[difference.reason]:7d}  {difference.reason}")
    for key, count in sorted(unmet.items()):
        print(f"{count:7d}  undeclared: {key}")
    beside = "NumPy and JAX" if references.jax else "NumPy (JAX is not installed)"
    took = time.monotonic() - started
    print(f"{given.cases} expressions beside {beside}: {sum(unmet.values())} undeclared differences ({took:.0f} s)")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
