"""Native calls of the driver, without the interpreter's lock: launch a graph, launch kernels, wait for a stream.

What launches takes their memory away from arrays as well, where it is given some (see `emit.arrays`): in one step, of
which nothing is left where the driver refuses.

They are compiled once a process. Each takes the address of a block of words: 0 the driver's function, 1 its
cuCtxSetCurrent, 2 context, 3 stream; to launch a graph, 4 that; to launch kernels, 4 how many, 5 and 6 their args and
how many words these are, 7 and 8 which of the words are addresses and how many (rows of word, position among a call's
addresses, distance), then for each kernel its function, blocks, threads, bytes of shared memory, and the byte of the
args where its own begin.

Args are copied to the stack and given their addresses there, so calls in several threads do not meet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from volta.emit import arrays, symbols
from volta.emit.builtins import METH_FASTCALL, METH_NOARGS, METH_O, MethodDef, new_function, python_symbols
from volta.emit.jobs import shielded

HEADER, ROW = 9, 5

_IR = r"""
define internal i32 @enter(ptr %d) {
  %set_at = getelementptr i64, ptr %d, i64 1
  %set = load ptr, ptr %set_at
  %context_at = getelementptr i64, ptr %d, i64 2
  %context = load ptr, ptr %context_at
  %entered = call i32 %set(ptr %context)
  ret i32 %entered
}

define internal ptr @answer(i32 %status, ptr %state) {
  call void inttoptr (i64 PyEval_RestoreThread to ptr)(ptr %state)
  %number = sext i32 %status to i64
  %result = call ptr @PyLong_FromLongLong(i64 %number)
  ret ptr %result
}

define ptr @volta_cuda_wait(ptr %self, ptr %nothing) {
  %d = call ptr inttoptr (i64 PyLong_AsVoidPtr to ptr)(ptr %self)
  %state = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  %entered = call i32 @enter(ptr %d)
  %in = icmp eq i32 %entered, 0
  br i1 %in, label %wait, label %out
wait:
  %function = load ptr, ptr %d
  %stream_at = getelementptr i64, ptr %d, i64 3
  %stream = load ptr, ptr %stream_at
  %waited = call i32 %function(ptr %stream)
  br label %out
out:
  %status = phi i32 [ %entered, %0 ], [ %waited, %wait ]
  %result = call ptr @answer(i32 %status, ptr %state)
  ret ptr %result
}

; Take the memory that is said, a tuple of arrays and limits, or None: a tuple of it, or None; null if that is refused.
define internal ptr @take_what(ptr %taking) {
  %none = icmp eq ptr %taking, @_Py_NoneStruct
  br i1 %none, label %nothing, label %some
nothing:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
some:
  %given = call ptr @PyTuple_GetItem(ptr %taking, i64 0)
  %object = call ptr @PyTuple_GetItem(ptr %taking, i64 1)
  %limits = call ptr inttoptr (i64 PyLong_AsVoidPtr to ptr)(ptr %object)
  %taken = call ptr @take(ptr %given, ptr %limits, i64 0)
  ret ptr %taken
}

define internal ptr @finish(i32 %status, ptr %state, ptr %taking, ptr %taken) {
  call void inttoptr (i64 PyEval_RestoreThread to ptr)(ptr %state)
  %fine = icmp eq i32 %status, 0
  %none = icmp eq ptr %taking, @_Py_NoneStruct
  %done = or i1 %fine, %none
  br i1 %done, label %answer, label %undo
undo:
  %given = call ptr @PyTuple_GetItem(ptr %taking, i64 0)
  call void @give_back(ptr %given, ptr %taken)
  br label %answer
answer:
  call void @Py_DecRef(ptr %taken)
  %number = sext i32 %status to i64
  %result = call ptr @PyLong_FromLongLong(i64 %number)
  ret ptr %result
}

