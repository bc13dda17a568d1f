"""A plan as a function of Numba's, which other compiled code calls without Python: what :func:`volta.njit` gives.

The function is Python text, compiled by Numba: it looks at its arguments, makes the results, and hands addresses to one
native function, `volta_run_inside`. That one runs the plan's launch table, on the calling thread alone. A run writes
addresses into the table, so each works on a copy; so any number of threads may run a plan at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import types
from numba.core.errors import TypingError

from volta.core.avals import ShapedArray
from volta.core.errors import KernelError
from volta.numba_cpu import launch, launch_ir, unit
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.lower import lower
from volta.numba_cpu.user import raised
from volta.numba_cpu.user_entry import FLAG, REPORT_WORDS
from volta.xla_like.plan import ALIGNMENT, ExecutionPlan, aligned

_IR = (
    launch_ir.PATCH
    + r"""
; Run a launch table on the calling thread. The image: table, rows, args, words, patches, their number, volta_run_plan.
; Memory: for the args, then for the table, then scratch. Bases: the addresses that the plan is given.
define void @volta_run_inside(ptr %image, ptr %bases, ptr %memory, i64 %scratch) {
entry:
  %table = load ptr, ptr %image
  %rows_at = getelementptr i64, ptr %image, i64 1
  %rows = load i64, ptr %rows_at
  %args_at = getelementptr i64, ptr %image, i64 2
  %args = load ptr, ptr %args_at
  %words_at = getelementptr i64, ptr %image, i64 3
  %words = load i64, ptr %words_at
  %patches_at = getelementptr i64, ptr %image, i64 4
  %patches = load ptr, ptr %patches_at
  %count_at = getelementptr i64, ptr %image, i64 5
  %count = load i64, ptr %count_at
  %run_at = getelementptr i64, ptr %image, i64 6
  %run = load ptr, ptr %run_at
  %own = getelementptr i64, ptr %memory, i64 %words
  %bytes = shl i64 %words, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %memory, ptr %args, i64 %bytes, i1 false)
  %row_bytes = shl i64 %rows, 5
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %table, i64 %row_bytes, i1 false)
  %to = ptrtoint ptr %memory to i64
  %from = ptrtoint ptr %args to i64
  %moved = sub i64 %to, %from
  br label %move_test
move_test:
  %r = phi i64 [ 0, %entry ], [ %r1, %move ]
  %all_moved = icmp eq i64 %r, %rows
  br i1 %all_moved, label %ready, label %move
move:
  %row = getelementptr [4 x i64], ptr %own, i64 %r
  %place = getelementptr i64, ptr %row, i64 1
  %old = load i64, ptr %place
  %new = add i64 %old, %moved
  store i64 %new, ptr %place
  %r1 = add i64 %r, 1
  br label %move_test
ready:
  call void @patch(ptr %bases, ptr %patches, i64 %count, ptr %memory)
  call void %run(ptr %own, i64 %rows, i64 %scratch, ptr null)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
)

intrinsic: Any = extending.intrinsic

_I64 = ir.IntType(64)
_WORD = types.int64

_running: list[Any] = []
"""Programs that functions of Numba's call: their addresses are part of machine code that nobody here can see end."""


@functools.cache
def _run_inside() -> int:
    return unit.compile_module(_IR, ("volta_run_inside",))["volta_run_inside"]


def _runner(function: int, image: int) -> Any:
    """``run(bases, memory, scratch)`` with addresses of this process, so that Numba keeps no caller of it on disk."""

    @intrinsic
    def run(typingctx: Any, bases: Any, memory: Any, scratch: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            table = b.alloca(args[0].type)
            b.store(args[0], table)
            pointer = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer, _I64])
            call = b.bitcast(context.add_dynamic_addr(b, function, "volta_run_inside"), kind.as_pointer())
            described = context.add_dynamic_addr(b, image, "volta_image")
            b.call(call, [described, b.bitcast(table, pointer), b.inttoptr(args[1], pointer), args[2]])
            return context.get_dummy_value()

        return types.void(bases, memory, scratch), generate

    return run


def contiguous(x: Any) -> Any:
    """``x``, or a copy of it in row-major order."""
    return np.ascontiguousarray(x)


@extending.overload(contiguous)
def _contiguous(x: Any) -> Any:
    def itself(x: Any) -> Any:
        return x

    return itself if x.layout == "C" else contiguous


def _operand(name: str, number: int, aval: ShapedArray) -> Any:
    """``operand(x)``, which is x: an error where Numba compiles a call with another kind of argument."""
    dtype = numba.from_dtype(aval.dtype)

    @intrinsic
    def operand(typingctx: Any, x: Any) -> Any:
        fits = x.dtype == dtype and x.ndim == aval.ndim if isinstance(x, types.Array) else x == dtype and not aval.shape
        if not fits or (isinstance(x, types.Array) and not aval.ndim):
            raise TypingError(
                f"`{name}` was compiled for {aval.short()} as argument {number}, got {x}. Convert it, or compile "
                "the program for it; arguments of rank 0 are numbers."
            )

        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            if context.enable_nrt:
                context.nrt.incref(b, signature.return_type, args[0])
            return args[0]

        return x(x), generate

    return operand


