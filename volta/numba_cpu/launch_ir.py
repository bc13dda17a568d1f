"""How a launch table is run, as LLVM IR: what `volta.numba_cpu.launch` compiles, with `launch_call_ir`."""

PATCH = r"""
; Write the addresses of this call into args. A patch: the number of the word, of the base, and bytes behind it.
define internal void @patch(ptr %bases, ptr %patches, i64 %count, ptr %args) {
  br label %test
test:
  %p = phi i64 [ 0, %0 ], [ %p1, %apply ]
  %done = icmp eq i64 %p, %count
  br i1 %done, label %out, label %apply
apply:
  %entry = getelementptr [3 x i64], ptr %patches, i64 %p
  %word = load i64, ptr %entry
  %input_at = getelementptr i64, ptr %entry, i64 1
  %input = load i64, ptr %input_at
  %offset_at = getelementptr i64, ptr %entry, i64 2
  %offset = load i64, ptr %offset_at
  %from = getelementptr i64, ptr %bases, i64 %input
  %origin = load i64, ptr %from
  %address = add i64 %origin, %offset
  %to = getelementptr i64, ptr %args, i64 %word
  store i64 %address, ptr %to
  %p1 = add i64 %p, 1
  br label %test
out:
  ret void
}
"""
"""What every call of a launch table begins with; a part of `IR`."""

IR = (
    PATCH
    + r"""
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyErr_NoMemory()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyThread_acquire_lock(ptr, i32)
declare void @PyThread_release_lock(ptr)
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
declare i32 @PyThread_acquire_lock_timed(ptr, i64, i32)
declare i64 @PyThread_get_thread_ident()
declare i32 @PyErr_CheckSignals()
@PyExc_TypeError = external global ptr
@PyExc_RuntimeError = external global ptr

; Idle scratch blocks (address, size), kept for the next call. Touched only under the GIL.
@idle = internal global [64 x { ptr, i64 }] zeroinitializer
@idle_count = internal global i64 0

define void @volta_run_plan(ptr %table, i64 %count, i64 %scratch, ptr %watch) {
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %start
start:
  %saved = call i64 @volta_fp_enter()
  call void @volta_walk(ptr %table, i64 0, i64 %count, i64 %scratch, ptr %watch)
  call void @volta_fp_leave(i64 %saved)
  br label %done
done:
  ret void
}

define internal { ptr, i64 } @take_scratch(i64 %bytes) {
  %count = load i64, ptr @idle_count
  %none = icmp eq i64 %count, 0
  br i1 %none, label %fresh, label %pop
pop:
  %left = sub i64 %count, 1
  store i64 %left, ptr @idle_count
  %at = getelementptr { ptr, i64 }, ptr @idle, i64 %left
  %block = load { ptr, i64 }, ptr %at
  %size = extractvalue { ptr, i64 } %block, 1
  %fits = icmp uge i64 %size, %bytes
  br i1 %fits, label %found, label %drop
found:
  ret { ptr, i64 } %block
drop:
  %small = extractvalue { ptr, i64 } %block, 0
  call void @PyMem_RawFree(ptr %small)
  br label %fresh
fresh:
  %padded = add i64 %bytes, 64
  %new = call ptr @PyMem_RawMalloc(i64 %padded)
  %half = insertvalue { ptr, i64 } poison, ptr %new, 0
  %whole = insertvalue { ptr, i64 } %half, i64 %bytes, 1
  ret { ptr, i64 } %whole
}

define internal void @give_scratch({ ptr, i64 } %block) {
  %count = load i64, ptr @idle_count
  %full = icmp uge i64 %count, 64
  br i1 %full, label %drop, label %push
push:
  %at = getelementptr { ptr, i64 }, ptr @idle, i64 %count
  store { ptr, i64 } %block, ptr %at
  %more = add i64 %count, 1
  store i64 %more, ptr @idle_count
  ret void
drop:
  %address = extractvalue { ptr, i64 } %block, 0
  call void @PyMem_RawFree(ptr %address)
  ret void
}

define internal void @walk(ptr %d, i64 %scratch, i64 %bytes, i64 %flags, ptr %watch) {
  %table = load ptr, ptr %d
  %launches_at = getelementptr i64, ptr %d, i64 1
  %launches = load i64, ptr %launches_at
  %bit = and i64 %flags, 1
  %serial = icmp eq i64 %bit, 0
  br i1 %serial, label %alone, label %share
share:
  %shared = call i64 @volta_pool_run(ptr %table, i64 %launches, i64 %scratch, i64 %bytes, ptr %watch)
  %refused = icmp eq i64 %shared, 0
  br i1 %refused, label %alone, label %done
alone:
  call void @volta_run_plan(ptr %table, i64 %launches, i64 %scratch, ptr %watch)
  br label %done
done:
  ret void
}
"""
)
