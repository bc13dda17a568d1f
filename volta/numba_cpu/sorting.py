"""Sort and scan kernels: each task is a row.

A sort is a stable merge sort of positions; floats order as numbers with -0 = +0 and NaN last. A scan has a fixed order:
blocks of 256 elements, each scanned from its first element on; a block's offset is the chain of the totals before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.core.contract import DEFINITIONS
from volta.emit.builder import Builder, Value, compute_dtype, is_float
from volta.emit.loops import I64, PTR, for_range, load_args, minimum, offset, while_loop
from volta.emit.reducers import Reducer
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.ordering import SCANS, ScanSpec, SortSpec


def build_scan(module: ir.Module, name: str, spec: ScanSpec) -> ir.Function:
    """Args: input, output, rows, length; both arrays contiguous [rows, length]."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    source0, out0, _, length = load_args(b, args, 4)
    dtype, item = spec.dtype.name, I64(spec.dtype.itemsize)
    reducer, one = Reducer(SCANS[spec.kind], compute_dtype(dtype)), Builder(b, 1)
    kind = one.type_of(compute_dtype(dtype))
    with b.goto_entry_block():
        local, before = b.alloca(kind), b.alloca(kind)

    def read(slot: ir.Value) -> Value:
        return one.value(b.load(slot, typ=kind), compute_dtype(dtype))

    def join(x: Value, y: Value) -> Value:
        return reducer.combine(one, (x,), (y,))[0]

    with for_range(b, begin, end) as row:
        start = b.mul(b.mul(row, length), item)
        source, out = (offset(b, b.inttoptr(p, PTR), start) for p in (source0, out0))
        with for_range(b, 0, length, DEFINITIONS.scan_block) as block:
            first = b.icmp_signed("==", block, I64(0))
            b.store(reducer.identity(one)[0].ir, local)
            with for_range(b, block, minimum(b, b.add(block, I64(DEFINITIONS.scan_block)), length)) as i:
                place = b.sub(b.sub(length, I64(1)), i) if spec.reverse else i
                at = b.mul(place, item)
                total = join(read(local), one.load(offset(b, source, at), dtype))
                b.store(total.ir, local)
                whole = join(read(before), total)
                one.store(one.value(b.select(first, total.ir, whole.ir), total.dtype), offset(b, out, at), dtype)
            total = read(local)
            b.store(b.select(first, total.ir, join(read(before), total).ir), before)
    b.ret_void()
    return function


def _less(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype == "bool":
        return ~x & y
    less = x < y
    return less | (~b.isnan(x) & b.isnan(y)) if is_float(x.dtype) else less


def _before(b: Builder, keys: Sequence[tuple[Value, Value]]) -> Value:
    """Whether the first of each pair sorts strictly before the second, the first key counting most."""
    (x, y), rest = keys[0], keys[1:]
    less = _less(b, x, y)
    return less | (~_less(b, y, x) & _before(b, rest)) if rest else less


def build_sort(module: ir.Module, name: str, spec: SortSpec) -> ir.Function:
    """Args: inputs, outputs, rows, length; scratch holds two position arrays of ``length`` int64 each."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    count = len(spec.dtypes)
    words = load_args(b, args, len(spec.read) + count + 2)
    outs, length = words[len(spec.read) :], words[-1]
    one = Builder(b, 1)
    with b.goto_entry_block():
        here, there, width, left, right = (b.alloca(I64) for _ in range(5))

    def read(slot: ir.Value) -> ir.Value:
        return b.load(slot, typ=I64)

    def word(base: ir.Value, index: ir.Value) -> ir.Value:
        return offset(b, b.inttoptr(base, PTR), b.shl(index, I64(3)))

    with for_range(b, begin, end) as row:
        base = b.mul(row, length)
        inputs = {
            k: offset(b, b.inttoptr(x, PTR), b.mul(base, I64(spec.dtypes[k].itemsize)))
            for k, x in zip(spec.read, words, strict=False)
        }

        def element(k: int, position: ir.Value, inputs: dict[int, ir.Value] = inputs) -> Value:
            d = spec.dtypes[k]
            if k == spec.positions:
                return one.cast(one.value(position, "int64"), d.name)
            return one.load(offset(b, inputs[k], b.mul(position, I64(d.itemsize))), d.name)

        b.store(scratch, here)
        b.store(b.add(scratch, b.shl(length, I64(3))), there)
        with for_range(b, 0, length) as i:
            b.store(i, word(read(here), i))
        b.store(I64(1), width)

        def merge_pass() -> None:
            w = read(width)
            with for_range(b, 0, length, b.shl(w, I64(1))) as low:
                middle = minimum(b, b.add(low, w), length)
                high = minimum(b, b.add(low, b.shl(w, I64(1))), length)
                b.store(low, left)
                b.store(middle, right)
                with for_range(b, low, high) as i:
                    at_left, at_right = read(left), read(right)
                    has_left = b.icmp_signed("<", at_left, middle)
                    has_right = b.icmp_signed("<", at_right, high)
                    p = b.load(word(read(here), b.select(has_left, at_left, low)), typ=I64)
                    q = b.load(word(read(here), b.select(has_right, at_right, low)), typ=I64)
                    keys = [(element(k, q), element(k, p)) for k in range(spec.num_keys)]
                    smaller = _before(one, keys).ir  # strictly: equal keys keep their order
                    take_right = b.and_(has_right, b.or_(b.not_(has_left), smaller))
                    b.store(b.select(take_right, q, p), word(read(there), i))
                    b.store(b.select(take_right, at_left, b.add(at_left, I64(1))), left)
                    b.store(b.select(take_right, b.add(at_right, I64(1)), at_right), right)
            swapped = read(here)
            b.store(read(there), here)
            b.store(swapped, there)
            b.store(b.shl(w, I64(1)), width)

        while_loop(b, lambda: b.icmp_signed("<", read(width), length), merge_pass)
        for k, d in enumerate(spec.dtypes):
            out = offset(b, b.inttoptr(outs[k], PTR), b.mul(base, I64(d.itemsize)))
            with for_range(b, 0, length) as i:
                position = b.load(word(read(here), i), typ=I64)
                one.store(element(k, position), offset(b, out, b.mul(i, I64(d.itemsize))), d.name)
    b.ret_void()
    return function
