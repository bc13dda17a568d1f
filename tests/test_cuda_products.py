"""What products have to do beside multiplying, counted from their plans (benchmarks/cuda_products.py)."""

import json

import pytest

from benchmarks import cuda_products
from benchmarks.harness import ROOT


def test_rounding_reads_and_writes_the_right_operand_once():
    assert cuda_products.rounding(512)["bytes"] == 2 * 4 * 512 * 512


@pytest.mark.parametrize(("n", "tile"), [(1024, "64 x 128"), (4096, "128 x 128")])
def test_totals_cross_shared_memory_twice_a_chunk(n, tile):
    row = cuda_products.totals(n)
    assert row["tile"] == tile and 16 * row["moving"] == row["multiplying"]


def test_the_reasons_on_record_are_what_is_counted():
    reasons = json.loads((ROOT / "benchmarks" / "limits.json").read_text(encoding="utf-8"))
    rounded, totals = cuda_products.rounding(4096), cuda_products.totals(4096)
    assert f"{rounded['bytes'] / 1e6:.0f} MB" in reasons["mixed: float32 tf32"]
    assert f"{totals['moving'] / totals['multiplying']:.1%}" in reasons["products: float64"]
