#!/usr/bin/env bash
# Milestone: a model that needs four times the memory there is trains within it, to the bits of the plain plan. The budget is held
# against what the pool measured. Exits 0 only if every check passed; without a GPU the CPU is checked alone (it says so).
#   scripts/ci/xl_verify.sh          4 layers
#   scripts/ci/xl_verify.sh --full   12 layers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/env.sh
need test

full=()
if [ "${1:-}" = --full ]; then full=(--full); fi
"$VENV/bin/python" -m volta verify "${full[@]}" budget
echo "xl_verify: passed"
