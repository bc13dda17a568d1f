"""What ``import volta`` imports: what every program needs, and not what compiles, which the first program brings."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LATER = ("numba", "llvmlite", "volta.numba_cpu", "volta.numba_cuda", "volta.numba_source", "jax", "http.server")
COMPILER = {"numba", "llvmlite", "volta.numba_cpu"}


def loaded(*steps: str) -> list[list[str]]:
    """The modules that a fresh process has loaded after each of some steps."""
    look = "print(json.dumps(sorted(sys.modules)))"
    program = "\n".join(["import json, sys", *(f"{step}\n{look}" for step in steps)])
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def among_later(modules: list[str]) -> set[str]:
    return {name for name in LATER for m in modules if m == name or m.startswith(f"{name}.")}


def test_importing_volta_loads_no_compiler_and_the_first_program_does() -> None:
    imported, listed, traced, run, named = loaded(
        "import volta",
        "assert {'njit', 'get_num_threads'} <= {*dir(volta)} and 'serve' in dir(volta.models)",
        "volta.jit(lambda x: x + 1).lower(1.0)",
        "assert (volta.numpy.zeros(3) + 1).tolist() == [1, 1, 1]",
        "from volta import njit; assert volta.njit is njit",
    )
    own = [m for m in imported if m.split(".")[0] == "volta"]
    assert len(own) < 390 and len(imported) < 750, (len(own), len(imported))  # 365 and 650 when this was written
    assert not among_later(imported) and not among_later(listed) and not among_later(traced)
    assert among_later(run) == among_later(named) == COMPILER


def test_names_that_are_there_later_bring_what_they_need() -> None:
    imported, threads, server = loaded(
        "import volta",
        "volta.set_num_threads(2); assert volta.get_num_threads() == 2",
        "assert volta.models.serve.__module__ == 'volta.models'",
    )
    before, after = loaded("import volta", "assert volta.scipy.special.erf(0.0) == 0 and 'scipy' in dir(volta)")
    assert "volta.scipy" not in before and "volta.scipy.special" in after
    assert not among_later(imported)
    assert among_later(threads) == COMPILER
    assert among_later(server) == COMPILER | {"http.server"}