define ptr @volta_cuda_take(ptr %self, ptr %taking) {
  %taken = call ptr @take_what(ptr %taking)
  %refused = icmp eq ptr %taken, null
  br i1 %refused, label %answer, label %drop
drop:
  call void @Py_DecRef(ptr %taken)
  br label %answer
answer:
  %number = phi i64 [ -1, %0 ], [ 0, %drop ]
  %result = call ptr @PyLong_FromLongLong(i64 %number)
  ret ptr %result
}

define ptr @volta_cuda_launch(ptr %self, ptr %taking) {
  %d = call ptr inttoptr (i64 PyLong_AsVoidPtr to ptr)(ptr %self)
  %taken = call ptr @take_what(ptr %taking)
  %refused = icmp eq ptr %taken, null
  br i1 %refused, label %refuse, label %go
refuse:
  %no = call ptr @PyLong_FromLongLong(i64 -1)
  ret ptr %no
go:
  %state = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  %entered = call i32 @enter(ptr %d)
  %in = icmp eq i32 %entered, 0
  br i1 %in, label %launch, label %out
launch:
  %function = load ptr, ptr %d
  %stream_at = getelementptr i64, ptr %d, i64 3
  %stream = load ptr, ptr %stream_at
  %graph_at = getelementptr i64, ptr %d, i64 4
  %graph = load ptr, ptr %graph_at
  %launched = call i32 %function(ptr %graph, ptr %stream)
  br label %out
out:
  %status = phi i32 [ %entered, %go ], [ %launched, %launch ]
  %result = call ptr @finish(i32 %status, ptr %state, ptr %taking, ptr %taken)
  ret ptr %result
}

define ptr @volta_cuda_launch_with(ptr %self, ptr %arguments, i64 %given) {
  %addresses = load ptr, ptr %arguments
  %taking_at = getelementptr ptr, ptr %arguments, i64 1
  %taking = load ptr, ptr %taking_at
  %d = call ptr inttoptr (i64 PyLong_AsVoidPtr to ptr)(ptr %self)
  %kernels_at = getelementptr i64, ptr %d, i64 4
  %kernels = load i64, ptr %kernels_at
  %args_at = getelementptr i64, ptr %d, i64 5
  %args = load ptr, ptr %args_at
  %size_at = getelementptr i64, ptr %d, i64 6
  %size = load i64, ptr %size_at
  %patches_at = getelementptr i64, ptr %d, i64 7
  %patches = load ptr, ptr %patches_at
  %count_at = getelementptr i64, ptr %d, i64 8
  %count = load i64, ptr %count_at
  %place = alloca ptr
  %words = alloca i64, i64 %size
  %bytes = mul i64 %size, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %args, i64 %bytes, i1 false)
  br label %patches_left
patches_left:
  %p = phi i64 [ 0, %0 ], [ %p1, %patch ]
  %more_patches = icmp ult i64 %p, %count
  br i1 %more_patches, label %find, label %ready
find:
  %row = getelementptr [3 x i64], ptr %patches, i64 %p
  %word = load i64, ptr %row
  %position_at = getelementptr i64, ptr %row, i64 1
  %position = load i64, ptr %position_at
  %distance_at = getelementptr i64, ptr %row, i64 2
  %distance = load i64, ptr %distance_at
  %item = call ptr inttoptr (i64 PyList_GetItem to ptr)(ptr %addresses, i64 %position)
  %missing = icmp eq ptr %item, null
  br i1 %missing, label %refuse, label %patch
patch:
  %address = call i64 inttoptr (i64 PyLong_AsLongLong to ptr)(ptr %item)
  %value = add i64 %address, %distance
  %value_at = getelementptr i64, ptr %words, i64 %word
  store i64 %value, ptr %value_at
  %p1 = add i64 %p, 1
  br label %patches_left
ready:
  %taken = call ptr @take_what(ptr %taking)
  %refused = icmp eq ptr %taken, null
  br i1 %refused, label %not_now, label %go
not_now:
  %no = call ptr @PyLong_FromLongLong(i64 -1)
  ret ptr %no
go:
  %state = call ptr inttoptr (i64 PyEval_SaveThread to ptr)()
  %entered = call i32 @enter(ptr %d)
  %in = icmp eq i32 %entered, 0
  br i1 %in, label %begin, label %out
