"""Arrays as native code sees them: where their memory is, and taking it away from them.

A call holds the memory that it reads, by reference. A call that overwrites an array's memory takes it away from the
array, and it does so in the one native call that launches the work: between the two there is no step of the interpreter
at which a signal's handler or another thread could come in. Nobody else may hold the memory then; where somebody does,
nothing has changed, and the caller works on a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.emit.builtins import python_symbols

REFUSED = -1
"""What a native call answers whose arrays could not be taken: one is gone, or its memory is held by others."""

ANY, ALWAYS = 1 << 30, 1 << 31
"""Limits: memory that is not shared, however many hold it; any memory, as what is overwritten is a copy of it."""

_layout = (
    ctypes.c_int64 * 4
)()  # arrays' type, where in one the references to address and memory lie, shared memory's type

_memory: Any = None  # the arrays' slot for their memory

# A limit is the number of references that memory has if nobody else holds it: the array's, and those of the call that
# takes it. Memory of the type for what is shared is taken only where the limit says so. There are two limits for each
# array: if no other call runs on this backend, and if one does.
IR = r"""
@volta_array_layout = external global [4 x i64]

define internal ptr @slot(ptr %array, i64 %which) {
  %offset_at = getelementptr i64, ptr @volta_array_layout, i64 %which
  %offset = load i64, ptr %offset_at
  %at = getelementptr i8, ptr %array, i64 %offset
  ret ptr %at
}

define internal i1 @is_array(ptr %object) {
  %type_at = getelementptr i64, ptr %object, i64 1
  %type = load i64, ptr %type_at
  %arrays = load i64, ptr @volta_array_layout
  %same = icmp eq i64 %type, %arrays
  ret i1 %same
}

; The arrays of a tuple are gone afterwards, and a tuple of their memory is returned; or null, and nothing has changed.
define internal ptr @take(ptr %given, ptr %limits, i64 %busy) {
  %count = call i64 @PyTuple_Size(ptr %given)
  %shared_at = getelementptr i64, ptr @volta_array_layout, i64 3
  %shared = load i64, ptr %shared_at
  br label %test
test:
  %i = phi i64 [ 0, %0 ], [ %i1, %fits ]
  %tested = icmp eq i64 %i, %count
  br i1 %tested, label %all, label %look
look:
  %array = call ptr @PyTuple_GetItem(ptr %given, i64 %i)
  %place = call ptr @slot(ptr %array, i64 2)
  %memory = load ptr, ptr %place
  %gone = icmp eq ptr %memory, @_Py_NoneStruct
  br i1 %gone, label %refuse, label %weigh
weigh:
  %references = load i32, ptr %memory
  %wide = zext i32 %references to i64
  %pair = shl i64 %i, 1
  %index = add i64 %pair, %busy
  %limit_at = getelementptr i64, ptr %limits, i64 %index
  %limit = load i64, ptr %limit_at
  %type_at = getelementptr i64, ptr %memory, i64 1
  %type = load i64, ptr %type_at
  %common = icmp eq i64 %type, %shared
  %many = icmp ugt i64 %wide, %limit
  %held = or i1 %common, %many
  %minds = icmp ne i64 %limit, ALWAYS
  %kept = and i1 %held, %minds
  br i1 %kept, label %refuse, label %fits
fits:
  %i1 = add i64 %i, 1
  br label %test
all:
  %taken = call ptr @PyTuple_New(i64 %count)
  %none = icmp eq ptr %taken, null
  br i1 %none, label %no_memory, label %next
no_memory:
  call void @PyErr_Clear()
  br label %refuse
next:
  %k = phi i64 [ 0, %all ], [ %k1, %move ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %out, label %move
move:
  %loser = call ptr @PyTuple_GetItem(ptr %given, i64 %k)
  %from = call ptr @slot(ptr %loser, i64 2)
  %own = load ptr, ptr %from
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  store ptr @_Py_NoneStruct, ptr %from
  %status = call i32 @PyTuple_SetItem(ptr %taken, i64 %k, ptr %own)
  %k1 = add i64 %k, 1
  br label %next
out:
  ret ptr %taken
refuse:
  ret ptr null
}

; Give arrays the memory back that was taken.
define internal void @give_back(ptr %given, ptr %taken) {
  %count = call i64 @PyTuple_Size(ptr %given)
  br label %test
test:
  %i = phi i64 [ 0, %0 ], [ %i1, %next ]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %out, label %next
next:
  %array = call ptr @PyTuple_GetItem(ptr %given, i64 %i)
  %place = call ptr @slot(ptr %array, i64 2)
  %old = load ptr, ptr %place
  %memory = call ptr @PyTuple_GetItem(ptr %taken, i64 %i)
  call void @Py_IncRef(ptr %memory)
  store ptr %memory, ptr %place
  call void @Py_DecRef(ptr %old)
  %i1 = add i64 %i, 1
  br label %test
out:
  ret void
}
""".replace("ALWAYS", str(ALWAYS))

DECLARATIONS = """
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyTuple_New(i64)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyLong_FromLongLong(i64)
@_Py_NoneStruct = external global i8
"""

PYTHON_FUNCTIONS = (
    "PyTuple_Size", "PyTuple_GetItem", "PyTuple_SetItem", "PyTuple_New", "PyErr_Clear", "Py_IncRef", "Py_DecRef",
    "PyLong_FromLongLong",
)  # fmt: skip


def describe(kind: type, address: str, memory: str, shared: type) -> None:
    """Say what arrays are: their type, and its slots for the address and for the object that is their memory; and the
    type of that object where others have it too."""
    global _memory
    slots = kind.__dict__
    _memory = slots[memory]
    _layout[:] = [id(kind), _offset(slots[address]), _offset(slots[memory]), id(shared)]


def give_back(given: Sequence[Any], taken: Sequence[Any]) -> None:
    """Give arrays the memory back that a native call has taken from them."""
    for array, memory in zip(given, taken, strict=True):
        _memory.__set__(array, memory)


def _offset(slot: Any) -> int:
    """Where in an object a slot lies: CPython's ``PyMemberDescrObject`` points to a ``PyMemberDef``, which says so."""
    word = ctypes.sizeof(ctypes.c_void_p)
    member = ctypes.c_void_p.from_address(id(slot) + type(slot).__basicsize__ - word).value or 0
    return ctypes.c_ssize_t.from_address(member + 2 * word).value


def symbols() -> dict[str, int]:
    """What native code with `IR` in it must find by name."""
    known = {"volta_array_layout": ctypes.addressof(_layout), "_Py_NoneStruct": id(None)}
    return {**python_symbols(PYTHON_FUNCTIONS), **known}


def limits(alone: list[int], beside: list[int]) -> np.ndarray:
    """Limits as native code reads them: for each array, if no other call runs, and if one does."""
    return np.array([alone, beside], np.int64).T.copy()
