"""Type checkers accept programs as users write them, and refuse the mistakes in them."""

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = [HERE / "typed_code.py", HERE / "typed_newer.py"]
MISTAKES = {
    (path.name, i)
    for path in PROGRAMS
    for i, line in enumerate(path.read_text().splitlines(), 1)
    if line.endswith("# refused")
}


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "MYPYPATH": str(HERE.parent.parent)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
@pytest.mark.turns(2)
def test_the_program_runs(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


@pytest.mark.turns(6)
def test_mypy_accepts_the_program_and_refuses_the_mistakes() -> None:
    """With the project's settings, and with its cache: `scripts/test` has just filled it."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (volta[dev])")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, PROGRAMS)]
    done = subprocess.run(command, env=_env(), cwd=HERE.parent.parent, capture_output=True, text=True, timeout=300)
    errors = re.findall(r"(typed_\w+\.py):(\d+): error:", done.stdout)
    found = {(name, int(line)) for name, line in errors}
    assert found == MISTAKES, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_accepts_the_program_and_refuses_the_mistakes() -> None:
    pyright = shutil.which("pyright") or shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed (volta[types])")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, *map(str, PROGRAMS)]
    done = subprocess.run(command, env=_env(), cwd=HERE.parent.parent, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)["generalDiagnostics"]
    found = {(Path(x["file"]).name, x["range"]["start"]["line"] + 1) for x in report if x["severity"] == "error"}
    assert found == MISTAKES, json.dumps(report, indent=1)
