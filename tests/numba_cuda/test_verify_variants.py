"""The suite `volta verify variants` on a GPU, or on the stand-in for the driver: it compares, and it can fail."""

import numpy as np
import pytest

import volta.numpy as vnp
from volta.testing.data import fill
from volta.verify import checks, variants

SUMS = ("sums", lambda x: vnp.sum(x, 0), (fill("ladder", (300, 96)),))


@pytest.fixture
def run(gpu, monkeypatch):
    """Run the suite on one program."""

    def run(*program):
        monkeypatch.setattr(variants, "programs", lambda: iter([program]))
        return {check.name: check for check in variants.variants(checks.Setting("cuda"))}

    return run


def test_each_way_has_the_cpus_bits(run):
    found = run(*SUMS)
    assert [c.name for c in found.values()] == [
        *(f"sums: for {n} multiprocessors" for n in ("its", 1, 100_000)),
        "sums: ways",
    ]
    assert not any(c.problem for c in found.values()) and found["sums: ways"].figures["ways"] > 1
    assert all(c.elements == 96 for c in list(found.values())[:3])


def test_another_bit_is_reported(run, monkeypatch):
    def one_bit_off(f, args, device):
        return np.nextafter(checks.on_device(f, args, device), np.float32(np.inf))

    monkeypatch.setattr(variants, "on_device", one_bit_off)
    found = run(*SUMS)
    assert [bool(c.problem) for c in found.values()] == [True, True, True, False]


def test_a_program_that_has_one_way_is_reported(run):
    found = run("tiny", lambda x: x + 1, (np.zeros(3, np.float32),))
    assert "nothing was compared" in found["tiny: ways"].problem


def test_a_program_that_fails_is_reported(run):
    assert "Error" in run("bad", lambda x: x + [], (1.0,))["bad"].problem
