"""The ordered sum and dot of arrays, for code that Numba compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

from volta.core.contract import DEFINITIONS
from volta.core.errors import DTypeError, ShapeError
from volta.core.source import at_user_line
from volta.emit.builder import Builder, item_size
from volta.emit.loops import I64, PTR, for_range, if_else, loop, minimum, offset
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, State, StateArray, columns_block
from volta.numba.elementwise import KINDS, compiled_by, intrinsic
from volta.ops import base, lax

_CHUNK = DEFINITIONS.dot_chunk


def _pointer(context: Any, b: ir.IRBuilder, kind: Any, array: Any) -> ir.Value:
    data = cgutils.create_struct_proxy(kind)(context, b, array).data
    return data if data.type == PTR else b.bitcast(data, PTR)


def _blocks(b: ir.IRBuilder, dtype: str, n: ir.Value, block: Any) -> ir.Value:
    """Results of blocks of 4096, joined in the tree of adjacent pairs; +0.0 of nothing.

    ``block(start, stop)`` gives the state of one.
    """
    reducer = Reducer("sum", dtype)
    tree = BlockTree(b, reducer, 1)
    with if_else(b, b.icmp_signed("<", I64(0), n)) as some:
        with some.then():
            tree.start()
            with for_range(b, 0, n, BLOCK) as start:
                tree.push(block(start, minimum(b, b.add(start, I64(BLOCK)), n)), b.udiv(start, I64(BLOCK)))
            (total,) = tree.finish()
            some.give(total.ir)
        with some.otherwise():
            some.give(Builder(b).const(dtype, 0.0).ir)
    return some.results[0]


@intrinsic
def _sum(typingctx: Any, x: Any) -> Any:
    dtype = KINDS[x.dtype]

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        data, n = _pointer(context, b, x, args[0]), cgutils.create_struct_proxy(x)(context, b, args[0]).nitems
        reducer, size = Reducer("sum", dtype), I64(item_size(dtype))
        lanes = StateArray(b, reducer, LANES, 1)

        def block(start: ir.Value, stop: ir.Value) -> State:
            def element(i: ir.Value) -> list[State]:
                return [(Builder(b).load(offset(b, data, b.mul(i, size)), dtype),)]

            return columns_block(b, [reducer], [lanes], 1, start, stop, element)[0]

        return _blocks(b, dtype, n, block)

    return x.dtype(x), generate


@intrinsic
def _dot(typingctx: Any, x: Any, y: Any) -> Any:
    dtype = KINDS[x.dtype]

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        places = [_pointer(context, b, kind, array) for kind, array in zip((x, y), args, strict=True)]
        size = I64(item_size(dtype))
        n = cgutils.create_struct_proxy(x)(context, b, args[0]).nitems
        builder = Builder(b)
        zero = builder.const(dtype, 0.0)

        def chunk(start: ir.Value, stop: ir.Value) -> Any:
            with loop(b, start, stop, init=[zero.ir]) as chain:
                left, right = (builder.load(offset(b, data, b.mul(chain.index, size)), dtype) for data in places)
                chain.advance(builder.fma(left, right, builder.value(chain.values[0], dtype)).ir)
            return builder.value(chain.results[0], dtype)

        def block(start: ir.Value, stop: ir.Value) -> State:
            first = chunk(start, minimum(b, b.add(start, I64(_CHUNK)), stop))
            with loop(b, b.add(start, I64(_CHUNK)), stop, _CHUNK, init=[first.ir]) as chunks:
                at = chunks.index
                more = chunk(at, minimum(b, b.add(at, I64(_CHUNK)), stop))
                chunks.advance(builder.add(builder.value(chunks.values[0], dtype), more).ir)
            return (builder.value(chunks.results[0], dtype),)

        return _blocks(b, dtype, n, block)

    return x.dtype(x, y), generate


def _told_by_name(function: Any) -> Any:
    function.volta_text = f"volta.numba.{function.__name__}"  # see volta.emit.functions
    return function


def _fits(x: Any, ranks: Any) -> bool:
    return isinstance(x, types.Array) and x.dtype in KINDS and x.ndim in ranks


@_told_by_name
def sum(x: Any) -> Any:  # noqa: A001 - as in volta.numpy
    """The sum of an array's elements (float32 or float64, any rank) in row-major order, with SUM's bits.

    What is not contiguous is copied first.

    Raises:
        DTypeError: another dtype, where Python calls it; in ``@njit`` code a typing error when that is compiled.
    """
    values = np.asarray(x)
    if values.dtype.name not in KINDS.values():
        raise DTypeError(at_user_line(f"volta.numba.sum takes an array of float32 or float64, got {values.dtype.name}"))
    return np.asarray(base.sum_axes(values, range(values.ndim)))[()]


@compiled_by(sum)
def _sum_compiled(x: Any) -> Any:
    if not _fits(x, range(1, 65)):
        raise TypingError(f"volta.numba.sum takes an array of float32 or float64, got {x}")

    def compiled(x: Any) -> Any:
        return _sum(np.ascontiguousarray(x))

    return compiled


@_told_by_name
def dot(x: Any, y: Any) -> Any:
    """The product of two vectors of one length and dtype (float32 or float64), with DOT's bits.

    Raises:
        DTypeError: other dtypes, where Python calls it; in ``@njit`` code a typing error when that is compiled.
        ShapeError: no vectors of one length (in ``@njit`` code a ValueError).
    """
    left, right = np.asarray(x), np.asarray(y)
    kinds = f"{left.dtype.name} and {right.dtype.name}"
    if left.dtype != right.dtype or left.dtype.name not in KINDS.values():
        raise DTypeError(at_user_line(f"volta.numba.dot takes vectors of one dtype, float32 or float64, got {kinds}"))
    if left.ndim != 1 or left.shape != right.shape:
        shapes = f"{left.shape} and {right.shape}"
        raise ShapeError(at_user_line(f"volta.numba.dot takes vectors of one length, got {shapes}"))
    return np.asarray(lax.dot(left, right, "float32"))[()]


@compiled_by(dot)
def _dot_compiled(x: Any, y: Any) -> Any:
    if not (_fits(x, (1,)) and _fits(y, (1,)) and x.dtype == y.dtype):
        raise TypingError(f"volta.numba.dot takes vectors of one dtype, float32 or float64, got {x}, {y}")

    def compiled(x: Any, y: Any) -> Any:
        if x.size != y.size:
            raise ValueError("volta.numba.dot takes vectors of one length")
        return _dot(np.ascontiguousarray(x), np.ascontiguousarray(y))

    return compiled
