"""The worker pool's loops, as LLVM IR: what `volta.numba_cpu.threads` compiles and controls.

They need atomics, the processor's pause instruction and calls by address, and they must run without Python.
"""

from volta.numba_cpu import fpenv
from volta.numba_cpu.threads_part_ir import PART
from volta.numba_cpu.threads_worker_ir import WORKER

_STRIDE = 16  # words between workers: two cache lines, as processors fetch them in pairs
_WORKERS = 96

# Words of the pool, by what shares a cache line. A thread's slot: mailbox, parked, lock, index, scratch, scratch size,
# processor it is kept off (plus 1), thread id; then, in a line of its own, what is taken of its share of a launch.
WORDS = {
    "LOCK": 0,
    "THREADS": 16,
    "STARTED": 17,
    "GENERATION": 18,
    "RUNS": 19,
    "SPINS": 20,
    "IDLE_SPINS": 21,
    "PLACE": 22,
    "TABLE": 32,
    "COUNT": 33,
    "WIDTH": 34,
    "REMAINING": 48,
    "ARRIVED": 64,
    "PHASE": 80,
    "END": 81,
    "WORKERS": _WORKERS,
}

_HEAD = """
@pool = internal global [POOL_SIZE x i64] zeroinitializer, align 128

@allowed = internal global [16 x i64] zeroinitializer, align 64

declare i32 @volta_yield()
declare i64 @volta_watch(ptr)
declare i32 @volta_cpu()
declare i32 @volta_thread_id()
declare i32 @volta_set_affinity(i32, i64, ptr)
declare ptr @PyThread_allocate_lock()
declare i32 @PyThread_acquire_lock(ptr, i32)
declare void @PyThread_release_lock(ptr)
declare i64 @PyThread_start_new_thread(ptr, ptr)
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)

define ptr @volta_pool() {
  ret ptr @pool
}

define ptr @volta_allowed() {
  ret ptr @allowed
}

; Where a jump leads: on, if the int32 is the number, and else to its row.
define internal i64 @jump(ptr %args, i64 %after) {
  %place = load ptr, ptr %args
  %number_at = getelementptr i64, ptr %args, i64 1
  %number = load i64, ptr %number_at
  %target_at = getelementptr i64, ptr %args, i64 2
  %target = load i64, ptr %target_at
  %short = load i32, ptr %place
  %value = sext i32 %short to i64
  %same = icmp eq i64 %value, %number
  %next = select i1 %same, i64 %after, i64 %target
  ret i64 %next
}

; Rows of a table, one after the other on this thread, from one that is there up to another.
define void @volta_walk(ptr %table, i64 %begin, i64 %end, i64 %scratch, ptr %watch) {
  %idle = icmp eq ptr %watch, null
  %first = select i1 %idle, i64 -1, i64 1
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %between ], [ %next, %look ]
  %left = phi i64 [ %first, %0 ], [ %less, %between ], [ %stride, %look ]
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
  %target = call i64 @jump(ptr %args, i64 %after)
  br label %step
step:
  %next = phi i64 [ %after, %run ], [ %target, %jump ]
  %more = icmp ult i64 %next, %end
  br i1 %more, label %between, label %done
between:
  %less = sub i64 %left, 1
  %due = icmp eq i64 %less, 0
  br i1 %due, label %look, label %loop
look:
  %stride = call i64 @volta_watch(ptr %watch)
  %ends = icmp eq i64 %stride, 0
  br i1 %ends, label %done, label %loop
done:
  ret void
}

define internal ptr @worker_slot(i64 %number) {
  %from = mul i64 %number, STRIDE
  %at = add i64 %from, WORKERS
  %slot = getelementptr i64, ptr @pool, i64 %at
  ret ptr %slot
}

; Wait until the word differs from a value: spin, and give the processor away when that takes long.
define internal void @wait_while(ptr %word, i64 %value) {
  %patience = load i64, ptr @pool[SPINS]
  br label %look
look:
  %spins = phi i64 [ 0, %0 ], [ %more, %pause ], [ %rest, %yield ]
  %now = load atomic i64, ptr %word acquire, align 8
  %same = icmp eq i64 %now, %value
  br i1 %same, label %wait, label %done
wait:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, %patience
  br i1 %long, label %yield, label %pause
yield:
  %ignored = call i32 @volta_yield()
  %rest = sub i64 %more, 10
  br label %look
pause:
  PAUSE
  br label %look
done:
  ret void
}

; All threads meet; returns the number of this meeting.
define internal i64 @barrier(i64 %width) {
  %phase = load atomic i64, ptr @pool[PHASE] acquire, align 8
  %before = atomicrmw add ptr @pool[ARRIVED], i64 1 acq_rel
  %here = add i64 %before, 1
  %last = icmp eq i64 %here, %width
  br i1 %last, label %open, label %wait
open:
  store atomic i64 0, ptr @pool[ARRIVED] monotonic, align 8
  %next = add i64 %phase, 1
  store atomic i64 %next, ptr @pool[PHASE] release, align 8
  ret i64 %phase
wait:
  call void @wait_while(ptr @pool[PHASE], i64 %phase)
  ret i64 %phase
}

; The same, and whether the plan ends here: the caller, who has a watch, says so by the meeting's number, as a slow
; thread may read it only when the caller is on its way to the next one.
define internal i1 @meet(i64 %width, ptr %watch) {
  %idle = icmp eq ptr %watch, null
  br i1 %idle, label %gather, label %count
count:
  %stopped_at = getelementptr i64, ptr %watch, i64 2
  %stopped = load i64, ptr %stopped_at
  %going = icmp eq i64 %stopped, 0
  br i1 %going, label %launch, label %end
launch:
  %left_at = getelementptr i64, ptr %watch, i64 6
  %left = load i64, ptr %left_at
  %less = sub i64 %left, 1
  store i64 %less, ptr %left_at
  %due = icmp sle i64 %less, 0
  br i1 %due, label %look, label %gather
look:
  %stride = call i64 @volta_watch(ptr %watch)
  store i64 %stride, ptr %left_at
  %ends = icmp eq i64 %stride, 0
  br i1 %ends, label %end, label %gather
end:
  %number = load atomic i64, ptr @pool[PHASE] acquire, align 8
  store atomic i64 %number, ptr @pool[END] monotonic, align 8
  %held = load atomic i64, ptr @pool[LOCK] monotonic, align 8
  %forked = icmp eq i64 %held, 0
  br i1 %forked, label %alone, label %gather
alone:
  ret i1 true
gather:
  %here = call i64 @barrier(i64 %width)
  %last = load atomic i64, ptr @pool[END] monotonic, align 8
  %over = icmp eq i64 %last, %here
  ret i1 %over
}
"""

