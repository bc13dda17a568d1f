"""What a kernel needs to run on the host, as LLVM: threads of a block that take rounds, and checks of what they touch.

A block's threads are fibers on one thread of the machine: each runs until it waits for others, and then the next one
does. A wait is for a counter to move: that of the block's barrier or of the warp's. The order of rounds is an argument,
so that what depends on it shows. x86-64 only: exchanging stacks is assembly.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.loops import I8, I32, I64, PTR, VOID, as_i64, for_range, if_then, intrinsic, offset
from volta.numba_cuda.codegen.ptx_ops import LANE_BYTES

WARP = 32
READ, WRITE = 1, 2
MISALIGNED, RACE = 4, 8

RANGE_WORDS = 4  # first byte, one past the last, rights, and the address of its shadow, 0 for none
RECORD_WORDS = 6  # block, thread, address, bytes, the rights wanted plus what is wrong, the other thread of a race
COPY_WORDS = 5  # destination, bytes, group, two words of data
SHADOW_BYTES = 32
"""A byte's shadow: when and by which thread it was written last, when and by which it was read last.

When is one word: launch, block, barriers the block has passed, barriers the warp has passed. Where several threads read
a byte between two barriers, their place is taken by a number for the warp or for the block.
"""

LAUNCH_SHIFT, BLOCK_SHIFT, EPOCH_SHIFT = 52, 32, 16
_WARP_OF, _MANY, _ATOMIC = 2048, 4096, 1 << 16

MOST_RECORDS, MOST_COPIES, SINK_BYTES = 64, 512, 64

STATE = (
    "kernel", "args", "thread", "block", "threads", "blocks", "launch",  # what runs
    "scheduler", "stacks", "order", "waits", "values", "done",  # fibers: stack pointers, rounds, what each waits for
    "alive", "arrived", "passed",  # of the block, then of each warp: threads, threads at the barrier, barriers passed
    "ranges", "range_count", "last", "records", "record_count", "nothing", "sink", "spoilt",  # checks
    "lanes", "copies", "copy_counts", "groups",  # exchange between lanes; asynchronous copies
)  # fmt: skip
"""Words of a module's state, as they lie in ``volta.host.state``. Those that are tables hold addresses."""

_SWITCH = "\n".join(
    [
        *(f"pushq %{r}" for r in ("rbp", "rbx", "r12", "r13", "r14", "r15")),
        "movq %rsp, (%rdi)",
        "movq %rsi, %rsp",
        *(f"popq %{r}" for r in ("r15", "r14", "r13", "r12", "rbx", "rbp")),
        "retq",
    ]
)
SAVED_WORDS = 6
"""Registers that lie on the stack of a fiber that waits, below the address where it goes on."""


def state_word(b: ir.IRBuilder, name: str) -> ir.Value:
    """The place of a word of the state."""
    return offset(b, ir.FormattedConstant(PTR, '@"volta.host.state"'), 8 * STATE.index(name))


def declare_state(module: ir.Module) -> ir.GlobalVariable:
    """The state, which is the runtime's, in a module of kernels; functions are declared where they are called."""
    return ir.GlobalVariable(module, ir.ArrayType(I64, len(STATE)), "volta.host.state")


def runtime_text() -> str:
    """The functions ``volta.host.*`` and the state, as LLVM."""
    module = ir.Module(context=ir.Context())
    _Runtime(module)
    return str(module)


