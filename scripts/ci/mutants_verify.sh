#!/usr/bin/env bash
# Milestone: the tests notice what breaks. Mutants of the layers that keep state, others each week (scripts/mutate.py); exits
# 0 only if each was noticed by a test, or stands in tests/survivors.txt with the reason why none needs to.
#   scripts/ci/mutants_verify.sh              300 mutants
#   scripts/ci/mutants_verify.sh --count 40   arguments go to scripts/mutate.py
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
need examples,test,dev
cd "$ROOT"
"$VENV/bin/python" scripts/mutate.py --count 300 "$@"
echo "mutants_verify: passed"
