"""Triangular equations, as one equation of a program: linear in the right side, and closed under derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops import base, lax
from volta.ops.base import shape_error, shape_of
from volta.ops.primitive import Linear, Zero
from volta.trace.decomposition import (
    BLOCK,
    broadcast,
    check_floats,
    check_square,
    fori,
    iota,
    matmul,
    program_of,
    row_at,
    subtract_product,
    transposed,
    tril,
    triu,
    where,
)
from volta.trace.meaning import means_its_program
from volta.trace.panels import PanelProgram
from volta.xla_like.panels import FORWARD

_CACHED = 1024  # programs kept
_NAME = "triangular_solve"


@attrs.frozen
class Triangular:
    """The x of ``a x = b`` (of ``x a = b`` where ``left_side`` is not set), from one triangle of ``a``."""

    left_side: bool = True
    lower: bool = True
    transpose_a: bool = False
    unit_diagonal: bool = False

    def __call__(self, a: Any, b: Any) -> Any:
        avals = (get_aval(a).strip_weak(), get_aval(b).strip_weak())
        check_floats(_NAME, avals, or_complex=True)
        check_square(_NAME, avals[0])
        if avals[0].shape[:-2] != avals[1].shape[:-2] or avals[0].shape[-1] != avals[1].shape[-1 - self.left_side]:
            raise shape_error(
                _NAME, avals, f"the axes in front must be equal, and the {'rows' if self.left_side else 'columns'} of "
                "the right side as many as those of the triangular matrix",
            )  # fmt: skip
        return triangular_solve_p.bind(a, b, jaxpr=_program(self, avals), name=_NAME, triangular=self)[0]

    def triangle(self, x: Any) -> Any:
        """What is read of a matrix."""
        beside = int(self.unit_diagonal)
        return tril(x, -beside) if self.lower else triu(x, beside)

    def back(self) -> Triangular:
        return attrs.evolve(self, transpose_a=not self.transpose_a)


@lru_cache(maxsize=_CACHED)
def _program(of: Triangular, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    return program_of(_NAME, lambda a, b: [substituted(of, a, b)], avals)


def substituted(of: Triangular, a: Any, b: Any) -> Any:
    """Forward substitution: other cases are transposed, or read from the end."""
    if not of.left_side:
        a, b = transposed(a), transposed(b)
    lower = of.lower == of.left_side
    if of.transpose_a:
        a, lower = transposed(a), not lower
    if not lower:
        a, b = lax.rev(a, (1, 2)), lax.rev(b, (1,))
    x = forward(a, b, of.unit_diagonal)
    x = x if lower else lax.rev(x, (1,))
    return x if of.left_side else transposed(x)


def forward(a: Any, b: Any, unit: bool) -> Any:
    """Forward substitution with the lower triangle of ``a``: (batch, n, n) and (batch, n, m)."""
    batch, n, m = shape_of(b)
    if not batch * n * m:
        return b
    return forward_block(a, b, unit) if n <= BLOCK else _blocks(a, b, unit=unit)[0]


def _forward_blocks(a: Any, b: Any, unit: bool) -> list[Any]:
    """Block by block: what is known is taken from a block by one product."""
    (batch, n, _), found = shape_of(b), base.fill(shape_of(b), 0, base.dtype_of(b))
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        rest = lax.slice_in_dim(b, start, end, axis=1)
        if start:
            before = lax.slice_in_dim(found, 0, start, axis=1)
            rest = lax.sub(rest, matmul(lax.slice(a, (0, start, 0), (batch, end, start)), before))
        solved = forward_block(lax.slice(a, (0, start, start), (batch, end, end)), rest, unit)
        found = lax.dynamic_update_slice(found, solved, (0, start, 0))
    return [found]


_blocks = PanelProgram(FORWARD, _forward_blocks)


def forward_block(a: Any, b: Any, unit: bool) -> Any:
    """Of at most a block of rows."""
    return _panel(a, b, unit=unit)[0]


def _forward_rows(a: Any, b: Any, unit: bool) -> list[Any]:
    """Row by row: a row that is known is taken from those below it."""

    def step(j: Any, x: Any) -> list[Any]:
        found, column = row_at(x, j), row_at(a, j, 2)
        if not unit:
            found = lax.div(found, broadcast(row_at(column, j), found, 0))
        number, at = iota(x, 1), broadcast(j, x)
        below = subtract_product(x, broadcast(column, x, 0, 1), broadcast(found, x, 0, 2))
        return [where(lax.gt(number, at), below, where(lax.eq(number, at), broadcast(found, x, 0, 2), x))]

    return fori(shape_of(a)[1], step, b)


_panel = PanelProgram("substitute", _forward_rows)


# -- its rules ---------------------------------------------------------------------------------------------------------


def _tangent(of: Triangular, a: Any, out: Any, da: Any, db: Any) -> Any:
    """a dx = db − da x."""
    if not isinstance(da, Zero):
        da = of.triangle(da)
        factors = (da, out) if of.left_side else (out, da)
        moved = matmul(
            *factors, transpose_a=of.left_side and of.transpose_a, transpose_b=not of.left_side and of.transpose_a
        )
        db = lax.neg(moved) if isinstance(db, Zero) else lax.sub(db, moved)
    return of(a, db)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, triangular: Triangular, **params: Any) -> Any:
    out = triangular(*primals)
    if base.all_zero(tangents):
        return [out], [base.zero_like(out)]
    return [out], [_tangent(triangular, primals[0], out, *tangents)]


def _linearize(nonzero: Sequence[bool], *primals: Any, triangular: Triangular, **params: Any) -> Any:
    out = triangular(*primals)

    def linear(*live: Any) -> list[Any]:
        given = iter(live)
        tangents = [next(given) if m else base.zero_like(x) for m, x in zip(nonzero, primals, strict=True)]
        return [_tangent(triangular, primals[0], out, *tangents)]

    return [out], (True,), linear


def _transpose(cts: Sequence[Any], a: Any, b: Linear, *, triangular: Triangular, **params: Any) -> list[Any]:
    return [None, None if isinstance(cts[0], Zero) else triangular.back()(a, cts[0])]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, triangular: Triangular, **params: Any
) -> Any:
    return [triangular(*(base.to_front(x, d, trace.axis.size) for x, d in zip(args, dims, strict=True)))], [0]


triangular_solve_p = means_its_program(
    _NAME,
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    transpose=_transpose,
    doc="The solution of triangular equations, by substitution in blocks: means exactly its program.",
)
