#!/usr/bin/env bash
# Milestone: no test reads or writes outside its memory. Every buffer lies between pages that nobody may touch
# (tests/guarded_memory.py): once with its end, once with its start at the edge. A fault fails the test that was running, and
# the others go on. Exits 0 only if none failed.
#   scripts/ci/guard_verify.sh          the quick tests
#   scripts/ci/guard_verify.sh --full   the slow tests too
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
need examples,test,dev
cd "$ROOT"

select=(-m "not slow")
if [ "${1:-}" = --full ]; then
    select=()
    shift
fi
failed=0
for side in over under; do
    VOLTA_TEST_GUARD="$side" "$VENV/bin/python" -m pytest -n auto --dist loadfile --max-worker-restart 1000 \
        "${select[@]}" "$@" || failed=1
done
[ "$failed" = 0 ] && echo "guard_verify: passed"
exit "$failed"
