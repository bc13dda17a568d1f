"""The launch table: a plan as rows of integers, and the compiled loop that walks it.

A row is (kernel address, address of its args block, number of tasks, pieces of a thread's share: 0 where the caller
runs all).  A row without a kernel is a jump: its args are the address of an int32, a number and a row, which comes next
where the two differ; in place of tasks it may have the row up to which nothing is shared.  One native call from Python
patches the pointers that change from call to call (inputs and outputs), walks the table without the GIL and returns:
about 0.1 µs besides the kernels themselves.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta.emit import arrays, symbols
from volta.emit.builtins import METH_FASTCALL, MethodDef, new_function, python_symbols
from volta.numba_cpu import fpenv, launch_call_ir, launch_ir, threads, unit, watch
from volta.numba_cpu.launches import PIECES

_PARALLEL, _KEEP_GIL = 1, 2

_PYTHON_FUNCTIONS = (
    "PyLong_AsLongLong",
    "PyLong_AsVoidPtr",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyErr_NoMemory",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyThread_acquire_lock",
    "PyThread_release_lock",
    "PyMem_RawMalloc",
    "PyMem_RawFree",
    "PyErr_CheckSignals",
    "PyThread_acquire_lock_timed",
    "PyThread_get_thread_ident",
)
EXPORTS = ("volta_execute", "volta_execute_forked", "volta_run_plan")


@functools.cache
def native() -> dict[str, int]:
    """Addresses of this module's compiled functions by name."""
    fpenv.native()
    threads.native()
    symbols.export({**arrays.symbols(), **python_symbols(_PYTHON_FUNCTIONS), **watch.errors()})
    return unit.compile_module(text(), EXPORTS)


def text() -> str:
    """The IR of the loop and of its entry from Python."""
    declarations = fpenv.DECLARATIONS + threads.DECLARATIONS + watch.DECLARATIONS + arrays.DECLARATIONS
    return declarations + arrays.IR + launch_ir.IR + launch_call_ir.IR


@functools.cache
def _run_plan() -> Callable[..., Any]:
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    return prototype(native()["volta_run_plan"])


def run_plan(table_address: int, n_launches: int, scratch_address: int = 0) -> None:
    """Walk a launch table on the calling thread, without the GIL (0.4 µs a call; `Executable.call` is the fast way)."""
    _run_plan()(table_address, n_launches, scratch_address, None)


@functools.cache
def _method() -> MethodDef:
    doc = b"Run the plan. Arguments: the addresses of its inputs and outputs, as integers."
    return MethodDef(b"call", native()["volta_execute"], METH_FASTCALL, doc)


_allocate_lock = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
_free_lock = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThread_free_lock", ctypes.pythonapi))


class _Plan:
    """What native code reads through a plan's descriptor: kept alive by the callable that runs it."""

    __slots__ = ("__del__", "__weakref__", "args", "descriptor", "patches", "table")
    __del__: Callable[[], None]

    def __init__(self, table: np.ndarray, args: np.ndarray, patches: np.ndarray, descriptor: np.ndarray) -> None:
        self.table = table
        self.args = args
        self.patches = patches
        self.descriptor = descriptor
        self.new_lock()
        _enter(self)

    def new_lock(self) -> None:
        """Give the plan a free lock (the old one, if any, may be held by a thread that a fork left behind)."""
        lock = _allocate_lock()
        if not lock:
            raise MemoryError("the system has no more locks to give")
        self.descriptor[8] = lock
        self.__del__ = partial(_free_lock, lock)


# Those that are alive, for a forked child. References without callbacks: these would run where a plan goes, and Python
# drops an interrupt that it hears there.
_plans: "set[weakref.ref[_Plan]]" = set()
_most_plans = 64


def _enter(plan: _Plan) -> None:
    """Note a plan; from time to time those that are gone are taken out."""
    global _most_plans
    _plans.add(weakref.ref(plan))
    if len(_plans) > _most_plans:
        for reference in [r for r in tuple(_plans) if r() is None]:
            _plans.discard(reference)
        _most_plans = len(_plans) + 64


