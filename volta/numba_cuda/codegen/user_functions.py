"""Volta's functions of numbers in a user's ``@cuda.jit`` functions: calls of device functions that Volta writes itself.

NVVM does not know all that they are made of, and might compute some of it in another way. So numba-cuda only writes a
call of ``volta_function_<name>_<dtype>``; LLVM writes the function as it writes Volta's kernels, and both are linked.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from volta.emit.builder import Builder, scalar_type
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import CONSTANT_SPACE
from volta.ops.primitive import REGISTRY

_PREFIX = "volta_function_"
_CALLED = re.compile(rf"\.extern \.func[^;]*?\b{_PREFIX}(\w+)_(float32|float64)\b")

_PUBLIC = {p.public: p for p in REGISTRY.values()}

_known: set[str] = set()


def let_call(function: Any, tools: Any) -> None:
    """Let ``@cuda.jit`` functions call one of ``volta.numba``'s, of float32 or of float64."""
    name, count = function.volta_primitive
    if name in _known:
        return
    _known.add(name)
    typing, meaning = tools.typing.Registry(), tools.lowering.Registry(f"volta.numba.{name}")
    kinds = {"float32": tools.types.float32, "float64": tools.types.float64}
    cases = [tools.typing.signature(*[kind] * (count + 1)) for kind in kinds.values()]
    typing.register_global(function)(type(f"volta_{name}", (tools.typing.ConcreteTemplate,), {"cases": cases}))
    for dtype, kind in kinds.items():
        meaning.lower(function, *[kind] * count)(_call_of(f"{_PREFIX}{name}_{dtype}"))
    tools.target.target_context.refresh()  # its own first: what later intrinsics mean goes to the first that is there
    tools.target.typing_context.install_registry(typing)
    tools.target.target_context.install_registry(meaning)


def _call_of(symbol: str) -> Callable[..., Any]:
    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        callee = b.module.globals.get(symbol)
        if callee is None:
            kind = args[0].type
            callee = ir.Function(b.module, ir.FunctionType(kind, [kind] * len(args)), symbol)
        return b.call(callee, args)

    return generate


def called_in(text: str, capability: str) -> tuple[str, ...]:
    """PTX of the functions that a PTX text calls: one text, or none."""
    found = sorted(set(_CALLED.findall(text)))
    return (ptx.compile_ptx([_source(*one) for one in found], capability),) if found else ()


def _source(name: str, dtype: str) -> KernelSource:
    primitive = _PUBLIC[name]
    count = len(inspect.signature(primitive.emit).parameters) - 1  # type: ignore[arg-type]

    def build(module: ir.Module, symbol: str) -> ir.Function:
        kind = scalar_type(dtype)
        function = ir.Function(module, ir.FunctionType(kind, [kind] * count), symbol)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        builder = Builder(b, 1, CONSTANT_SPACE)
        emit: Any = primitive.emit
        b.ret(emit(builder, *[builder.value(x, dtype) for x in function.args]).ir)
        return function

    return KernelSource(f"{_PREFIX}{name}_{dtype}", f"{name} of {dtype}", build)
