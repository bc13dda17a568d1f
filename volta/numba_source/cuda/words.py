"""The words of generated kernels as numba-cuda has them, and what compiles these kernels: nothing is contracted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I8
from volta.numba_cuda.codegen.numba_tools import OPTIONS, tools
from volta.numba_source.intrinsics import Intrinsics
from volta.numba_source.words import ON_GRIDS

_numba = tools()
_Dispatcher: Any = _numba.dispatcher.CUDADispatcher

Level = tuple[int, int]
"""A compute capability."""

KERNEL = (_numba.types.CPointer(_numba.types.int64),)
"""What a plan gives a kernel: the address of its args."""


class Uncontracted(_Dispatcher):
    """A dispatcher of numba-cuda whose code has no contracted product; with a ``level``, device functions are compiled
    for that, and there need be no GPU."""

    level: Level | None = None

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile a function that kernels call. (The name is Numba's, as are those below.)"""
        if self.level is None:
            with _uncontracted():
                return super().compile_device(args, return_type)
        found = self.overloads.get(args)
        if found is None:
            compile_cuda = _numba.compiler.compile_cuda
            found = compile_cuda(self.py_func, return_type, args, nvvm_options=OPTIONS, cc=self.level)
            self.overloads[args] = found
            found.target_context.insert_user_function(found.entry_point, found.fndesc, [found.library])
        return found

    def compile(self, sig: Any) -> Any:
        """Compile a kernel for the GPU that is there."""
        with _uncontracted():
            return super().compile(sig)

    def ptx(self, name: str) -> str:
        """The kernel as a plan runs it, for the level, under a name."""
        assert self.level is not None
        found = _numba.compiler.compile_cuda(
            self.py_func, _numba.types.void, KERNEL, nvvm_options=OPTIONS, cc=self.level
        )
        library = found.library
        function = library.get_function(found.fndesc.llvm_func_name)
        library._entry_name = function.name
        _numba.compiler.kernel_fixup(function, False)
        (text,) = library.get_asm_strs(cc=self.level)
        return str(text).replace(function.name, name)


_OPTION = {"fma": False} if "fma" in inspect.signature(_numba.cuda.jit).parameters else {}
"""Releases of numba-cuda that have it are told so."""


@contextmanager
def _uncontracted() -> Iterator[None]:
    """Releases that have no such option are given NVVM's, where they call the compiler."""
    module = _numba.dispatcher
    usual = module.compile_cuda

    def compile_cuda(*args: Any, nvvm_options: Any = None, **more: Any) -> Any:
        return usual(*args, nvvm_options={**(nvvm_options or {}), **OPTIONS}, **more)

    with _numba.compiler.global_compiler_lock:
        module.compile_cuda = usual if _OPTION else compile_cuda
        try:
            yield
        finally:
            module.compile_cuda = usual


def cuda_jit(function: Callable[..., Any] | None = None, *, device: bool = False, level: Level | None = None) -> Any:
    """``numba.cuda.jit`` of a kernel, or with ``device`` of what kernels call, without contraction: nor by the linker,
    which would contract what it optimises itself."""
    if function is None:
        return partial(cuda_jit, device=device, level=level)
    usual = _numba.cuda.jit(function, device=device, lto=False, **_OPTION)
    found = Uncontracted(function, targetoptions=usual.targetoptions)
    found.level = level
    return found


def _instruction(text: str) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """An instruction of PTX for a float: ``{f}`` is its type."""

    def emit(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        kind, letter = ("f64", "d") if x.type == ir.DoubleType() else ("f32", "f")
        function = ir.FunctionType(x.type, [x.type])
        return b.call(ir.InlineAsm(function, f"{text.format(f=kind)} $0, $1;", f"={letter},{letter}"), [x])

    return emit


def _copysign(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    bits = ir.IntType(64 if x.type == ir.DoubleType() else 32)
    sign = 1 << (bits.width - 1)
    number, other = (b.bitcast(v, bits) for v in (x, y))
    return b.bitcast(b.or_(b.and_(number, bits(sign - 1)), b.and_(other, bits(sign))), x.type)


_OWN: dict[str, Callable[..., ir.Value]] = {
    "copysign": _copysign,
    "fabs": lambda b, x: _copysign(b, x, x.type(0.0)),
    "sqrt": _instruction("sqrt.rn.{f}"),
    "floor": _instruction("cvt.rmi.{f}.{f}"),
    "ceil": _instruction("cvt.rpi.{f}.{f}"),
    "trunc": _instruction("cvt.rzi.{f}.{f}"),
    "rint": _instruction("cvt.rni.{f}.{f}"),
}
"""NVVM's LLVM is of 2018, and has not all intrinsics of that: these it is told otherwise."""


class _NvvmBuilder(Builder):
    """The vocabulary as NVVM reads it, which has no fences."""

    def fence(self, x: Value) -> Value:
        return Value(_instruction("mov.{f}")(self.irbuilder, x.ir), x.dtype, self)


def _pointer(b: ir.IRBuilder, address: ir.Value, distance: ir.Value) -> ir.Value:
    return b.inttoptr(b.add(address, distance), I8.as_pointer())


NAMES: dict[str, Any] = {
    **Intrinsics(_numba.intrinsic, _pointer, _NvvmBuilder, _OWN).names(),
    "cuda": _numba.cuda,
    "cuda_jit": cuda_jit,
    "np": np,
    "nan": np.nan,
    "inf": np.inf,
}
"""What generated text finds under the words."""

assert set(NAMES) == ON_GRIDS

__all__ = sorted(ON_GRIDS)  # noqa: PLE0605 - a text imports them all
globals().update(NAMES)
