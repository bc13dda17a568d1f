"""A plan as one C function in an object file: no Python, no allocation, any number of threads at once.

The rows of the launch table (see `volta.numba_cpu.launch`) become code: a call of a kernel each, a branch for a jump.
The caller gives the workspace: first the args blocks, a copy of what is constant in them with this call's addresses,
then the scratch of kernels, then the plan's arena.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.numba_cpu import fpenv, target
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.launch import LaunchTable
from volta.numba_cpu.lower import Locate, Rows, kernel_calls, source_of
from volta.xla_like.plan import ALIGNMENT, aligned

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


class _Symbol(int):
    """Stands for a kernel's address, which only the linker knows."""

    name: str

    @classmethod
    def of(cls, name: str) -> _Symbol:
        symbol = cls(1)  # a row without a kernel is a jump
        symbol.name = name
        return symbol


@attrs.frozen
class Library:
    """An object file that defines the function, the bytes of workspace that a call of it needs, and the processors
    that it is for."""

    code: bytes = attrs.field(repr=False)
    workspace_bytes: int
    target: str


def compile_library(plan: HostPlan, constants: Sequence[np.ndarray], symbol: str) -> Library:
    """Compile a plan to ``int32_t symbol(inputs…, results…, workspace)``, pointers all: to the plan's inputs, to each
    of its results, and to `Library.workspace_bytes` bytes at a multiple of 64. Results must lie apart from all else.

    The code needs nothing but the C library's memory functions.

    Raises:
        UnsupportedOperationError: a kernel calls something else.
    """
    slots, count = plan.address_slots()
    fixed = {number: count + i for i, number in enumerate(plan.consts)}

    def locate(buffer: int, distance: int) -> tuple[int | None, int]:
        if buffer in fixed:
            return fixed[buffer], distance
        position, base = slots[buffer]
        return position, base + distance

    sources = {name: source_of(call.kernel) for name, call in kernel_calls(plan).items()}
    rows = Rows({name: _Symbol.of(name) for name in sources})
    rows.add(plan, locate)
    rows.end()
    module = ir.Module(symbol)
    for name, source in sources.items():
        source.build(module, name)
    size = _Writer(module, plan, rows.table, constants, locate).function(symbol)
    code, needed = target.compile_shared([str(module), fpenv.text()], [symbol])
    foreign = needed - {"memcpy", "memset", "memmove"}
    if foreign:
        raise UnsupportedOperationError(
            f"a kernel of `{plan.name}` calls {', '.join(sorted(foreign))}, which is a part of Volta's runtime and not "
            "of a C library"
        )
    here = target.machine()
    return Library(code, size, f"{here.triple}, {here.cpu_name}")


