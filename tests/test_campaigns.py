"""The campaigns of scripts/campaigns run, and find nothing: here with few tries, at night with many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import launch_settings, needs_mpi

ROOT = Path(__file__).resolve().parent.parent
TRIES = {
    "kill_saves": 100,
    "fuzz_files": 1000,
    "damage_cache": 200,
    "plant_code": 30,
    "interrupts": 500,
    "kill_workers": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(n for n in TRIES if n != "kill_workers"), pytest.param("kill_workers", marks=needs_mpi)]
)
def test_campaigns(name) -> None:
    command = [sys.executable, f"scripts/campaigns/{name}.py", str(TRIES[name]), "2"]
    own = {**os.environ, **launch_settings()} if name == "kill_workers" else None
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=own)
    assert not answer.returncode, answer.stdout + answer.stderr
    assert f"{name}.py: {TRIES[name]:,} tries" in answer.stdout and "found: 0" in answer.stdout
