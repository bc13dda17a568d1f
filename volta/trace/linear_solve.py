"""``linear_solve``: the solution of linear equations, differentiated as one. ``volta.lax.custom_linear_solve``.

A solution x of A x = b has derivatives that are solutions too: A x' = b' − A' x, and the cotangent of b solves with the
transpose of A. So however the equations are solved, by a loop that could not be run backwards, say, it is one equation,
which carries four programs: the products with A and with its transpose, and what solves with either. They take what
they close over first, then a right side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.errors import NotDifferentiableError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr, Var
from volta.core.source import at_user_line
from volta.ops.base import bind_named, instantiate, to_front
from volta.ops.primitive import Zero
from volta.trace import masks
from volta.trace.batch import BatchTrace
from volta.trace.calls import jvp_program, linearize_program
from volta.trace.control import batched
from volta.trace.jaxpr_trace import eval_closed
from volta.trace.meaning import means_its_program


@attrs.frozen
class Programs:
    """The four programs; without ``transpose_solve`` there are no reverse derivatives."""

    matvec: ClosedJaxpr
    vecmat: ClosedJaxpr | None
    solve: ClosedJaxpr
    transpose_solve: ClosedJaxpr | None

    def transposed(self) -> Programs:
        assert self.vecmat is not None and self.transpose_solve is not None
        return Programs(self.vecmat, self.matvec, self.transpose_solve, self.solve)

    def each(self) -> tuple[ClosedJaxpr | None, ...]:
        return self.matvec, self.vecmat, self.solve, self.transpose_solve


_ORDER = 1, 0, 3, 2  # of the four groups of operands, for the transpose


def solve(programs: Programs, consts: Sequence[Sequence[Any]], b: Sequence[Any]) -> list[Any]:
    """The solution, then what else ``solve`` gives. ``consts`` has what each of the four programs closes over."""
    sizes = tuple(len(group) for group in consts)
    program = _of_all(programs.solve, sizes, tuple(get_aval(x) for group in consts for x in group))
    flat = [x for group in consts for x in group]
    return linear_solve_p.bind(*flat, *b, jaxpr=program, name="linear_solve", programs=programs, sizes=sizes)


@lru_cache(maxsize=1024)
def _of_all(program: ClosedJaxpr, sizes: tuple[int, ...], avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    """The solving program as one of all operands, of which it reads its own."""
    before, own, after, b = sum(sizes[:2]), sizes[2], sizes[3], program.jaxpr.invars[sizes[2] :]
    unread = [Var(a) for a in avals]
    invars = (*unread[:before], *program.jaxpr.invars[:own], *unread[before + own : before + own + after], *b)
    return ClosedJaxpr(program.jaxpr.replace(invars=invars), program.consts)


def _groups(operands: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    return masks.parts(operands, *sizes)


def _minus(b: Any, product: Any) -> Any:
    if isinstance(product, Zero):
        return b
    return bind_named("neg", product) if isinstance(b, Zero) else bind_named("sub", b, product)


def _solved_tangent(primals: Sequence[Any], rhs: Sequence[Any], programs: Programs, sizes: Sequence[int]) -> list[Any]:
    """x' for A x' = rhs."""
    *consts, _ = _groups(primals, sizes)
    return solve(programs, consts, [instantiate(t) for t in rhs])[: len(rhs)]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, programs: Programs, sizes: tuple[int, ...], **params: Any
) -> Any:
    *consts, b = _groups(primals, sizes)
    matvec_dot, *_, rhs = _groups(tangents, sizes)
    outs = solve(programs, consts, b)
    x = outs[: len(b)]
    have = masks.nonzero(matvec_dot)
    if any(have):
        program, nonzero = jvp_program(programs.matvec, (*have, *[False] * len(b)), "matvec")
        live = eval_closed(program, *consts[0], *x, *masks.live(matvec_dot))[len(b) :]
        moved = masks.spread(nonzero, live, masks.zeros(programs.matvec.out_avals))
        rhs = [_minus(t, m) for t, m in zip(rhs, moved, strict=True)]
    if not any(masks.nonzero(rhs)):
        return outs, [Zero(get_aval(y).strip_weak()) for y in outs]
    x_dot = _solved_tangent(primals, rhs, programs, sizes)
    return outs, [*x_dot, *[Zero(get_aval(y).strip_weak()) for y in outs[len(b) :]]]


def _linearize(
    nonzero: Sequence[bool], *primals: Any, programs: Programs, sizes: tuple[int, ...], **params: Any
) -> Any:
    *consts, b = _groups(primals, sizes)
    matvec_nonzero, *_, b_nonzero = _groups(nonzero, sizes)
    outs = solve(programs, consts, b)
    count = len(b)
    moving: Any = None
    if any(matvec_nonzero):
        given = [*consts[0], *outs[:count]]
        split = linearize_program(programs.matvec, (*matvec_nonzero, *[False] * count), "matvec")
        found = eval_closed(split.forward, *given)
        moving = split, [(given, found)[where][i] for where, i in split.residuals]

    def linear(*live: Any) -> list[Any]:
        groups = _groups(masks.spread(nonzero, live, lambda i: Zero(get_aval(primals[i]).strip_weak())), sizes)
        rhs = groups[-1]
        if moving is not None:
            split, residuals = moving
            products = eval_closed(split.linear, *residuals, *masks.live(groups[0]))
            moved = masks.spread(split.nonzero_out, products, masks.zeros(programs.matvec.out_avals))
            rhs = [_minus(t, m) for t, m in zip(rhs, moved, strict=True)]
        return _solved_tangent(primals, rhs, programs, sizes)

    some = any(matvec_nonzero) or any(b_nonzero)
    return outs, (*[some] * count, *[False] * (len(outs) - count)), linear if some else lambda *live: []


def _transpose(
    cts: Sequence[Any], *operands: Any, programs: Programs, sizes: tuple[int, ...], **params: Any
) -> list[Any]:
    *consts, b = _groups(operands, sizes)
    none: list[Any] = [None] * sum(sizes)
    if not any(masks.nonzero(cts[: len(b)])):
        return [*none, *[None] * len(b)]
    if programs.transpose_solve is None:
        raise NotDifferentiableError(
            at_user_line(
                "custom_linear_solve: reverse derivatives (grad, vjp) solve with the transpose: pass transpose_solve, "
                "or symmetric=True where matvec is its own"
            )
        )
    turned = solve(programs.transposed(), [consts[i] for i in _ORDER], [instantiate(ct) for ct in cts[: len(b)]])
    return [*none, *turned[: len(b)]]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, *, programs: Programs, sizes: tuple[int, ...],
    **params: Any,
) -> Any:  # fmt: skip
    """Each example has a right side of its own, and so a solution; what is closed over may be shared."""
    size = trace.axis.size
    *const_dims, _ = _groups([d is not None for d in dims], sizes)
    *consts, b = _groups([x if d is None else to_front(x, d, size) for x, d in zip(args, dims, strict=True)], sizes)
    *_, b_dims = _groups(dims, sizes)
    b = [x if d is not None else to_front(x, None, size) for x, d in zip(b, b_dims, strict=True)]
    found = []
    for program, own in zip(programs.each(), const_dims, strict=True):
        if program is not None:
            every = (True,) * len(program.out_avals)
            program = batched(program, trace.axis, (*own, *[True] * len(b)), every, "linear_solve")[0]
        found.append(program)
    outs = solve(Programs(*found), consts, b)  # type: ignore[arg-type]
    return outs, [0] * len(outs)


linear_solve_p = means_its_program(
    "linear_solve",
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="The solution of linear equations by a program, differentiated as a solution, not as the program.",
)
