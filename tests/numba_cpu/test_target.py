"""What is asked of LLVM: code that its passes make invalid is an error, where it would end the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from volta.numba_cpu import target

PARTS = """
define void @f(ptr %x, ptr %y) {
  %slot = alloca [32 x i8], align 64
  %high = load <2 x double>, ptr %x, align 8
  %at = getelementptr i8, ptr %slot, i64 16
  store <2 x double> %high, ptr %at, align 8
  %from = getelementptr i8, ptr %x, i64 16
  %other = load <2 x double>, ptr %from, align 8
  %low = fadd <2 x double> %other, %high
  store <2 x double> %low, ptr %slot, align 8
  %all = load <4 x double>, ptr %slot, align 8
  store <4 x double> %all, ptr %y, align 8
  ret void
}
"""
"""Valid, of which LLVM 22's SROA makes what is not: `%all` is joined of both parts where the high one was stored."""

CHILD = f"""
import gc
from llvmlite.binding import ModuleRef
from volta.numba_cpu import target

def modules():
    return sum(isinstance(x, ModuleRef) for x in gc.get_objects())

before = modules()
try:
    target.compile_object({PARTS!r})
except RuntimeError as error:
    assert "invalid code" in str(error) and "dominate" in str(error), error
    assert modules() == before, "the error holds the module, and LLVM does not bear one that outlives its context"
print("goes on")
"""


@pytest.mark.turns(6)
def test_invalid_code_of_llvms_passes_does_not_end_the_process() -> None:
    """An error, or code where LLVM has no such fault."""
    found = subprocess.run([sys.executable, "-c", CHILD], env=dict(os.environ), capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "goes on\n"), found.stderr[-2000:]


def test_memory_whose_lifetime_starts_is_joined_in_order() -> None:
    """As functions say of memory of their own (`volta.numba_cpu.small_loop_code`)."""
    start = "call void @llvm.lifetime.start.p0(ptr %slot)"
    text = PARTS.replace("align 64\n", f"align 64\n  {start}\n") + "declare void @llvm.lifetime.start.p0(ptr)\n"
    lines = [line.strip() for line in target.optimised_ir(text).splitlines()]
    computed = next(i for i, line in enumerate(lines) if line.startswith("%low ="))
    assert not any("alloca" in line for line in lines)  # it is in registers
    assert all(i >= computed for i, line in enumerate(lines) if "%low" in line)
