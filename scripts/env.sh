# Sourced by the scripts beside it: makes sure that .venv holds Volta and the extras asked for.
#   . scripts/env.sh; need examples,test
# Needs only Python 3.11 or newer and a package index. A second call with nothing changed installs nothing.
# PYTHON=... picks the interpreter for a new .venv.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    echo "Volta needs Python 3.11 or newer with its venv module; found none. Set PYTHON to one." >&2
    return 1
}

need() {
    local extras="$1" stamp python
    stamp="$VENV/.volta-$(cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum | cut -d' ' -f1)-$extras"
    [ -e "$stamp" ] && return 0
    (
        # Two commands started together must not build the same environment twice over.
        if command -v flock >/dev/null; then flock 9; fi
        [ -e "$stamp" ] && exit 0
        if ! [ -x "$VENV/bin/python" ]; then
            python="$(find_python)" || exit 1
            echo "making .venv with $python" >&2
            "$python" -m venv "$VENV" || exit 1
        fi
        echo "installing volta[$extras] into .venv" >&2
        "$VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --editable "$ROOT[$extras]" ||
            exit 1
        touch "$stamp"
    ) 9>"$ROOT/.venv.lock"
}
