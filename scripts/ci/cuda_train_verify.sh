#!/usr/bin/env bash
# Milestone: training on an NVIDIA GPU ends in the CPU's checkpoint, byte for byte. Exits 0 if every check passed, or if there
# is no GPU (it says so).
#   scripts/ci/cuda_train_verify.sh          100 steps of the tiny transformer
#   scripts/ci/cuda_train_verify.sh --full   1,000 steps
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/cuda.sh

full=()
if [ "${1:-}" = --full ]; then full=(--full); fi
"$VENV/bin/python" -m volta verify --device cuda "${full[@]}" training
echo "cuda_train_verify: passed"
