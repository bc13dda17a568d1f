# Sourced by the CUDA scripts in scripts/ci: the environment of the tests, and a clear end where there is no GPU.
. scripts/env.sh
need test

status=0
reason="$("$VENV/bin/python" - 2>&1 <<'PY'
import sys
from volta.core.errors import DeviceError
from volta.runtime import devices
try:
    devices.cuda()
except DeviceError as error:
    print(error)
    sys.exit(3)
PY
)" || status=$?
case $status in
0) ;;
3)
    echo "$(basename "$0"): skipped: $reason"
    exit 0
    ;;
*) # Volta itself is broken, which is no reason to pass
    echo "$reason" >&2
    exit "$status"
    ;;
esac
