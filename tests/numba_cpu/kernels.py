"""Small kernels for the machine-room tests, built by hand so that they need nothing of the layers above."""

import hashlib
import struct
from collections.abc import Callable

from llvmlite import ir

from volta.numba_cpu.unit import KernelSource

I64 = ir.IntType(64)
F64 = ir.DoubleType()
PTR = ir.PointerType()
KERNEL = ir.FunctionType(ir.VoidType(), [PTR, I64, I64, I64])

Emit = Callable[[ir.IRBuilder, Callable[[int], ir.Value], ir.Value, ir.Value], None]


def kernel(text: str, emit: Emit) -> KernelSource:
    """A kernel that runs ``emit(builder, arg, task, scratch)`` for each of its tasks."""

    def build(module: ir.Module, name: str) -> ir.Function:
        function = ir.Function(module, KERNEL, name)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        args, begin, end, scratch = function.args
        loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
        entry = b.block
        b.cbranch(b.icmp_signed("<", begin, end), loop, done)
        b.position_at_end(loop)
        task = b.phi(I64)
        task.add_incoming(begin, entry)
        emit(b, lambda i: b.load(b.gep(args, [I64(i)], source_etype=I64), typ=I64), task, scratch)
        following = b.add(task, I64(1))
        task.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, end), loop, done)
        b.position_at_end(done)
        b.ret_void()
        return function

    return KernelSource("t_" + hashlib.sha256(text.encode()).hexdigest()[:16], text, build)


def element(b: ir.IRBuilder, address: ir.Value, index: ir.Value) -> ir.Value:
    """A pointer to a 64-bit element."""
    return b.gep(b.inttoptr(address, PTR), [index], source_etype=I64)


def scale_kernel(factor: float) -> KernelSource:
    """args[1][i] = args[0][i] * factor, in float64; a task an element."""

    def emit(b, arg, task, scratch):
        x = b.load(element(b, arg(0), task), typ=F64)
        b.store(b.fmul(x, F64(factor)), element(b, arg(1), task))

    return kernel(f"scale by {struct.pack('>d', factor).hex()}", emit)


def add_kernel() -> KernelSource:
    """args[0][i] += args[1], in int64; a task an element."""

    def emit(b, arg, task, scratch):
        at = element(b, arg(0), task)
        b.store(b.add(b.load(at, typ=I64), arg(1)), at)

    return kernel("add args[1] to args[0][task]", emit)


def follow_kernel() -> KernelSource:
    """args[1][i] = args[0][n - 1 - i] + 1 with n = args[2]: reads what other threads wrote, if n > 1."""

    def emit(b, arg, task, scratch):
        other = b.sub(b.sub(arg(2), I64(1)), task)
        value = b.load(element(b, arg(0), other), typ=I64)
        b.store(b.add(value, I64(1)), element(b, arg(1), task))

    return kernel("args[1][i] = args[0][n-1-i] + 1", emit)


def scratch_kernel() -> KernelSource:
    """args[0][i] = the scratch address; writes the scratch memory's last of args[1] words."""

    def emit(b, arg, task, scratch):
        last = b.sub(arg(1), I64(1))
        b.store(task, element(b, scratch, last))
        b.store(scratch, element(b, arg(0), task))

    return kernel("args[0][i] = scratch", emit)


def last_kernel() -> KernelSource:
    """args[0][i] = how many others had ended when task i did. Task args[1] waits until all the other args[2] have, or
    args[3] looks long; args[4] points to their number."""

    def emit(b, arg, task, scratch):
        count = b.inttoptr(arg(4), PTR)
        function = b.function
        look, end = function.append_basic_block("look"), function.append_basic_block("end")
        before = b.block
        b.cbranch(b.icmp_signed("==", task, arg(1)), look, end)
        b.position_at_end(look)
        looks = b.phi(I64)
        looks.add_incoming(I64(0), before)
        more = b.add(looks, I64(1))
        looks.add_incoming(more, look)
        found = b.load_atomic(count, "acquire", 8, typ=I64)
        waits = b.and_(b.icmp_signed("<", found, arg(2)), b.icmp_signed("<", more, arg(3)))
        b.cbranch(waits, look, end)
        b.position_at_end(end)
        b.store(b.atomic_rmw("add", count, I64(1), "acq_rel"), element(b, arg(0), task))

    return kernel("tasks that note how many ended before", emit)


def spin_kernel() -> KernelSource:
    """Keeps a processor busy for args[0] steps."""

    def emit(b, arg, task, scratch):
        function = b.function
        loop, after = function.append_basic_block("spin"), function.append_basic_block("after")
        start, limit = b.block, arg(0)
        b.branch(loop)
        b.position_at_end(loop)
        step = b.phi(I64)
        step.add_incoming(I64(0), start)
        more = b.add(step, I64(1))
        b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)
        step.add_incoming(more, loop)
        b.cbranch(b.icmp_signed("<", more, limit), loop, after)
        b.position_at_end(after)

    return kernel("spin", emit)
