"""Workers in processes of their own: MPI moves their bytes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import volta
import volta.numpy as vnp
from tests.worker_script import LEAF, data, program
from tests.workers import launch_settings, needs_mpi
from volta import io
from volta.commands import launch
from volta.commands.main import main
from volta.io import format as fmt
from volta.testing import digest

SCRIPT = Path(__file__).parent.parent / "worker_script.py"


def launched(workers: int, *words: str) -> subprocess.CompletedProcess:
    """`volta launch` of the script: more workers than processors, and by any user, as in a container."""
    own = {**os.environ, **launch_settings()}
    command = [sys.executable, "-m", "volta", "launch", "-n", str(workers), str(SCRIPT), *words]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=240, check=False, errors="replace")


def results(done: subprocess.CompletedProcess) -> list[dict]:
    found = re.findall(r"RESULT (\{.*?\})", done.stdout)  # two workers' lines may arrive as one
    return sorted(map(json.loads, found), key=lambda r: r["worker"])


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_processes_have_one_workers_bits(workers: int) -> None:
    """And what they send is what the plan says: each worker counts."""
    done = launched(workers, "shared")
    assert done.returncode == 0, done.stdout + done.stderr
    want = digest(volta.jit(program)(data()))
    assert results(done) == [{"worker": i, "of": workers, "digest": want} for i in range(workers)]


def assert_written_as_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What several workers have written, at once and beside the program, are the bytes that one writes."""
    monkeypatch.setattr(fmt, "_LEAF", LEAF)
    tree = {"rows": data(), "columns": data(), "plain": vnp.ones(3), "n": 0}
    for name, metadata in (("together", {}), ("together-run/step-000000001.safetensors", {"step": "1"})):
        io.save(folder / "alone", tree, metadata)
        assert (folder / name).read_bytes() == (folder / "alone").read_bytes()


@needs_mpi
@pytest.mark.slow
def test_workers_write_one_file_together(tmp_path, monkeypatch) -> None:
    done = launched(3, "save", str(tmp_path / "together"))
    assert done.returncode == 0 and len(results(done)) == 3, done.stdout + done.stderr
    assert_written_as_alone(tmp_path, monkeypatch)
    done = launched(2, "unwritable", str(tmp_path))
    assert done.returncode == 0 and len(results(done)) == 2, done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path)) == ["alone", "together", "together-run"], "nothing is left behind"


@needs_mpi
@pytest.mark.slow
def test_donated_state_is_written_over() -> None:
    done = launched(2, "donating")
    assert done.returncode == 0 and len(results(done)) == 2, done.stdout + done.stderr


@needs_mpi
@pytest.mark.slow
def test_a_mesh_may_leave_workers_out() -> None:
    done = launched(3, "subset")
    assert done.returncode == 0 and len(results(done)) == 3, done.stdout + done.stderr


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    {
        "missing": "4 workers are asked for, and the launcher has started 2",
        "version": "do not agree on Volta's version and contract",
        "program": "do not agree on the program",
        "hang": "worker 0 has waited 5 s for worker 1, in round 0 of `device_put`",
        "dies": "rank 1",
    }.items(),
)
def test_what_goes_wrong_ends_all_workers_and_says_who(what: str, said: str) -> None:
    done = launched(2, what)
    assert done.returncode != 0 and not results(done)
    assert said in done.stdout + done.stderr, done.stdout + done.stderr
    assert f"workers ended with status {done.returncode}" in done.stderr


def test_without_mpi_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "volta.runtime.mpi", raising=False)
    with pytest.raises(volta.errors.DistributedError, match=r"pip install 'volta\[mpi\]'"):
        volta.distributed.initialize()
    assert not volta.distributed.is_initialized()


def test_launch_refuses_what_it_cannot_start(monkeypatch, capsys, tmp_path) -> None:
    assert main(["launch", "-n", "0", str(SCRIPT)]) == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["launch", "-n", "2", str(SCRIPT)]) == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert main(["launch", "-n", "2", str(tmp_path / "absent.py")]) == 2
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: None)
    assert main(["launch", "-n", "2", str(SCRIPT)]) == 2
    said = capsys.readouterr().err
    for text in ("one worker at least", "pip install 'volta[mpi]'", "absent.py", "no MPI launcher"):
        assert text in said


def test_workers_share_the_processors(monkeypatch) -> None:
    monkeypatch.delenv("VOLTA_NUM_THREADS", raising=False)
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert launch.environment(1)["VOLTA_NUM_THREADS"] == str(there)
    assert launch.environment(10_000)["VOLTA_NUM_THREADS"] == "1"
    monkeypatch.setenv("VOLTA_NUM_THREADS", "3")
    assert launch.environment(2)["VOLTA_NUM_THREADS"] == "3"
