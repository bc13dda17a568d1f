"""The benchmark of long products beside another checkout (how they take turns: tests/test_checkouts.py)."""

import pytest

from benchmarks import long_products as bench


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_length_has_control_cases_of_one_block(device):
    found = bench.cases(device)
    assert len({name for name, *_ in found}) == len(found)
    assert {k for _, _, _, k, _, _ in found} >= {4096, 8192, 65536}


def test_a_table_has_rates():
    row = {"name": "x", "flops": 2e12, "seconds": {"this": 1.0, "beside": 2.0}, "ratio": 0.5, "ratio of the least": 0.5}
    assert "0.500" in bench.show([row], ["this", "beside"]) and "2.00" in bench.show([row], ["this", "beside"])
