"""The lane of mutants: what it changes, what it runs, and the record of what no test notices (scripts/mutate.py)."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
mutate = importlib.util.module_from_spec(spec)
sys.modules["mutate"] = mutate
spec.loader.exec_module(mutate)

SOURCE = '''
"""Words 1 + 1."""
LIMIT = 4

class Pool:
    """More words: a < b."""
    size: int = 3

    def take(self, n: int, twice=False) -> "int | None":
        assert n < 5, n
        if n <= 0 and not twice or n is None:
            raise ValueError(f"no {n + 1} é")
        self.live += n
        self.note(n)
        self.pairs = zip(n, n, strict=True)
        return n // 2 if n in (7,) else n

    def __repr__(self):
        return "x" * (1 + 2)
'''
WANTED = {
    "Pool: 3 -> 4", "Pool.take: False -> True",
    "Pool.take: n <= 0 and not twice or n is None -> False",
    "Pool.take: n <= 0 and not twice or n is None -> (n is None)",
    "Pool.take: n <= 0 and not twice or n is None -> (n <= 0 and (not twice))",
    "Pool.take: n <= 0 and not twice -> (not twice)", "Pool.take: n <= 0 and not twice -> (n <= 0)",
    "Pool.take: n <= 0 -> (n < 0)", "Pool.take: 0 -> 1", "Pool.take: not twice -> (twice)",
    "Pool.take: n is None -> (n is not None)", "Pool.take: self.live += n -> self.live -= n",
    "Pool.take: self.note(n) -> pass", "Pool.take: n // 2 -> ((n) * (2))", "Pool.take: 2 -> 3",
    "Pool.take: n in (7,) -> (n not in (7,))", "Pool.take: 7 -> 8",
}  # fmt: skip


def test_what_is_changed_and_what_is_left_alone() -> None:
    source = SOURCE.encode()
    found = mutate.mutants_of("a.py", source)
    assert {m.name.removeprefix("a.py ") for m in found} == WANTED
    before = ast.dump(ast.parse(source))
    for mutant in found:
        after = mutant.applied(source)
        assert ast.dump(ast.parse(after)) != before, mutant.name
        assert "é" in after.decode()


def test_equal_changes_of_one_function_have_names_of_their_own() -> None:
    found = mutate.mutants_of("a.py", b"def f(x):\n    return x + 1, x + 1\n")
    assert [m.name for m in found] == [
        "a.py f: x + 1 -> ((x) - (1))", "a.py f: 1 -> 2", "a.py f: x + 1 -> ((x) - (1)) #2", "a.py f: 1 -> 2 #2",
    ]  # fmt: skip
    assert found[0].applied(b"def f(x):\n    return x + 1, x + 1\n") == b"def f(x):\n    return ((x) - (1)), x + 1\n"


def test_every_mutated_file_has_tests_and_every_mutant_a_name() -> None:
    paths = mutate.files()
    assert {path.rsplit("/", 1)[0] for path in paths} >= {"volta/runtime", "volta/io", "volta/xla_like", "volta/emit"}
    for path in paths:
        for stage in mutate.stages(path):
            assert all((ROOT / test).exists() for test in stage), path
    everything = mutate.all_mutants()
    assert len({m.name for m in everything}) == len(everything) > 2000
    for mutant in mutate.chosen(everything, 40, 0):
        ast.parse(mutant.applied((ROOT / mutant.path).read_bytes()))


def test_a_choice_can_be_repeated_and_depends_on_the_seed() -> None:
    everything = mutate.mutants_of("a.py", SOURCE.encode())
    first = mutate.chosen(everything, 6, 1)
    assert first == mutate.chosen(everything[::-1], 6, 1) and len(first) == 6
    assert any(mutate.chosen(everything, 6, seed) != first for seed in (2, 3, 4))
    assert {m.name for m in mutate.chosen(everything, 10**6, 1)} == {m.name for m in everything}


def test_the_record_of_survivors() -> None:
    assert mutate.explained("# words\na.py f: 1 -> 2\n    because\n    of it\n\n") == {
        "a.py f: 1 -> 2": "because of it"
    }
    with pytest.raises(ValueError, match="no reason"):
        mutate.explained("a.py f: 1 -> 2\n")
    with pytest.raises(ValueError, match="twice"):
        mutate.explained("a\n  b\na\n  c\n")


@pytest.mark.slow
def test_the_lane_kills_what_the_tests_notice_and_names_what_they_do_not(tmp_path) -> None:
    for name, text in {
        "scripts/mutate.py": (ROOT / "scripts" / "mutate.py").read_text(),
        "volta/core/recent.py": "def f(x):\n    return x + 1\n\n\ndef unseen(x):\n    return x < 3\n",
        "volta/core/replacing.py": "", "volta/emit/cache.py": "", "volta/emit/private.py": "",
        "tests/core/test_recent.py": "from volta.core.recent import f\n\n\ndef test_f():\n    assert f(1) == 2\n",
        "tests/runtime/test_nothing.py": "def test_nothing():\n    pass\n",
        "tests/survivors.txt": "volta/core/recent.py unseen: 3 -> 4\n    nobody calls it\nx.py f: 1 -> 2\n    was\n",
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        subprocess.run(command, cwd=tmp_path, check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "scripts/mutate.py", "--only", "recent", "--jobs", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "killed volta/core/recent.py f: x + 1 -> ((x) - (1))" in lines
    assert "survived volta/core/recent.py unseen: 3 -> 4" in lines
    assert "4 mutants" in lines[-3] and "1 survived unexplained" in lines[-3]
    assert lines[-2:] == [
        "no test notices: volta/core/recent.py unseen: x < 3 -> (x <= 3)",
        "no longer in the source: x.py f: 1 -> 2",
    ]
