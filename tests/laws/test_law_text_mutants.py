"""Every small change of the functions that fix an order, in the texts themselves, is caught by S13's comparison.

`tests/laws/test_law_kernels.py` changes the generator; here the text that it gives is changed before Python runs it.
"""

from __future__ import annotations

import ast
import re
import signal
from contextlib import contextmanager

import numpy as np

import volta.numpy as vnp
from tests.sampling import sampled
from volta.numba_source import stepping
from volta.runtime import plan_cache
from volta.testing import fill
from volta.testing.kernel_kinds import assert_kernels_agree, with_kernels

LONG = np.zeros(15 * 4096, np.float32)  # of 15 blocks four wait at the end
LONG[::4096] = 1 + abs(fill("normal", (15,), seed=7))  # whose sum is another in any other order that is tried
SHORT = fill("ladder", (130,), seed=1)

HARMLESS = ("while top >= 1:",)
"""One step more of finish_sum, at top 1, adds to what lies in front of the tree, which nobody reads."""

PROGRAMS = {
    "fold_sum": (vnp.sum, SHORT),
    "push_sum": (vnp.sum, LONG),
    "finish_sum": (vnp.sum, LONG),
    "before": (lambda x: vnp.sort(x, 1), fill("specials", (2, 40))),
}

SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.NotEq: ast.Eq, ast.Eq: ast.NotEq, ast.RShift: ast.LShift,
    ast.FloorDiv: ast.Mult, ast.Mult: ast.FloorDiv,
}  # fmt: skip


def changed(function: str) -> list[str]:
    """The text of a function with one operator, comparison or integer changed, in each place."""

    def places(tree: ast.AST) -> list[ast.AST]:
        return [x for x in ast.walk(tree) if isinstance(x, (ast.BinOp, ast.AugAssign, ast.Compare, ast.Constant))]

    found = []
    for number in range(len(places(ast.parse(function)))):
        tree = ast.parse(function)
        x = places(tree)[number]
        if isinstance(x, ast.Compare):
            x.ops = [SWAPPED.get(type(x.ops[0]), type(x.ops[0]))()]
        elif isinstance(x, ast.Constant):
            x.value = x.value + 1 if type(x.value) is int else x.value
        else:
            x.op = SWAPPED.get(type(x.op), type(x.op))()
        found.append(ast.unparse(tree))
    return [text for text in dict.fromkeys(found) if text != ast.unparse(ast.parse(function))]


class Rewritten:
    """Texts as Python is about to run them, one function of them exchanged."""

    def __init__(self, name: str, function: str | None = None, execute=stepping.execute) -> None:
        self.pattern = re.compile(rf"@njit\ndef {name}\w*\(.*?(?=\n@njit|\Z)", re.DOTALL)
        self.function, self.seen = function, ""
        self.execute = execute

    def __call__(self, text, name, names):
        match = self.pattern.search(text)
        if match:
            self.seen = match[0]
            text = text if self.function is None else text.replace(match[0], f"{self.function}\n")
        return self.execute(text, name, names)


@contextmanager
def ended():
    """A loop that no longer ends is noticed too."""

    def stop(*_) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@sampled("name", list(PROGRAMS), quick=("before",))
def test_a_changed_text_is_caught(name, monkeypatch) -> None:
    f, x = PROGRAMS[name]
    plan_cache.PLAN_CACHE.clear()
    monkeypatch.setattr(stepping, "execute", original := Rewritten(name))
    assert_kernels_agree(f, x, kinds=["python"])
    want, survivors = with_kernels("llvm", f, x), []
    for mutant in changed(original.seen):
        if any(x in mutant for x in HARMLESS):
            continue
        plan_cache.PLAN_CACHE.clear()
        monkeypatch.setattr(stepping, "execute", Rewritten(name, mutant, original.execute))
        try:
            with ended():
                found = with_kernels("python", f, x)
        except Exception:  # noqa: BLE001 - whatever it is, it is noticed
            continue
        if np.asarray(found).tobytes() == np.asarray(want).tobytes():
            survivors.append(mutant)
    plan_cache.PLAN_CACHE.clear()
    assert not survivors, "\n\n".join(survivors)
