"""What a CUDA kernel can do that a loop on a CPU cannot: its place in the grid, barriers, shuffles, shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, PTR, VOID, intrinsic, load_arg, load_args, offset
from volta.numba_cuda.codegen import ptx_following, ptx_ops

WARP = 32
CONSTANT_SPACE = 4
_GLOBAL_SPACE, _SHARED_SPACE = 1, 3

TABLE_WORDS = 5
"""Of a merged launch: shift, offset of the calls' first blocks, offset and bytes of their args, number of calls."""

ENTRY_TYPE = ir.FunctionType(VOID, [PTR])
"""The CUDA kernel ABI: ``void kernel(int64* args)``, the args block lying in device memory."""


BODY_TYPE = ir.FunctionType(VOID, [PTR, I64])
"""What an entry calls: args block and number of the block of threads."""


def new_entry(
    module: ir.Module, name: str, threads: int, resident: int | None = None, *, waits: bool = True
) -> tuple[ir.Function, ir.IRBuilder]:
    """Add a kernel that runs in blocks of `threads`; returns its body, with a builder at the start of it.

    A multiprocessor is to hold at least `resident` blocks at once, which bounds a thread's registers. The entry itself
    only calls the body, with its args and the number of its block; `merge_entry` makes it find them. Unless it `waits`,
    the body itself has to, before it reads what a kernel before this one may write.
    """
    body = ir.Function(module, BODY_TYPE, f"{name}_body")
    body.linkage = "internal"
    body.attributes.add("alwaysinline")
    body.args[0].name, body.args[1].name = "args", "block"
    entry = ir.Function(module, ENTRY_TYPE, name)
    entry.calling_convention = "ptx_kernel"
    entry.args[0].name = "args"
    notes = {"maxntidx": threads} if resident is None else {"maxntidx": threads, "minctasm": resident}
    for key, number in notes.items():
        module.add_named_metadata("nvvm.annotations").add(module.add_metadata([entry, key, I32(number)]))
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    ptx_following.let_next_begin(b)
    b.call(body, [entry.args[0], _register(b, "ctaid.x")])
    b.ret_void()
    b = ir.IRBuilder(body.append_basic_block("entry"))
    if waits:
        ptx_following.await_earlier(b)
    return body, b


def read_args_first(body: ir.Function) -> None:
    """Let a kernel whose body is finished read its args before it waits for the kernels before it.

    Where it takes them one after the other, each is a way to memory. They stay in registers until then: this is for
    kernels that run but once and have registers enough.
    """
    b, first = ir.IRBuilder(body.entry_basic_block), {}
    every = [x for block in body.blocks for x in block.instructions]
    reads = {x: word for x in every if (word := _word_of(body, x)) is not None}
    b.position_at_start(body.entry_basic_block)
    for x, word in reads.items():
        if (word, x.type) not in first:
            first[word, x.type] = load_arg(b, body.args[0], word)
    for user in every:
        for x in dict.fromkeys(_operands(user)):
            if x in reads:
                user.replace_usage(x, first[reads[x], x.type])
    used = Counter(x for user in every for x in _operands(user))
    for x in reads:
        x.parent.instructions.remove(x)
        if used[x.operands[0]] == 1:
            x.parent.instructions.remove(x.operands[0])


def _operands(user: ir.Instruction) -> Iterable[ir.Value]:
    return [x for x, _ in user.incomings] if isinstance(user, ir.PhiInstr) else user.operands


def _word_of(body: ir.Function, x: ir.Instruction) -> int | None:
    """Which of its args an instruction reads, if it does so by their number."""
    if not isinstance(x, ir.LoadInstr) or not isinstance(at := x.operands[0], ir.GEPInstr):
        return None
    args, index = at.operands[0], at.operands[1]
    return index.constant if args is body.args[0] and isinstance(index, ir.Constant) else None


def merge_entry(module: ir.Module, name: str) -> None:
    """Make a kernel's entry run many calls: its args are a table (see merging.py) and the args of the calls.

    Word ``block >> shift`` of the table is the call of the first block with that number: the block's own, or before it.
    """
    entry, body = module.get_global(name), module.get_global(f"{name}_body")
    entry.blocks.clear()
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    ptx_following.let_next_begin(b)
    args, block = entry.args[0], _register(b, "ctaid.x")
    shift, at_starts, at_calls, size, _ = load_args(b, args, TABLE_WORDS)
    start = load_arg(b, args, b.add(b.lshr(block, shift), I64(TABLE_WORDS)))
    starts = offset(b, args, at_starts)
    entered, search, found = b.block, b.append_basic_block("search"), b.append_basic_block("found")
    b.branch(search)
    b.position_at_end(search)
    call = b.phi(I64)
    following = b.add(call, I64(1))
    call.add_incoming(start, entered)
    call.add_incoming(following, search)
    b.cbranch(b.icmp_signed("<=", load_arg(b, starts, following), block), search, found)
    b.position_at_end(found)
    own = offset(b, offset(b, args, at_calls), b.mul(call, size))
    b.call(body, [own, b.sub(block, load_arg(b, starts, call))])
    b.ret_void()


