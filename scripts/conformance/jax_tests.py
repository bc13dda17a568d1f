"""JAX's own tests, run on Volta: ``python scripts/conformance/jax_tests.py CHECKOUT [lax_numpy_test …]``.

CHECKOUT is a checkout of jax-ml/jax (its folders ``tests``, ``jax/_src`` and ``jax/example_libraries`` are read);
absl-py, ml_dtypes and opt_einsum must be installed. ``import jax`` means Volta in the tests, and JAX's internals mean
what ``jax_internals.py`` says. Prints how many cases of each module pass, are skipped and fail, and from what causes;
of each test that fails the first words. ``--json FILE`` keeps every case. ``--x64`` runs as with JAX_ENABLE_X64,
``--cases N`` draws N cases of each family of arguments (JAX's default is 10), ``--only WORD`` takes cases named so.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

MODULES = """lax_numpy_test lax_numpy_einsum_test lax_numpy_indexing_test lax_numpy_operators_test
    lax_numpy_reducers_test lax_numpy_setops_test lax_numpy_ufuncs_test lax_numpy_vectorize_test lax_test lax_vmap_test
    lax_vmap_op_test lax_autodiff_test lax_control_flow_test lax_scipy_test lax_scipy_special_functions_test
    lax_scipy_sparse_test linalg_test fft_test nn_test random_lax_test random_test scipy_fft_test
    scipy_interpolate_test scipy_ndimage_test scipy_optimize_test scipy_signal_test scipy_spatial_test
    scipy_stats_test tree_util_test api_test batching_test dtypes_test custom_api_test custom_root_test
    custom_linear_solve_test image_test ode_test jet_test polynomial_test stax_test svd_test eigh_test array_test"""

CAUSES = {
    "internals": r"one of JAX's internals|jax\.(_src|interpreters|extend)|'Absent'|stablehlo|has no attribute '_",
    "time": r"^OutOfTime",
    "name": r"under volta\.as_jax|^AttributeError|^ImportError|^ModuleNotFoundError",
    "keyword": r"unexpected keyword argument|positional arguments? but|required positional",
    "raises": r"AssertionError.* not raised",
    "counts": r"^AssertionError: \d+ != \d+",
    "message": r"AssertionError: \"(.|\n)*does not match \"",
    "warning": r"Expected warning not found",
    "shape": r"shapes? mismatch|mismatch in shape|AssertionError: (Tuples|\(.*\) != \()",
    "width": r"AssertionError: dtype\('([a-z]+)\d+'\) != dtype\('\1\d+'\)",
    "dtype": r"AssertionError: (dtype\(|key<|<class).* != |AssertionError: .*dtype",
    "number": r"Not equal to tolerance|Arrays are not (almost )?equal|Mismatched elements|not close",
    "assertion": r"^AssertionError",
    "refused": r"",
}
"""What a failure is taken for: the first cause whose pattern is in the error's text. JAX's internals, which Volta does
not have; a name or a keyword that is not there; an error that JAX raises and Volta does not, or in other words; a
warning; how often something is compiled; a dtype that is wider or narrower, as 64 bits are a switch in JAX; the rest is
refused."""


class OutOfTime(BaseException):
    """A case took too long."""


class Outcomes(unittest.TestResult):
    """Writes down what became of each case, as it comes."""

    def __init__(self, file: Any, limit: int):
        super().__init__()
        self.file, self.limit = file, limit

    def _write(self, **entry: Any) -> None:
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.became: tuple[str, str] = ("passed", "")
        self.began = time.monotonic()
        self._write(case=test.id(), outcome="begun", text="")
        signal.alarm(self.limit)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        took = round(time.monotonic() - self.began, 2)
        self._write(case=test.id(), outcome=self.became[0], text=self.became[1], seconds=took)
        super().stopTest(test)

    def addFailure(self, test: Any, err: Any) -> None:
        self.became = "failed", f"{err[0].__name__}: {err[1]}"[:600]

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if self.became[0] == "passed":
            self.became = "skipped", reason[:200]


def _cases(suite: Any) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _cases(test)
        else:
            yield test


def _out_of_time(*args: Any) -> None:
    raise OutOfTime("the case took too long")


def child(checkout: Path, module: str, file: Path, limit: int, only: str) -> None:
    """Run the cases of one module that the file does not have yet."""
    sys.path.insert(0, str(ROOT))
    sys.path.insert(0, str(Path(__file__).parent))
    stand_ins = importlib.import_module("jax_internals")
    stand_ins.install(checkout)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _out_of_time)
    spec = importlib.util.spec_from_file_location(module, checkout / "tests" / f"{module}.py")
    assert spec is not None and spec.loader is not None
    tests = sys.modules[module] = importlib.util.module_from_spec(spec)
    stand_ins.Missing.importing = True
    spec.loader.exec_module(tests)
    stand_ins.Missing.importing = False
    done = {entry["case"] for entry in _entries(file)}
    with file.open("a", encoding="utf-8") as out:
        outcomes = Outcomes(out, limit)
        for test in _cases(unittest.defaultTestLoader.loadTestsFromModule(tests)):
            if test.id() not in done and only in test.id():
                test.run(outcomes)


def _entries(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def run(module: str, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What became of each case of a module. A case that ends the process has died; the others are run by a next one."""
    environment = {**os.environ, "JAX_NUM_GENERATED_CASES": str(given.cases)}
    environment["JAX_ENABLE_X64"] = "1" if given.x64 else "0"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.jsonl"
        command = [sys.executable, __file__, str(given.checkout.resolve()), module, "--child", str(file)]
        command += ["--limit", str(given.limit), "--only", given.only]
        while True:
            before = len(_entries(file))
            ended = subprocess.run(
                command, env=environment, cwd=folder, check=False, text=True, stderr=subprocess.PIPE, stdout=-3
            )
            entries = _entries(file)
            if not ended.returncode or len(entries) == before:
                break
    found = {entry["case"]: entry for entry in entries}
    for entry in found.values():
        if entry["outcome"] == "begun":
            entry |= {"outcome": "failed", "text": "died: the process ended"}
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["?"])[-1]
        found[module] = {"case": module, "outcome": "failed", "text": f"not imported: {last}"}
    return found


def cause(text: str) -> str:
    return next(name for name, pattern in CAUSES.items() if re.search(pattern, text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("modules", nargs="*", default=MODULES.split())
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=int, default=60, help="seconds for a case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.checkout, given.modules[0], given.child, given.limit, given.only)
        return 0
    everything: dict[str, Any] = {}
    total: collections.Counter[str] = collections.Counter()
    causes: collections.Counter[str] = collections.Counter()
    for module in given.modules:
        found = run(module, given)
        for entry in found.values():
            if entry["outcome"] == "failed":
                entry["cause"] = cause(entry["text"])
        counts = collections.Counter(entry["outcome"] for entry in found.values())
        why = collections.Counter(entry["cause"] for entry in found.values() if "cause" in entry)
        total, causes = total + counts, causes + why
        everything[module] = {"counts": counts, "causes": why, "cases": list(found.values())}
        print(f"{module:34} {_text(counts)}    {_text(why)}", flush=True)
        for entry in found.values():
            if "cause" in entry:
                first = entry["text"].strip().replace("\n", " ")[:200]
                print(f"    {entry['case'].removeprefix(module + '.')} [{entry['cause']}] {first}")
        if given.json:
            given.json.write_text(json.dumps(everything, indent=1) + "\n")
    print(f"in all: {sum(total.values())} cases, {_text(total)}; failed by cause: {_text(causes)}")
    return 0


def _text(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
