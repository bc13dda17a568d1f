"""Rows turned into lanes and back: a few elements of each of some rows, which lie side by side in a row, and in scratch
memory element by element, a row in each lane.

Functions of their own, called for each block: written out in place they would be most of a kernel's code.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, PTR, VOID, offset, prefetch
from volta.numba_cpu import weaving

_TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64])


def turn_in(module: ir.Module, dtype: str, rows: int, width: int) -> ir.Function:
    """``void(first, stride, place, ahead)`` reads ``width`` elements of each row and writes them to a place, and asks
    for those that lie so many bytes ahead."""
    function, b = _function(module, f"turn.in.{dtype}.{rows}.{width}")
    if b is not None:
        row = Builder(b, width)
        places = _rows(b, function, rows)
        vectors = [row.load(here, dtype) for here in places]
        for n, x in enumerate(weaving.together(b, [v.ir for v in vectors], width)):
            row.store(Value(x, vectors[0].dtype, row), _at(b, function, n, width, dtype), dtype)
        _ask(b, function, places, writes=False)
    return function


def turn_out(module: ir.Module, dtype: str, rows: int, width: int) -> ir.Function:
    """``void(first, stride, place, ahead)`` writes what `turn_in` has read back to its rows, or other such elements."""
    function, b = _function(module, f"turn.out.{dtype}.{rows}.{width}")
    if b is not None:
        row = Builder(b, width)
        vectors = [row.load(_at(b, function, n, width, dtype), dtype) for n in range(rows)]
        places = _rows(b, function, rows)
        for x, here in zip(weaving.apart(b, [v.ir for v in vectors], width), places, strict=True):
            row.store(Value(x, vectors[0].dtype, row), here, dtype)
        _ask(b, function, places, writes=True)
    return function


def _function(module: ir.Module, name: str) -> tuple[ir.Function, ir.IRBuilder | None]:
    """A function of a module, and where it is to be written if that has not been done."""
    found = module.globals.get(name)
    if found is not None:
        return found, None
    function = ir.Function(module, _TYPE, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _rows(b: ir.IRBuilder, function: ir.Function, rows: int) -> list[ir.Value]:
    first, stride, _, _ = function.args
    return [offset(b, first, b.mul(stride, I64(r))) for r in range(rows)]


def _at(b: ir.IRBuilder, function: ir.Function, n: int, width: int, dtype: str) -> ir.Value:
    return offset(b, function.args[2], n * width * item_size(dtype))


def _ask(b: ir.IRBuilder, function: ir.Function, places: list[ir.Value], writes: bool) -> None:
    for place in places:
        prefetch(b, offset(b, place, function.args[3]), writes)
    b.ret_void()
