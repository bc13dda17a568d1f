"""The runtime suite of `volta verify`: on a GPU and on the stand-in for the driver, what is wrong fails."""

import pytest

from volta.commands.main import main
from volta.numba_cuda.device.graph import Module
from volta.verify import checks, raw_launches, runtime

SMALL = runtime.Sizes(
    product=64, attention=64, weights=256, transfer=20, walk=300, live=6, terms=4000, launches=20
)  # fmt: skip


@pytest.fixture
def small(gpu, monkeypatch):
    """The device, with trials that the stand-in has done soon; it is not lost in a child, and C knows nothing of it."""
    if hasattr(gpu.api, "fake"):
        monkeypatch.setattr(runtime, "SIZES", SMALL)
        monkeypatch.setattr(runtime, "CAPABILITIES", ("7.0", "9.0"))
        monkeypatch.setattr(raw_launches, "lost_device", lambda index: [])
        monkeypatch.setattr(raw_launches, "compiler", lambda: None)
        monkeypatch.setattr(raw_launches, "launch_microseconds", lambda device: 1.0)  # it runs no PTX
    return gpu


@pytest.mark.slow
def test_thirteen_claims_are_tried_and_nothing_is_wrong(small):
    found = list(runtime.runtime(checks.Setting("cuda")))
    assert [c.name.split()[0] for c in found] == [f"H{i}" for i in range(1, 14)]
    assert not [(c.name, c.problem) for c in found if c.problem]
    assert all(c.says.startswith(c.name) and "met" in c.figures for c in found)
    exact = [
        c.figures["met"] for c in found if "costs" not in c.name and "fragm" not in c.name and "over" not in c.name
    ]
    assert exact == [True] * 9


def found_by(trial, gpu):
    return trial(checks.Setting("cuda"), gpu).problem


def test_what_is_wrong_is_said(small, monkeypatch):
    monkeypatch.setattr(runtime, "_both", lambda f, setting, *args: (args[0], args[0] + 1))
    assert "other bits" in found_by(runtime._launches, small)
    monkeypatch.setattr(runtime, "Module", lambda device, text: Module(device, raw_launches.NOTHING))
    assert "an invalid module: no error" in found_by(runtime._faults, small)
    monkeypatch.setattr(raw_launches, "lost_device", lambda index: ["not lost"])
    assert "not lost" in found_by(runtime._faults, small)


def test_a_trial_that_fails_hides_no_other(small, monkeypatch):
    claims = {name: (lambda setting, gpu: 1 / 0, False) for name in list(runtime.CLAIMS)[:2]}
    monkeypatch.setattr(runtime, "CLAIMS", claims)
    found = list(runtime.runtime(checks.Setting("cuda")))
    assert ["ZeroDivisionError" in c.problem and "FAILED" in c.says for c in found] == [True, True]


def test_without_a_gpu_the_table_says_what_needs_one(capsys, monkeypatch):
    monkeypatch.setattr(runtime, "SIZES", SMALL)
    monkeypatch.setattr(runtime, "CAPABILITIES", ("7.0",))
    assert main(["verify", "--device", "cpu", "runtime"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    H")]
    assert len(said) == 13 and sum("needs a GPU" in line for line in said) == 12
