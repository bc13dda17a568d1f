"""A thread's part in a plan, as LLVM IR: which tasks of each launch it runs. A part of `threads_ir`."""

# The caller (index 0) has the last share of a launch, so launches of one task are its own, as are those of which a row
# says so (0 pieces); between two of those no barrier is needed. At a jump all threads meet twice: what it reads must be
# there, and must stay until all have read it. Where a jump says up to which row nothing is shared, the caller walks
# there alone, however often it jumps on the way, and the others wait for it.
#
# A thread takes its share in pieces, each half of what is left, and then of the shares of threads that are slow, or not
# yet there. What is taken of a share is a word: the number of the last meeting, as nobody empties the words, and how
# many tasks. A row says of how many pieces, about, a share is at most.
PART = """
; A piece of a thread's share of a launch: where it begins and ends; nothing is left where these are equal.
define internal { i64, i64 } @take_tasks(i64 %tasks, i64 %width, i64 %whose, i64 %phase, i64 %pieces) {
  %slot = call ptr @worker_slot(i64 %whose)
  %word = getelementptr i64, ptr %slot, i64 8
  %after = sub i64 %width, %whose
  %share = sub i64 %after, 1
  %low = mul i64 %tasks, %share
  %begin = udiv i64 %low, %width
  %high = mul i64 %tasks, %after
  %end = udiv i64 %high, %width
  %size = sub i64 %end, %begin
  %few = udiv i64 %size, %pieces
  %least = call i64 @llvm.umax.i64(i64 %few, i64 1)
  %stamp = shl i64 %phase, 32
  br label %look
look:
  %seen = load atomic i64, ptr %word monotonic, align 8
  %mark = and i64 %seen, -4294967296
  %now = icmp eq i64 %mark, %stamp
  %count = and i64 %seen, 4294967295
  %taken = select i1 %now, i64 %count, i64 0
  %left = sub i64 %size, %taken
  %half = lshr i64 %left, 1
  %more = call i64 @llvm.umax.i64(i64 %half, i64 %least)
  %piece = call i64 @llvm.umin.i64(i64 %more, i64 %left)
  %from = add i64 %begin, %taken
  %to = add i64 %from, %piece
  %range0 = insertvalue { i64, i64 } poison, i64 %from, 0
  %range = insertvalue { i64, i64 } %range0, i64 %to, 1
  %none = icmp eq i64 %piece, 0
  br i1 %none, label %done, label %try
try:
  %total = add i64 %taken, %piece
  %new = or i64 %stamp, %total
  %pair = cmpxchg ptr %word, i64 %seen, i64 %new monotonic monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %done, label %look
done:
  ret { i64, i64 } %range
}

; Whether a row has tasks for more than the caller.
define internal i1 @shared(ptr %row) {
  %tasks_at = getelementptr i64, ptr %row, i64 2
  %tasks = load i64, ptr %tasks_at
  %pieces_at = getelementptr i64, ptr %row, i64 3
  %pieces = load i64, ptr %pieces_at
  %several = icmp ugt i64 %tasks, 1
  %divided = icmp ne i64 %pieces, 0
  %both = and i1 %several, %divided
  ret i1 %both
}

define internal void @part(ptr %table, i64 %count, i64 %scratch, i64 %index, i64 %width, ptr %watch) {
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %start
start:
  %saved = call i64 @volta_fp_enter()
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %go ], [ %target, %leap ], [ %tasks, %rejoin ]
  %row = getelementptr [4 x i64], ptr %table, i64 %i
  %kernel = load ptr, ptr %row
  %args_at = getelementptr i64, ptr %row, i64 1
  %args = load ptr, ptr %args_at
  %next = add i64 %i, 1
  %tasks_at = getelementptr i64, ptr %row, i64 2
  %tasks = load i64, ptr %tasks_at
  %caller = icmp eq i64 %index, 0
  %jumps = icmp eq ptr %kernel, null
  br i1 %jumps, label %jump, label %work
jump:
  %region = icmp ne i64 %tasks, 0
  br i1 %region, label %unshared, label %together
unshared:
  br i1 %caller, label %walk, label %skip
walk:
  call void @volta_walk(ptr %table, i64 %i, i64 %tasks, i64 %scratch, ptr %watch)
  br label %skip
skip:
  %at_end = icmp uge i64 %tasks, %count
  br i1 %at_end, label %finish, label %rejoin_at
rejoin_at:
  %stops = call i1 @meet(i64 %width, ptr %watch)
  br i1 %stops, label %finish, label %rejoin
rejoin:
  br label %loop
together:
  %ends = call i1 @meet(i64 %width, ptr %watch)
  br i1 %ends, label %finish, label %leap
leap:
  %target = call i64 @jump(ptr %args, i64 %next)
  %met = call i64 @barrier(i64 %width)
  %beyond = icmp uge i64 %target, %count
  br i1 %beyond, label %finish, label %loop
work:
  %pieces_at = getelementptr i64, ptr %row, i64 3
  %pieces = load i64, ptr %pieces_at
  %divided = call i1 @shared(ptr %row)
  br i1 %divided, label %several, label %own
own:
  %mine = icmp ult i64 0, %tasks
  %runs = and i1 %caller, %mine
  br i1 %runs, label %run, label %ran
run:
  call void %kernel(ptr %args, i64 0, i64 %tasks, i64 %scratch)
  br label %ran
several:
  %phase = load atomic i64, ptr @pool[PHASE] monotonic, align 8
  br label %visit
visit:
  %step = phi i64 [ 0, %several ], [ %step, %piece ], [ %further, %empty_share ]
  %sum = add i64 %index, %step
  %beyond_last = icmp uge i64 %sum, %width
  %wrapped = sub i64 %sum, %width
  %whose = select i1 %beyond_last, i64 %wrapped, i64 %sum
  %range = call { i64, i64 } @take_tasks(i64 %tasks, i64 %width, i64 %whose, i64 %phase, i64 %pieces)
  %begin = extractvalue { i64, i64 } %range, 0
  %end = extractvalue { i64, i64 } %range, 1
  %nothing = icmp eq i64 %begin, %end
  br i1 %nothing, label %empty_share, label %piece
piece:
  call void %kernel(ptr %args, i64 %begin, i64 %end, i64 %scratch)
  br label %visit
empty_share:
  %further = add i64 %step, 1
  %all = icmp uge i64 %further, %width
  br i1 %all, label %ran, label %visit
ran:
  %last = icmp eq i64 %next, %count
  br i1 %last, label %finish, label %ordered
ordered:
  %next_row = getelementptr [4 x i64], ptr %row, i64 1
  %next_divided = call i1 @shared(ptr %next_row)
  %either = or i1 %divided, %next_divided
  br i1 %either, label %wait, label %go
wait:
  %over = call i1 @meet(i64 %width, ptr %watch)
  br i1 %over, label %finish, label %go
go:
  br label %loop
finish:
  call void @volta_fp_leave(i64 %saved)
  br label %done
done:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
"""
