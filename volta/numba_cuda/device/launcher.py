"""One native call that launches a plan's kernels: each by itself, or as a graph.

The function is compiled once a process. It takes the address of a block of words: 0 how many kernels (0: the graph),
1 the driver's function that launches, 2 stream, 3 cuCtxSetCurrent, 4 context, 5 the graph; then for each kernel its
function, blocks, threads, bytes of shared memory and the address of its params.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from volta.emit.builtins import METH_NOARGS, MethodDef, new_function

HEADER, ROW = 6, 5

_IR = r"""
define ptr @volta_cuda_launch(ptr %self, ptr %nothing) {
  %d = call ptr inttoptr (i64 PyLong_AsVoidPtr to ptr)(ptr %self)
  %state = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  %set_at = getelementptr i64, ptr %d, i64 3
  %set = load ptr, ptr %set_at
  %context_at = getelementptr i64, ptr %d, i64 4
  %context = load ptr, ptr %context_at
  %entered = call i32 %set(ptr %context)
  %in = icmp eq i32 %entered, 0
  br i1 %in, label %choose, label %out
choose:
  %count = load i64, ptr %d
  %function_at = getelementptr i64, ptr %d, i64 1
  %function = load ptr, ptr %function_at
  %stream_at = getelementptr i64, ptr %d, i64 2
  %stream = load ptr, ptr %stream_at
  %whole = icmp eq i64 %count, 0
  br i1 %whole, label %graph, label %kernel
graph:
  %graph_at = getelementptr i64, ptr %d, i64 5
  %exec = load ptr, ptr %graph_at
  %launched = call i32 %function(ptr %exec, ptr %stream)
  br label %out
kernel:
  %i = phi i64 [ 0, %choose ], [ %i1, %next ]
  %start = mul i64 %i, 5
  %word = add i64 %start, 6
  %row = getelementptr i64, ptr %d, i64 %word
  %kernel_function = load ptr, ptr %row
  %grid_at = getelementptr i64, ptr %row, i64 1
  %grid = load i32, ptr %grid_at
  %threads_at = getelementptr i64, ptr %row, i64 2
  %threads = load i32, ptr %threads_at
  %shared_at = getelementptr i64, ptr %row, i64 3
  %shared = load i32, ptr %shared_at
  %params_at = getelementptr i64, ptr %row, i64 4
  %params = load ptr, ptr %params_at
  %code = call i32 %function(ptr %kernel_function, i32 %grid, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
                             ptr %stream, ptr %params, ptr null)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %next, label %out
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %kernel, label %out
out:
  %status = phi i32 [ %entered, %0 ], [ %launched, %graph ], [ %code, %kernel ], [ 0, %next ]
  call void inttoptr (i64 PyEval_RestoreThread to ptr)(ptr %state)
  %number = sext i32 %status to i64
  %result = call ptr inttoptr (i64 PyLong_FromLongLong to ptr)(i64 %number)
  ret ptr %result
}
"""

_PYTHON = ("PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLongLong")


@functools.cache
def _method() -> MethodDef:
    text = _IR
    for name in _PYTHON:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        text = text.replace(f"i64 {name} to", f"i64 {address} to")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address = engine.get_function_address("volta_cuda_launch")
    return MethodDef(b"launch", address, METH_NOARGS, b"Launch the plan.", engine)


def launcher(words: np.ndarray, keep: object) -> Callable[[], int]:
    """A function of no arguments that launches what a block of int64 words describes, and returns the status.

    It runs without the interpreter's lock. ``keep`` lives as long as the function.
    """
    assert words.dtype == np.int64 and words.flags.c_contiguous
    return new_function(_method(), words.ctypes.data, (words, keep))
