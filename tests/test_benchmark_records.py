"""Records of the GPU benchmark: groups that are measured again replace theirs, and a cut group keeps what it did."""

import json
from pathlib import Path

import pytest

from benchmarks import distributed, distributed_model, gpu, numerics

RECORD = Path(gpu.__file__).parent / "results" / "gpu.json"


def row(group, name, commit):
    return {"group": group, "name": name, "commit": commit}


def test_a_group_that_is_measured_again_replaces_its_rows_and_keeps_its_place():
    old = [row("calls", "a", 1), row("loops", "b", 1), row("loops", "c", 1), row("products", "d", 1)]
    new = [row("loops", "c", 2), row("loops", "e", 2)]
    assert gpu.merged(old, new) == [old[0], *new, old[3]]


def test_a_group_that_fails_keeps_the_rows_before(monkeypatch, tmp_path):
    def group():
        yield {"name": "first"}
        raise RuntimeError("no more")

    monkeypatch.setattr(gpu, "group_calls", group)
    gpu.run_group("calls", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows == [
        {"group": "calls", "name": "first"},
        {"group": "calls", "name": "calls", "error": "RuntimeError: no more"},
    ]


@pytest.mark.parametrize("row", json.loads(RECORD.read_text(encoding="utf-8"))["rows"], ids=lambda x: x["name"])
def test_every_row_of_the_record_says_what_was_measured_when(row):
    assert row["group"] in gpu.GROUPS and row["commit"] and ("error" in row or min(row["seconds"].values()) > 0)


SEVERAL = Path(gpu.__file__).parent / "results" / "distributed.json"


def test_the_record_of_several_gpus_has_equal_bits_and_is_shown():
    rows = json.loads(SEVERAL.read_text(encoding="utf-8"))["rows"]
    assert all(row["commit"] and min(row["seconds"].values()) > 0 for row in rows)
    assert rows[0]["same bits"] is True and rows[0]["same bits as on the CPU"] is True
    assert [len(line) > 0 for line in distributed.show(rows).splitlines()] == [True] * (len(rows) + 2)


def test_the_page_has_the_models_table():
    page = (Path(gpu.__file__).parent.parent / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert "\n".join(distributed_model.rows()) in page


def test_an_exchange_costs_a_ring_and_little_more_within_a_host():
    for workers in (2, 4, 8):
        mine, ring = distributed_model.exchange(1e10, 100, workers), distributed_model.ring(1e10, workers)
        assert ring < mine < 1.2 * ring
    assert distributed_model.exchange(1e10, 100, 64) > 2 * distributed_model.ring(1e10, 64)


NUMERICS = Path(gpu.__file__).parent / "results" / "numerics.json"


def test_the_record_of_numerics_has_each_group_and_says_of_each_row_what_was_measured():
    rows = json.loads(NUMERICS.read_text(encoding="utf-8"))["rows"]
    assert {row["group"] for row in rows} == set(numerics.GROUPS)
    assert all(row["commit"] and min(row["seconds"].values()) > 0 for row in rows)
    assert len(numerics.show(rows).splitlines()) == len(rows) + 2


def test_a_row_of_numerics_that_fails_says_so_and_the_others_are_measured(monkeypatch):
    def group(setting):
        def fails():
            raise RuntimeError("no more")

        yield "first", {"volta": fails}
        yield "second", {"volta": lambda: None}

    monkeypatch.setitem(numerics.GROUPS, "products", group)
    kept = []
    rows = numerics.measured(["products"], numerics.Setting("cpu", [], [], 0.0), lambda rows: kept.append(len(rows)))
    assert rows[0]["error"] == "RuntimeError: no more" and rows[1]["seconds"]["volta"] > 0 and kept == [1, 2]
