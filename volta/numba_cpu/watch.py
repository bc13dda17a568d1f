"""Plans that run for long let the interpreter's signal handlers run, and end when one of them raises.

The interpreter runs handlers in the main thread, between two steps of its own; a native call that takes minutes would
keep it from that. So the thread that walks a plan looks at the processor's clock between two launches, and several
times a second asks the interpreter whether there is a signal to handle. If a handler raises, the plan ends there, and
the call raises what the handler raised; if not, it goes on. Other threads are not interrupted by signals, as in Python;
their plans end early only when the interpreter does.
"""

import ctypes
import functools
import os
import threading

from volta.emit import symbols
from volta.emit.builtins import python_symbols
from volta.numba_cpu import target, unit

WORDS = 7
"""Words of a watch: the thread's state (0: it does not look), where to note who is in a handler, whether the plan is to
end, launches between two looks at the clock, the clock when handlers last ran, and when it was last
looked at; and a word to count launches."""

_STRIDE = 64
"""Most launches between two looks at the clock: so many where they are short. Long ones have one each."""

_IR = r"""
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_CheckSignals()
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare void @PyErr_SetNone(ptr)
declare i64 @PyThread_get_thread_ident()
declare i64 @llvm.umin.i64(i64, i64)
@PyExc_RuntimeError = external global ptr
@PyExc_SystemExit = external global ptr

; The main thread, whether the interpreter is ending, how often this process was forked, how many plans ended early.
@state = internal global [4 x i64] zeroinitializer, align 64

@forked = internal constant [FORKED_SIZE x i8] c"FORKED\00"

define ptr @volta_watch_state() {
  ret ptr @state
}

; Called between two launches: how many may run before the next call, or 0 where the plan is to end.
define i64 @volta_watch(ptr %w) {
  %now = call i64 @volta_clock()
  %stride_at = getelementptr i64, ptr %w, i64 3
  %last_stride = load i64, ptr %stride_at
  %handled_at = getelementptr i64, ptr %w, i64 4
  %handled = load i64, ptr %handled_at
  %seen_at = getelementptr i64, ptr %w, i64 5
  %seen = load i64, ptr %seen_at
  store i64 %now, ptr %seen_at
  %fresh = icmp eq i64 %handled, 0
  %step = sub i64 %now, %seen
  %slow = icmp ugt i64 %step, SLOW
  %one = or i1 %fresh, %slow
  %twice = shl i64 %last_stride, 1
  %bound = call i64 @llvm.umin.i64(i64 %twice, i64 STRIDE)
  %stride = select i1 %one, i64 1, i64 %bound
  store i64 %stride, ptr %stride_at
  br i1 %fresh, label %begin, label %measure
go:
  ret i64 %stride
begin:
  store i64 %now, ptr %handled_at
  ret i64 1
measure:
  %passed = sub i64 %now, %handled
  %long = icmp ugt i64 %passed, PATIENCE
  br i1 %long, label %look, label %go
look:
  store i64 %now, ptr %handled_at
  %me = call i64 @PyThread_get_thread_ident()
  %main = load i64, ptr @state
  %is_main = icmp eq i64 %me, %main
  br i1 %is_main, label %handle, label %beside
beside:
  %ending = load atomic i64, ptr getelementptr (i64, ptr @state, i64 1) monotonic, align 8
  %over = icmp ne i64 %ending, 0
  br i1 %over, label %end, label %go
handle:
  %thread = load ptr, ptr %w
  %owner_at = getelementptr i64, ptr %w, i64 1
  %owner = load ptr, ptr %owner_at
  %forks = load i64, ptr getelementptr (i64, ptr @state, i64 2)
  call void @PyEval_RestoreThread(ptr %thread)
  store i64 %me, ptr %owner
  %status = call i32 @PyErr_CheckSignals()
  store i64 0, ptr %owner
  %forks_now = load i64, ptr getelementptr (i64, ptr @state, i64 2)
  %alone = icmp ne i64 %forks, %forks_now
  br i1 %alone, label %lonely, label %settle
lonely:
  %raised = call ptr @PyErr_Occurred()
  %silent = icmp eq ptr %raised, null
  br i1 %silent, label %say, label %settle
say:
  %error = load ptr, ptr @PyExc_RuntimeError
  call void @PyErr_SetString(ptr %error, ptr @forked)
  br label %settle
settle:
  %failed = icmp ne i32 %status, 0
  %stop = or i1 %failed, %alone
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %w
  %after = call i64 @volta_clock()
  store i64 %after, ptr %handled_at
  br i1 %stop, label %end, label %go
end:
  %stopped_at = getelementptr i64, ptr %w, i64 2
  store i64 1, ptr %stopped_at
  %count = atomicrmw add ptr getelementptr (i64, ptr @state, i64 3), i64 1 monotonic
  ret i64 0
}

; What a call raises whose plan ended early. Only a plan beside the main thread ends without an error: with the thread.
define void @volta_watch_error() {
  %raised = call ptr @PyErr_Occurred()
  %silent = icmp eq ptr %raised, null
  br i1 %silent, label %leave, label %done
leave:
  %exit = load ptr, ptr @PyExc_SystemExit
  call void @PyErr_SetNone(ptr %exit)
  br label %done
done:
  ret void
}
"""

