"""The launch table's entry from Python, as LLVM IR: what `volta.numba_cpu.launch` compiles, behind `launch_ir`."""

HEADER_WORDS = 12
"""Words of a plan's descriptor before the addresses of its inputs."""

_UNDER_WAY = (
    "the same program was called by a signal handler while it runs: its call cannot begin before the other has ended; "
    "let the handler note what is to be done, and do it after the call"
)

# Descriptor words: 0 table, 1 launches, 2 flags, 3 scratch bytes, 4 patches, 5 number of patches, 6 first word of the
# args, 7 number of inputs, 8 lock, 9 calls, 10 the thread that is in a signal handler in the middle; then the inputs.
IR = r"""
@under_way = internal constant [UNDER_WAY_SIZE x i8] c"UNDER_WAY\00"

; How many calls run without the interpreter's lock. Touched only under it.
@under_way_count = internal global i64 0

@wrong_count = internal constant [69 x i8] c"the number of addresses differs from the number of the plan's inputs\00"

; In a forked child nobody else runs.
define i64 @volta_execute_forked() {
  store i64 0, ptr @under_way_count
  ret i64 0
}

; Wait for a plan's lock, and let signal handlers run meanwhile: 0, or 1 with an error set.
define internal i64 @wait_for(ptr %d, ptr %lock) {
  %owner_at = getelementptr i64, ptr %d, i64 10
  %owner = load i64, ptr %owner_at
  %me = call i64 @PyThread_get_thread_ident()
  %again = icmp eq i64 %owner, %me
  br i1 %again, label %refuse, label %try
refuse:
  %type = load ptr, ptr @PyExc_RuntimeError
  call void @PyErr_SetString(ptr %type, ptr @under_way)
  ret i64 1
try:
  %state = call ptr @PyEval_SaveThread()
  %got = call i32 @PyThread_acquire_lock_timed(ptr %lock, i64 100000, i32 1)
  call void @PyEval_RestoreThread(ptr %state)
  %mine = icmp eq i32 %got, 1
  br i1 %mine, label %locked, label %handle
handle:
  %status = call i32 @PyErr_CheckSignals()
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %try, label %failed
failed:
  ret i64 1
locked:
  ret i64 0
}

; Read the addresses of a plan's inputs, and hold the memory of those that are arrays: -1. Or -2 with an error set, or
; the number of an array that has no memory here. `holds` begins with how many are held.
define internal i64 @read(ptr %d, ptr %arguments, i64 %inputs, ptr %holds) {
  %bases = getelementptr i64, ptr %d, i64 12
  br label %test
test:
  %i = phi i64 [ 0, %0 ], [ %i1, %keep ]
  %held = phi i64 [ 0, %0 ], [ %held1, %keep ]
  store i64 %held, ptr %holds
  %done = icmp eq i64 %i, %inputs
  br i1 %done, label %fine, label %convert
convert:
  %object_at = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object_at
  %is_array = call i1 @is_array(ptr %object)
  br i1 %is_array, label %look, label %number
look:
  %memory_at = call ptr @slot(ptr %object, i64 2)
  %memory = load ptr, ptr %memory_at
  %address_at = call ptr @slot(ptr %object, i64 1)
  %address = load ptr, ptr %address_at
  %gone = icmp eq ptr %memory, @_Py_NoneStruct
  br i1 %gone, label %absent, label %present
present:
  %place = call i64 @PyLong_AsLongLong(ptr %address)
  %elsewhere = icmp eq i64 %place, 0
  br i1 %elsewhere, label %absent, label %hold
hold:
  call void @Py_IncRef(ptr %memory)
  %more = add i64 %held, 1
  %hold_at = getelementptr i64, ptr %holds, i64 %more
  store ptr %memory, ptr %hold_at
  br label %keep
number:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %value, -1
  br i1 %odd, label %suspect, label %keep
suspect:
  %error = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %error, null
  br i1 %none, label %keep, label %fail
keep:
  %base = phi i64 [ %place, %hold ], [ %value, %number ], [ %value, %suspect ]
  %held1 = phi i64 [ %more, %hold ], [ %held, %number ], [ %held, %suspect ]
  %base_at = getelementptr i64, ptr %bases, i64 %i
  store i64 %base, ptr %base_at
  %i1 = add i64 %i, 1
  br label %test
absent:
  ret i64 %i
fail:
  ret i64 -2
fine:
  ret i64 -1
}

define internal void @let_go(ptr %holds) {
  %held = load i64, ptr %holds
  br label %test
test:
  %i = phi i64 [ 0, %0 ], [ %i1, %drop ]
  %done = icmp eq i64 %i, %held
  br i1 %done, label %out, label %drop
drop:
  %i1 = add i64 %i, 1
  %at = getelementptr i64, ptr %holds, i64 %i1
  %memory = load ptr, ptr %at
  call void @Py_DecRef(ptr %memory)
  br label %test
out:
  ret void
}

define internal void @patch_own(ptr %d) {
  %bases = getelementptr i64, ptr %d, i64 12
  %patches_at = getelementptr i64, ptr %d, i64 4
  %patches = load ptr, ptr %patches_at
  %count_at = getelementptr i64, ptr %d, i64 5
  %count = load i64, ptr %count_at
  %args_at = getelementptr i64, ptr %d, i64 6
  %args = load ptr, ptr %args_at
  call void @patch(ptr %bases, ptr %patches, i64 %count, ptr %args)
  ret void
}

; Run a plan whose inputs are known, under its lock, which is free afterwards: 0, 1 with an error set, or 2 where what
; the call overwrites could not be taken. `taking` is null, or has what `take` is given; what that returns is stored.
define internal i64 @run(ptr %d, ptr %taking, ptr %lock, ptr %result_at) {
  %flags_at = getelementptr i64, ptr %d, i64 2
  %flags = load i64, ptr %flags_at
  %bytes_at = getelementptr i64, ptr %d, i64 3
  %bytes = load i64, ptr %bytes_at
  %watch = alloca [7 x i64]
  %needs = icmp ne i64 %bytes, 0
  br i1 %needs, label %scratch, label %ready
scratch:
  %block = call { ptr, i64 } @take_scratch(i64 %bytes)
  %raw = extractvalue { ptr, i64 } %block, 0
  %denied = icmp eq ptr %raw, null
  br i1 %denied, label %no_memory, label %align
no_memory:
  call void @PyThread_release_lock(ptr %lock)
  %null = call ptr @PyErr_NoMemory()
  ret i64 1
align:
  %number = ptrtoint ptr %raw to i64
  %up = add i64 %number, 63
  %aligned = and i64 %up, -64
  br label %ready
ready:
  %block_or_none = phi { ptr, i64 } [ zeroinitializer, %0 ], [ %block, %align ]
  %space = phi i64 [ 0, %0 ], [ %aligned, %align ]
  %others = load i64, ptr @under_way_count
  %donates = icmp ne ptr %taking, null
  br i1 %donates, label %claim, label %go
claim:
  %given = load ptr, ptr %taking
  %limits_at = getelementptr ptr, ptr %taking, i64 1
  %limits_object = load ptr, ptr %limits_at
  %limits = call ptr @PyLong_AsVoidPtr(ptr %limits_object)
  %some = icmp ne i64 %others, 0
  %busy = zext i1 %some to i64
  %taken = call ptr @take(ptr %given, ptr %limits, i64 %busy)
  store ptr %taken, ptr %result_at
  %refused = icmp eq ptr %taken, null
  br i1 %refused, label %refuse, label %go
refuse:
  call void @PyThread_release_lock(ptr %lock)
  br label %give
go:
  %calls_at = getelementptr i64, ptr %d, i64 9
  %calls = load i64, ptr %calls_at
  %calls1 = add i64 %calls, 1
  store i64 %calls1, ptr %calls_at
  %keep_bit = and i64 %flags, 2
  %release = icmp eq i64 %keep_bit, 0
  br i1 %release, label %without_gil, label %with_gil
with_gil:
  call void @walk(ptr %d, i64 %space, i64 %bytes, i64 %flags, ptr null)
  call void @PyThread_release_lock(ptr %lock)
  br label %give
without_gil:
  %more = add i64 %others, 1
  store i64 %more, ptr @under_way_count
  call void @llvm.memset.p0.i64(ptr %watch, i8 0, i64 56, i1 false)
  %owner_at = getelementptr i64, ptr %d, i64 10
  %owner_slot = getelementptr i64, ptr %watch, i64 1
  store ptr %owner_at, ptr %owner_slot
  %state = call ptr @PyEval_SaveThread()
  store ptr %state, ptr %watch
  call void @walk(ptr %d, i64 %space, i64 %bytes, i64 %flags, ptr %watch)
  call void @PyThread_release_lock(ptr %lock)
  %last_state = load ptr, ptr %watch
  call void @PyEval_RestoreThread(ptr %last_state)
  %now = load i64, ptr @under_way_count
  %less = sub i64 %now, 1
  %rest = call i64 @llvm.smax.i64(i64 %less, i64 0)
  store i64 %rest, ptr @under_way_count
  %ended_at = getelementptr i64, ptr %watch, i64 2
  %ended = load i64, ptr %ended_at
  %early = icmp ne i64 %ended, 0
  br i1 %early, label %broken, label %give
broken:
  call void @volta_watch_error()
  br label %give
give:
  %result = phi i64 [ 2, %refuse ], [ 0, %with_gil ], [ 0, %without_gil ], [ 1, %broken ]
  br i1 %needs, label %return_scratch, label %leave
return_scratch:
  call void @give_scratch({ ptr, i64 } %block_or_none)
  br label %leave
leave:
  ret i64 %result
}

; A Python function (METH_FASTCALL): self is the descriptor's address, the arguments are the plan's inputs, and for a
; call that overwrites arrays a tuple of these and the address of limits (see `emit.arrays`); it returns their memory.
define ptr @volta_execute(ptr %self, ptr %arguments, i64 %given) {
  %d = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs_at = getelementptr i64, ptr %d, i64 7
  %inputs = load i64, ptr %inputs_at
  %extra = sub i64 %given, %inputs
  %plain = icmp eq i64 %extra, 0
  %donating = icmp eq i64 %extra, 2
  %match = or i1 %plain, %donating
  br i1 %match, label %enter, label %mismatch
mismatch:
  %type = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type, ptr @wrong_count)
  ret ptr null
enter:
  %result_at = alloca ptr
  store ptr null, ptr %result_at
  %few = icmp ule i64 %inputs, 1024
  %words = add i64 %inputs, 1
  br i1 %few, label %on_stack, label %on_heap
on_stack:
  %near = alloca i64, i64 %words
  br label %begin
on_heap:
  %bytes = mul i64 %words, 8
  %far = call ptr @PyMem_RawMalloc(i64 %bytes)
  %denied = icmp eq ptr %far, null
  br i1 %denied, label %no_memory, label %begin
no_memory:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr null
begin:
  %holds = phi ptr [ %near, %on_stack ], [ %far, %on_heap ]
  store i64 0, ptr %holds
  %lock_at = getelementptr i64, ptr %d, i64 8
  %lock = load ptr, ptr %lock_at
  %got = call i32 @PyThread_acquire_lock(ptr %lock, i32 0)
  %busy = icmp eq i32 %got, 0
  br i1 %busy, label %queue, label %locked
queue:
  %waited = call i64 @wait_for(ptr %d, ptr %lock)
  %available = icmp eq i64 %waited, 0
  br i1 %available, label %locked, label %finish
locked:
  %found = call i64 @read(ptr %d, ptr %arguments, i64 %inputs, ptr %holds)
  %fine = icmp eq i64 %found, -1
  br i1 %fine, label %prepare, label %unlock
unlock:
  call void @PyThread_release_lock(ptr %lock)
  %failed = icmp eq i64 %found, -2
  %mistake = select i1 %failed, i64 1, i64 3
  br label %finish
prepare:
  call void @patch_own(ptr %d)
  %rest = getelementptr ptr, ptr %arguments, i64 %inputs
  %taking = select i1 %plain, ptr null, ptr %rest
  %ran = call i64 @run(ptr %d, ptr %taking, ptr %lock, ptr %result_at)
  br label %finish
finish:
  %status = phi i64 [ 1, %queue ], [ %mistake, %unlock ], [ %ran, %prepare ]
  %which = phi i64 [ 0, %queue ], [ %found, %unlock ], [ -1, %prepare ]
  call void @let_go(ptr %holds)
  br i1 %few, label %answer, label %free
free:
  call void @PyMem_RawFree(ptr %holds)
  br label %answer
answer:
  switch i64 %status, label %number [ i64 0, label %done i64 1, label %error ]
done:
  %memory = load ptr, ptr %result_at
  %nothing_taken = icmp eq ptr %memory, null
  br i1 %nothing_taken, label %none, label %some
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
some:
  ret ptr %memory
error:
  %lost = load ptr, ptr %result_at
  %kept = icmp eq ptr %lost, null
  br i1 %kept, label %raise, label %drop
drop:
  call void @Py_DecRef(ptr %lost)
  br label %raise
raise:
  ret ptr null
number:
  %result = call ptr @PyLong_FromLongLong(i64 %which)
  ret ptr %result
}

declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""".replace("UNDER_WAY_SIZE", str(len(_UNDER_WAY) + 1)).replace("UNDER_WAY", _UNDER_WAY)
