#!/usr/bin/env bash
# Milestone: random expressions have the results, dtypes, weak types and derivatives that NumPy and JAX have, but for the
# differences that are declared (tests/expressions/differences.py). Exits 0 only if no other was found.
#   scripts/ci/expressions_verify.sh              10,000 expressions of the day
#   scripts/ci/expressions_verify.sh 500 20260101 so many, of a seed
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
need oracle,test
cd "$ROOT"

"$VENV/bin/python" -m tests.expressions --cases "${1:-10000}" --seed "${2:-$(date +%Y%m%d)}"
echo "expressions_verify: passed"
