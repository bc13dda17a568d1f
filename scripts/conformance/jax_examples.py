"""Runs the examples in the docstrings of the installed JAX's public functions with Volta's functions.

    JAX_PLATFORMS=cpu python scripts/conformance/jax_examples.py [--json FILE] [numpy lax random …]

Only the texts come from JAX; ``import jax`` in an example means ``import volta``. Numbers may differ by 1e-4. Examples
that lay out devices are written for eight and get eight simulated workers; JAX fails these on one CPU. Prints how
many functions pass, and of each of the others why not: it is not there (with Volta's hint), or what ``declared.py``
says. Exits 0 if there is a reason for each.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from declared import JAX_EXAMPLES, reason

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

AREAS = """jax numpy numpy.linalg numpy.fft lax random nn nn.initializers tree tree_util scipy.special scipy.linalg
    debug errors"""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
EIGHT_DEVICES = re.compile(r"jax\.devices\(\)|jax\.device_count\(\)|make_mesh\(")
SHORT = {"jnp": "numpy", "lax": "lax", "random": "random"}


def _parts(text: str) -> tuple[str, list[float]]:
    """A text without its white space and with # for each number, and the numbers."""
    text = re.sub(r"\s+", " ", text)
    return re.sub(r"\s+", "", NUMBER.sub(" # ", text)), [float(number) for number in NUMBER.findall(text)]


def _bases(error: str) -> list[str]:
    """The names of what an error of Volta's is as well: who expects a ValueError catches a ShapeError."""
    found = getattr(importlib.import_module("volta.errors"), error, None)
    return [base.__name__ for base in getattr(found, "__mro__", ())]


class Checker(doctest.OutputChecker):
    """Equal texts, in which numbers may differ a little."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        if super().check_output(want, got, flags):
            return True
        if want.strip() in _bases(got.strip()):
            return True
        (left, wanted), (right, found) = _parts(want), _parts(got)
        pairs = zip(wanted, found, strict=left == right)
        near = (a == b or a != a and b != b or abs(a - b) <= 1e-4 * (1 + abs(a)) for a, b in pairs)
        return left == right and all(near)


def examples(area: str) -> dict[str, str]:
    """The docstrings with examples of an area's functions, by name."""
    source = importlib.import_module("jax" if area == "jax" else f"jax.{area}")
    found: dict[str, str] = {}
    seen: set[int] = set()
    for name in sorted(dir(source)):
        thing = getattr(source, name)
        if name.startswith("_") or inspect.ismodule(thing) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if ">>>" in (text := getattr(thing, "__doc__", None) or ""):
            found[f"{area}.{name}"] = re.sub(r"(>>> (?:from|import) )jax\b", r"\1volta", text)
    return found


def passes(name: str, text: str) -> bool | None:
    """Whether all examples of a docstring pass; None where it is no doctest."""
    volta = importlib.import_module("volta")
    area = name.rpartition(".")[0]
    own = volta if area == "jax" else importlib.import_module(f"volta.{area}")
    names: dict[str, Any] = {"jax": volta, "np": np, **{n: getattr(own, n) for n in dir(own) if n[0] != "_"}}
    names.update({short: importlib.import_module(f"volta.{module}") for short, module in SHORT.items()})
    try:
        test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    except ValueError:
        return None
    runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=FLAGS)
    with eight_workers() if EIGHT_DEVICES.search(text) else contextlib.nullcontext():
        return runner.run(test, out=lambda said: None).failed == 0


@contextlib.contextmanager
def eight_workers() -> Iterator[None]:
    distributed = importlib.import_module("volta.distributed")
    distributed.initialize(8, engine="simulated")
    try:
        yield
    finally:
        distributed.shutdown()


def why(name: str) -> str | None:
    """Why a function's examples do not pass; None where nobody has said."""
    area, _, last = name.rpartition(".")
    own = "volta" if area == "jax" else f"volta.{area}"
    if not hasattr(importlib.import_module(own), last):
        return f"not there: {importlib.import_module('volta.core.absent').way(own, last)}"
    return reason(JAX_EXAMPLES, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", default=AREAS.split())
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    failed, total = [], 0
    for area in given.areas:
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):  # some write files where they run
            outcomes = {name: passes(name, text) for name, text in examples(area).items()}
        known = {name: o for name, o in outcomes.items() if o is not None}
        total += len(known)
        failed += [name for name, o in known.items() if not o]
        print(f"{area:16} {sum(map(bool, known.values())):4} of {len(known):4}", flush=True)
    reasons = {name: why(name) for name in failed}
    for name, text in reasons.items():
        print(f"{name}: {text or 'NOT DECLARED'}")
    absent = sum(text is not None and text.startswith("not there") for text in reasons.values())
    print(f"JAX's examples: {total - len(failed)} of {total} functions pass, {absent} are not there")
    if given.json is not None:
        given.json.write_text(
            json.dumps({"passed": total - len(failed), "functions": total, "failed": failed}, indent=1)
        )
    return any(text is None for text in reasons.values())


if __name__ == "__main__":
    sys.exit(main())