begin:
  %function = load ptr, ptr %d
  %stream_at = getelementptr i64, ptr %d, i64 3
  %stream = load ptr, ptr %stream_at
  %rows = getelementptr i64, ptr %d, i64 9
  br label %kernels_left
kernels_left:
  %i = phi i64 [ 0, %begin ], [ %i1, %next ]
  %more_kernels = icmp ult i64 %i, %kernels
  br i1 %more_kernels, label %kernel, label %out
kernel:
  %at = getelementptr [5 x i64], ptr %rows, i64 %i
  %kernel_function = load ptr, ptr %at
  %grid_at = getelementptr i64, ptr %at, i64 1
  %grid = load i32, ptr %grid_at
  %threads_at = getelementptr i64, ptr %at, i64 2
  %threads = load i32, ptr %threads_at
  %shared_at = getelementptr i64, ptr %at, i64 3
  %shared = load i32, ptr %shared_at
  %start_at = getelementptr i64, ptr %at, i64 4
  %start = load i64, ptr %start_at
  %own = getelementptr i8, ptr %words, i64 %start
  store ptr %own, ptr %place
  %code = call i32 %function(ptr %kernel_function, i32 %grid, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
                             ptr %stream, ptr %place, ptr null)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %next, label %out
next:
  %i1 = add i64 %i, 1
  br label %kernels_left
out:
  %status = phi i32 [ %entered, %go ], [ 0, %kernels_left ], [ %code, %kernel ]
  %result = call ptr @finish(i32 %status, ptr %state, ptr %taking, ptr %taken)
  ret ptr %result
refuse:
  ret ptr null
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_PYTHON = ("PyLong_AsVoidPtr", "PyLong_AsLongLong", "PyList_GetItem", "PyEval_SaveThread", "PyEval_RestoreThread")


@functools.cache
@shielded
def _methods() -> dict[str, MethodDef]:
    symbols.export(arrays.symbols())
    text = arrays.DECLARATIONS + arrays.IR + _IR
    for name, address in python_symbols(_PYTHON).items():
        text = text.replace(f"i64 {name} to", f"i64 {address} to")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def method(name: str, convention: int, doc: bytes) -> MethodDef:
        return MethodDef(name.encode(), engine.get_function_address(f"volta_cuda_{name}"), convention, doc, engine)

    return {
        "launch": method("launch", METH_O, b"Launch the plan, taking what is said."),
        "launch_with": method("launch_with", METH_FASTCALL, b"Launch the plan with a list of addresses, and the same."),
        "take": method("take", METH_O, b"Take what is said."),
        "wait": method("wait", METH_NOARGS, b"Wait for the stream."),
    }


def waiter(words: np.ndarray, keep: object) -> Callable[[], int]:
    """A function of no arguments that waits for the stream that a block of int64 words names; returns the status.

    ``keep`` lives as long as the function.
    """
    return _bound("wait", words, keep)


Taking = tuple[Any, int] | None
"""Arrays, and where the limits lie (see `emit.arrays`); or nothing. A call that is refused returns
`REFUSED`."""


def launcher(words: np.ndarray, keep: object) -> Callable[[Taking], int]:
    """The same, launching a graph; the function is told what to take."""
    return _bound("launch", words, keep)


def launcher_with(words: np.ndarray, keep: object) -> Callable[[list[int], Taking], int]:
    """The same, launching kernels: the function is given the list of a call's addresses as well.

    Any number of threads may call it at one time.
    """
    return _bound("launch_with", words, keep)


@functools.cache
def taker() -> Callable[[Taking], int]:
    """A function that takes memory, and launches nothing."""
    return _bound("take", np.zeros(1, np.int64), None)


def _bound(name: str, words: np.ndarray, keep: object) -> Callable[..., int]:
    assert words.dtype == np.int64 and words.flags.c_contiguous
    return new_function(_methods()[name], words.ctypes.data, (words, keep))
