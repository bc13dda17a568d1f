"""Squares, in registers: of Cholesky a thread holds a row, of a substitution by triangles a right side, of the T of a
block of reflections a column.

A row that is known is taken from all that are left at once: so their chains run beside each other, each in ascending
order.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, if_then, load_args, minimum
from volta.emit.panel_tasks import ARRAYS
from volta.emit.panels import at
from volta.numba_cuda.codegen.threads import (
    WARP,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    thread_index,
)
from volta.numba_cuda.panels.registers import factored, meet, number, read_row
from volta.xla_like.panels import PanelSpec


def build_cholesky(module: ir.Module, name: str, spec: PanelSpec, size: int) -> ir.Function:
    """A warp has a square of at most ``size`` columns, a lane a row of it. Args: the arrays, then width and length."""
    function, b = new_entry(module, name, WARP)
    source, out, width = _arrays(b, function, spec)
    dtype, one, lane = spec.dtype.name, Builder(b, 1), thread_index(b)
    begin = b.mul(block_index(b), b.mul(width, width))
    inside = b.icmp_signed("<", lane, width)
    row = b.add(begin, b.select(inside, lane, I64(0)))
    here = number(one, lane)
    x: list[Value] = []
    for c in range(size):
        there = b.and_(inside, b.icmp_signed("<", I64(c), width))
        found = one.load(at(b, source, b.add(row, b.select(there, b.mul(I64(c), width), I64(0))), dtype), dtype)
        x.append(one.select(one.value(there, "bool"), found, one.select(here == c, one.const(dtype, 1), 0)))
    x = factored(one, x)
    for c in range(size):
        with if_then(b, b.and_(inside, b.icmp_signed("<", I64(c), width))):
            one.store(one.select(here >= c, x[c], 0), at(b, out, b.add(row, b.mul(I64(c), width)), dtype))
    b.ret_void()
    return function


def build_substitute(module: ir.Module, name: str, spec: PanelSpec, size: int, threads: int) -> ir.Function:
    """A block has a triangle of at most ``size`` rows, and as many right sides as threads. Args: the arrays, then width
    and length."""
    function, b = new_entry(module, name, threads)
    *addresses, width, length = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    triangle, source, out = (device_pointer(b, x) for x in addresses)
    dtype, one, thread = spec.dtype.name, Builder(b, 1), thread_index(b)
    each = b.sdiv(b.add(length, I64(threads - 1)), I64(threads))
    item = b.sdiv(block_index(b), each)
    column = b.add(b.mul(b.sub(block_index(b), b.mul(item, each)), I64(threads)), thread)
    begin = b.add(b.mul(item, b.mul(width, length)), minimum(b, column, b.sub(length, I64(1))))
    row = size + 16 // item_size(dtype)  # so that threads that write a row of what is transposed meet few of each other
    near = shared_memory(module, b, f"{name}_near", size * row * item_size(dtype))

    def right(j: int) -> ir.Value:
        return b.mul(b.select(b.icmp_signed("<", I64(j), width), I64(j), I64(0)), length)

    square = b.mul(item, b.mul(width, width))
    loaded: list[tuple[ir.Value, Value]] = []
    for k in range(0, size * size, threads):
        place = b.add(thread, I64(k))
        i, j = b.lshr(place, I64(size.bit_length() - 1)), b.and_(place, I64(size - 1))
        there = b.and_(b.icmp_signed("<", i, width), b.icmp_signed("<", j, i if spec.unit else width))
        index = b.select(there, b.add(b.mul(i, width), j), I64(0))
        found = one.load(at(b, triangle, b.add(square, index), dtype), dtype)
        loaded.append((b.add(b.mul(j, I64(row)), i), found))
    x = [one.load(at(b, source, b.add(begin, right(j)), dtype), dtype) for j in range(size)]
    for place, found in loaded:
        one.store(found, at(b, near, place, dtype))
    meet(b, threads)
    for j in range(size):
        for i, factor in read_row(one, at(b, near, I64(j * row), dtype), dtype, j + spec.unit, size):
            x[i] = x[i] / factor if i == j else one.fma(-factor, x[j], x[i])
    with if_then(b, b.icmp_signed("<", column, length)):
        for j in range(size):
            with if_then(b, b.icmp_signed("<", I64(j), width)):
                one.store(x[j], at(b, out, b.add(begin, right(j)), dtype))
    b.ret_void()
    return function


def build_triangle(module: ir.Module, name: str, spec: PanelSpec, size: int, threads: int) -> ir.Function:
    """A block has T of at most ``size`` reflections, a thread a column of it. Args: the products of all vectors, of
    which those above the diagonal are read, the factors, T; then width and length."""
    function, b = new_entry(module, name, threads)
    *addresses, width, _ = load_args(b, function.args[0], 5)
    inner, factors, out = (device_pointer(b, x) for x in addresses)
    dtype, one, thread, zero = spec.dtype.name, Builder(b, 1), thread_index(b), Builder(b, 1).const(spec.dtype.name, 0)
    first, square = b.mul(block_index(b), width), b.mul(block_index(b), b.mul(width, width))
    row = size + 16 // item_size(dtype)
    near = shared_memory(module, b, f"{name}_near", size * row * item_size(dtype))

    def factor(i: ir.Value, there: ir.Value) -> Value:
        return one.load(at(b, factors, b.add(first, b.select(there, i, I64(0))), dtype), dtype)

    for k in range(0, size * size, threads):
        place = b.add(thread, I64(k))
        i, j = b.lshr(place, I64(size.bit_length() - 1)), b.and_(place, I64(size - 1))
        there = b.and_(b.icmp_signed("<", i, j), b.icmp_signed("<", j, width))
        index = b.add(square, b.select(there, b.add(b.mul(i, width), j), I64(0)))
        x = factor(i, there) * one.load(at(b, inner, index, dtype), dtype)
        one.store(one.select(one.value(there, "bool"), x, zero), at(b, near, b.add(b.mul(j, I64(row)), i), dtype))
    meet(b, threads)
    own, here = b.icmp_signed("<", thread, width), number(one, thread)
    with if_then(b, own):
        on_diagonal = factor(thread, own)
        column = [one.select(here == i, on_diagonal, zero) for i in range(size)]
        for j in reversed(range(1, size)):
            for i, x in read_row(one, at(b, near, I64(j * row), dtype), dtype, 0, j):
                column[i] = column[i] if i >= j else one.fma(-x, column[j], column[i])
        for i in range(size):
            with if_then(b, b.icmp_signed("<", I64(i), width)):
                one.store(column[i], at(b, out, b.add(square, b.add(b.mul(I64(i), width), thread)), dtype))
    b.ret_void()
    return function


def _arrays(b: ir.IRBuilder, function: ir.Function, spec: PanelSpec) -> tuple[ir.Value, ir.Value, ir.Value]:
    source, out, width, _ = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    return device_pointer(b, source), device_pointer(b, out), width
