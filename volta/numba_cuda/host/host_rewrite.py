"""A module of CUDA kernels changed so that a host can run it: other bodies for what only GPUs have, checked memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from llvmlite import ir
from llvmlite.ir import instructions as ins

from volta.core.errors import UnsupportedOperationError
from volta.emit.loops import I32, I64, PTR, intrinsic
from volta.numba_cuda.codegen.ptx_ops import (
    OPS,
    PREFIX,
    Body,
    host_ballot,
    host_lane,
    host_shuffle,
    meet_block,
    meet_warp,
    write_body,
)
from volta.numba_cuda.host.host_runtime import READ, WRITE, declare_state, state_word


def _word(name: str) -> Body:
    def body(b: ir.IRBuilder, _: Sequence[ir.Value]) -> ir.Value:
        return b.trunc(b.load(state_word(b, name), typ=I64), I32)

    return body


def _constant(value: int) -> Body:
    return lambda b, _: I32(value)


def _meet(how: Callable[[ir.IRBuilder], None]) -> Body:
    return lambda b, _: how(b)


def _shuffle(mode: str) -> Body:
    return lambda b, args: host_shuffle(b, mode, args[1], args[2])


INTRINSICS: dict[str, Body] = {
    **{f"read.ptx.sreg.{x}.x": _word(w) for x, w in
       (("tid", "thread"), ("ctaid", "block"), ("ntid", "threads"), ("nctaid", "blocks"))},
    **{f"read.ptx.sreg.{x}.{axis}": _constant(int(x in ("ntid", "nctaid")))
       for x in ("tid", "ctaid", "ntid", "nctaid") for axis in "yz"},
    "read.ptx.sreg.laneid": lambda b, _: host_lane(b),
    "barrier0": _meet(meet_block),
    "barrier.cta.sync.aligned.all": _meet(meet_block),
    "bar.warp.sync": _meet(meet_warp),
    **{f"shfl.sync.{mode}.i32": _shuffle(mode) for mode in ("bfly", "idx", "up", "down")},
    "vote.ballot.sync": lambda b, args: host_ballot(b, args[1]),
}  # fmt: skip
"""Host bodies of LLVM's own operations for GPUs, by their name behind ``llvm.nvvm.``."""

_LLVM = "llvm.nvvm."


@attrs.frozen
class Global:
    """A constant table of a module, or shared memory: its bytes (0: the launch says), and the kernels that use it."""

    name: str
    nbytes: int
    shared: bool
    users: frozenset[str] = frozenset()


_MOST_SHARED = 227 << 10
"""Dynamic shared memory, whose size is a launch's, is a global of no bytes; this is the most there can be."""

_GUARD = 256
"""Bytes behind a global that belong to no other: what runs over its end is seen."""


def rewrite(module: ir.Module) -> tuple[str, list[Global]]:
    """Change a module in place; returns its text, which calls functions of `host_runtime`, and its globals."""
    globals_ = [g for g in module.global_values if isinstance(g, ir.GlobalVariable)]
    module.namedmetadata.clear()
    functions = list(module.functions)
    declare_state(module)
    own = [f for f in functions if not f.name.startswith(_LLVM)]
    for function in own:
        _replace_operation(function)
    called = {id(x.callee) for f in own for x in _calls(f)}
    for function in functions:
        if function.name.startswith(_LLVM) and id(function) in called:
            _replace_intrinsic(function)
        elif function.name.startswith(_LLVM):
            del module.globals[function.name]  # only what it means for a GPU called it
    for function in own:
        _check_memory(function)
    found = [_open(g) for g in globals_]
    text = str(module)
    users = _users(text)
    return text, [attrs.evolve(x, users=frozenset(users.get(x.name, ()))) for x in found]


_DEFINITION = re.compile(r'^define [^\n]*?@"([^"]+)"\([^\n]*\n\{\n(.*?)^\}', flags=re.MULTILINE | re.DOTALL)


def _users(text: str) -> dict[str, set[str]]:
    """For each function and global of a module, the functions that use it, directly or through others."""
    users: dict[str, set[str]] = {}
    for name, body in _DEFINITION.findall(text):
        for used in set(re.findall(r'@"([^"]+)"', body)):
            users.setdefault(used, set()).add(name)
    for known in users.values():
        more = set(known)
        while more:
            more = {f for name in more for f in users.get(name, ())} - known
            known |= more
    return users


