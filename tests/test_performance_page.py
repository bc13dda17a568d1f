"""docs/performance.md says where a peer is faster, and each reason is of such a row (scripts/performance_page.py)."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "scripts"), *sys.path])
    return runpy.run_path(str(ROOT / "scripts" / "performance_page.py"))


def row(name: str, **seconds: float) -> dict[str, Any]:
    return {"group": "products", "name": name, "seconds": seconds}


def test_slower_rows_are_named_with_the_best_peer_and_the_slowest_first(page: dict[str, Any]) -> None:
    rows = [
        row("fast", volta=1.0, jax=2.0, cublas=1.5),
        row("level", volta=1.004, jax=1.0),
        row("beside two", volta=3.0, jax=2.9, cublas=2.0),
        row("slow", volta=4.0, jax=1.0),
        row("an ideal is no peer", volta=4.0, copy=1.0),
        {"group": "products", "name": "not measured", "error": "no memory"},
    ]
    best = page["best_peers"]({"rows": rows})
    assert len(best) == 4 and page["best_peers"]({"threads": {}}) == {}
    assert page["slower"](best) == [("products: slow", "jax", 4.0), ("products: beside two", "cublas", 1.5)]


def test_groups_and_commits_have_tables_of_their_own(page: dict[str, Any]) -> None:
    rows = [{**row(name, volta=1.0, jax=2.0), "commit": commit} for name, commit in ("a1", "b1", "c2")]
    gpu = next(table for table in page["TABLES"] if table.record == "gpu")
    text = "\n".join(page["_measured"](gpu, {"machine": {"commit": "1-dirty"}, "rows": rows}))
    assert text.count("```text") == 2 and text.count("Commit 2:") == 1 and "Commit 1" not in text


def test_each_reason_on_record_belongs_to_a_row_that_a_peer_wins(page: dict[str, Any]) -> None:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "benchmarks/results").glob("*.json")]
    names = [name for record in records if isinstance(record, dict) and "machine" in record and "rows" in record
             for name, *_ in page["slower"](page["best_peers"](record))]  # fmt: skip
    limits = json.loads((ROOT / "benchmarks" / "limits.json").read_text(encoding="utf-8"))
    assert [start for start in limits if not any(name.startswith(start) for name in names)] == []
    assert all(len(text) > 20 for text in limits.values())
