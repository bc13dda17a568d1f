"""Workers with a GPU each, in processes of their own: on GPUs where there are two, and on stand-ins everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import volta
from tests.runtime.test_mpi import SCRIPT, assert_written_as_alone, results
from tests.worker_script import data, program
from tests.workers import launch_settings
from volta.commands.main import main
from volta.numba_cuda.device import driver
from volta.testing import digest


@pytest.fixture(params=["stand-in", pytest.param("GPUs", marks=pytest.mark.gpu)])
def kind(request):
    if request.param == "GPUs" and driver.count() < 2:
        pytest.skip(f"needs two GPUs, the driver sees {driver.count()}")
    return request.param


def launched(kind: str, workers: int, *words: str) -> subprocess.CompletedProcess:
    own = {**os.environ, **launch_settings(), "VOLTA_TEST_STAND_IN": "1" if kind == "stand-in" else ""}
    command = [sys.executable, "-m", "volta", "launch", "-n", str(workers), "--engine", "nccl", str(SCRIPT), *words]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=240, check=False, errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_gpus_have_one_workers_bits(kind: str, workers: int) -> None:
    """And what NCCL moves is what the plan says, none of it by way of the host."""
    if kind == "GPUs" and workers > driver.count():
        pytest.skip(f"needs {workers} GPUs, the driver sees {driver.count()}")
    done = launched(kind, workers, "shared")
    assert done.returncode == 0, done.stdout + done.stderr
    want = digest(volta.jit(program)(data()))
    assert results(done) == [{"worker": i, "of": workers, "digest": want} for i in range(workers)]


@pytest.mark.slow
def test_gpus_write_one_file_together(kind: str, tmp_path, monkeypatch) -> None:
    done = launched(kind, 2, "save", str(tmp_path / "together"))
    assert done.returncode == 0 and len(results(done)) == 2, done.stdout + done.stderr
    assert_written_as_alone(tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_mesh_may_leave_gpus_out() -> None:
    done = launched("stand-in", 3, "subset")
    assert done.returncode == 0 and len(results(done)) == 3, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    {
        "missing": "4 workers are asked for, and the launcher has started 2",
        "version": "do not agree on Volta's version and contract",
        "program": "do not agree on the program",
        "hang": "worker 0 has waited 5 s for worker 1, in round 0 of `device_put`",
        "dies": "volta launch: worker 1 ended with SIGKILL",
    }.items(),
)
def test_what_goes_wrong_ends_all_workers_and_says_who(kind: str, what: str, said: str) -> None:
    done = launched(kind, 2, what)
    assert done.returncode != 0 and not results(done)
    assert said in done.stdout + done.stderr, done.stdout + done.stderr
    assert f"workers ended with status {done.returncode}" in done.stderr
    if what == "dies":
        assert "worker 0 waits for worker 1, in round 0 of `device_put`, which has ended" in done.stderr


def test_the_launcher_waits_for_all_and_says_which_failed(tmp_path, capfd) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "me = os.environ['VOLTA_PROCESS_ID']\n"
        "words = me, os.environ['VOLTA_ENGINE'], os.environ['VOLTA_NUM_PROCESSES'], sys.argv[1]\n"
        "os.write(1, (' '.join(words) + '\\n').encode())\n"  # at once, so that no other worker's line comes between
        "sys.exit(int(sys.argv[1]) if me == '1' else 0)\n"
    )
    for status in (0, 3):
        assert main(["launch", "-n", "3", "--engine", "nccl", str(script), str(status)]) == status
        out, err = capfd.readouterr()
        assert sorted(out.split("\n")) == ["", *(f"{i} nccl 3 {status}" for i in range(3))]
        assert ("worker 1 ended with status 3" in err) == bool(status)
