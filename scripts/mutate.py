"""Mutants of the layers that keep state: a small change is made to a copy of the source, and some test must notice.

    python scripts/mutate.py                          150 mutants, others each week
    python scripts/mutate.py --count 40 --seed 7 --only volta/io --jobs 2
    python scripts/mutate.py --list                   what there is, without running anything

The changes are chosen by a hash of what they are and the seed, so a run can be repeated anywhere. Those that no test
notices, and need not, stand in tests/survivors.txt with the reason; any other survivor is a failure, and so is one that
stands there although it is noticed after all, or gone.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import attrs

ROOT = Path(__file__).resolve().parent.parent
SURVIVORS = ROOT / "tests" / "survivors.txt"

PLANS = ("tests/runtime/test_plans.py", "tests/golden", "tests/laws/test_law_programs.py")
LOOPS = ("tests/api/test_api_loops.py", "tests/laws/test_law_loops.py")
DEVICES = ("tests/numba_cuda/test_runtime.py", "tests/numba_cuda/test_driver_errors.py")

TESTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "volta/core/recent.py": (("tests/core",), ("tests/runtime",)),
    "volta/core/replacing.py": (("tests/io",), ("tests/numba_cpu/test_cache.py", "tests/emit")),
    "volta/emit/cache.py": (("tests/numba_cpu/test_cache.py", "tests/emit"), ("tests/numba_cpu/test_unit.py",)),
    "volta/emit/private.py": (("tests/emit",), ("tests/numba_cpu/test_cache.py",)),
    "volta/io": (("tests/io",),),
    "volta/runtime/device_executable.py": (DEVICES, ("tests/numba_cuda/test_streams.py",)),
    "volta/runtime/devices.py": (
        DEVICES,
        ("tests/numba_cuda/test_streams.py", "tests/numba_cuda/test_several_gpus.py"),
    ),
    "volta/runtime": (("tests/runtime",), ("tests/api", "tests/numpy/test_vnp_habits.py"), DEVICES),
    "volta/xla_like/attention": (
        ("tests/numba_cpu/test_attention.py", "tests/nn"),
        ("tests/laws/test_law_attention.py",),
    ),
    "volta/numba_cpu/dot_schedule.py": (("tests/numba_cpu/test_dot.py",), ("tests/xla_like",)),
    "volta/numba_cuda/products/epilogues.py": (
        ("tests/numba_cuda/test_epilogue_plans.py",),
        ("tests/numba_cuda/test_epilogues.py", "tests/golden"),
    ),
    "volta/xla_like/control": (LOOPS, ("tests/golden", "tests/runtime")),
    "volta/xla_like/precisions.py": (("tests/runtime/test_levels.py",), ("tests/xla_like", "tests/golden")),
    "volta/xla_like": (("tests/xla_like",), PLANS, (*LOOPS, "tests/ops/test_op_meaning.py"), ("tests/numba_cpu",)),
}
"""Whose tests a mutant must pass, in stages, the nearest first; the longest prefix of its path counts."""

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//", ast.LShift: ">>", ast.RShift: "<<",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_SILENT = ("__repr__", "__str__", "as_text", "text", "memory_report")
"""Functions whose result people read: a change of a word there breaks nothing."""


@attrs.frozen
class Mutant:
    """A place in a file, and what stands there instead. ``name`` says both without line numbers."""

    path: str
    name: str
    start: int  # in the file's bytes
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class _Finder(ast.NodeVisitor):
    """Collects the mutants of one file, in the order of its text."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.where: list[str] = []
        self.found: list[Mutant] = []
        self.seen: Counter[str] = Counter()

    def _add(self, node: ast.expr | ast.stmt, text: str) -> None:
        start = self.lines[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = self.lines[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self.source[start:end].decode().split())
        name = f"{self.path} {'.'.join(self.where) or 'module'}: {before[:90]} -> {' '.join(text.split())[:90]}"
        self.seen[name] += 1
        if self.seen[name] > 1:
            name += f" #{self.seen[name]}"
        self.found.append(Mutant(self.path, name, start, end, text))

    def _of(self, node: ast.AST) -> str:
        return ast.unparse(node)

    # What is no behaviour: types, texts, what mypy is told.

    def visit_Assign(self, node: ast.Assign) -> None:
        if self.where or not isinstance(node.value, ast.Constant):  # a module's numbers are somebody's choice
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: said where lengths are equal
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in _SILENT:
            return
        self.where.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.where.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.where.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.where.pop()

    # What is mutated.

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            left, right = self._of(node.left), self._of(node.comparators[0])
            self._add(node, f"({left} {_COMPARED[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        )
        if type(node.op) in _COMPUTED and not text:
            other = _COMPUTED[type(node.op)]
            self._add(node, f"(({self._of(node.left)}) {other} ({self._of(node.right)}))")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _COMPUTED:
            self._add(node, f"{self._of(node.target)} {_COMPUTED[type(node.op)]}= {self._of(node.value)}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for k in range(len(node.values)):  # without one of the conditions
            rest = [v for i, v in enumerate(node.values) if i != k]
            kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            self._add(node, f"({self._of(kept)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"({self._of(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in self._of(node.test):
            self._add(node.test, "False")
            if node.orelse:
                self._add(node.test, "True")
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add(node, "pass")
        if not isinstance(node.value, ast.Constant):  # texts that say what something is
            self.generic_visit(node)


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def files() -> list[str]:
    """The files that are mutated."""
    found = {
        ROOT / "volta" / name for name in ("core/recent.py", "core/replacing.py", "emit/cache.py", "emit/private.py")
    }
    for layer in ("runtime", "io", "xla_like"):
        found.update((ROOT / "volta" / layer).glob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def all_mutants() -> list[Mutant]:
    return [mutant for path in files() for mutant in mutants_of(path, (ROOT / path).read_bytes())]


def stages(path: str) -> tuple[tuple[str, ...], ...]:
    """The tests of a file: those that have its name, then the others."""
    same = (ROOT / "tests").rglob(f"test_{Path(path).stem}*.py")
    nearest = tuple(sorted(found.relative_to(ROOT).as_posix() for found in same))
    others = TESTS[max((prefix for prefix in TESTS if path.startswith(prefix)), key=len)]
    return (nearest, *others) if nearest and nearest != others[0] else others


def chosen(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    def order(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}\0{mutant.name}".encode()).hexdigest()

    return sorted(sorted(mutants, key=order)[:count], key=lambda m: (m.path, m.start))


def explained(text: str) -> dict[str, str]:
    """Survivors with their reasons: a line for the mutant, indented lines for why no test needs to notice it."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            name = line.strip()
            if name in found:
                raise ValueError(f"this survivor is explained twice: {name}")
            found[name] = ""
        else:
            found[name] = f"{found[name]} {line.strip()}".strip()
    if bare := [name for name, reason in found.items() if not reason]:
        raise ValueError(f"these survivors have no reason: {bare}")
    return found


class Workshop:
    """Copies of the checkout in which mutants are made and tested, one for each job."""

    def __init__(self, folder: Path, jobs: int) -> None:
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        self.copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            copy = folder / f"copy{job}"
            for name in tracked.decode().split("\0"):
                if name and (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, copy / name)
            self.copies.put(copy)

    def passes(self, copy: Path, tests: tuple[str, ...], limit: float) -> bool:
        """Whether the tests pass; if they take too long they do not."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-n", "0"]
        env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"VOLTA_HYPOTHESIS_PROFILE": "ci", "VOLTA_TEST_CACHE": str(copy / ".cache"), "VOLTA_TEST_TURN": "all"}
        with (copy / ".said").open("wb") as said, subprocess.Popen(
            [*command, *tests], cwd=copy, env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        ) as process:  # fmt: skip
            try:
                return process.wait(limit) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return False

    def survives(self, mutant: Mutant, limits: dict[tuple[str, ...], float]) -> bool:
        copy = self.copies.get()
        path = copy / mutant.path
        source = path.read_bytes()
        try:
            path.write_bytes(mutant.applied(source))
            if mutant.path == "volta/emit/cache.py":  # what another mutant of it kept is not to be trusted
                shutil.rmtree(copy / ".cache", ignore_errors=True)
            return all(self.passes(copy, tests, limits[tests]) for tests in stages(mutant.path))
        finally:
            path.write_bytes(source)
            self.copies.put(copy)

    def limits(self, paths: set[str]) -> dict[tuple[str, ...], float]:
        """How long each stage may take: four times what it takes with nothing changed, when it must pass."""
        copy = self.copies.get()
        found = {}
        for tests in dict.fromkeys(stage for path in sorted(paths) for stage in stages(path)):
            start = time.monotonic()
            if not self.passes(copy, tests, 1200):
                said = (copy / ".said").read_text(errors="replace")
                sys.exit(f"{said[-4000:]}\nwith nothing changed these tests fail: {' '.join(tests)}")
            found[tests] = 60 + 4 * (time.monotonic() - start)
        self.copies.put(copy)
        return found


def run(picked: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant, and whether it survived."""
    with tempfile.TemporaryDirectory(prefix="volta-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        workshop = Workshop(Path(folder), jobs)
        limits = workshop.limits({mutant.path for mutant in picked})
        tasks = [pool.submit(workshop.survives, mutant, limits) for mutant in picked]
        yield from ((mutant, task.result()) for mutant, task in zip(picked, tasks, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=datetime.date.today().isocalendar().week)
    parser.add_argument("--only", default="", help="part of a mutant's name")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    everything = all_mutants()
    picked = chosen([m for m in everything if options.only in m.name], options.count, options.seed)
    if options.list:
        print(*(m.name for m in picked), sep="\n")
        return 0
    known = explained(SURVIVORS.read_text())
    unexplained, noticed = [], []
    for mutant, survived in run(picked, options.jobs):
        print("survived" if survived else "killed", mutant.name, flush=True)
        if survived and mutant.name not in known:
            unexplained.append(mutant.name)
        if not survived and mutant.name in known:
            noticed.append(mutant.name)
    print(f"{len(picked)} mutants, seed {options.seed}: {len(unexplained)} survived unexplained")
    for name in unexplained:
        print("no test notices:", name)
    for name in noticed:
        print("noticed, though tests/survivors.txt says otherwise:", name)
    gone = sorted(set(known) - {m.name for m in everything})
    for name in gone:
        print("no longer in the source:", name)
    return int(bool(unexplained or noticed or gone))


if __name__ == "__main__":
    sys.exit(main())
