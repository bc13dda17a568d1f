"""Kernels of the user's own on the CPU: compiled by Numba, run by their native address, and what they raise."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core import serialize, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]  # not declared by its stub
from numba.core.errors import NumbaError

from volta.core.errors import KernelError, UnsupportedOperationError
from volta.core.locks import free_in_children
from volta.core.source import at_user_line
from volta.emit import arrays
from volta.emit.user_args import UserSpec
from volta.numba_cpu import target
from volta.numba_cpu.user_entry import CALL, CAUSE, CODE, FLAG, REPORT_WORDS, TASK
from volta.numba_cpu.user_store import NativeFunction, native
from volta.ops.user import UserKernel
from volta.xla_like.kernels import KernelCall
from volta.xla_like.user import User

_lock = threading.RLock()
free_in_children(globals(), "_lock")


_compiled: weakref.WeakKeyDictionary[UserKernel, dict[Any, NativeFunction]] = weakref.WeakKeyDictionary()


def native_function(spec: UserSpec) -> NativeFunction:
    """A kernel's function for arrays of the given dtypes and ranks; compiled once a process.

    Raises:
        KernelError: Numba cannot compile it for them.
        UnsupportedOperationError: it has no function for the CPU.
    """
    if spec.kernel.cpu is None:
        raise UnsupportedOperationError(
            at_user_line(
                f"kernel `{spec.kernel.name}` has a function for GPUs only: decorate an @numba.njit function with "
                "volta.kernel, and give it this one with its .cuda(grid=, block=); or run it on a GPU"
            )
        )
    key = (spec.arrays, spec.reads)
    with _lock:
        known = _compiled.setdefault(spec.kernel, {})
        if key not in known:
            known[key] = _compile(spec)
        return known[key]


def _compile(spec: UserSpec) -> NativeFunction:
    target.configure()
    name, dispatcher = spec.kernel.name, spec.kernel.cpu
    kinds = tuple(_type_of(name, dtype, rank, k < spec.reads) for k, (dtype, rank) in enumerate(spec.arrays))

    def compiled() -> Any:
        try:
            result = _Compiler.of(dispatcher).compile(kinds, None)
        except Exception as error:  # Numba's own errors, and others where it has not foreseen what is asked for
            said = str(error) if isinstance(error, NumbaError) else f"{type(error).__name__}: {error}"
            raise KernelError(_not_compiled(spec, said)) from error
        if _draws(result):
            raise KernelError(
                at_user_line(
                    f"kernel `{name}`, or a function that it calls, draws random numbers from a state of Numba's own, "
                    "so it would give others each time: draw them with volta.random, and give them to it as an operand"
                )
            )
        return result

    function = native(dispatcher, kinds, compiled)
    if function.returns != "none":
        raise KernelError(
            at_user_line(
                f"kernel `{name}` returns {function.returns}; a kernel fills its results, which come last among its "
                "arguments, and returns nothing"
            )
        )
    return function


class _Compiler(_FunctionCompiler):
    """Numba's compiler of functions, without the wrappers for callers from Python and C."""

    @staticmethod
    def of(dispatcher: Any) -> _Compiler:
        own = dispatcher._compiler
        return _Compiler(own.py_func, own.targetdescr, own.targetoptions, own.locals, own.pipeline_class)

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        flags.enable_pyobject = flags.force_pyobject = False
        return flags


def _type_of(name: str, dtype: str, rank: int, is_read: bool) -> Any:
    if dtype in ("float16", "bfloat16"):
        raise KernelError(
            at_user_line(
                f"kernel `{name}` is called with {dtype}, which Numba does not compute with on the CPU: convert with "
                "x.astype('float32') before and back after the kernel"
            )
        )
    kind = numba.from_dtype(np.dtype(dtype))
    return kind if is_read and not rank else types.Array(kind, rank, "C", readonly=is_read)


