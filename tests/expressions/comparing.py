"""Runs expressions step by step and compares each result with NumPy's, JAX's, and that of the whole under jit.

Each step gets the operands that Volta computed, so that no error of an earlier one is counted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import ml_dtypes
import numpy as np

import volta
from tests.expressions import references
from tests.expressions.drawing import Expression, Step, kind_of
from volta.errors import VoltaError
from volta.testing import bits

# How many units in the last place (of a result; for "one" at least of 1, for "far" of the largest operand) NumPy's and
# JAX's may be off.
ULPS = {"exact": 1.0, "near": 4.0, "one": 64.0, "far": 64.0}
JAX_ULPS = {"exact": 1.0, "near": 64.0, "one": 256.0, "far": 256.0}
DERIVATIVE_ULPS = 2.0**14
REFUSED = (VoltaError, ValueError, TypeError, OverflowError, IndexError)


@attrs.frozen(eq=False)
class Finding:
    """One element (or a result as a whole) that is not what another library has."""

    expression: int
    step: str
    function: str
    # "value", "dtype", "weak type", "shape", "bits", "first derivative by 0", …; "error" or "taken", each here alone
    what: str
    reference: str  # "numpy", "jax", "eager"
    operands: tuple[Any, ...]  # those of the element where the function works element by element, else all of them
    got: Any
    want: Any

    def __str__(self) -> str:
        shown = ", ".join(f"{x!r:.120}" for x in self.operands)
        both = f"{self.got!r:.90}, {self.reference} {self.want!r:.90}"
        return f"{self.expression}: {self.step}: {self.what}: {both}; of {shown}"


def ulp(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance of floats of ``dtype`` at ``x``."""
    limits = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.abs(np.where(np.isfinite(x), x, 0.0))
        exponent = np.floor(np.log2(np.maximum(size, float(limits.tiny))))
    return np.ldexp(1.0, exponent.astype(int) - limits.nmant)


def same(got: np.ndarray, want: np.ndarray, dtype: np.dtype, ulps: float, size: float, signs: bool) -> np.ndarray:
    """Where a result is the wanted one: equal but for some ULP; NaN, infinities and (for ``signs``) zeros alike.

    A complex one is as far off as the wanted one is large; where it is not finite, neither is the other, and near the
    end of the range the other may be infinite.
    """
    if kind_of(dtype) == "c":
        parts = np.finfo(dtype).dtype
        with np.errstate(all="ignore"):
            slack = max(ulps, 16.0) * ulp(np.maximum(np.abs(want), size), parts)
            near, most = np.abs(got - want) <= slack, float(np.finfo(dtype).max)
            end = (np.abs(want) >= most / 4) & ~(np.abs(got) < most / 8)
            return near | end | ~(np.isfinite(got) | np.isfinite(want.astype(dtype)))
    if kind_of(dtype) != "f":
        return np.asarray(got == want)
    limits = ml_dtypes.finfo(dtype)
    got, want = got.astype(np.float64), np.asarray(want, np.float64)
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype).astype(np.float64)
        slack = ulps * np.maximum(
            ulp(want, dtype), ulp(np.full_like(want, min(size, float(limits.max))), dtype) if size else 0.0
        )
        near = np.abs(got - want) <= slack
        # at the end of the range a result may be rounded to infinity or not
        end = (np.abs(want) >= float(limits.max) * (1 - 2.0 ** (2 - limits.nmant))) & (np.sign(got) == np.sign(want))
        end &= np.abs(got) >= float(limits.max) * (1 - 2.0 ** (2 - limits.nmant))
        ok = near | end | (got == rounded) | (np.isnan(got) & np.isnan(want))
        zeros = (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(want))
    return ok & ~zeros if signs else ok


def run(expression: Expression, with_jax: bool) -> list[Finding]:
    """All that is not as elsewhere; a step whose operands turn out to be of another kind is left out.

    Every fourth expression also runs as a whole under jit (laws of their own compare more of that).
    """
    values: list[Any] = [volta.numpy.asarray(x) if isinstance(x, np.ndarray) else x for x in expression.leaves]
    found: list[Finding] = []
    done: list[tuple[int, Step]] = []
    for step in expression.steps:
        operands = [values[i] for i in step.operands]
        values.append(None)
        if any(x is None for x in operands) or not _fits(step, operands):
            continue
        try:
            result = references.function_of(volta, step)(*operands)
        except REFUSED as e:
            found += _refused(expression, step, operands, e, with_jax)
            continue
        values[-1] = result
        done.append((len(values) - 1, step))
        found += _compared(expression, step, operands, result, with_jax)
    return found if expression.number % 4 else [*found, *_compiled(expression, values, done)]


def _fits(step: Step, operands: Sequence[Any]) -> bool:
    kinds = [kind_of(np.asarray(x).dtype) for x in operands]
    shapes = [np.shape(x) for x in operands]
    if not step.function.shapes(*shapes) or not all(_usual(x, step.function.most) for x in operands):
        return False
    if step.function.rows and (shapes[0] == () or 0 in shapes[0]):
        return False
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return all(k in step.function.kinds for k in kinds) and any(not references.is_number(x) for x in operands)


def _usual(x: Any, most: float) -> bool:
    """Whether the operand is finite and at most that large; all are where there is no limit."""
    return most == np.inf or bool(np.all(np.abs(np.asarray(x).astype(np.complex128)) <= most))


