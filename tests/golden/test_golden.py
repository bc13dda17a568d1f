"""What is kept on record: programs, plans and kernels as text, and the bits of results, on every machine.

After a change that is meant: VOLTA_UPDATE_GOLDEN=1 python -m pytest tests/golden, then read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import volta
import volta.numpy as vnp
from tests.golden.golden_programs import PROGRAMS
from volta.numba_cpu.schedule import Schedule
from volta.testing import digest
from volta.xla_like.compile import build_plan

HERE = Path(__file__).resolve().parent
UPDATE = os.environ.get("VOLTA_UPDATE_GOLDEN") == "1"
SHOWN = ("softmax", "layer_norm", "long_sum", "matmul", "movement", "gather_scatter", "mlp_gradient", "recurrent")


def compare(path: Path, text: str) -> None:
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is not on record; see the head of this file"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} changed; see the head of this file"


@pytest.mark.parametrize("name", SHOWN)
def test_programs_plans_and_kernels_as_text(name) -> None:
    """Made for a machine with 512-bit registers, so that the text is the same on every machine."""
    f, args = PROGRAMS[name]
    program = volta.make_jaxpr(f)(*args)
    plan, optimised = build_plan(program, name=name, scheduler=Schedule(vector_bits=512))
    kernels = "\n\n".join(f"{symbol}:\n{text}" for symbol, text in plan.kernel_texts().items())
    plain = re.sub(r"  # .*", "", plan.as_text())  # without the lines of source that buffers come from
    compare(HERE / f"{name}.txt", f"{program}\n\n{optimised}\n\n{plain}\n\n{kernels}\n")


def test_bits_on_record() -> None:
    """One digest a program, the same for every processor and backend, eager and compiled."""
    lines = []
    for name, (f, arguments) in PROGRAMS.items():
        args = [vnp.asarray(a) for a in arguments]
        found = digest(volta.jit(f)(*args))
        assert digest(f(*args)) == found, f"{name}: compiled and eager differ"
        lines.append(f"{name} {found}\n")
    compare(HERE / "digests.txt", "".join(lines))