class _Runtime:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        state = declare_state(module)
        state.initializer = ir.Constant(state.value_type, None)
        self._switch()
        self._add("thread", I32, [], lambda b, _: b.ret(b.trunc(self._get(b, "thread"), I32)))
        self._add("record", VOID, [I64, I64, I64, I64], self._record)
        self._add("track", I64, [I64, I64, I64, I64], self._track)
        self._add("check", PTR, [PTR, I64, I64, I64], self._check)
        self._add("lane_area", PTR, [I32], self._lane_area)
        self._add("meet", VOID, [I64], self._meet)
        self._add("meet_block", VOID, [], lambda b, _: self._call(b, "meet", I64(0)))
        self._add("meet_warp", VOID, [], lambda b, _: self._call(b, "meet", self._warp(b)))
        self._add("wait_for_change", VOID, [PTR], self._wait_for_change)
        self._add("copy_padded", VOID, [PTR, PTR, I64, I64], self._copy_padded)
        self._add("copy_async", VOID, [PTR, PTR, I32, I32], self._copy)
        self._add("commit_copies", VOID, [], self._commit)
        self._add("wait_copies", VOID, [I32], self._wait)
        self._add("fiber", VOID, [], self._fiber)
        self._add("run_block", I64, [], self._run_block)

    def _add(
        self, name: str, result: ir.Type, args: list[ir.Type], body: Callable[[ir.IRBuilder, list[ir.Value]], object]
    ) -> None:
        function = intrinsic(self.module, f"volta.host.{name}", result, args)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        body(b, list(function.args))
        if not b.block.is_terminated:
            b.ret_void()

    def _call(self, b: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
        return b.call(self.module.globals[f"volta.host.{name}"], args)

    def _get(self, b: ir.IRBuilder, name: str) -> ir.Value:
        return b.load(state_word(b, name), typ=I64)

    def _set(self, b: ir.IRBuilder, name: str, value: ir.Value) -> None:
        b.store(value, state_word(b, name))

    def _word(self, b: ir.IRBuilder, table: str, index: ir.Value | int) -> ir.Value:
        """The place of a word of a table."""
        return offset(b, b.inttoptr(self._get(b, table), PTR), b.shl(as_i64(index), I64(3)))

    def _load(self, b: ir.IRBuilder, table: str, index: ir.Value | int) -> ir.Value:
        return b.load(self._word(b, table, index), typ=I64)

    # -- fibers --------------------------------------------------------------------------------------------------------

    def _switch(self) -> None:
        """``switch(save, stack)``: leave this stack, whose pointer is saved, and go on where another one was left."""
        function = ir.Function(self.module, ir.FunctionType(VOID, [PTR, I64]), "volta.host.switch")
        for name in ("naked", "noinline"):
            function.attributes.add(name)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        b.call(ir.InlineAsm(ir.FunctionType(VOID, []), _SWITCH, "~{memory}", side_effect=True), [])
        b.unreachable()

    def _leave(self, b: ir.IRBuilder) -> None:
        """Back to the scheduler, until this fiber runs again."""
        self._call(b, "switch", self._word(b, "stacks", self._get(b, "thread")), self._get(b, "scheduler"))

    def _fiber(self, b: ir.IRBuilder, _: list[ir.Value]) -> None:
        """What a fiber runs: the kernel; then it is gone, which may be what others wait for."""
        kernel = b.inttoptr(self._get(b, "kernel"), ir.FunctionType(VOID, [PTR]).as_pointer())
        b.call(kernel, [b.inttoptr(self._get(b, "args"), PTR)])
        b.store(I64(1), self._word(b, "done", self._get(b, "thread")))
        for barrier in (I64(0), self._warp(b)):
            alive = self._word(b, "alive", barrier)
            left = b.sub(b.load(alive, typ=I64), I64(1))
            b.store(left, alive)
            arrived = self._load(b, "arrived", barrier)
            with if_then(b, b.and_(b.icmp_signed("==", arrived, left), b.icmp_signed(">", left, I64(0)))):
                self._release(b, barrier)
        self._leave(b)
        b.unreachable()

    def _run_block(self, b: ir.IRBuilder, _: list[ir.Value]) -> None:
        """Run every fiber, round after round, until all are done (0), or until all that are left wait for each other
        (1)."""
        rounds, end = b.append_basic_block("rounds"), b.append_basic_block("end")
        moved, left = b.alloca(I64), b.alloca(I64)
        b.branch(rounds)
        b.position_at_end(rounds)
        b.store(I64(0), moved)
        b.store(I64(0), left)
        with for_range(b, 0, self._get(b, "threads")) as i:
            t = self._load(b, "order", i)
            with if_then(b, b.icmp_signed("==", self._load(b, "done", t), I64(0))):
                b.store(I64(1), left)
                counter = self._load(b, "waits", t)
                free = b.icmp_signed("==", counter, I64(0))
                safe = b.inttoptr(b.select(free, self._get(b, "nothing"), counter), PTR)
                ready = b.or_(free, b.icmp_signed("!=", b.load(safe, typ=I64), self._load(b, "values", t)))
                with if_then(b, ready):
                    b.store(I64(1), moved)
                    b.store(I64(0), self._word(b, "waits", t))
                    self._set(b, "thread", t)
                    self._call(b, "switch", state_word(b, "scheduler"), self._load(b, "stacks", t))
        b.cbranch(b.icmp_signed("!=", b.load(moved, typ=I64), I64(0)), rounds, end)
        b.position_at_end(end)
        b.ret(b.load(left, typ=I64))

    # -- barriers ------------------------------------------------------------------------------------------------------

    def _warp(self, b: ir.IRBuilder) -> ir.Value:
        """The number of the warp's barrier."""
        return b.add(b.udiv(self._get(b, "thread"), I64(WARP)), I64(1))

    def _release(self, b: ir.IRBuilder, barrier: ir.Value) -> None:
        b.store(I64(0), self._word(b, "arrived", barrier))
        passed = self._word(b, "passed", barrier)
        b.store(b.add(b.load(passed, typ=I64), I64(1)), passed)

    def _meet(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        barrier = args[0]
        place = self._word(b, "arrived", barrier)
        arrived = b.add(b.load(place, typ=I64), I64(1))
        b.store(arrived, place)
        with b.if_else(b.icmp_signed("==", arrived, self._load(b, "alive", barrier))) as (last, other):
            with last:
                self._release(b, barrier)
            with other:
                t, passed = self._get(b, "thread"), self._word(b, "passed", barrier)
                b.store(b.ptrtoint(passed, I64), self._word(b, "waits", t))
                b.store(b.load(passed, typ=I64), self._word(b, "values", t))
                self._leave(b)

    def _lane_area(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """Where a lane of this warp leaves what the others read."""
        first = b.and_(self._get(b, "thread"), I64(-WARP))
        place = b.mul(b.add(first, b.zext(args[0], I64)), I64(LANE_BYTES))
        b.ret(offset(b, b.inttoptr(self._get(b, "lanes"), PTR), place))

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """``check(pointer, bytes, rights, alignment)``: the pointer; if that is wrong, a record, and one to nothing."""
        pointer, nbytes, wanted, align = args
        start = b.ptrtoint(pointer, I64)
        stop = b.add(start, nbytes)
        straight = b.icmp_signed("==", b.and_(start, b.sub(align, I64(1))), I64(0))
        look, found, nxt, miss = (b.append_basic_block(x) for x in ("look", "found", "next", "miss"))
        first, before = self._get(b, "last"), b.block
        count = self._get(b, "range_count")
        b.cbranch(straight, look, miss)
        b.position_at_end(look)
        at, left = b.phi(I64), b.phi(I64)
        base = self._word(b, "ranges", b.mul(at, I64(RANGE_WORDS)))
        low, high, rights, shadow = (b.load(offset(b, base, 8 * i), typ=I64) for i in range(RANGE_WORDS))
        inside = b.and_(b.icmp_unsigned(">=", start, low), b.icmp_unsigned("<=", stop, high))
        allowed = b.icmp_signed("==", b.and_(rights, wanted), wanted)
        b.cbranch(b.and_(inside, allowed), found, nxt)
        b.position_at_end(found)
        self._set(b, "last", at)
        with if_then(b, b.icmp_signed("!=", shadow, I64(0)), likely=False):
            moved = b.mul(b.sub(start, low), I64(SHADOW_BYTES))
            spoilt = self._call(b, "track", b.add(shadow, moved), start, nbytes, wanted)
            with if_then(b, b.icmp_signed("!=", spoilt, I64(0)), likely=False):
                b.ret(b.inttoptr(self._get(b, "spoilt"), PTR))
        b.ret(pointer)
        b.position_at_end(nxt)
        following = b.add(at, I64(1))
        following = b.select(b.icmp_signed("==", following, count), I64(0), following)
        fewer = b.sub(left, I64(1))
        b.cbranch(b.icmp_signed(">", fewer, I64(0)), look, miss)
        at.add_incoming(first, before)
        at.add_incoming(following, nxt)
        left.add_incoming(count, before)
        left.add_incoming(fewer, nxt)
        b.position_at_end(miss)
        fault = b.select(straight, wanted, b.or_(wanted, I64(MISALIGNED)))
        self._call(b, "record", start, nbytes, fault, I64(0))
        writes = b.icmp_signed("!=", b.and_(wanted, I64(WRITE)), I64(0))
        b.ret(b.inttoptr(b.select(writes, self._get(b, "sink"), self._get(b, "nothing")), PTR))

    def _record(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        number = self._get(b, "record_count")
        self._set(b, "record_count", b.add(number, I64(1)))
        with if_then(b, b.icmp_signed("<", number, I64(MOST_RECORDS))):
            for i, word in enumerate((self._get(b, "block"), self._get(b, "thread"), *args)):
                b.store(word, self._word(b, "records", b.add(b.mul(number, I64(RECORD_WORDS)), I64(i))))

    # -- races ---------------------------------------------------------------------------------------------------------

    def _track(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """``track(shadow, address, bytes, rights)``: note an access; a record if no barrier orders it after another's.

        Of two threads' accesses to a byte, one of them a write, the first must be ordered before the second: by a
        launch, by a barrier of their block or warp. Updates by atomic operations need no order among themselves. The
        lowest bit of the shadow's address says that the memory is the block's own.

        A thread may read device memory that another one writes meanwhile if it makes no use of what it finds, as those
        beyond the end of a row do. So that is no record; where the write came first, 1 is returned, and NaN is read.
        """
        shadow, start, nbytes, wanted = args
        t, one = self._get(b, "thread"), I64(1)
        warp = b.lshr(t, I64(5))
        passed = (self._load(b, "passed", I64(0)), self._load(b, "passed", b.add(warp, one)))
        now: ir.Value = b.shl(self._get(b, "launch"), I64(LAUNCH_SHIFT))
        for value, bits, shift in (
            (self._get(b, "block"), 20, BLOCK_SHIFT),
            (passed[0], 16, EPOCH_SHIFT),
            (passed[1], 16, 0),
        ):
            now = b.or_(now, b.shl(b.and_(value, I64((1 << bits) - 1)), I64(shift)))
        own = b.icmp_signed("!=", b.and_(shadow, one), I64(0))
        writes = b.icmp_signed("!=", b.and_(wanted, I64(WRITE)), I64(0))
        atomic = b.icmp_signed("==", wanted, I64(READ | WRITE))
        base = b.inttoptr(b.and_(shadow, I64(-2)), PTR)
        bad, spoilt = b.alloca(I64), b.alloca(I64)
        b.store(I64(-1), bad)
        b.store(I64(0), spoilt)

        def same(x: ir.Value, y: ir.Value, shift: int) -> ir.Value:
            return b.icmp_signed("==", b.lshr(x, I64(shift)), b.lshr(y, I64(shift)))

        def in_warp(thread: ir.Value) -> ir.Value:
            return b.or_(same(thread, t, 5), b.icmp_signed("==", thread, b.add(warp, I64(_WARP_OF))))

        def races(when: ir.Value, who: ir.Value) -> ir.Value:
            """Whether an access is not ordered before this one."""
            thread = b.and_(who, I64(_ATOMIC - 1))
            later = b.and_(in_warp(thread), b.icmp_signed("<", b.and_(when, I64(0xFFFF)), passed[1]))
            mine = b.or_(b.icmp_signed("==", thread, t), later)
            inside = b.and_(same(when, now, EPOCH_SHIFT), b.not_(mine))
            across = b.and_(b.not_(same(when, now, BLOCK_SHIFT)), b.not_(own))
            return b.and_(same(when, now, LAUNCH_SHIFT), b.or_(inside, across))

        with for_range(b, 0, nbytes) as i:
            place = offset(b, base, b.mul(i, I64(SHADOW_BYTES)))
            words = [offset(b, place, 8 * w) for w in range(4)]
            written, writer, read, reader = (b.load(w, typ=I64) for w in words)
            both = b.and_(atomic, b.icmp_signed("!=", b.and_(writer, I64(_ATOMIC)), I64(0)))
            clash = b.and_(races(written, writer), b.not_(both))
            clash_read = b.and_(writes, races(read, reader))
            with if_then(b, b.and_(clash, b.not_(b.or_(writes, own)))):
                b.store(I64(1), spoilt)
            with if_then(b, b.or_(b.and_(clash, b.or_(writes, own)), b.and_(clash_read, own))):
                b.store(b.and_(b.select(clash, writer, reader), I64(_ATOMIC - 1)), bad)
            with b.if_else(writes) as (write, only_read):
                with write:
                    b.store(now, words[0])
                    b.store(b.or_(t, b.select(atomic, I64(_ATOMIC), I64(0))), words[1])
                with only_read:
                    alone = b.or_(b.not_(same(read, now, EPOCH_SHIFT)), b.icmp_signed("==", reader, t))
                    near = b.select(b.icmp_signed("==", read, now), b.add(warp, I64(_WARP_OF)), t)
                    others = b.select(in_warp(reader), near, I64(_MANY))
                    b.store(now, words[2])
                    b.store(b.select(alone, t, others), words[3])
        other = b.load(bad, typ=I64)
        with if_then(b, b.icmp_signed(">=", other, I64(0))):
            self._call(b, "record", start, nbytes, b.or_(wanted, I64(RACE)), other)
        b.ret(b.load(spoilt, typ=I64))

    # -- copies that barriers of their own order ---------------------------------------------------------------------

    def _wait_for_change(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """Wait until an i64 is another."""
        t = self._get(b, "thread")
        b.store(b.ptrtoint(args[0], I64), self._word(b, "waits", t))
        b.store(b.load(args[0], typ=I64), self._word(b, "values", t))
        self._leave(b)

    def _copy_padded(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """``copy_padded(to, source, valid, bytes)``: copy valid bytes, zeros behind them.

        What orders this is no barrier that `track` knows: it is not told of what is written.
        """
        to, source, valid, nbytes = args
        to = self._call(b, "check", to, I64(0), I64(WRITE), nbytes)
        source = b.select(b.icmp_signed("==", valid, I64(0)), to, source)
        source = self._call(b, "check", source, valid, I64(READ), nbytes)
        with for_range(b, 0, nbytes) as i:
            b.store(I8(0), offset(b, to, i))
        with for_range(b, 0, valid) as i:
            b.store(b.load(offset(b, source, i), typ=I8), offset(b, to, i))

    # -- asynchronous copies -------------------------------------------------------------------------------------------

    def _copy(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """Take the bytes now, spoil their destination, and keep them until they are waited for."""
        to, source, nbytes, valid = args
        size, read = b.zext(nbytes, I64), b.zext(valid, I64)
        to = self._call(b, "check", to, size, I64(WRITE), size)
        source = b.select(b.icmp_signed("==", read, I64(0)), to, source)  # where nothing is read, any address is one
        source = self._call(b, "check", source, read, I64(READ), size)
        t = self._get(b, "thread")
        count = self._word(b, "copy_counts", t)
        number = b.load(count, typ=I64)
        b.store(b.add(number, I64(1)), count)
        place = self._word(b, "copies", b.mul(b.add(b.mul(t, I64(MOST_COPIES)), number), I64(COPY_WORDS)))
        group = self._load(b, "groups", t)
        for i, word in enumerate((b.ptrtoint(to, I64), size, group, I64(0), I64(0))):
            b.store(word, offset(b, place, 8 * i))
        data = offset(b, place, 24)
        with for_range(b, 0, read) as i:
            b.store(b.load(offset(b, source, i), typ=I8), offset(b, data, i))
        with for_range(b, 0, size) as i:
            b.store(I8(-1), offset(b, to, i))

    def _commit(self, b: ir.IRBuilder, _: list[ir.Value]) -> None:
        place = self._word(b, "groups", self._get(b, "thread"))
        b.store(b.add(b.load(place, typ=I64), I64(1)), place)

    def _wait(self, b: ir.IRBuilder, args: list[ir.Value]) -> None:
        """Make the copies of all groups but the last few, and close ranks."""
        t = self._get(b, "thread")
        limit = b.sub(self._load(b, "groups", t), b.zext(args[0], I64))
        counter = self._word(b, "copy_counts", t)
        count, kept = b.load(counter, typ=I64), b.alloca(I64)
        b.store(I64(0), kept)
        first = self._word(b, "copies", b.mul(t, I64(MOST_COPIES * COPY_WORDS)))
        with for_range(b, 0, count) as i:
            place = offset(b, first, b.mul(i, I64(8 * COPY_WORDS)))
            to, size, group, *data = (b.load(offset(b, place, 8 * w), typ=I64) for w in range(COPY_WORDS))
            with b.if_else(b.icmp_signed("<", group, limit)) as (arrived, waiting):
                with arrived, for_range(b, 0, size) as n:
                    b.store(b.load(offset(b, offset(b, place, 24), n), typ=I8), offset(b, b.inttoptr(to, PTR), n))
                with waiting:
                    n = b.load(kept, typ=I64)
                    b.store(b.add(n, I64(1)), kept)
                    new = offset(b, first, b.mul(n, I64(8 * COPY_WORDS)))
                    for w, word in enumerate((to, size, group, *data)):
                        b.store(word, offset(b, new, 8 * w))
        b.store(b.load(kept, typ=I64), counter)
