"""The scripts for machines with a GPU: they skip where there is none, and pass nowhere else without having checked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ("cuda_infer_verify.sh", "cuda_train_verify.sh")
STAND_IN = """#!/bin/sh
if [ "$1" = - ]; then echo {said}; exit {status}; fi
echo "ran $*"; exit {after}
"""
NO_DRIVER = """
import ctypes, sys
load = ctypes.CDLL
def load_other(name, *args, **kwargs):
    if "libcuda." in str(name):
        raise OSError
    return load(name, *args, **kwargs)
ctypes.CDLL = load_other
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of the scripts, whose environment has the Python that is put there."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "scripts" / "env.sh").write_text(f"VENV={tmp_path}\nneed() {{ :; }}\n")
    (tmp_path / "bin").mkdir()
    return tmp_path


def run(checkout, script, python):
    (checkout / "bin" / "python").write_text(python)
    (checkout / "bin" / "python").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run([f"scripts/ci/{script}"], cwd=checkout, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_the_check_for_a_gpu_says_decides(checkout, script):
    absent = run(checkout, script, STAND_IN.format(said="no GPU", status=3, after=0))
    assert (absent.returncode, absent.stdout) == (0, f"{script}: skipped: no GPU\n")
    broken = run(checkout, script, STAND_IN.format(said="ImportError", status=1, after=0))
    assert (broken.returncode, broken.stdout, broken.stderr) == (1, "", "ImportError\n")
    there = run(checkout, script, STAND_IN.format(said="", status=0, after=0))
    assert there.returncode == 0 and "ran -m volta verify --device cuda" in there.stdout and "passed" in there.stdout
    failing = run(checkout, script, STAND_IN.format(said="", status=0, after=1))
    assert failing.returncode == 1 and "passed" not in failing.stdout


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.turns(6)
def test_without_a_driver_the_scripts_skip_and_say_why(checkout, script):
    done = run(checkout, script, f"#!{sys.executable}\n{NO_DRIVER}exec(compile(sys.stdin.read(), 'check', 'exec'))\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{script}: skipped: no NVIDIA GPU can be used: there is no NVIDIA driver")