def function_of(plan: HostPlan, consts: tuple[np.ndarray, ...], name: str, keep: Any) -> Callable[..., Any]:
    """A plan as an ``@njit`` function of its inputs: arrays and numbers in, new arrays and numbers out.

    ``consts`` are views of its constants; ``keep`` holds what they live in.
    """
    executable = lower(plan, tuple(int(c.ctypes.data) for c in consts))
    table, args, patches = executable.tables
    image = np.array(
        [table.ctypes.data, len(table), args.ctypes.data, len(args), patches.ctypes.data, len(patches),
         launch.native()["volta_run_plan"]], np.int64,
    )  # fmt: skip
    writer = _Writer(plan, name, executable, len(_running))
    _running.append((executable, image, consts, keep))
    own = aligned(8 * (len(args) + 4 * len(table)))
    text = writer.text(own, aligned(executable.scratch_bytes))
    names: dict[str, Any] = {
        "np": np, "contiguous": contiguous, "RaisedInside": RaisedInside,
        "run": _runner(_run_inside(), int(image.ctypes.data)), **writer.names,
        **{f"const{i}": c for i, c in enumerate(consts)},
    }  # fmt: skip
    exec(compile(text, f"<volta.njit of {name}>", "exec"), names)  # the text is the writer's alone
    found: Callable[..., Any] = numba.njit(nogil=True, error_model="numpy")(names["program"])
    return found


class RaisedInside(KernelError):
    """What a kernel of the user's own raised in a program that code compiled by Numba called.

    Numba makes exceptions of numbers, and not before they come to Python: the program's among `_running`, and the words
    of the run's report. It makes each two times, once to see that it is one.
    """

    def __init__(self, program: int, *report: int) -> None:
        error = raised(report, _running[program][0].user_calls, twice=True)
        super().__init__(*error.args)
        self.__cause__ = error.__cause__


class _Writer:
    """The text of the function."""

    def __init__(self, plan: ExecutionPlan, name: str, executable: launch.Executable, number: int) -> None:
        self._plan, self._name, self._number = plan, name, number
        self._inputs = [plan.buffers[i].aval for i in plan.inputs]
        self._made = [b for b in plan.buffers if b.kind == "output"]
        self._reports = bool(executable.user_calls)
        self.names: dict[str, Any] = {f"in{i}": _operand(name, i, aval) for i, aval in enumerate(self._inputs)}
        self.names |= {f"dtype{i}": aval.dtype for i, aval in enumerate(self._inputs)}
        self.names |= {f"out{b.id}": b.aval.dtype for b in self._made}

    def text(self, own: int, scratch: int) -> str:
        """``own``: bytes for the copies of args and table. Memory is that, scratch, and the plan's arena."""
        xs = [f"x{i}" for i in range(len(self._inputs))]
        lines = [f"def program({', '.join(xs)}):"]
        bases = []
        for i, (x, aval) in enumerate(zip(xs, self._inputs, strict=True)):
            lines.append(f"    {x} = in{i}({x})")
            if aval.shape:
                what = f"`{self._name}` was compiled for {aval.short()} as argument {i}, got another shape"
                lines += [f"    if {x}.shape != {aval.shape}:", f"        raise ValueError({what!r})"]
                lines.append(f"    a{i} = contiguous({x})")
            else:
                lines += [f"    a{i} = np.empty(1, dtype{i})", f"    a{i}[0] = {x}"]
            bases.append(f"a{i}.ctypes.data")
        for b in self._made:
            lines.append(f"    y{b.id} = np.empty({b.aval.shape or (1,)}, out{b.id})")
            bases.append(f"y{b.id}.ctypes.data")
        size = own + scratch + self._plan.arena_bytes + ALIGNMENT
        lines.append(f"    memory = np.empty({size}, np.uint8)")
        lines.append(f"    low = (np.int64(memory.ctypes.data) + {ALIGNMENT - 1}) & ~np.int64({ALIGNMENT - 1})")
        if self._plan.arena_bytes:
            bases.append(f"low + {own + scratch}")
        if self._reports:
            lines.append(f"    report = np.zeros({REPORT_WORDS}, np.int64)")
            bases.append("report.ctypes.data")
        words = ", ".join(f"np.int64({b})" for b in bases)
        lines.append(f"    run(({words},), low, low + {own})")
        if self._reports:
            words = ", ".join(f"report[{i}]" for i in range(REPORT_WORDS))
            lines += [f"    if report[{FLAG}]:", f"        raise RaisedInside({self._number}, {words})"]
        return "\n".join([*lines, f"    return {self._returned()}"])

    def _returned(self) -> str:
        """Each result is an array of its own, also where the plan passes an argument on or gives one result twice."""
        plan, out, seen = self._plan, [], set()
        for number in plan.outputs:
            buffer = plan.buffers[number]
            if buffer.kind == "input":
                i = plan.inputs.index(number)
                out.append(f"a{i}.copy()" if buffer.aval.shape else f"x{i}")
            elif buffer.kind == "const":
                out.append(f"const{plan.consts.index(number)}.copy()" if buffer.aval.shape else
                           f"const{plan.consts.index(number)}[()]")  # fmt: skip
            elif not buffer.aval.shape:
                out.append(f"y{number}[0]")
            else:
                out.append(f"y{number}.copy()" if number in seen else f"y{number}")
            seen.add(number)
        return out[0] if len(out) == 1 else f"({', '.join(out)},)" if out else "None"