def _refused(e: Expression, step: Step, operands: Sequence[Any], error: Exception, with_jax: bool) -> list[Finding]:
    if not with_jax or not references.jax_has(step):
        return []
    try:
        want = references.jax_type(step, operands)
    except REFUSED:
        return []
    shown = tuple(references.plain(x) for x in operands)
    return [_finding(e, step, "error", "jax", shown, f"{type(error).__name__}: {error}", want)]


def _finding(e: Expression, step: Step, what: str, reference: str, operands: Any, got: Any, want: Any) -> Finding:
    return Finding(e.number, str(step), step.function.name, what, reference, tuple(operands), got, want)


def _compared(e: Expression, step: Step, operands: Sequence[Any], result: Any, with_jax: bool) -> Iterator[Finding]:
    got, function = np.asarray(result), step.function
    signs = function.accuracy in ("exact", "near")
    want, size = references.by_numpy(step, operands, got.dtype)
    if want is not None:
        if want.shape != got.shape:
            yield _finding(e, step, "shape", "numpy", map(references.plain, operands), got, want)
            return
        if kind_of(want.dtype) != kind_of(got.dtype):
            yield _finding(e, step, "dtype", "numpy", map(references.plain, operands), got.dtype, want.dtype)
        else:
            ok = same(got, want, got.dtype, ULPS[function.accuracy], size, signs)
            yield from _elements(e, step, "value", "numpy", operands, got, want, ok)
    if not with_jax or not references.jax_has(step):
        return
    try:
        theirs = references.jax_type(step, operands)
    except REFUSED as error:
        yield _finding(
            e, step, "taken", "jax", map(references.plain, operands), got, f"{type(error).__name__}: {error}"
        )
        return
    if not references.needs_wide_jax(operands):
        for what, mine, other in (
            ("dtype", got.dtype, theirs.dtype),
            ("weak type", result.weak_type, theirs.weak_type),
            ("shape", got.shape, theirs.shape),
        ):
            if mine != other:
                yield _finding(e, step, what, "jax", map(references.plain, operands), mine, other)
    if not references.jax_returns(step, operands):
        return
    their = references.by_jax(step, operands)
    if their.dtype == got.dtype and their.shape == got.shape:
        ok = same(got, their, got.dtype, JAX_ULPS[function.accuracy], size, signs)
        yield from _elements(e, step, "value", "jax", operands, got, their, ok)
    if e.regular and (by := references.differentiable(step, operands)):
        yield from _derivatives(e, step, operands, by)


def _elements(
    e: Expression, step: Step, what: str, reference: str, operands: Sequence[Any], got: Any, want: Any, ok: np.ndarray
) -> Iterator[Finding]:
    """A finding for each element that differs; of a function of rows one for all of them."""
    if ok.all():
        return
    xs = [np.asarray(references.plain(x)) for x in operands]
    if step.function.rows:
        yield _finding(e, step, what, reference, xs, got, np.asarray(want))
        return
    spread = np.broadcast_arrays(*xs, got)[:-1]
    for at in list(zip(*np.nonzero(~ok), strict=True)) if got.ndim else [()]:
        yield _finding(e, step, what, reference, [x[at] for x in spread], got[at], np.asarray(want)[at])


def _derivatives(e: Expression, step: Step, operands: Sequence[Any], by: Sequence[int]) -> Iterator[Finding]:
    """Derivatives by the arrays. Of an elementwise function they are taken on vectors: an element has its own."""
    xs = references.in_common_dtype(step, operands)
    if not step.function.rows:
        xs, _ = references.as_vectors(step, xs)
    given = [x if i in by else operands[i] for i, x in enumerate(xs)]
    ours = references.volta_derivatives(step, given, by)
    theirs = references.jax_derivatives(step, xs, by, references.needs_wide_jax(operands))
    for what, mine, other in zip(("first derivative", "second derivative"), ours, theirs, strict=True):
        for i, m, o in zip(by, mine, other, strict=True):
            got, want = np.asarray(m), np.asarray(o)
            size = max(1.0, float(np.max(np.abs(np.where(np.isfinite(want), want, 0.0)), initial=0.0)))
            ok = same(got, want, got.dtype, DERIVATIVE_ULPS, size, False)
            yield from _elements(e, step, f"{what} by {i}", "jax", xs, got, want, ok)


def _compiled(e: Expression, values: Sequence[Any], done: Sequence[tuple[int, Step]]) -> Iterator[Finding]:
    """The whole as one program, Python numbers among its arguments, has its steps' bits, dtypes and weak types."""
    if not done:
        return

    def whole(*leaves: Any) -> list[Any]:
        held = [*leaves, *values[len(leaves) :]]
        for i, step in done:
            held[i] = references.function_of(volta, step)(*(held[k] for k in step.operands))
        return [held[i] for i, _ in done]

    for (i, step), got in zip(done, volta.jit(whole)(*e.leaves), strict=True):
        want, operands = values[i], [references.plain(values[k]) for k in step.operands]
        if (got.dtype, got.weak_type, got.shape) != (want.dtype, want.weak_type, want.shape):
            yield _finding(e, step, "dtype", "eager", operands, got.aval, want.aval)
        elif bits(got) != bits(want):
            yield _finding(e, step, "bits", "eager", operands, np.asarray(got), np.asarray(want))