class _ByValue(ir.values.ArgumentAttributes):
    """The attribute of a pointer that stands for a block of words among the kernel's params."""

    words = 0

    def _to_list(self, typ: ir.Type) -> list[str]:
        return [f"byval([{self.words} x i64]) align 8"]


def by_value_entry(module: ir.Module, name: str, words: int) -> None:
    """Let a kernel be given its args themselves, so many words, instead of their address."""
    attributes = _ByValue()
    attributes.words = words
    module.get_global(name).args[0].attributes = attributes


def _register(b: ir.IRBuilder, name: str) -> ir.Value:
    return b.zext(b.call(intrinsic(b.module, f"llvm.nvvm.read.ptx.sreg.{name}", I32, []), []), I64)


def thread_index(b: ir.IRBuilder) -> ir.Value:
    """The thread's number in its block, as an i64."""
    return _register(b, "tid.x")


def block_index(b: ir.IRBuilder) -> ir.Value:
    """The block's number among those of its call, as an i64."""
    return b.function.args[1]


def block_count(b: ir.IRBuilder) -> ir.Value:
    """The blocks of a launch that is not merged with others, as an i64."""
    return _register(b, "nctaid.x")


def device_pointer(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """An address as a pointer that LLVM knows to lie in device memory."""
    return b.addrspacecast(b.inttoptr(address, ir.PointerType(addrspace=_GLOBAL_SPACE)), PTR)


def barrier(b: ir.IRBuilder) -> None:
    """All threads of the block meet; what they wrote before, all see after."""
    b.call(intrinsic(b.module, "llvm.nvvm.barrier0", VOID, []), [])


def warp_barrier(b: ir.IRBuilder) -> None:
    """All threads of the warp meet."""
    b.call(intrinsic(b.module, "llvm.nvvm.bar.warp.sync", VOID, [I32]), [I32(-1)])


def shared_memory(module: ir.Module, b: ir.IRBuilder, name: str, nbytes: int) -> ir.Value:
    """Memory that a block's threads share, named within the module; a pointer to its first byte."""
    found = module.globals.get(name)
    if found is None:
        kind = ir.ArrayType(ir.IntType(8), nbytes)
        found = ir.GlobalVariable(module, kind, name, addrspace=_SHARED_SPACE)
        found.linkage, found.align = "internal", 16
        found.initializer = ir.Constant(kind, ir.Undefined)
    return b.addrspacecast(found, PTR)


def dynamic_shared(module: ir.Module, b: ir.IRBuilder) -> ir.Value:
    """The block's dynamic shared memory, whose size is the launch's (`Launch.shared`); a pointer to its first byte."""
    found = module.globals.get("volta_dynamic_shared")
    if found is None:
        kind = ir.ArrayType(ir.IntType(8), 0)
        found = ir.GlobalVariable(module, kind, "volta_dynamic_shared", addrspace=_SHARED_SPACE)
        found.linkage, found.align = "external", 16
    return b.addrspacecast(found, PTR)


def shuffle_xor(b: ir.IRBuilder, value: Value, distance: int) -> Value:
    """The value of the thread whose number in the warp differs by ``xor distance``."""
    return shuffle(b, "bfly", value, I32(distance))


def shuffle(b: ir.IRBuilder, mode: str, value: Value, by: ir.Value) -> Value:
    """The value of another thread of the warp, as `ptx_ops.shuffle` says which."""

    def word(x: ir.Value) -> ir.Value:
        return ptx_ops.shuffle(b, mode, x, by)

    kind = value.ir.type
    bits = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(kind) or kind.width
    raw = value.ir if isinstance(kind, ir.IntType) else b.bitcast(value.ir, ir.IntType(bits))
    if bits == 64:
        low, high = word(b.trunc(raw, I32)), word(b.trunc(b.lshr(raw, I64(32)), I32))
        raw = b.or_(b.zext(low, I64), b.shl(b.zext(high, I64), I64(32)))
    elif bits == 32:
        raw = word(raw)
    else:
        raw = b.trunc(word(b.zext(raw, I32)), ir.IntType(bits))
    back = raw if isinstance(kind, ir.IntType) else b.bitcast(raw, kind)
    return Builder(b, 1).value(back, value.dtype)


def product(b: ir.IRBuilder, factors: Sequence[ir.Value]) -> ir.Value:
    """The product of i64 values."""
    total: ir.Value = I64(1)
    for i, x in enumerate(factors):
        total = b.mul(total, x) if i else x
    return total
