"""Names mean one thing each, as docs/layout.md lists them, and a plan says nothing that is one backend's."""

import ast
import re
from pathlib import Path

import attrs
import pytest

from volta.core.policy import DeterminismLevel
from volta.numba_cpu import schedule as cpu
from volta.numba_cuda import schedule as cuda
from volta.xla_like.kernels import KernelCall

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "volta").rglob("*.py"))


def defined(path: Path, word: str) -> set[str]:
    """Classes and names that a module defines; none of one that does not even contain the word."""
    text, found = path.read_text(), set()
    for x in ast.parse(text if word in text else "").body:
        if isinstance(x, ast.ClassDef):
            found.add(x.name)
        elif isinstance(x, ast.Assign):
            found |= {t.id for t in x.targets if isinstance(t, ast.Name)}
        elif isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
            found.add(x.target.id)
    return found


@pytest.mark.parametrize("name, where", [("Place", "xla_like/placing.py"), ("Operand", "xla_like/nodes.py")])
def test_a_word_of_the_glossary_is_defined_once(name, where):
    assert [str(p.relative_to(ROOT / "volta")) for p in SOURCES if name in defined(p, name)] == [where]


@pytest.mark.parametrize("folder", ["numba_cuda", "numba_cpu", "numba_source", "emit", "xla_like"])
def test_kernels_are_described_in_the_words_of_the_field(folder):
    """Iterations, producer warps, double buffering, serial split-K; nothing that a reader of CUTLASS must decode."""
    own = re.compile(
        r"\b(to and fro|in turns?|takes? turns|taking turns|turn by turn|bring(s|ers|ing)?|feeders?|teams?|"
        r"walk(s|ed|ing)? (along|over))\b",
        re.IGNORECASE,
    )
    bad = {}
    for path in (ROOT / "volta" / folder).rglob("*.py"):
        lines = [line.strip() for line in path.read_text().splitlines() if own.search(line)]
        lines = [line for line in lines if "cannot bring" not in line and "bring them to the end" not in line]
        bad |= {str(path): lines} if lines else {}
    assert not bad


def test_a_plan_belongs_to_no_backend():
    """How a loop is cut into tasks, and of how many columns, is the CPU's schedule's."""
    assert "tasks" not in {field.name for field in attrs.fields(KernelCall)}
    for path in (ROOT / "volta" / "xla_like").rglob("*.py"):
        assert not re.search(r"\b(MAP_CHUNK|COLUMNS|vector_bits|scratch_bytes)\b", path.read_text()), path


def test_every_class_of_calls_has_one_handler_on_each_backend():
    strict = {name for name, x in cuda.HANDLERS.items() if x.level is DeterminismLevel.STRICT}
    assert set(cpu.HANDLERS) == strict - {"move"}  # to the host's memory and back: a CPU's arrays are there
    names = [name for handler in cpu.HANDLERS.values() for name in handler.kernels]
    assert len(set(names)) == len(set(cpu.KERNELS)) and all(cpu.KERNELS[name] for name in names)
