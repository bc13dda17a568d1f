"""A user's ``@cuda.jit`` function as PTX: compiled by numba-cuda as a device function that an entry of Volta's calls.

numba-cuda itself (`numba_tools`) is loaded when the first such function is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.errors import KernelError
from volta.core.source import at_user_line
from volta.emit.functions import called
from volta.emit.user_args import UserSpec
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.numba_tools import OPTIONS, tools
from volta.numba_cuda.codegen.user_functions import let_call


def symbol_of(text: str) -> str:
    """The symbol that stands in a PTX text for its function."""
    return f"volta_user_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


_compiled: dict[Any, str] = {}


def user_ptx(function: Any, spec: UserSpec, capability: str) -> tuple[str, str]:
    """PTX of ``void symbol(int64 args)``, which runs the function for each element of the batch, and its symbol.

    Args hold the arrays' addresses, then the sizes of the call: see `UserSpec`.

    Raises:
        KernelError: numba-cuda cannot compile it for these dtypes and ranks.
        UnsupportedOperationError: there is no numba-cuda.
    """
    key = (function, spec.arrays, spec.reads, spec.batch, capability)
    if key not in _compiled:
        _compiled[key] = _compile(function, spec, capability)
    text = _compiled[key]
    symbol = symbol_of(text)
    return text.replace(_PLACEHOLDER, symbol), symbol


_PLACEHOLDER = "volta_user_function_of_numba"


def _compile(function: Any, spec: UserSpec, capability: str) -> str:
    numba = tools()
    types, from_dtype = numba.types, numba.from_dtype
    for one in called(function):
        if hasattr(one, "volta_primitive"):
            let_call(one, numba)
    kinds = [
        from_dtype(np.dtype(dtype)) if k < spec.reads and not rank
        else types.Array(from_dtype(np.dtype(dtype)), rank, "C", readonly=k < spec.reads)
        for k, (dtype, rank) in enumerate(spec.arrays)
    ]  # fmt: skip
    entry = _entry(function, spec, kinds)
    try:
        found = numba.compiler.compile_cuda(
            entry, types.void, (types.int64,), nvvm_options=OPTIONS, cc=ptx.level_of(capability), abi="c",
            abi_info={"abi_name": _PLACEHOLDER},
        )  # fmt: skip
    except Exception as error:  # numba-cuda has error classes of its own, and of Numba's
        if not type(error).__module__.startswith("numba"):
            raise
        raise KernelError(at_user_line(f"kernel {spec} does not compile for GPUs.\nNumba says: {error}")) from error
    (text,) = found.library.get_asm_strs(cc=ptx.level_of(capability))
    return str(text)


def _entry(function: Any, spec: UserSpec, kinds: Sequence[Any]) -> Any:
    """The function around the user's: a few lines of Python that take the words apart."""
    cuda = tools().cuda
    device = cuda.jit(device=True, inline="always")(
        function.py_func
    )  # by itself it would be compiled for a GPU at hand
    names: dict[str, Any] = {"function": device, "word": _word(), "syncthreads": cuda.syncthreads}
    at = len(spec.arrays)
    lines = ["def entry(args):"]
    sizes = [f"n{d}" for d in range(spec.batch)]
    lines += [f"    {n} = word(args, {at + d})" for d, n in enumerate(sizes)]
    at += spec.batch
    lines.append(f"    for task in range({' * '.join(sizes) or '1'}):")
    lines.append("        rest = task")
    for d in reversed(range(spec.batch)):
        lines += [f"        i{d} = rest % {sizes[d]}", f"        rest = rest // {sizes[d]}"]
    for k, ((_, rank), kind) in enumerate(zip(spec.arrays, kinds, strict=True)):
        names[f"make{k}"] = _maker(kind, rank)
        place = " + ".join([f"word(args, {k})", *(f"i{d} * word(args, {at + d})" for d in range(spec.batch))])
        at += spec.batch
        shape = ", ".join(f"word(args, {at + d})" for d in range(rank))
        at += rank
        lines.append(f"        x{k} = make{k}({place}, ({shape}{',' if rank == 1 else ''}))")
    lines.append(f"        function({', '.join(f'x{k}' for k in range(len(kinds)))})")
    if spec.batch:
        lines.append("        syncthreads()  # shared memory may be used again")
    exec(compile("\n".join(lines), f"<entry of {spec.kernel.name}>", "exec"), names)
    return names["entry"]


def _word() -> Any:
    numba = tools()
    types = numba.types

    @numba.intrinsic
    def word(typingctx: Any, address: Any, i: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            place = b.add(args[0], b.mul(args[1], args[1].type(8)))
            return b.load(b.inttoptr(place, args[0].type.as_pointer()))

        return types.int64(types.int64, types.int64), generate

    return word


def _maker(kind: Any, rank: int) -> Any:
    """``make(address, shape)``: an array there, or of rank 0 and read the number there."""
    numba = tools()
    types, cgutils, arrayobj = numba.types, numba.cgutils, numba.arrayobj

    @numba.intrinsic
    def make(typingctx: Any, address: Any, shape: Any) -> Any:
        def number(context: Any, b: Any, signature: Any, args: Any) -> Any:
            pointer = b.inttoptr(args[0], context.get_data_type(kind).as_pointer())
            return context.unpack_value(b, kind, pointer)

        def array(context: Any, b: Any, signature: Any, args: Any) -> Any:
            value = arrayobj.make_array(kind)(context, b)
            element = context.get_data_type(kind.dtype)
            shapes = cgutils.unpack_tuple(b, args[1], rank) if rank else []
            size = context.get_constant(types.intp, context.get_abi_sizeof(element))
            strides: list[Any] = []
            step = size
            for n in reversed(shapes):
                strides.insert(0, step)
                step = b.mul(step, n)
            pointer = b.inttoptr(args[0], element.as_pointer())
            arrayobj.populate_array(
                value, data=pointer, shape=shapes, strides=strides, itemsize=size, meminfo=None
            )  # fmt: skip
            return value._getvalue()

        return kind(types.int64, shape), array if isinstance(kind, types.Array) else number

    return make
