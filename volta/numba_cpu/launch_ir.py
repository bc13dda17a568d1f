"""The loop that walks a launch table and its entry from Python, as LLVM IR: what `volta.numba_cpu.launch` compiles."""

HEADER_WORDS = 12
"""Words of a plan's descriptor before the addresses of its inputs."""

# Descriptor words: 0 table, 1 launches, 2 flags, 3 scratch bytes, 4 patches, 5 number of patches, 6 first word of the
# args, 7 number of inputs, 8 lock, 9 calls; then the inputs.
IR = r"""
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
declare void @Py_IncRef(ptr)
@PyExc_TypeError = external global ptr
@_Py_NoneStruct = external global i8

@wrong_count = internal constant [69 x i8] c"the number of addresses differs from the number of the plan's inputs\00"

; Idle scratch blocks (address, size), kept for the next call. Touched only under the GIL.
@idle = internal global [64 x { ptr, i64 }] zeroinitializer
@idle_count = internal global i64 0

define void @volta_run_plan(ptr %table, i64 %count, i64 %scratch) {
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %start
start:
  %saved = call i64 @volta_fp_enter()
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %step ]
  %row = getelementptr [4 x i64], ptr %table, i64 %i
  %kernel = load ptr, ptr %row
  %args_at = getelementptr i64, ptr %row, i64 1
  %args = load ptr, ptr %args_at
  %after = add i64 %i, 1
  %jumps = icmp eq ptr %kernel, null
  br i1 %jumps, label %jump, label %run
run:
  %tasks_at = getelementptr i64, ptr %row, i64 2
  %tasks = load i64, ptr %tasks_at
  call void %kernel(ptr %args, i64 0, i64 %tasks, i64 %scratch)
  br label %step
jump:
  %target = call i64 @volta_jump(ptr %args, i64 %after)
  br label %step
step:
  %next = phi i64 [ %after, %run ], [ %target, %jump ]
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %finish
finish:
  call void @volta_fp_leave(i64 %saved)
  br label %done
done:
  ret void
}

define void @volta_run_plan_parallel(ptr %table, i64 %count, i64 %scratch, i64 %bytes) {
  %shared = call i64 @volta_pool_run(ptr %table, i64 %count, i64 %scratch, i64 %bytes)
  %alone = icmp eq i64 %shared, 0
  br i1 %alone, label %serial, label %done
serial:
  call void @volta_run_plan(ptr %table, i64 %count, i64 %scratch)
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

define internal void @walk(ptr %d, i64 %scratch, i64 %bytes, i64 %flags) {
  %table = load ptr, ptr %d
  %launches_at = getelementptr i64, ptr %d, i64 1
  %launches = load i64, ptr %launches_at
  %bit = and i64 %flags, 1
  %serial = icmp eq i64 %bit, 0
  br i1 %serial, label %alone, label %shared
alone:
  call void @volta_run_plan(ptr %table, i64 %launches, i64 %scratch)
  ret void
shared:
  call void @volta_run_plan_parallel(ptr %table, i64 %launches, i64 %scratch, i64 %bytes)
  ret void
}

; A Python function (METH_FASTCALL): self is the descriptor's address, the arguments are the inputs' addresses.
define ptr @volta_execute(ptr %self, ptr %arguments, i64 %given) {
  %d = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs_at = getelementptr i64, ptr %d, i64 7
  %inputs = load i64, ptr %inputs_at
  %match = icmp eq i64 %inputs, %given
  br i1 %match, label %enter, label %mismatch
mismatch:
  %type = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type, ptr @wrong_count)
  ret ptr null
enter:
  %lock_at = getelementptr i64, ptr %d, i64 8
  %lock = load ptr, ptr %lock_at
  %got = call i32 @PyThread_acquire_lock(ptr %lock, i32 0)
  %busy = icmp eq i32 %got, 0
  br i1 %busy, label %queue, label %locked
queue:
  %waiting = call ptr @PyEval_SaveThread()
  %turn = call i32 @PyThread_acquire_lock(ptr %lock, i32 1)
  call void @PyEval_RestoreThread(ptr %waiting)
  br label %locked
locked:
  %bases = getelementptr i64, ptr %d, i64 12
  br label %parse
parse:
  %i = phi i64 [ 0, %locked ], [ %i1, %keep ]
  %parsed = icmp eq i64 %i, %inputs
  br i1 %parsed, label %patch, label %convert
convert:
  %object_at = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object_at
  %base = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %base, -1
  br i1 %odd, label %suspect, label %keep
suspect:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %keep, label %fail
keep:
  %base_at = getelementptr i64, ptr %bases, i64 %i
  store i64 %base, ptr %base_at
  %i1 = add i64 %i, 1
  br label %parse
fail:
  call void @PyThread_release_lock(ptr %lock)
  ret ptr null
patch:
  %patches_at = getelementptr i64, ptr %d, i64 4
  %patches = load ptr, ptr %patches_at
  %patch_count_at = getelementptr i64, ptr %d, i64 5
  %patch_count = load i64, ptr %patch_count_at
  %args_at = getelementptr i64, ptr %d, i64 6
  %args = load ptr, ptr %args_at
  br label %next_patch
next_patch:
  %p = phi i64 [ 0, %patch ], [ %p1, %apply ]
  %patched = icmp eq i64 %p, %patch_count
  br i1 %patched, label %prepare, label %apply
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
  br label %next_patch
prepare:
  %flags_at = getelementptr i64, ptr %d, i64 2
  %flags = load i64, ptr %flags_at
  %bytes_at = getelementptr i64, ptr %d, i64 3
  %bytes = load i64, ptr %bytes_at
  %calls_at = getelementptr i64, ptr %d, i64 9
  %calls = load i64, ptr %calls_at
  %calls1 = add i64 %calls, 1
  store i64 %calls1, ptr %calls_at
  %needs = icmp ne i64 %bytes, 0
  br i1 %needs, label %scratch, label %go
scratch:
  %block = call { ptr, i64 } @take_scratch(i64 %bytes)
  %raw = extractvalue { ptr, i64 } %block, 0
  %denied = icmp eq ptr %raw, null
  br i1 %denied, label %no_memory, label %align
no_memory:
  call void @PyThread_release_lock(ptr %lock)
  %null = call ptr @PyErr_NoMemory()
  ret ptr null
align:
  %number = ptrtoint ptr %raw to i64
  %up = add i64 %number, 63
  %aligned = and i64 %up, -64
  br label %go
go:
  %taken = phi { ptr, i64 } [ zeroinitializer, %prepare ], [ %block, %align ]
  %space = phi i64 [ 0, %prepare ], [ %aligned, %align ]
  %keep_bit = and i64 %flags, 2
  %release = icmp eq i64 %keep_bit, 0
  br i1 %release, label %without_gil, label %with_gil
with_gil:
  call void @walk(ptr %d, i64 %space, i64 %bytes, i64 %flags)
  br label %ran
without_gil:
  %state = call ptr @PyEval_SaveThread()
  call void @walk(ptr %d, i64 %space, i64 %bytes, i64 %flags)
  call void @PyThread_release_lock(ptr %lock)
  call void @PyEval_RestoreThread(ptr %state)
  br label %give
ran:
  call void @PyThread_release_lock(ptr %lock)
  br label %give
give:
  br i1 %needs, label %return_scratch, label %leave
return_scratch:
  call void @give_scratch({ ptr, i64 } %taken)
  br label %leave
leave:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}
"""