_X86 = """
declare i64 @llvm.readcyclecounter()

define internal i64 @volta_clock() {
  %now = call i64 @llvm.readcyclecounter()
  %some = or i64 %now, 1
  ret i64 %some
}
"""

_AARCH64 = """
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"cntvct_el0"}

define internal i64 @volta_clock() {
  %now = call i64 @llvm.read_volatile_register.i64(metadata !0)
  %some = or i64 %now, 1
  ret i64 %some
}
"""

_FORKED = (
    "the process was forked by a signal handler in the middle of a plan whose worker threads the child does not have: "
    "the call cannot go on in the child"
)

_PATIENCE = {True: 1 << 29, False: 1 << 22}
"""Ticks between two looks for signals: x86 counts some 1 to 5 of them in a ns, aarch64 24 to 1000 in a us."""

DECLARATIONS = "declare i64 @volta_watch(ptr)\ndeclare void @volta_watch_error()\n"

EXPORTS = ("volta_watch", "volta_watch_state", "volta_watch_error")
_PYTHON_FUNCTIONS = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_CheckSignals",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyErr_SetNone",
    "PyThread_get_thread_ident",
)


def text(x86: bool) -> str:
    """The module's IR, with its constants filled in."""
    ir = _IR + (_X86 if x86 else _AARCH64)
    patience = _PATIENCE[x86]
    values = {"FORKED_SIZE": len(_FORKED) + 1, "FORKED": _FORKED, "STRIDE": _STRIDE, "SLOW": patience // 256}
    for name, value in {**values, "PATIENCE": patience}.items():
        ir = ir.replace(name, str(value))
    return ir


def errors() -> dict[str, int]:
    """Where the interpreter keeps the exceptions that native code raises."""
    names = ("PyExc_TypeError", "PyExc_RuntimeError", "PyExc_SystemExit")
    return {name: ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name)) for name in names}


@functools.cache
def native() -> dict[str, int]:
    """Addresses of this module's compiled functions by name; other runtime loops may call them by name."""
    symbols.export({**python_symbols(_PYTHON_FUNCTIONS), **errors()})
    addresses = unit.compile_module(text(target.is_x86()), EXPORTS)
    symbols.export(addresses)
    _word(0, addresses).value = threading.main_thread().ident or 0
    return addresses


def _word(number: int, addresses: dict[str, int]) -> ctypes.c_int64:
    state = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["volta_watch_state"])()
    return ctypes.c_int64.from_address(state + 8 * number)


def stopped() -> int:
    """How many plans have ended early in this process."""
    return int(_word(3, native()).value)


def ending() -> None:
    """The interpreter is on its way out: plans of other threads end."""
    _word(1, native()).value = 1


def _after_fork_in_child() -> None:
    if native.cache_info().currsize:
        _word(0, native()).value = threading.main_thread().ident or 0
        _word(2, native()).value += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
