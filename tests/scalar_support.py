"""Loads scripts/ulp.py, which compiles and measures scalar functions, for the tests of the emitter."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parent.parent / "scripts" / "ulp.py"
_spec = importlib.util.spec_from_file_location("ulp", _PATH)
assert _spec is not None and _spec.loader is not None
ulp = importlib.util.module_from_spec(_spec)
sys.modules["ulp"] = ulp
_spec.loader.exec_module(ulp)
Compiled = ulp.Compiled
