"""``scan``: a program for each element of arrays. ``volta.lax.scan``, ``map``, and ``fori_loop`` with known bounds.

A scan's length is known, so it can be run backwards: its derivative is a scan over the residuals that each iteration
leaves, and the transpose of that is one from the last iteration to the first. What all iterations read gathers its
cotangent from iteration to iteration, beginning with what the program around the loop has gathered: the order of
accumulation is that of the loop written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.base import instantiate, move_axis, to_front
from volta.ops.primitive import Family, Primitive, Zero, register
from volta.ops.primitive import Linear as LinearOperand
from volta.trace import masks
from volta.trace.calls import jvp_program, linearize_program, opened, transpose_program
from volta.trace.control import (
    batched,
    carried_tangents,
    nothing_yet,
    reordered,
    select_outputs,
    with_zeros,
)
from volta.trace.masks import Mask
from volta.trace.transpose import add_cotangents, transpose_by


def run_scan(
    body: ClosedJaxpr, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], **iterations: Any
) -> list[Any]:
    """Bind a scan; what the program has as constants become operands.

    ``iterations``: their number (``length``), whether from the last to the first (``reverse``), and how many may run
    between two looks at how far the scan is (``unroll``).
    """
    given = [*body.consts, *consts]
    return scan_p.bind(
        *given, *carry, *xs, jaxpr=opened(body), num_consts=len(given), num_carry=len(carry), **iterations
    )


def _scan_abstract(
    *avals: ShapedArray, jaxpr: ClosedJaxpr, length: int, num_carry: int, **params: Any
) -> list[ShapedArray]:
    carry, ys = masks.parts(jaxpr.out_avals, num_carry)
    weak = (a.weak_type and not dtypes.is_number(a.dtype, True) for a in ys)  # an array of numbers is no number
    return [*carry, *(a.update(shape=(length, *a.shape), weak_type=w) for a, w in zip(ys, weak, strict=True))]


def _scan_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, num_consts: int,
    num_carry: int, **iterations: Any,
) -> Any:  # fmt: skip
    sizes = num_consts, num_carry
    consts, carry, xs = (tuple(m) for m in masks.parts(masks.nonzero(tangents), *sizes))
    carry = carried_tangents(jaxpr, consts, carry, xs, "scan")
    program, have = jvp_program(jaxpr, (*consts, *carry, *xs), "scan")
    n_out = len(jaxpr.out_avals)
    want = (*carry, *have[num_carry:])
    program = with_zeros(program, n_out, have, want, tuple(jaxpr.out_avals), "jvp(scan)")
    # (consts, carry, xs, tangents of each) -> constants with their tangents, then what is carried, then slices
    groups = masks.parts(range(len(program.in_avals)), *sizes, len(xs), sum(consts), sum(carry))
    program = reordered(program, tuple(i for k in (0, 3, 1, 4, 2, 5) for i in groups[k]))
    live = sum(carry)
    outs_order = (
        *range(num_carry),
        *range(n_out, n_out + live),
        *range(num_carry, n_out),
        *range(n_out + live, n_out + sum(want)),
    )
    program = select_outputs(program, [program.jaxpr.outvars[i] for i in outs_order])
    given, start, read = masks.parts(primals, *sizes)
    const_tangents, start_tangents, read_tangents = masks.parts(tangents, *sizes)
    begin = [instantiate(t) for t, c in zip(start_tangents, carry, strict=True) if c]
    outs = run_scan(
        program,
        [*given, *masks.live(const_tangents)],
        [*start, *begin],
        [*read, *masks.live(read_tangents)],
        **iterations,
    )
    out, out_t, ys, ys_t = masks.parts(outs, num_carry, live, n_out - num_carry)
    avals = _scan_abstract(jaxpr=jaxpr, num_carry=num_carry, **iterations)
    return [*out, *ys], masks.spread(want, [*out_t, *ys_t], masks.zeros(avals))


def _scan_batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, jaxpr: ClosedJaxpr, num_consts: int,
    num_carry: int, **iterations: Any,
) -> Any:  # fmt: skip
    consts, carry, xs = masks.parts([d is not None for d in dims], num_consts, num_carry)
    axis, size = trace.axis, trace.axis.size
    mapped, none = tuple(carry), (False,) * (len(jaxpr.out_avals) - num_carry)
    while True:
        body, out = batched(jaxpr, axis, (*consts, *mapped, *xs), (*mapped, *none), "scan")
        if out[:num_carry] == mapped:
            break
        mapped = out[:num_carry]
    given, start, read = masks.parts(list(zip(args, dims, strict=True)), num_consts, num_carry)
    given = [x if d is None else to_front(x, d, size) for x, d in given]
    start = [to_front(x, d, size) if m else x for (x, d), m in zip(start, mapped, strict=True)]
    read = [x if d is None else move_axis(x, d, 1) for x, d in read]  # the axis of the iterations stays first
    outs = run_scan(body, given, start, read, **iterations)
    return outs, [(0 if k < num_carry else 1) if m else None for k, m in enumerate(out)]


def _linearize_scan(
    nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int, **iterations: Any
) -> Any:
    sizes = num_consts, num_carry
    consts, carry, xs = (tuple(m) for m in masks.parts(nonzero, *sizes))
    carry = carried_tangents(jaxpr, consts, carry, xs, "scan", reverse=True)
    split, n_out = linearize_program(jaxpr, (*consts, *carry, *xs), "scan"), len(jaxpr.out_avals)
    want = (*carry, *split.nonzero_out[num_carry:])
    linear = with_zeros(split.linear, 0, split.nonzero_out, want, tuple(jaxpr.out_avals), "jvp(scan)")

    # A residual is an operand of all iterations, an array that the scan reads, or stacked by the scan.
    inputs, results = split.forward.jaxpr.invars, list(split.forward.jaxpr.outvars)
    stacked: dict[Any, int] = {v: k for k, v in reversed(list(enumerate(results))) if k >= num_carry}
    fixed: list[tuple[int, int]] = []  # number among the residuals, operand
    moving: list[tuple[int, int]] = []  # number among the residuals; an operand, or below 0 a stack
    for number, (where, i) in enumerate(split.residuals):
        if where == 0 and i < num_consts:
            fixed.append((number, i))
        elif where == 0 and i >= num_consts + num_carry:
            moving.append((number, i))
        else:
            v = inputs[i] if where == 0 else split.forward.jaxpr.outvars[i]
            if v not in stacked:
                stacked[v] = len(results)
                results.append(v)
            moving.append((number, -stacked[v]))
    given, start, read = masks.parts(primals, *sizes)
    outs = run_scan(select_outputs(split.forward, results), given, start, read, **iterations)
    kept = [outs[-i] if i < 0 else primals[i] for _, i in moving]

    at = len(split.residuals)
    t_consts, t_carry, t_xs = masks.parts(range(at, len(linear.in_avals)), sum(consts), sum(carry))
    order = (*(k for k, _ in fixed), *t_consts, *t_carry, *(k for k, _ in moving), *t_xs)
    iteration, known = reordered(linear, order), [primals[i] for _, i in fixed]

    def linear_part(*tangents: Any) -> list[Any]:
        live = iter(tangents)
        of_consts = [next(live) for m in consts if m]
        begun = [next(live) if nonzero[num_consts + k] else None for k in range(num_carry)]
        begin = [
            instantiate(Zero(get_aval(x).strip_weak())) if t is None else t
            for x, t, c in zip(start, begun, carry, strict=True)
            if c
        ]
        return run_scan(iteration, [*known, *of_consts], begin, [*kept, *live], **iterations)

    return outs[:n_out], want, linear_part


def _accumulate(
    cts: Sequence[Any], held: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr, num_consts: int,
    num_carry: int, reverse: bool, **iterations: Any,
) -> list[Any]:  # fmt: skip
    """From the last iteration to the first; it carries the cotangents of what is carried and of what all iterations
    read."""
    sizes = num_consts, num_carry
    consts, carry, xs = masks.parts(operands, *sizes)
    linear = tuple(isinstance(x, LinearOperand) for x in operands)
    const_linear, _, xs_linear = masks.parts(linear, *sizes)
    ct_carry, ct_ys = masks.parts(cts, num_carry)
    live_ys = masks.nonzero(ct_ys)
    mask = (*const_linear, *[True] * num_carry, *xs_linear)

    known_consts = [x for x, m in zip(consts, const_linear, strict=True) if not m]
    known_xs = [x for x, m in zip(xs, xs_linear, strict=True) if not m]
    totals: dict[int, Any] = {id(x): h for x, h in zip(operands, held, strict=True) if isinstance(x, LinearOperand)}
    begin, continued = [], set()
    for x, aval, m in zip(consts, jaxpr.in_avals, const_linear, strict=False):
        if m:  # one variable gathers one total: the first of several operands goes on with it
            before = totals[id(x)] if id(x) not in continued else Zero(aval)
            continued.add(id(x))
            begin.append(nothing_yet(aval) if isinstance(before, Zero) else before)

    # (known constants and slices, cotangents of what is carried and of results, totals) -> in the order of a scan
    held_mask = tuple(k < num_consts for k, m in enumerate(mask) if m)
    body, have = transpose_program(jaxpr, mask, (*[True] * num_carry, *live_ys), held_mask, "scan")
    linear_avals = tuple(a for a, m in zip(jaxpr.in_avals, mask, strict=True) if m)
    body = with_zeros(body, 0, have, (True,) * len(have), linear_avals, "transpose(scan)")
    sizes_in = len(known_consts), len(known_xs), num_carry, sum(live_ys)
    groups = masks.parts(range(len(body.in_avals)), *sizes_in)
    body = reordered(body, tuple(i for k in (0, 4, 2, 1, 3) for i in groups[k]))
    start = [*begin, *(instantiate(ct) for ct in ct_carry)]
    outs = iter(run_scan(body, known_consts, start, [*known_xs, *masks.live(ct_ys)], reverse=not reverse, **iterations))

    seen: set[int] = set()
    for k, (x, m) in enumerate(zip(operands, mask, strict=True)):
        if not m:
            continue
        ct = next(outs)
        if id(x) not in totals:  # carried, but no linear operand
            continue
        total = totals[id(x)]
        continues = k < num_consts and id(x) not in seen
        totals[id(x)] = ct if continues or isinstance(total, Zero) else add_cotangents(total, ct)
        seen.add(id(x))
    return [totals.get(id(x)) if m else None for x, m in zip(operands, linear, strict=True)]


scan_p = register(
    Primitive(
        name="scan",
        family=Family.CONTROL,
        abstract=_scan_abstract,
        jvp=_scan_jvp,
        batch=_scan_batch,
        transpose=transpose_by(_accumulate),
        linearize=_linearize_scan,
        accumulate=_accumulate,
        multiple_results=True,
        doc="A program for each element of arrays along their first axis, which hands values on from one to the next.",
    )
)
