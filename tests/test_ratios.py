"""Ratios to peers, kept from run to run: what has moved is said, what is noise is not (scripts/ratios.py)."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RATIOS = runpy.run_path(str(ROOT / "scripts" / "ratios.py"))


def timed(median: float, least: float) -> dict[str, float]:
    return {"median": median, "min": least}


def record(volta: Any, jax: Any, **more: Any) -> dict[str, Any]:
    row = {"section": "call", "name": "tanh", "unit": "s", "values": {"volta": volta, "jax": jax}}
    return {"machine": {"cpu": "One", "threads": 2}, "rows": [row | more]}


def test_ratios_are_volta_s_time_by_each_peer_s() -> None:
    found = RATIOS["ratios"](record(timed(2.0, 1.6), timed(4.0, 3.2)))
    assert found == {"call: tanh, by jax": [0.5, 0.5]}
    assert RATIOS["ratios"](record(1, 2, unit="bytes")) == {}
    only_seconds = {"rows": [{"group": "products", "name": "a", "seconds": {"volta": 3.0, "torch": 2.0}}]}
    assert RATIOS["ratios"](only_seconds) == {"products: a, by torch": [1.5, None]}


@pytest.mark.parametrize(
    "runs, lines",
    [
        ([[1.0, 0.01], [1.04, 0.01]], 0),  # below 5%
        ([[1.0, 0.1], [1.15, 0.1]], 0),  # below the noise of both
        ([[1.0, 0.1], [1.3, 0.1]], 1),
        ([[1.0, None], [1.2, None], [0.9, None], [1.1, None]], 0),  # earlier runs differ as much
        ([[1.0, None], [1.01, None], [1.0, None], [0.8, None]], 1),
    ],
)
def test_what_moved_beyond_noise_is_said(runs: Any, lines: int) -> None:
    found = list(RATIOS["moved"]([{"a": x} for x in runs]))
    assert len(found) == lines and all(line.startswith("a: ") and "noise" in line for line in found)


def test_runs_of_one_machine_are_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main, kept = RATIOS["main"], tmp_path / "ratios.json"
    monkeypatch.setitem(main.__globals__, "KEPT", kept)
    path = tmp_path / "cpu.json"

    def run(seconds: float, *options: str) -> str:
        path.write_text(json.dumps(record(timed(seconds, seconds), timed(1.0, 1.0))))
        monkeypatch.setattr("sys.argv", ["ratios.py", str(path), *options])
        main()
        return capsys.readouterr().out

    assert "the first of this machine" in run(1.0)
    assert "on record" in run(1.0)
    assert "1 -> 2 (+100%" in run(2.0, "--look")
    assert "nothing moved beyond noise" in run(1.01)
    assert [len(runs) for runs in json.loads(kept.read_text()).values()] == [2]
