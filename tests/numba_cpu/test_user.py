"""What the entries of users' kernels take for granted about Numba, and what they do with it."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba.core import registry, types

import volta
from tests.user_kernels import move
from volta.emit.loops import load_args
from volta.emit.user_args import UserSpec
from volta.emit.values import item_size, scalar_type
from volta.numba_cpu import user, user_entry
from volta.numba_cpu.kernel_abi import new_kernel


def test_an_array_is_passed_as_numba_has_it() -> None:
    """Fields in this order, one word each but for those of the shape and the strides."""
    manager = registry.cpu_target.target_context.data_model_manager
    for rank in range(4):
        model = manager[types.Array(types.float32, rank, "C", readonly=True)]
        fields = ["meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides"]
        assert [model.get_field_position(name) for name in fields] == list(range(7))
        passed = model.get_argument_type()
        assert [len(passed[k]) for k in (5, 6)] == [rank, rank]


def test_numbers_are_passed_as_they_lie_in_memory() -> None:
    manager = registry.cpu_target.target_context.data_model_manager
    for dtype in "bool int8 uint16 int32 uint64 float32 float64".split():
        passed = manager[numba.from_dtype(np.dtype(dtype))].get_argument_type()
        kept = ir.IntType(8) if dtype == "bool" else scalar_type(dtype)
        assert str(passed) == str(kept) and item_size(dtype) == np.dtype(dtype).itemsize


def test_an_entry_is_one_function_that_knows_ranks_only() -> None:
    module = ir.Module()
    spec = UserSpec(move._record, (("float32", 1), ("float64", 0), ("int32", 0), ("float32", 1)), 2, 2)
    text = str(user_entry.build_user(module, "entry", spec))
    assert "float*" not in text and text.count("call i32 %") == 1
    assert [f.name for f in module.functions] == ["entry", "llvm.memset.p0.i64"]
    function, b = new_kernel(ir.Module(), "same")
    assert len(load_args(b, function.args[0], user_entry.HEADER)) == 3


def test_a_kernel_is_compiled_once_for_each_kind_of_operands() -> None:
    calls = []

    def results(x):
        calls.append(x)
        return x

    @volta.kernel(out=results)
    @numba.njit
    def same(x, out):
        for i in range(x.size):
            out[i] = x[i]

    for n in (3, 4, 3):
        same(np.ones(n, np.float32))
        volta.jit(lambda x: same(x) + 1)(np.ones(n, np.float32))
    assert len(user._compiled[same._record]) == 1
    assert [x.shape for x in calls] == [(3,), (4,)]


MODULE = """
import math
import numba, numpy as np, volta
K = 2.5
@numba.njit
def helper(x):
    return math.exp(x) * K
@volta.kernel(out=lambda x: x)
@numba.njit
def kept(x, out):
    t = np.empty(x.size)
    for i in range(x.size):
        if x[i] > 10:
            raise ValueError("large", i)
        t[i] = helper(x[i])
    for i in range(x.size):
        out[i] = t[i]
"""

MAIN = """
import sys
import numpy as np, volta
import module_of_a_test as m
from volta.numba_cpu import user
m.K = float(sys.argv[1])
compiled, compile_it = [], user._Compiler.compile
user._Compiler.compile = lambda *args: compiled.append(1) or compile_it(*args)
y = np.asarray(m.kept(np.float64([0, 1])))
try:
    m.kept(np.float64([0, 11]))
except volta.errors.KernelError as error:
    print(len(compiled), y.tolist(), repr(error.__cause__))
"""


@pytest.mark.slow
def test_another_process_finds_the_function_on_disk_unless_a_global_has_changed(tmp_path) -> None:
    """One of a helper's, in a module; what it raises still comes with its arguments."""
    (tmp_path / "module_of_a_test.py").write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), str(Path(volta.__file__).parents[1])])
    environment = {**os.environ, "VOLTA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}

    def run(k: str) -> list[str]:
        command = [sys.executable, "-c", MAIN, k]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split(" ", 1)

    first, second, changed, again = run("2.5"), run("2.5"), run("3.5"), run("3.5")
    assert [first[0], second[0], changed[0], again[0]] == ["1", "0", "1", "0"]
    assert first[1] == second[1] and first[1].startswith("[2.5, ") and "ValueError('large', 1)" in first[1]
    assert changed[1] == again[1] and changed[1].startswith("[3.5, ")
