"""The kernel that decides whether a loop goes on (`volta.numba_cuda.conditional_nodes`), compiled for the host: the
same LLVM, but for the device's clock and for what the driver has for setting a condition."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite import ir

from volta.emit.loops import I32, I64, VOID
from volta.numba_cuda.codegen.ptx_ops import PREFIX
from volta.numba_cuda.conditional_nodes import CLOCK, CONDITION


class HostCondition:
    """``run(args, condition, stop)``: what the kernel is given; it returns what the condition becomes. The ``clock``
    counts cycles."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        module = ir.Module("condition")
        clock = _number(module, "clock")
        b = _function(module, PREFIX + CLOCK.name, ir.FunctionType(I64, []))
        b.ret(b.load(clock, typ=I64))
        for name in ("handle", "condition"):
            _number(module, name)
        b = _function(module, "set_condition", ir.FunctionType(VOID, [I64, I32]))
        b.store(b.function.args[0], module.get_global("handle"))
        b.store(b.zext(b.function.args[1], I64), module.get_global("condition"))
        b.ret_void()
        CONDITION.build(module, CONDITION.name)
        text = str(module).replace("ptx_kernel ", "")
        declared = 'declare void @"cudaGraphSetConditional"(i64 %".1", i32 %".2")'
        assert declared in text
        text = text.replace(declared, "").replace('@"cudaGraphSetConditional"', '@"set_condition"')
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        self._run = prototype(self._engine.get_function_address(CONDITION.name))
        self._words = {
            name: ctypes.c_int64.from_address(self._engine.get_global_value_address(name))
            for name in ("clock", "handle", "condition")
        }

    def run(self, args: int, condition: int, stop: int) -> bool:
        self._run(args, condition, stop)
        assert self._words["handle"].value == condition
        return bool(self._words["condition"].value)

    def pass_time(self, cycles: int) -> None:
        self._words["clock"].value += cycles


def _number(module: ir.Module, name: str) -> ir.GlobalVariable:
    found = ir.GlobalVariable(module, I64, name)
    found.initializer = I64(0)
    return found


def _function(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.IRBuilder:
    return ir.IRBuilder(ir.Function(module, kind, name).append_basic_block("entry"))


condition: Callable[[], HostCondition] = functools.cache(HostCondition)
