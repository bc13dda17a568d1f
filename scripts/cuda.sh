# Sourced by the CUDA scripts in scripts/ci: the environment of the tests, and a clear end where there is no GPU.
. scripts/env.sh
need test

if ! reason="$("$VENV/bin/python" - 2>&1 <<'PY'
import sys
from volta.core.errors import DeviceError
from volta.runtime import devices
try:
    devices.cuda()
except DeviceError as error:
    sys.exit(str(error))
PY
)"; then
    echo "$(basename "$0"): skipped: $reason"
    exit 0
fi
