"""The entry of a user's kernel: from Volta's kernel ABI to the native function that Numba has compiled.

An entry takes its words apart, and for each task makes Numba's arrays of addresses and shapes and calls the function.
It knows dtypes and ranks only, so it is compiled, kept and launched as any kernel is. Operands of rank 0 are passed as
numbers. Results are zeros first: what a function leaves out never shows what memory held before.

A function that raises leaves word of it in the report of the run: of several tasks, the first. The launch table looks
at the report behind each such kernel, and what comes after it is not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.args import laid_out
from volta.emit.loops import I1, I8, I32, I64, PTR, VOID, for_range, if_then, intrinsic, load_args, offset, while_loop
from volta.emit.user_args import UserSpec, user_words
from volta.emit.values import item_size, scalar_type
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.plan import Buffer
from volta.xla_like.user import NAME, User
from volta.xla_like.views import prod

FLAG, LOCK, TASK, CAUSE, CODE, CALL = range(6)
"""Words of a report: whether a kernel has raised; a lock; by which task, with which exception (as Numba describes it)
and which code; the number of the call in the plan."""

REPORT_WORDS = 8

REPORT = -1
"""Stands for the number of the buffer that has a run's report."""

HEADER, FUNCTION, NUMBER = 3, 0, 2
"""Words of an entry's args before the arrays' addresses, and which of them are the function and the number of the call;
between them is the address of the report."""

_ABSENT = Access(None, 0, ())

_OK, _OK_NONE = 0, -2
"""What functions of Numba's return where nothing was raised."""


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """A task is an element of the batch; what the table fills in is 0."""
    op = call.kernel
    assert isinstance(op, User)
    words = laid_out((_ABSENT, Access(REPORT, 0, ()), _ABSENT, *call.accesses, *user_words(call)))
    return [Launch(LibraryKernel(NAME, UserSpec.of(op)), call, *words, prod(op.batch))]


def build_user(module: ir.Module, name: str, spec: UserSpec) -> ir.Function:
    """A task is one element of the batch. Args: function, report, number of the call; the arrays' addresses; sizes."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    target, report, number = load_args(b, args, HEADER)
    at = HEADER + len(spec.arrays)
    addresses = load_args(b, args, len(spec.arrays), HEADER)
    sizes = load_args(b, args, spec.batch, at)
    at += spec.batch
    arrays = []
    for k, ((dtype, rank), address) in enumerate(zip(spec.arrays, addresses, strict=True)):
        strides, shape = load_args(b, args, spec.batch, at), load_args(b, args, rank, at + spec.batch)
        arrays.append(_Array(b, dtype, address, strides, shape, is_result=k >= spec.reads))
        at += spec.batch + rank
    returned, cause = b.alloca(PTR), b.alloca(PTR)
    with for_range(b, begin, end) as task:
        index = _unravel(b, task, sizes)
        values: list[ir.Value] = [returned, cause]
        for array in arrays:
            values += array.arguments(b, index)
        kind = ir.FunctionType(I32, [v.type for v in values])
        code = b.call(b.inttoptr(target, ir.PointerType(kind)), values)
        raised = b.and_(b.icmp_signed("!=", code, I32(_OK)), b.icmp_signed("!=", code, I32(_OK_NONE)))
        with if_then(b, raised):
            _note(b, b.inttoptr(report, PTR), task, b.load(cause, typ=PTR), code, number)
            b.ret_void()
    b.ret_void()
    return function


class _Array:
    """An operand or a result of the entry under construction: its words, and what follows from them once a call."""

    def __init__(
        self, b: ir.IRBuilder, dtype: str, address: ir.Value, batch: Sequence[ir.Value], shape: Sequence[ir.Value],
        is_result: bool,
    ) -> None:  # fmt: skip
        self._dtype, self._address, self._batch, self._shape, self._is_result = dtype, address, batch, shape, is_result
        self._itemsize = I64(item_size(dtype))
        self._strides: list[ir.Value] = []
        size: ir.Value = self._itemsize
        for n in reversed(shape):
            self._strides.insert(0, size)
            size = b.mul(size, n)
        self._bytes = size
        self._items = b.udiv(size, self._itemsize)

    def arguments(self, b: ir.IRBuilder, index: Sequence[ir.Value]) -> list[ir.Value]:
        """What the function takes for it in one task: a number, or the fields of an array of Numba's."""
        at = self._address
        for i, stride in zip(index, self._batch, strict=True):
            at = b.add(at, b.mul(i, stride))
        data = b.inttoptr(at, PTR)
        if self._is_result:
            clear = intrinsic(b.module, "llvm.memset.p0.i64", VOID, [PTR, I8, I64, I1])
            b.call(clear, [data, I8(0), self._bytes, I1(0)])
        elif not self._shape:
            return [b.load(data, typ=I8 if self._dtype == "bool" else scalar_type(self._dtype))]
        nobody = PTR(None)  # owns the memory, as far as Numba knows
        return [nobody, nobody, self._items, self._itemsize, data, *self._shape, *self._strides]


def _unravel(b: ir.IRBuilder, task: ir.Value, sizes: Sequence[ir.Value]) -> list[ir.Value]:
    """A task's place in the batch, whose last dimension comes fastest."""
    index: list[ir.Value] = []
    for n in reversed(sizes[1:]):
        index.insert(0, b.urem(task, n))
        task = b.udiv(task, n)
    return [task, *index] if sizes else []


def _note(b: ir.IRBuilder, report: ir.Value, task: ir.Value, cause: ir.Value, code: ir.Value, number: ir.Value) -> None:
    """Write down what a task raised, unless an earlier task of the call has raised too."""

    def word(i: int) -> ir.Value:
        return offset(b, report, 8 * i)

    while_loop(
        b,
        lambda: b.not_(b.extract_value(b.cmpxchg(word(LOCK), I64(0), I64(1), "acquire", "monotonic"), 1)),
        lambda: None,
    )
    first = b.icmp_signed("==", b.load(word(FLAG), typ=I64), I64(0))
    with if_then(b, b.or_(first, b.icmp_signed("<", task, b.load(word(TASK), typ=I64)))):
        said = {TASK: task, CAUSE: b.ptrtoint(cause, I64), CODE: b.sext(code, I64), CALL: number, FLAG: I64(1)}
        for i, value in said.items():
            b.store(value, word(i))
    b.atomic_rmw("xchg", word(LOCK), I64(0), "release")