def _draws(result: Any) -> bool:
    """Whether a function, or one that it calls, refers to the state of Numba's random numbers."""
    with global_compiler_lock:
        result.library.get_pointer_to_function(result.fndesc.llvm_func_name)  # with all that it calls, from here on
        return any(f.name in _RANDOM_STATES for f in result.library._final_module.functions)


_RANDOM_STATES = frozenset({"numba_get_np_random_state", "numba_get_py_random_state"})


def _not_compiled(spec: UserSpec, text: str) -> str:
    writes = "readonly array" in text
    why = (
        "it writes to an operand. Operands are read-only, as other operations read the same memory: write to the "
        "results, which come last, or to a copy (operand.copy())."
        if writes
        else "Numba cannot compile it for these dtypes and ranks. A result of rank 0 is written with result[()] = …, "
        "an operand of rank 0 is a number, and Python takes no part (numba.objmode)."
    )
    shown = [f"{dtype} of rank {rank}" for dtype, rank in spec.arrays]
    given = f"{', '.join(shown[: spec.reads])}; results {', '.join(shown[spec.reads :])}"
    return at_user_line(
        f"kernel `{spec.kernel.name}` does not compile for operands {given}: {why}\nNumba says: {text.strip()}"
    )


# -- what they raise ---------------------------------------------------------------------------------------------------


_Report = ctypes.c_int64 * REPORT_WORDS
"""Zeros at first. (An array of NumPy's, and its address, take longer than the call.)"""


def reporting(call: Callable[..., Any], count: int, calls: Sequence[KernelCall]) -> Callable[..., Any]:
    """A plan's native callable, which takes ``count`` addresses and then that of a report, with a new report each run.

    If a kernel has raised, donated arrays get their memory back (nothing has been written to it: see `compile`).
    """

    def run(*given: Any) -> Any:
        report = _Report()
        answer = call(*given[:count], ctypes.addressof(report), *given[count:])
        if report[FLAG]:
            if len(given) > count:
                arrays.give_back(given[count], answer)
            raise raised(report, calls)
        return answer

    return run


def raised(
    report: Sequence[int] | ctypes.Array[ctypes.c_int64], calls: Sequence[KernelCall], twice: bool = False
) -> KernelError:
    """The error of a run in which a kernel has raised, by the run's report, which is read once, or ``twice``."""
    call = calls[report[CALL]]
    op = call.kernel
    assert isinstance(op, User)
    cause = _exception(int(report[CAUSE]), twice) if report[CODE] > 0 else None
    what = "an exception that Numba does not describe" if cause is None else _shown(cause)
    where = f", for element {_place(int(report[TASK]), op.batch)} of its batch {op.batch}" if op.batch else ""
    line = f"\nIt is called at {call.label}." if call.label else ""
    error = KernelError(at_user_line(f"kernel `{op.kernel.name}` raised {what}{where}.{line}"))
    error.__cause__ = cause
    return error


def _shown(error: BaseException) -> str:
    text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(task: int, batch: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(task, batch))


class _Cause(ctypes.Structure):
    """How Numba describes an exception: pickled (class, arguments, place); its hash, or memory with arguments that are
    known at run time only and the function that makes a tuple of these."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("unwrap", ctypes.c_void_p),
        ("dynamic", ctypes.c_int32),
    )


_READ = -1
"""Written into the description of an exception whose arguments have been taken: they are freed with that."""

_taken: dict[int, Any] = {}
"""What such descriptions were that are read a second time."""


def _exception(address: int, twice: bool) -> BaseException:
    cause = _Cause.from_address(address)
    data = ctypes.string_at(cause.data, cause.size)
    if cause.dynamic == _READ:
        described = _taken.pop(address)
    elif cause.dynamic > 0:
        unwrap = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(cause.unwrap)
        described = serialize.runtime_build_excinfo_struct(data, unwrap(cause.values))
        cause.dynamic = _READ
        if twice:
            _taken[address] = described
    else:
        described = serialize.loads(data)
    kind, values = described[0], described[1]
    made = kind if isinstance(kind, BaseException) else kind(*(values or ()))
    assert isinstance(made, BaseException)
    return made