def _replace_intrinsic(function: ir.Function) -> None:
    short = function.name.removeprefix(_LLVM)
    if short not in INTRINSICS:
        raise UnsupportedOperationError(f"{function.name} has no body for the host: make it an operation of ptx_ops")
    function.name = f"volta.host.nvvm.{short}"
    function.linkage = "internal"
    write_body(function, INTRINSICS[short])


def _replace_operation(function: ir.Function) -> None:
    """The host's body for an operation; any other PTX is refused."""
    name = function.name
    if function.calling_convention == "ptx_kernel":
        function.calling_convention = ""
        function.args[0].attributes = ir.values.ArgumentAttributes()  # the host always passes an address
    if name in OPS:
        function.blocks.clear()
        function.attributes.discard("alwaysinline")
        function.attributes.add("noinline")  # a vote reads 32 lanes: inlined hundreds of times it takes long to compile
        write_body(function, OPS[name].host)
    elif name.startswith(PREFIX) or any(isinstance(x.callee, ir.InlineAsm) for x in _calls(function)):
        raise UnsupportedOperationError(f"{name} is PTX without a body for the host: make it an operation of ptx_ops")


def _calls(function: ir.Function) -> list[ins.CallInstr]:
    return [x for block in function.blocks for x in block.instructions if isinstance(x, ins.CallInstr)]


def _open(g: ir.GlobalVariable) -> Global:
    """Make a global one that the runner finds, with memory behind it."""
    nbytes, shared = size_of(g.value_type), g.addrspace == 3
    if shared:
        dynamic = nbytes == 0
        g.value_type = ir.ArrayType(ir.IntType(8), (_MOST_SHARED if dynamic else nbytes) + _GUARD)
        g.initializer = ir.Constant(g.value_type, None)
        g.global_constant = False
        g.align = max(g.align or 0, 128)
    g.linkage = ""
    return Global(g.name, nbytes, shared)


def size_of(kind: ir.Type) -> int:
    """Bytes that a value takes in memory."""
    if isinstance(kind, ir.ArrayType | ir.VectorType):
        return kind.count * size_of(kind.element)
    if isinstance(kind, ir.IntType):
        return -(-kind.width // 8)
    sizes = {ir.HalfType: 2, ir.FloatType: 4, ir.DoubleType: 8, ir.PointerType: 8}
    for known, size in sizes.items():
        if isinstance(kind, known):
            return size
    raise UnsupportedOperationError(f"a kernel loads or stores {kind}, whose size is not known here")


_ACCESSES: dict[type, tuple[int, int]] = {
    ins.LoadInstr: (0, READ), ins.StoreInstr: (1, WRITE), ins.LoadAtomicInstr: (0, READ),
    ins.StoreAtomicInstr: (1, WRITE), ins.AtomicRMW: (0, READ | WRITE), ins.CmpXchg: (0, READ | WRITE),
}  # fmt: skip
"""Instructions that touch memory: which operand is the address, and what they do there."""


_UNCHECKED = ("llvm.mem", "llvm.mask")


def _check_memory(function: ir.Function) -> None:
    for x in _calls(function):
        if str(getattr(x.callee, "name", "")).startswith(_UNCHECKED):
            raise UnsupportedOperationError(f"{function.name} calls {x.callee.name}, which is not checked on the host")
    everything: list[Any] = [x for block in function.blocks for x in block.instructions]
    for x in everything:
        where, rights = _ACCESSES.get(type(x), (0, 0))
        if rights and not _on_stack(x.operands[where]):
            _check(x, where, rights)


def _on_stack(pointer: ir.Value) -> bool:
    """Whether an address is a stack slot's, and needs no check."""
    while isinstance(pointer, ins.GEPInstr | ins.CastInstr):
        pointer = pointer.operands[0]
    return isinstance(pointer, ins.AllocaInstr)


def _check(x: ir.Instruction, where: int, rights: int) -> None:
    b = ir.IRBuilder(x.parent)
    b.position_before(x)
    pointer = x.operands[where]
    accessed = x.operands[0].type if where else x.operands[1].type if rights == READ | WRITE else x.type
    size = size_of(accessed)
    element = accessed.element if isinstance(accessed, ir.VectorType) else accessed
    declared = getattr(x, "align", None) or (size if element is accessed else size_of(element))
    check = intrinsic(b.module, "volta.host.check", PTR, [PTR, I64, I64, I64])
    flat = b.addrspacecast(pointer, PTR) if pointer.type.addrspace else pointer
    safe = b.call(check, [flat, I64(size), I64(rights), I64(declared)])
    operands = list(x.operands)
    operands[where] = b.addrspacecast(safe, pointer.type) if pointer.type.addrspace else safe
    x.operands = operands
