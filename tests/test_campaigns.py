"""The campaigns of scripts/campaigns run, and find nothing: here with few tries, at night with many."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRIES = {"kill_saves": 100, "fuzz_files": 1000, "damage_cache": 200, "plant_code": 30, "interrupts": 500}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIES)
def test_campaigns(name) -> None:
    command = [sys.executable, f"scripts/campaigns/{name}.py", str(TRIES[name]), "2"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not answer.returncode, answer.stdout + answer.stderr
    assert f"{name}.py: {TRIES[name]:,} tries" in answer.stdout and "found: 0" in answer.stdout
