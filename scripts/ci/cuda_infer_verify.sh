#!/usr/bin/env bash
# Milestone: inference on an NVIDIA GPU with the CPU's bits. Exits 0 if every check passed, or if there is no GPU (it says so).
#   scripts/ci/cuda_infer_verify.sh          a few minutes
#   scripts/ci/cuda_infer_verify.sh --full   more data, every float32 function over all 2^32 inputs, and kernels by numba-cuda
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/cuda.sh

suites=(functions primitives reductions products indexing attention laws variants levels inference memory runtime)
if [ "${1:-}" = --full ]; then
    need test,numba-cuda
    "$VENV/bin/python" -m volta verify --device cuda --full kernels
    "$VENV/bin/python" -m volta verify --device cuda --exhaustive "${suites[@]}"
    VOLTA_HYPOTHESIS_PROFILE=nightly "$VENV/bin/python" -m pytest -m gpu </dev/null
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$VENV/bin/python" -m volta verify --device cuda products indexing attention inference
        done
    else
        echo "cuda_infer_verify: memcheck and racecheck skipped: no compute-sanitizer on the path"
    fi
else
    "$VENV/bin/python" -m volta verify --device cuda "${suites[@]}"
    VOLTA_HYPOTHESIS_PROFILE=ci "$VENV/bin/python" -m pytest -m "gpu and not slow" </dev/null
fi
echo "cuda_infer_verify: passed"