# Workers are made ready (started, given scratch memory) while the pool is locked: they are idle, none can fail later.
_RUN = """
define internal i1 @ready(i64 %number, i64 %scratch_bytes) {
  %slot = call ptr @worker_slot(i64 %number)
  %raw_at = getelementptr i64, ptr %slot, i64 4
  %size_at = getelementptr i64, ptr %slot, i64 5
  %size = load i64, ptr %size_at
  %small = icmp ult i64 %size, %scratch_bytes
  br i1 %small, label %grow, label %enough
grow:
  %old = load ptr, ptr %raw_at
  call void @PyMem_RawFree(ptr %old)
  %bytes = add i64 %scratch_bytes, 64
  %new = call ptr @PyMem_RawMalloc(i64 %bytes)
  store ptr %new, ptr %raw_at
  %failed = icmp eq ptr %new, null
  %got = select i1 %failed, i64 0, i64 %scratch_bytes
  store i64 %got, ptr %size_at
  br i1 %failed, label %refuse, label %enough
enough:
  %started = load i64, ptr @pool[STARTED]
  %running = icmp ule i64 %number, %started
  br i1 %running, label %accept, label %begin
begin:
  %lock_at = getelementptr i64, ptr %slot, i64 2
  %lock = call ptr @PyThread_allocate_lock()
  %no_lock = icmp eq ptr %lock, null
  br i1 %no_lock, label %refuse, label %launch
launch:
  %ok = call i32 @PyThread_acquire_lock(ptr %lock, i32 1)
  store ptr %lock, ptr %lock_at
  store i64 0, ptr %slot
  %parked_at = getelementptr i64, ptr %slot, i64 1
  store i64 0, ptr %parked_at
  %off_at = getelementptr i64, ptr %slot, i64 6
  store i64 0, ptr %off_at
  %id_at = getelementptr i64, ptr %slot, i64 7
  store i64 0, ptr %id_at
  %index_at = getelementptr i64, ptr %slot, i64 3
  store i64 %number, ptr %index_at
  fence seq_cst
  %thread = call i64 @PyThread_start_new_thread(ptr @worker, ptr %slot)
  %no_thread = icmp eq i64 %thread, -1
  br i1 %no_thread, label %refuse, label %born
born:
  store i64 %number, ptr @pool[STARTED]
  br label %accept
accept:
  ret i1 true
refuse:
  ret i1 false
}

define i64 @volta_pool_run(ptr %table, i64 %count, i64 %scratch, i64 %scratch_bytes, ptr %watch) {
  %threads = load atomic i64, ptr @pool[THREADS] monotonic, align 8
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %try, label %alone
try:
  %pair = cmpxchg ptr @pool[LOCK], i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %prepare, label %alone
prepare:
  %number = phi i64 [ 1, %try ], [ %next, %prepared ]
  %enough = icmp eq i64 %number, %threads
  br i1 %enough, label %ready, label %one
one:
  %ok = call i1 @ready(i64 %number, i64 %scratch_bytes)
  br i1 %ok, label %prepared, label %ready
prepared:
  %next = add i64 %number, 1
  br label %prepare
ready:
  %width = phi i64 [ %number, %prepare ], [ %number, %one ]
  store ptr %table, ptr @pool[TABLE]
  store i64 %count, ptr @pool[COUNT]
  store i64 %width, ptr @pool[WIDTH]
  %runs = load i64, ptr @pool[RUNS]
  %runs1 = add i64 %runs, 1
  store i64 %runs1, ptr @pool[RUNS]
  %others = sub i64 %width, 1
  store atomic i64 %others, ptr @pool[REMAINING] monotonic, align 8
  %last = load i64, ptr @pool[GENERATION]
  %generation = add i64 %last, 1
  store i64 %generation, ptr @pool[GENERATION]
  store atomic i64 -1, ptr @pool[END] monotonic, align 8
  %phase = load i64, ptr @pool[PHASE]
  %phase1 = add i64 %phase, 1
  store atomic i64 %phase1, ptr @pool[PHASE] monotonic, align 8
  call void @post_all(i64 %width, i64 %generation)
  call void @part(ptr %table, i64 %count, i64 %scratch, i64 0, i64 %width, ptr %watch)
  call void @drain()
  store atomic i64 0, ptr @pool[LOCK] release, align 8
  ret i64 1
alone:
  ret i64 0
}

define internal void @drain() {
  br label %look
look:
  %left = load atomic i64, ptr @pool[REMAINING] acquire, align 8
  %none = icmp eq i64 %left, 0
  br i1 %none, label %done, label %wait
wait:
  call void @wait_while(ptr @pool[REMAINING], i64 %left)
  br label %look
done:
  ret void
}

; Ends all workers (at exit), if nobody holds the pool: 1 where they are gone.
define i64 @volta_pool_stop() {
  %pair = cmpxchg ptr @pool[LOCK], i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %stop, label %busy
busy:
  ret i64 0
stop:
  %started = load i64, ptr @pool[STARTED]
  store atomic i64 %started, ptr @pool[REMAINING] monotonic, align 8
  %width = add i64 %started, 1
  call void @post_all(i64 %width, i64 -1)
  call void @drain()
  store i64 0, ptr @pool[STARTED]
  store i64 0, ptr @pool[GENERATION]
  store atomic i64 0, ptr @pool[LOCK] release, align 8
  ret i64 1
}

; In a forked child there are no workers, and the parent may have been in the middle of a plan.
define i64 @volta_pool_forked() {
  store i64 0, ptr @pool[STARTED]
  store i64 0, ptr @pool[GENERATION]
  store i64 0, ptr @pool[ARRIVED]
  store atomic i64 0, ptr @pool[REMAINING] monotonic, align 8
  store atomic i64 0, ptr @pool[LOCK] release, align 8
  ret i64 0
}
"""


def text(max_threads: int, x86: bool) -> str:
    """The module's IR, with its constants filled in."""
    ir = fpenv.DECLARATIONS + _HEAD + PART + WORKER + _RUN
    for name, word in WORDS.items():
        ir = ir.replace(f"@pool[{name}]", f"getelementptr (i64, ptr @pool, i64 {word})")
    if x86:
        pause, declaration = "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"
    else:  # isb, as yield is a no-op on most cores
        pause, declaration = "call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)"
    constants = {"POOL_SIZE": _WORKERS + _STRIDE * max_threads, "STRIDE": _STRIDE, "WORKERS": _WORKERS}
    for name, value in constants.items():
        ir = ir.replace(name, str(value))
    return ir.replace("PAUSE", pause) + declaration
