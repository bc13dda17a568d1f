"""The worker threads that share a plan's launches.

Every launch is cut into tasks by the problem's sizes alone; thread t of T has tasks ``[n*t//T, n*(t+1)//T)``, which it
takes piece by piece, and who has done its own takes pieces of the others'.  So threads move work and never a bit.
The caller is one of the T threads.  Workers are native threads without Python state: they need no GIL, and interpreter
shutdown has nothing to wait for in Python.  After a plan a worker spins for some tens of microseconds, because the next
plan usually follows at once, then parks on a lock.  Only one plan at a time uses the workers; a second caller meanwhile
runs its plan alone, to the same bits.
"""

import atexit
import ctypes
import functools
import os
import sys
import threading
import time

from volta.core.locks import free_in_children
from volta.emit import symbols
from volta.emit.builtins import python_symbols
from volta.numba_cpu import fpenv, target, threads_ir, unit, watch

MAX_THREADS = 256
EXPORTS = ("volta_pool", "volta_pool_run", "volta_pool_stop", "volta_pool_forked", "volta_allowed", "volta_walk")
_PYTHON_SYMBOLS = (
    "PyThread_allocate_lock",
    "PyThread_acquire_lock",
    "PyThread_release_lock",
    "PyThread_start_new_thread",
    "PyMem_RawMalloc",
    "PyMem_RawFree",
)
DECLARATIONS = """
declare i64 @volta_pool_run(ptr, i64, i64, i64, ptr)
declare void @volta_walk(ptr, i64, i64, i64, ptr)
"""
"""What hands plans to the workers declares (table, launches, caller's scratch and its size, its watch -> 1 if run), and
what walks rows alone (table, the first one, the one behind the last, scratch, watch)."""

_LAST_PLAN = 2.0
"""Seconds that the end of the process waits for a plan that another thread still runs: it ends at its next launch."""


def _yield_address() -> int:
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_Nothing = ctypes.CFUNCTYPE(ctypes.c_int32)
_NothingOfThree = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p)
_no_number = _Nothing(lambda: -1)  # beyond every processor: workers are left where the system puts them
_no_thread = _Nothing(lambda: 0)
_no_affinity = _NothingOfThree(lambda thread, size, mask: -1)


def _placement() -> dict[str, int]:
    """Functions that say where the caller runs and keep a worker off that processor; idle ones where there are none."""
    found = [_no_number, _no_thread, _no_affinity]
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        names = ("sched_getcpu", "gettid", "sched_setaffinity")
        if all(hasattr(library, name) for name in names):
            found = [getattr(library, name) for name in names]
    names = ("volta_cpu", "volta_thread_id", "volta_set_affinity")
    return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in zip(names, found, strict=True)}


def _note_allowed(addresses: dict[str, int]) -> None:
    """Write down which processors this process may use, 64 to a word."""
    at = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["volta_allowed"])()
    words = (ctypes.c_uint64 * 16).from_address(at)
    for cpu in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        if cpu < 1024:
            words[cpu // 64] |= 1 << (cpu % 64)


def text() -> str:
    """The IR of this module's functions."""
    return threads_ir.text(MAX_THREADS, target.is_x86())


@functools.cache
def native() -> dict[str, int]:
    """Addresses of this module's compiled functions by name; other runtime loops may call them by name."""
    fpenv.native()
    watch.native()
    symbols.export({"volta_yield": _yield_address(), **_placement(), **python_symbols(_PYTHON_SYMBOLS)})
    addresses = unit.compile_module(text(), EXPORTS)
    symbols.export(addresses)
    _note_allowed(addresses)
    _apply(addresses)
    atexit.register(_shutdown)
    return addresses


def _word(addresses: dict[str, int], name: str) -> ctypes.c_int64:
    pool = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["volta_pool"])()
    return ctypes.c_int64.from_address(pool + 8 * threads_ir.WORDS[name])


def _apply(addresses: dict[str, int]) -> None:
    # In pauses of some 25 ns: how long to wait for another thread before giving the processor away, and how long an
    # idle worker looks for the next plan before it parks.  With more threads than processors, whoever spins keeps
    # another thread from working.
    enough = _num_threads <= target.available_processors()
    _word(addresses, "SPINS").value = 200 if enough else 10
    _word(addresses, "IDLE_SPINS").value = 1500 if enough else 10
    _word(addresses, "PLACE").value = int(enough)  # with too many threads, all processors are shared anyway
    _word(addresses, "THREADS").value = _num_threads


def _call(name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(native()[name])())


def _check_count(value: object, setting: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_THREADS:
        raise ValueError(f"{setting} must be a whole number from 1 to {MAX_THREADS}, got {value!r}")
    return value


def _initial_threads() -> int:
    setting = os.environ.get("VOLTA_NUM_THREADS")
    if setting:
        return _check_count(int(setting) if setting.isdecimal() else setting, "VOLTA_NUM_THREADS")
    return min(target.available_processors(), MAX_THREADS)


_num_threads = _initial_threads()
_lock = threading.RLock()
free_in_children(globals(), "_lock")


def get_num_threads() -> int:
    """How many threads a plan may use, the calling one included."""
    return _num_threads


def set_num_threads(n: int) -> None:
    """Set how many threads a plan may use, the calling one included; from the next plan on.

    The initial value is ``VOLTA_NUM_THREADS``, or else the number of processors this process may run on.  The count
    never changes a result.  Raises ``ValueError`` unless ``1 <= n <= 256``.
    """
    global _num_threads
    _check_count(n, "the number of threads")
    with _lock:
        _num_threads = n
        if native.cache_info().currsize:
            _apply(native())


def workers_started() -> int:
    """How many worker threads exist."""
    return int(_word(native(), "STARTED").value)


def parallel_runs() -> int:
    """How many plans the workers have taken part in."""
    return int(_word(native(), "RUNS").value)


def _shutdown() -> None:
    watch.ending()
    _word(native(), "THREADS").value = 1
    patience = time.monotonic() + _LAST_PLAN
    while not _call("volta_pool_stop") and time.monotonic() < patience:
        time.sleep(0.001)


def _after_fork_in_child() -> None:
    if native.cache_info().currsize:
        _call("volta_pool_forked")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
