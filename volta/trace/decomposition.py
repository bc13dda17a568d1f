"""Decompositions of matrices, and what their programs are written with.

A decomposition is one equation that means a program of products, sums and loops, with a derivative of its own (the
usual formula, in operations that have derivatives themselves). Matrices are the last two axes; programs see one axis
in front of these, the batch, which enters no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops import base, lax
from volta.ops.base import dtype_error, shape_error, shape_of
from volta.ops.primitive import Zero
from volta.trace.batch import BatchTrace
from volta.trace.custom import Derivative, Linearized, custom_p
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.scan import run_scan

_CACHED = 1024  # programs kept

BLOCK = 32
"""Columns (rows) that are eliminated one by one, before a product takes them from the rest."""

Rule = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
"""From primals, outputs and tangents (values or Zero, not all of them) to the tangents of the float outputs."""


@attrs.frozen(eq=False, repr=False)
class Decomposition(Derivative):
    """``value`` of matrices with one batch axis; ``rule``, their derivative, with any number of axes in front."""

    name: str
    value: Callable[..., Sequence[Any]]
    rule: Rule
    of_complex: bool = False

    def __call__(self, *operands: Any) -> list[Any]:
        avals = tuple([get_aval(x).strip_weak() for x in operands])
        check_floats(self.name, avals, self.of_complex)
        return custom_p.bind(*operands, jaxpr=_program(self, avals), num_consts=0, rule=self)

    def _tangents(self, primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        live = [dtypes.is_inexact(base.dtype_of(x)) for x in outs]
        given = iter(self.rule(primals, outs, tangents))
        return [next(given) if m else Zero(get_aval(x)) for m, x in zip(live, outs, strict=True)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = self(*primals)
        if base.all_zero(tangents):
            return outs, [base.zero_like(x) for x in outs]
        return outs, self._tangents(primals, outs, tangents)

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        outs = self(*primals)
        live = tuple(dtypes.is_inexact(base.dtype_of(x)) for x in outs)

        def linear(*given: Any) -> list[Any]:
            of = iter(given)
            tangents = [next(of) if m else base.zero_like(x) for m, x in zip(nonzero, primals, strict=True)]
            return [t for t, m in zip(self._tangents(primals, outs, tangents), live, strict=True) if m]

        return outs, live, linear

    def batch(self, args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, params: dict[str, Any]) -> Any:
        outs = self(*(base.to_front(x, d, trace.axis.size) for x, d in zip(args, dims, strict=True)))
        return outs, [0] * len(outs)


def check_floats(name: str, avals: Sequence[ShapedArray], or_complex: bool = False) -> None:
    """Refuse what is no stack of matrices of float32 or float64 (or complex numbers of these), in one dtype."""
    if any(a.ndim < 2 for a in avals):
        raise shape_error(name, avals, "takes matrices: arrays of two axes or more")
    taken = (dtypes.float32, dtypes.float64) + (dtypes.COMPLEX if or_complex else ())
    if any(a.dtype not in taken for a in avals) or len({a.dtype for a in avals}) > 1:
        kinds = " or ".join(("float32 or float64", "complex numbers of these")[: 1 + or_complex])
        raise dtype_error(
            name, avals, f"takes {kinds}, and one of them; use convert_element_type (x.astype) on an operand"
        )


def check_square(name: str, aval: ShapedArray) -> None:
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise shape_error(name, (aval,), "takes square matrices")


@lru_cache(maxsize=_CACHED)
def _program(of: Decomposition, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    return program_of(of.name, of.value, avals)


def program_of(name: str, value: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """A program of stacks of matrices, whatever axes are in front. It belongs to no line: each call gives its own."""
    front = avals[0].shape[:-2]

    def run(*operands: Any) -> tuple[list[Any], None]:
        given = [base.reshape_to(x, (prod(front), *shape_of(x)[-2:])) for x in operands]
        return [base.reshape_to(x, (*front, *shape_of(x)[1:])) for x in value(*given)], None

    program, _ = trace_to_jaxpr(run, avals, name)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(e.replace(source=None) for e in program.eqns)), program.consts)


# -- what programs are written with ------------------------------------------------------------------------------------


def fori(count: int, body: Callable[..., Sequence[Any]], *start: Any, unroll: int = 1) -> list[Any]:
    """A loop of ``count`` iterations: ``body(i, *values)`` gives the next values."""
    if not count:
        return list(start)

    def step(i: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.add(i, np.int32(1)), *body(i, *values)], None

    program, _ = trace_to_jaxpr(step, [ShapedArray((), dtypes.int32), *map(get_aval, start)], "iteration")
    return run_scan(program, [], [np.int32(0), *start], [], length=count, reverse=False, unroll=min(unroll, count))[1:]


def iota(like: Any, axis: int) -> Any:
    """Positions along an axis of an array, in its shape."""
    shape = like if isinstance(like, tuple) else shape_of(like)
    return lax.broadcasted_iota(np.int32, shape, axis % len(shape))


def broadcast(x: Any, like: Any, *axes: int) -> Any:
    """``x`` in the shape of ``like``, its axes at these places."""
    shape = like if isinstance(like, tuple) else shape_of(like)
    return base.broadcast_to(x, shape, axes)


def where(test: Any, x: Any, y: Any) -> Any:
    """Elementwise choice; one of both may be a number."""
    return lax.select(test, x, y)


def subtract_product(x: Any, a: Any, b: Any) -> Any:
    """x − a b, with one rounding."""
    return lax.fma(lax.neg(a), b, x)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The matrices' product, of either one transposed, for each element of the axes in front: DOT in float32."""
    n = len(shape_of(a))
    front = tuple(range(n - 2))
    contracted = ((n - 2 if transpose_a else n - 1,), (n - 1 if transpose_b else n - 2,))
    return lax.dot_general(a, b, (contracted, (front, front)), precision="float32")


