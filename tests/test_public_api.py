"""The public interface is on record: a name that goes, or is called otherwise, is a decision and not an accident."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_public_interface_is_as_recorded() -> None:
    found = runpy.run_path(str(ROOT / "scripts" / "public_api.py"))
    now, record = found["text"]().splitlines(), found["RECORD"].read_text(encoding="utf-8").splitlines()
    gone, new = sorted({*record} - {*now}), sorted({*now} - {*record})
    assert not gone and not new, (
        f"gone or changed: {gone[:20]}, new: {new[:20]}. If that is meant, run scripts/public_api.py, and say in "
        "CHANGELOG.md what changes for users (docs/stability.md)"
    )
