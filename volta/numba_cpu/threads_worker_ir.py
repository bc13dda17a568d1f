"""A worker's life, as LLVM IR: waiting, parking, working; and how it is given work. A part of `threads_ir`."""

# A worker's life. While it looks for work it lets others run now and then: it may share a processor with the caller.
# Parking: announce it, look once more, and only then sleep; whoever clears `parked` owes a release.
WORKER = """
define internal void @worker(ptr %me) {
  %parked = getelementptr i64, ptr %me, i64 1
  %lock_at = getelementptr i64, ptr %me, i64 2
  %index_at = getelementptr i64, ptr %me, i64 3
  %scratch_at = getelementptr i64, ptr %me, i64 4
  %lock = load ptr, ptr %lock_at
  %index = load i64, ptr %index_at
  %patience = load i64, ptr @pool[IDLE_SPINS]
  %id_at = getelementptr i64, ptr %me, i64 7
  %id32 = call i32 @volta_thread_id()
  %id = zext i32 %id32 to i64
  store atomic i64 %id, ptr %id_at monotonic, align 8
  br label %idle
idle:
  %seen = phi i64 [ 0, %0 ], [ %mail, %worked ]
  br label %spin
spin:
  %spins = phi i64 [ 0, %idle ], [ %more, %pause ], [ %more, %yield ], [ 0, %woken ]
  %mail = load atomic i64, ptr %me acquire, align 8
  %new = icmp ne i64 %mail, %seen
  br i1 %new, label %work, label %wait
wait:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, %patience
  br i1 %long, label %park, label %rest
rest:
  %few = and i64 %more, 63
  %often = icmp eq i64 %few, 0
  br i1 %often, label %yield, label %pause
yield:
  %ignored = call i32 @volta_yield()
  br label %spin
pause:
  PAUSE
  br label %spin
park:
  %old = atomicrmw xchg ptr %parked, i64 1 seq_cst
  %again = load atomic i64, ptr %me seq_cst, align 8
  %missed = icmp ne i64 %again, %seen
  br i1 %missed, label %unpark, label %sleep
unpark:
  %pair = cmpxchg ptr %parked, i64 1, i64 0 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %woken, label %sleep
sleep:
  %ok = call i32 @PyThread_acquire_lock(ptr %lock, i32 1)
  br label %woken
woken:
  br label %spin
work:
  %stop = icmp eq i64 %mail, -1
  br i1 %stop, label %leave, label %run
run:
  %table = load ptr, ptr @pool[TABLE]
  %count = load i64, ptr @pool[COUNT]
  %width = load i64, ptr @pool[WIDTH]
  %raw = load i64, ptr %scratch_at
  %up = add i64 %raw, 63
  %scratch = and i64 %up, -64
  call void @part(ptr %table, i64 %count, i64 %scratch, i64 %index, i64 %width, ptr null)
  br label %worked
worked:
  %left = atomicrmw sub ptr @pool[REMAINING], i64 1 release
  br label %idle
leave:
  %gone = atomicrmw sub ptr @pool[REMAINING], i64 1 release
  ret void
}

; A sleeping worker often wakes on the caller's processor, and then takes milliseconds to be moved. Before waking it,
; allow it all processors that the process may use but the caller's.
define internal void @place(ptr %slot) {
  %mask = alloca [16 x i64], align 8
  %cpu = call i32 @volta_cpu()
  %id_at = getelementptr i64, ptr %slot, i64 7
  %id = load atomic i64, ptr %id_at monotonic, align 8
  %kept_at = getelementptr i64, ptr %slot, i64 6
  %kept = load i64, ptr %kept_at
  %wide = zext i32 %cpu to i64
  %mark = add i64 %wide, 1
  %known = icmp eq i64 %kept, %mark
  %unborn = icmp eq i64 %id, 0
  %beyond = icmp uge i32 %cpu, 1024
  %wanted = load i64, ptr @pool[PLACE]
  %unwanted = icmp eq i64 %wanted, 0
  %skip0 = or i1 %known, %unborn
  %skip1 = or i1 %skip0, %unwanted
  %skip = or i1 %skip1, %beyond
  br i1 %skip, label %done, label %copy
copy:
  %i = phi i64 [ 0, %0 ], [ %next, %copy ]
  %others = phi i64 [ 0, %0 ], [ %any, %copy ]
  %from = getelementptr i64, ptr @allowed, i64 %i
  %bits = load i64, ptr %from
  %word = lshr i64 %wide, 6
  %here = icmp eq i64 %word, %i
  %shift = and i64 %wide, 63
  %bit = shl i64 1, %shift
  %inverse = xor i64 %bit, -1
  %keep = select i1 %here, i64 %inverse, i64 -1
  %left = and i64 %bits, %keep
  %to = getelementptr i64, ptr %mask, i64 %i
  store i64 %left, ptr %to
  %any = or i64 %others, %left
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %copy, label %check
check:
  %alone = icmp eq i64 %any, 0
  br i1 %alone, label %done, label %set
set:
  %thread = trunc i64 %id to i32
  %ignored = call i32 @volta_set_affinity(i32 %thread, i64 128, ptr %mask)
  store i64 %mark, ptr %kept_at
  br label %done
done:
  ret void
}

define internal void @post(ptr %slot, i64 %mail) {
  store atomic i64 %mail, ptr %slot seq_cst, align 8
  %parked = getelementptr i64, ptr %slot, i64 1
  %state = load atomic i64, ptr %parked seq_cst, align 8
  %asleep = icmp eq i64 %state, 1
  br i1 %asleep, label %claim, label %done
claim:
  %pair = cmpxchg ptr %parked, i64 1, i64 0 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %wake, label %done
wake:
  call void @place(ptr %slot)
  %lock_at = getelementptr i64, ptr %slot, i64 2
  %lock = load ptr, ptr %lock_at
  call void @PyThread_release_lock(ptr %lock)
  br label %done
done:
  ret void
}

define internal void @post_all(i64 %width, i64 %mail) {
  br label %test
test:
  %number = phi i64 [ 1, %0 ], [ %next, %body ]
  %more = icmp ult i64 %number, %width
  br i1 %more, label %body, label %done
body:
  %slot = call ptr @worker_slot(i64 %number)
  call void @post(ptr %slot, i64 %mail)
  %next = add i64 %number, 1
  br label %test
done:
  ret void
}
"""