class _Writer:
    def __init__(
        self, module: ir.Module, plan: HostPlan, table: LaunchTable, constants: Sequence[np.ndarray], locate: Locate
    ) -> None:
        self._module, self._plan, self._table, self._constants = module, plan, table, constants
        self._locate = locate

    def function(self, symbol: str) -> int:
        """Define the function; returns the bytes of workspace that it needs."""
        plan = self._plan
        made = [b for b in plan.buffers if b.kind == "output"]
        kind = ir.FunctionType(_I32, [_POINTER] * (len(plan.inputs) + len(plan.outputs) + 1))
        function = ir.Function(self._module, kind, symbol)
        inputs, results = function.args[: len(plan.inputs)], function.args[len(plan.inputs) : -1]
        workspace = function.args[-1]
        b = ir.IRBuilder(function.append_basic_block("entry"))
        enter = self._declared("volta_fp_enter", ir.FunctionType(_I64, []))
        leave = self._declared("volta_fp_leave", ir.FunctionType(ir.VoidType(), [_I64]))
        saved = b.call(enter, [])

        args, patches = self._table.args, self._table.patches
        scratch_at = aligned(8 * len(args))
        arena_at = scratch_at + aligned(plan.scratch_bytes)
        first = {number: results[i] for i, number in reversed(list(enumerate(plan.outputs)))}
        bases = [*inputs, *(first[x.id] for x in made)]
        bases += [b.gep(workspace, [_I64(arena_at)])] * (plan.arena_bytes > 0)
        bases += [self._data(f"constant{i}", x) for i, x in enumerate(self._constants)]

        own = b.bitcast(workspace, _I64.as_pointer())
        if args:
            template = self._words("args", args)
            size = _I64(8 * len(args))
            b.call(self._copy(), [workspace, b.bitcast(template, _POINTER), size, ir.IntType(1)(0)])
        for word, position, distance in patches:
            address = b.ptrtoint(b.gep(bases[position], [_I64(distance)]), _I64)
            b.store(address, b.gep(own, [_I64(word)]))
        self._rows(b, function, own, b.ptrtoint(b.gep(workspace, [_I64(scratch_at)]), _I64))
        self._pass_on(b, results, bases, first)
        b.call(leave, [saved])
        b.ret(_I32(0))
        return arena_at + aligned(plan.arena_bytes)

    def _rows(self, b: ir.IRBuilder, function: ir.Function, own: ir.Value, scratch: ir.Value) -> None:
        rows = self._table.rows
        blocks = [function.append_basic_block(f"row{i}") for i in range(len(rows) + 1)]
        b.branch(blocks[0])
        launched = ir.FunctionType(ir.VoidType(), [_POINTER, _I64, _I64, _I64])
        for i, (kernel, word, tasks, _) in enumerate(rows):
            b.position_at_end(blocks[i])
            at = b.gep(own, [_I64(word)])
            if isinstance(kernel, _Symbol):
                pointer = b.bitcast(self._module.get_global(kernel.name), launched.as_pointer())
                b.call(pointer, [b.bitcast(at, _POINTER), _I64(0), _I64(tasks), scratch])
                b.branch(blocks[i + 1])
            else:
                _, number, goal = self._table.args[word : word + 3]
                flag = b.load(b.inttoptr(b.load(at), _I32.as_pointer()))
                b.cbranch(b.icmp_signed("==", flag, _I32(number)), blocks[i + 1], blocks[goal])
        b.position_at_end(blocks[-1])

    def _pass_on(
        self, b: ir.IRBuilder, results: Sequence[ir.Value], bases: Sequence[ir.Value], first: dict[int, ir.Value]
    ) -> None:
        """Results that are inputs, constants or other results are copies of these."""
        for number, result in zip(self._plan.outputs, results, strict=True):
            buffer = self._plan.buffers[number]
            if buffer.kind == "output" and first[number] is result:
                continue
            position, distance = self._locate(number, 0)
            assert position is not None
            source = first[number] if buffer.kind == "output" else b.gep(bases[position], [_I64(distance)])
            b.call(self._copy(), [result, source, _I64(buffer.nbytes), ir.IntType(1)(0)])

    def _declared(self, name: str, kind: ir.FunctionType) -> ir.Function:
        found = self._module.globals.get(name)
        return found if found is not None else ir.Function(self._module, kind, name)

    def _copy(self) -> ir.Function:
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _I64, ir.IntType(1)])
        return self._declared("llvm.memcpy.p0i8.p0i8.i64", kind)

    def _words(self, name: str, words: Sequence[int]) -> ir.GlobalVariable:
        """Integers and kernels' addresses as constant data."""
        values = [self._module.get_global(w.name).ptrtoint(_I64) if isinstance(w, _Symbol) else _I64(w) for w in words]
        return self._global(name, ir.Constant(ir.ArrayType(_I64, len(values)), values))

    def _data(self, name: str, x: np.ndarray) -> ir.Value:
        data = bytearray(np.ascontiguousarray(x).tobytes()) or bytearray(1)
        whole = self._global(name, ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data))
        return whole.bitcast(_POINTER)

    def _global(self, name: str, value: ir.Constant) -> ir.GlobalVariable:
        found = ir.GlobalVariable(self._module, value.type, f"volta.{name}")
        found.initializer, found.linkage, found.global_constant, found.align = value, "internal", True, ALIGNMENT
        return found