class Executable:
    """A plan bound to memory, ready to run: ``executable.call(*addresses)``.

    `call` is a native function.  It takes the base address of every input and output as integers, writes the patched
    pointers, runs all launches and returns None; ``TypeError`` if a number is missing or no integer.  Calls of one
    executable from several Python threads run one after the other, as they share one table.
    """

    __slots__ = ("_keep", "_plan", "call", "n_inputs", "n_launches", "parallel", "scratch_bytes", "user_calls")

    def __init__(self, plan: _Plan, n_inputs: int, scratch_bytes: int, parallel: bool, keep: object) -> None:
        self._plan = plan
        self._keep = keep
        self.n_inputs = n_inputs
        self.n_launches = len(plan.table)
        self.scratch_bytes = scratch_bytes
        self.parallel = parallel
        self.user_calls: tuple[Any, ...] = ()  # calls of kernels of the user's own, by their numbers in reports
        # The callable's self is the descriptor's address; its module slot holds what must stay alive.
        self.call: Callable[..., None] = new_function(_method(), plan.descriptor.ctypes.data, (plan, keep))

    @property
    def table(self) -> np.ndarray:
        """The launch table: a row a launch."""
        return self._plan.table

    @property
    def table_address(self) -> int:
        """The address of the launch table, for `run_plan`."""
        return int(self._plan.table.ctypes.data)

    @property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The launch table, the args blocks, and the patches: (word of the args, number of the address, offset)."""
        return self._plan.table, self._plan.args, self._plan.patches

    @property
    def calls(self) -> int:
        """How often the plan has been run by `call`."""
        return int(self._plan.descriptor[9])


class LaunchTable:
    """Collects the launches of a plan: kernels, their args blocks, and which args change from call to call."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []  # kernel, first word of its args, tasks, pieces
        self.args: list[int] = []
        self.patches: list[tuple[int, int, int]] = []  # word, number of an input, bytes behind its address
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, address: int, args: Sequence[int], n_tasks: int = 1, pieces: int = PIECES) -> int:
        """Add a launch; returns its number.

        `n_tasks` follows from the problem's sizes alone.  A thread takes its share in up to about so many `pieces`,
        between which another, that has done its own, may take one: any range of tasks may be run at once.  With no
        pieces the calling thread runs all of them: what is small is not worth meeting for.
        """
        if n_tasks < 0:
            raise ValueError(f"a launch cannot have {n_tasks} tasks")
        self.args.extend([0] * (-len(self.args) % 8))  # blocks begin on cache lines
        self.rows.append((address, len(self.args), n_tasks, pieces))
        self._counts.append(len(args))
        self.args.extend(args)
        return len(self.rows) - 1

    def jump_unless(self, number: int) -> int:
        """Add a row that goes on only if an int32, whose address is its word 0, is `number`; returns the row's number.

        Where else to go is said by `set_target`. All threads meet before and after it is read.
        """
        return self.append(0, [0, number, 0], 0, 0)

    def walk_alone(self, jump: int, end: int) -> None:
        """If no row from a jump up to ``end`` is shared, let the calling thread walk these alone: threads meet once
        behind them, however often they jump."""
        if end - jump > 1 and all(tasks <= 1 or not pieces for _, _, tasks, pieces in self.rows[jump:end]):
            address, at, _, _ = self.rows[jump]
            self.rows[jump] = address, at, end, 0

    def set_target(self, jump: int, row: int) -> None:
        """Say where a jump leads: to a row, or behind the last one."""
        self.set_arg(jump, 2, row)

    def _word(self, launch: int, slot: int) -> int:
        if not 0 <= launch < len(self.rows) or not 0 <= slot < self._counts[launch]:
            raise IndexError(f"no args slot {slot} of launch {launch} in a table of {len(self.rows)} launches")
        return self.rows[launch][1] + slot

    def set_arg(self, launch: int, slot: int, value: int) -> None:
        """Set one word of a launch's args block."""
        self.args[self._word(launch, slot)] = value

    def patch(self, launch: int, slot: int, input_index: int, offset: int = 0) -> None:
        """At every call, set this word to the address of input `input_index` plus `offset` bytes."""
        if input_index < 0:
            raise ValueError(f"an input's number cannot be {input_index}")
        self.patches.append((self._word(launch, slot), input_index, offset))

    def build(
        self,
        n_inputs: int,
        *,
        scratch_bytes: int = 0,
        parallel: bool = False,
        keep_gil: bool = False,
        keep: object = None,
        walker: int = 0,
    ) -> Executable:
        """Freeze the table.

        `n_inputs` counts the addresses that a call is given (inputs, outputs, whatever is patched); each thread gets
        `scratch_bytes` of scratch memory, aligned to 64 bytes.  `parallel` lets the worker threads take part.
        `keep_gil` saves 50 ns for plans that run for a microsecond or so.  `keep` is an object that stays alive as
        long as the plan can run: the owner of the arena and constants.

        With a `walker`, the address of a kernel, native code does what a call needs but runs only that one, on the
        calling thread: it walks the table itself, with kernels of its own.
        """
        if scratch_bytes < 0 or any(number >= n_inputs for _, number, _ in self.patches):
            raise ValueError(f"patches name inputs beyond the {n_inputs} given, or scratch_bytes={scratch_bytes} < 0")
        args = _aligned(len(self.args))
        args[:] = self.args
        table = _aligned(4 * len(self.rows)).reshape(-1, 4)
        if self.rows:
            table[:] = self.rows
            table[:, 1] = table[:, 1] * 8 + args.ctypes.data
        patches = np.array(self.patches, np.int64).reshape(-1, 3)
        descriptor = _aligned(launch_call_ir.HEADER_WORDS + n_inputs)
        walked = table
        if walker:
            walked = _aligned(4).reshape(1, 4)
            walked[:] = walker, args.ctypes.data, 1, 1
            parallel, keep = False, (keep, walked)
        flags = (_PARALLEL if parallel else 0) | (_KEEP_GIL if keep_gil else 0)
        descriptor[:8] = (
            walked.ctypes.data,
            len(walked),
            flags,
            scratch_bytes,
            patches.ctypes.data,
            len(patches),
            args.ctypes.data,
            n_inputs,
        )
        return Executable(_Plan(table, args, patches, descriptor), n_inputs, scratch_bytes, parallel, keep)


def _aligned(words: int) -> np.ndarray:
    """Zeroed int64 words that begin on a cache line."""
    block = np.zeros(words + 8, np.int64)
    skip = -block.ctypes.data % 64 // 8
    return block[skip : skip + words]


def _after_fork_in_child() -> None:
    for plan in [reference() for reference in _plans]:
        if plan is not None:
            plan.new_lock()
    if native.cache_info().currsize:
        ctypes.CFUNCTYPE(ctypes.c_int64)(native()["volta_execute_forked"])()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