def conjugated(x: Any) -> Any:
    """The complex conjugate; what is real is its own."""
    return lax.conj(x) if dtypes.is_complex(base.dtype_of(x)) else x


def real_part(x: Any) -> Any:
    return lax.real(x) if dtypes.is_complex(base.dtype_of(x)) else x


def part_dtype(x: Any) -> np.dtype:
    """The dtype of real parts."""
    return dtypes.part_dtype(base.dtype_of(x))


def times(x: Any, real: Any) -> Any:
    """x times real numbers, part by part."""
    if not dtypes.is_complex(base.dtype_of(x)):
        return lax.mul(x, real)
    return lax.complex(lax.mul(lax.real(x), real), lax.mul(lax.imag(x), real))


def over(x: Any, real: Any) -> Any:
    """x divided by real numbers, part by part."""
    if not dtypes.is_complex(base.dtype_of(x)):
        return lax.div(x, real)
    return lax.complex(lax.div(lax.real(x), real), lax.div(lax.imag(x), real))


def square_of_size(x: Any) -> Any:
    """|x|², of what is scaled: nothing is done against overflow."""
    if not dtypes.is_complex(base.dtype_of(x)):
        return lax.mul(x, x)
    return lax.add(lax.mul(lax.real(x), lax.real(x)), lax.mul(lax.imag(x), lax.imag(x)))


def larger_part(x: Any) -> Any:
    """|x|, of complex numbers the larger one of |re| and |im|: a scale."""
    if not dtypes.is_complex(base.dtype_of(x)):
        return lax.abs(x)
    return lax.max(lax.abs(lax.real(x)), lax.abs(lax.imag(x)))


def transposed(x: Any) -> Any:
    """The matrices transposed."""
    n = len(shape_of(x))
    return base.permute(x, (*range(n - 2), n - 1, n - 2))


def adjoint(x: Any) -> Any:
    """The matrices transposed and conjugated."""
    return conjugated(transposed(x))


def symmetrized(x: Any) -> Any:
    """(x + xᴴ) / 2."""
    return lax.mul(lax.add(x, adjoint(x)), 0.5)


def slice_at(x: Any, start: Any, size: int, axis: int) -> Any:
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def row_at(x: Any, i: Any, axis: int = 1) -> Any:
    """One position of an axis, without the axis."""
    return lax.squeeze(slice_at(x, i, 1, axis), (axis,))


def update_at(x: Any, new: Any, start: Any, axis: int) -> Any:
    return lax.dynamic_update_slice_in_dim(x, new, start, axis)


def scale_of(a: Any) -> Any:
    """The power of two at or below the largest element, 1 for zeros and for what is not finite."""
    size = lax.reduce_max(larger_part(a), (1, 2))
    dtype = part_dtype(a)
    integer, mask = (np.int32, 0x7F800000) if dtype.itemsize == 4 else (np.int64, 0x7FF0000000000000)
    power = lax.bitcast_convert_type(lax.bitwise_and(lax.bitcast_convert_type(size, integer), integer(mask)), dtype)
    usual = lax.bitwise_and(lax.gt(power, 0), lax.lt(size, float(np.finfo(dtype).max)))
    return where(usual, power, 1)


def diagonal_of(a: Any, offset: int, count: int) -> Any:
    """Elements of a diagonal of square matrices: ``count`` of them from the one that is ``offset`` behind the first."""
    batch, n, _ = shape_of(a)
    flat = base.reshape_to(a, (batch, n * n))
    return lax.slice(flat, (0, offset), (batch, offset + (count - 1) * (n + 1) + 1), (1, n + 1))


def tril(x: Any, k: int = 0) -> Any:
    """The elements on and below the diagonal ``k`` (0 the main one, -1 the next below), 0 elsewhere."""
    return where(lax.ge(iota(x, -2), lax.sub(iota(x, -1), np.int32(k))), x, 0)


def triu(x: Any, k: int = 0) -> Any:
    """The elements on and above the diagonal ``k``, 0 elsewhere."""
    return transposed(tril(transposed(x), -k))


def eye(shape: tuple[int, ...], dtype: Any) -> Any:
    return lax.convert_element_type(lax.eq(iota(shape, -2), iota(shape, -1)), dtype)


def bordered(x: Any, rows: int, columns: int, diagonal: bool = False) -> Any:
    """More rows and columns, of zeros; with ``diagonal`` ones where these meet."""
    m, n = shape_of(x)[-2:]
    if (m, n) == (rows, columns):
        return x
    front = [(0, 0, 0)] * (len(shape_of(x)) - 2)
    out = lax.pad(x, np.zeros((), base.dtype_of(x)), [*front, (0, rows - m, 0), (0, columns - n, 0)])
    if not diagonal:
        return out
    new = lax.bitwise_and(lax.eq(iota(out, -2), iota(out, -1)), lax.ge(iota(out, -2), np.int32(m)))
    return where(new, 1, out)


def padded_size(n: int) -> int:
    """The size in which a matrix is worked on: up to a block as it is, else in whole blocks."""
    return n if n <= BLOCK else -(-n // BLOCK) * BLOCK
