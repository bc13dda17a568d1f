"""The floating-point environment: every thread that runs kernels rounds to nearest and keeps subnormals.

Another library in the process may have left flush-to-zero on (fast-math start-up code does), or changed the rounding
mode; both live in a control register of each thread, MXCSR on x86 and FPCR on aarch64.  The loops that run kernels call
``volta_fp_enter`` first and ``volta_fp_leave`` last: a foreign setting is put aside while kernels run, restored after
them, and counted.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import attrs

from volta.emit import symbols
from volta.numba_cpu import target, unit

_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define i64 @volta_fp_get() {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %now = load i32, ptr %slot
  %wide = zext i32 %now to i64
  ret i64 %wide
}

define void @volta_fp_set(i64 %wide) {
  %slot = alloca i32
  %value = trunc i64 %wide to i32
  store i32 %value, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
"""

_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define i64 @volta_fp_get() {
  %now = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %now
}

define void @volta_fp_set(i64 %value) {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}
"""

# enter returns the setting to restore, or -1 where there is nothing to do.
_SHARED = """
@corrections = internal global i64 0

define i64 @volta_fp_enter() {
  %now = call i64 @volta_fp_get()
  %control = and i64 %now, MASK
  %foreign = icmp ne i64 %control, STANDARD
  br i1 %foreign, label %mend, label %done
mend:
  call void @volta_fp_set(i64 STANDARD)
  %before = atomicrmw add ptr @corrections, i64 1 monotonic
  br label %done
done:
  %saved = phi i64 [ -1, %0 ], [ %now, %mend ]
  ret i64 %saved
}

define void @volta_fp_leave(i64 %saved) {
  %foreign = icmp ne i64 %saved, -1
  br i1 %foreign, label %restore, label %done
restore:
  call void @volta_fp_set(i64 %saved)
  br label %done
done:
  ret void
}

define i64 @volta_fp_corrections() {
  %count = load atomic i64, ptr @corrections monotonic, align 8
  ret i64 %count
}
"""

DECLARATIONS = """
declare i64 @volta_fp_enter()
declare void @volta_fp_leave(i64)
"""
"""What a loop that runs kernels declares to use this module's functions."""

EXPORTS = ("volta_fp_get", "volta_fp_set", "volta_fp_enter", "volta_fp_leave", "volta_fp_corrections")


@attrs.frozen
class ControlBits:
    """Where an architecture keeps rounding mode and flushing: which bits count, and their standard value."""

    mask: int
    standard: int
    flush_to_zero: int


_X86_BITS = ControlBits(mask=0xFFC0, standard=0x1F80, flush_to_zero=0x8040)  # not the sticky exception flags
# FIZ, AH, NEP, FZ16, rounding mode, FZ, DN; the trap enables stay as they are.
_AARCH64_BITS = ControlBits(mask=0x3C80007, standard=0, flush_to_zero=0x1000000)


def control_bits() -> ControlBits:
    """The control bits of this machine."""
    return _X86_BITS if target.is_x86() else _AARCH64_BITS


def text(x86: bool | None = None) -> str:
    """The IR of this module's functions, for this machine or for either architecture."""
    head, bits = (_X86, _X86_BITS) if (target.is_x86() if x86 is None else x86) else (_AARCH64, _AARCH64_BITS)
    return head + _SHARED.replace("MASK", str(bits.mask)).replace("STANDARD", str(bits.standard))


@functools.cache
def native() -> dict[str, int]:
    """Addresses of this module's compiled functions by name; other runtime loops may call them by name."""
    addresses = unit.compile_module(text(), EXPORTS)
    symbols.export(addresses)
    return addresses


@functools.cache
def _getter() -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(native()["volta_fp_get"])


@functools.cache
def _setter() -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(native()["volta_fp_set"])


def get_control() -> int:
    """The calling thread's control register (MXCSR or FPCR)."""
    return int(_getter()())


def set_control(value: int) -> None:
    """Set the calling thread's control register.  Meant for tests: kernels never run under a foreign setting."""
    _setter()(value)


def is_standard() -> bool:
    """Whether the calling thread rounds to nearest and keeps subnormals."""
    bits = control_bits()
    return get_control() & bits.mask == bits.standard


def corrections() -> int:
    """How often, in this process, a thread was about to run kernels under a foreign setting."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(native()["volta_fp_corrections"])())
