"""Kernels of the user's own in programs: how they are batched, and differentiated by the rules that users give them.

A kernel under ``vmap`` is one call whose tasks are the elements of the batch: ``batch`` has the sizes of the mapped
axes, outermost first, and ``mapped`` says of each operand which of them it has; they are its leading axes. Operands
without one are not copied. A rule is a function of one element; for a batched kernel it is mapped over the batch.

A kernel with a vjp rule is linearized to one equation, ``user_tangent``, whose transpose is the rule. It carries the
operations of the jvp rule as its program; where there is none, one equation that says so when it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core import pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.axes import Axis
from volta.core.errors import KernelError, NotDifferentiableError
from volta.core.interp import bind, get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.ops import base
from volta.ops.primitive import Family, Primitive, register
from volta.ops.user import Results, UserKernel
from volta.runtime.array import as_array
from volta.trace.batch import BatchTrace, batch_flat
from volta.trace.calls import jit_p
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.jvp import has_tangent
from volta.trace.meaning import means_its_program

Mask = tuple[bool, ...]
Values = Sequence[Any]


# -- shapes ------------------------------------------------------------------------------------------------------------


def results_of(kernel: UserKernel, avals: Sequence[ShapedArray], mapped: Sequence[Mask]) -> Results:
    """What the kernel gives for one element of the batch."""
    return kernel.results(tuple(ShapedArray(a.shape[sum(m) :], a.dtype) for a, m in zip(avals, mapped, strict=True)))


def _abstract(*avals: ShapedArray, kernel: UserKernel, batch: tuple[int, ...], mapped: Any) -> list[ShapedArray]:
    return [a.update(shape=(*batch, *a.shape)) for a in results_of(kernel, avals, mapped).avals]


# -- batches -----------------------------------------------------------------------------------------------------------


def _batch(args: Values, dims: Sequence[int | None], size: int, *, kernel: UserKernel, batch: Any, mapped: Any) -> Any:
    moved = [x if d is None else base.move_axis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    if "batch" in kernel.rules:
        return _by_rule(kernel, moved, dims, size)
    masks = tuple((d is not None, *m) for d, m in zip(dims, mapped, strict=True))
    outs = list(bind(user_kernel_p, *moved, kernel=kernel, batch=(size, *batch), mapped=masks))
    return outs, [0] * len(outs)


def _by_rule(kernel: UserKernel, args: Values, dims: Sequence[int | None], size: int) -> Any:
    own = tuple(ShapedArray(a.shape[d is not None :], a.dtype) for a, d in zip(map(get_aval, args), dims, strict=True))
    expected = kernel.results(own)
    answer = kernel.rules["batch"](size, [d is not None for d in dims], *map(as_value, args))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise _refused(kernel, "batch", "must return (results, whether each of them is batched)")
    outs = _leaves(kernel, "batch", expected.tree, answer[0])
    batched = pytrees.leaves(answer[1])
    if len(batched) == 1:
        batched *= len(outs)
    if len(batched) != len(outs):
        raise _refused(kernel, "batch", f"says of {len(batched)} results whether they are batched; it has {len(outs)}")
    for out, is_batched, aval in zip(outs, batched, expected.avals, strict=True):
        shape = (size, *aval.shape) if is_batched else aval.shape
        _check(kernel, "batch", "a result", out, aval.update(shape=shape))
    return outs, [0 if b else None for b in batched]


def _each(name: str, batch: tuple[int, ...], masks: Sequence[Mask], rule: Callable[..., Values], args: Values) -> Any:
    """``rule`` for each element of the batch; what it gives has the batch's axes in front."""
    if not batch:
        return list(rule(*args))
    dims = [0 if m[0] else None for m in masks]
    inner = [m[1:] for m in masks]
    outs, at, _ = batch_flat(
        lambda *xs: (_each(name, batch[1:], inner, rule, xs), None), Axis(batch[0]), args, dims, f"{name}'s rule"
    )
    return [base.to_front(x, d, batch[0]) for x, d in zip(outs, at, strict=True)]


def _whole(batch: tuple[int, ...]) -> Mask:
    return (True,) * len(batch)


# -- rules as users write them -----------------------------------------------------------------------------------------


def as_value(x: Any) -> Any:
    """An operand as users see it: an array or a tracer, never a bare NumPy value."""
    return x if isinstance(x, Array) else as_array(x)


def _refused(kernel: UserKernel, rule: str, why: str) -> KernelError:
    return KernelError(at_user_line(f"the {rule} rule of kernel `{kernel.name}` {why}"))


def _leaves(kernel: UserKernel, rule: str, tree: Any, given: Any) -> list[Any]:
    if pytrees.structure(given) != tree:
        raise _refused(
            kernel,
            rule,
            f"gave {pytrees.text(pytrees.structure(given))} where the kernel's results are {pytrees.text(tree)}",
        )
    return pytrees.leaves(given)


def _check(kernel: UserKernel, rule: str, what: str, value: Any, wanted: ShapedArray) -> None:
    aval = get_aval(value)
    if (aval.shape, aval.dtype) != (wanted.shape, wanted.dtype):
        raise _refused(kernel, rule, f"gave {aval.short()} for {what}, which is {wanted.strip_weak().short()}")


def _push(kernel: UserKernel, primals: Values, outs: Values, tangents: Values) -> list[Any]:
    """The jvp rule for one element: tangents of the results of a float dtype."""
    results = kernel.results(tuple(get_aval(x).strip_weak() for x in primals))
    given = kernel.rules["jvp"](
        tuple(map(as_value, primals)), pytrees.unflatten(results.tree, list(map(as_value, outs))), tuple(tangents)
    )
    answer = pytrees.flatten_up_to(results.tree, given, f"what the jvp rule of kernel `{kernel.name}` gave")
    pairs = [(t, a) for t, a in zip(answer, results.avals, strict=True) if has_tangent(a.dtype)]
    for t, aval in pairs:
        _check(kernel, "jvp", "the tangent of a result", t, aval)
    return [t for t, _ in pairs]


def _pull(kernel: UserKernel, primals: Values, outs: Values, cts: Values) -> list[Any]:
    """The vjp rule for one element: a cotangent, or None for zero, an operand."""
    avals = [get_aval(x).strip_weak() for x in primals]
    tree = kernel.results(tuple(avals)).tree
    given = kernel.rules["vjp"](
        tuple(map(as_value, primals)), pytrees.unflatten(tree, list(map(as_value, outs))), pytrees.unflatten(tree, cts)
    )
    shares = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(shares) != len(primals):
        raise _refused(kernel, "vjp", f"gave {len(shares)} cotangents, but the kernel has {len(primals)} operands")
    for i, (share, aval) in enumerate(zip(shares, avals, strict=True)):
        if not has_tangent(aval.dtype):
            shares[i] = None
        elif share is not None:
            _check(kernel, "vjp", f"the cotangent of operand {i}", share, aval)
    return shares


def _no_rule(kernel: UserKernel, needed: str) -> NotDifferentiableError:
    has = " or ".join(f"@{kernel.name}.{n}" for n in needed.split())
    return NotDifferentiableError(
        at_user_line(
            f"kernel `{kernel.name}` is differentiated here, and Volta cannot look into what it computes: give it a "
            f"rule with {has}. If no gradient should flow through it, apply volta.lax.stop_gradient to its inputs."
        )
    )


# -- derivatives -------------------------------------------------------------------------------------------------------


def _tangents(
    kernel: UserKernel, primals: Values, outs: Values, tangents: Values, batch: tuple[int, ...], mapped: Sequence[Mask]
) -> list[Any]:
    """Tangents of float results, by the jvp rule; those of the operands may be Zero."""
    live = [has_tangent(base.dtype_of(x)) for x in primals]
    full = [base.instantiate(t) for t, m in zip(tangents, live, strict=True) if m]
    n, r = len(primals), len(outs)

    def rule(*args: Any) -> list[Any]:
        given = iter(args[n + r :])
        return _push(kernel, args[:n], args[n : n + r], [next(given) if m else None for m in live])

    masks = [*mapped, *[_whole(batch)] * r, *[m for m, is_live in zip(mapped, live, strict=True) if is_live]]
    return list(_each(kernel.name, batch, masks, rule, [*primals, *outs, *full]))


def _jvp(primals: Values, tangents: Values, *, kernel: UserKernel, batch: Any, mapped: Any) -> Any:
    outs = list(bind(user_kernel_p, *primals, kernel=kernel, batch=batch, mapped=mapped))
    if base.all_zero(tangents):
        return outs, [base.zero_like(o) for o in outs]
    if "jvp" not in kernel.rules:
        raise _no_rule(kernel, "jvp")
    live = iter(_tangents(kernel, primals, outs, tangents, batch, mapped))
    return outs, [next(live) if has_tangent(base.dtype_of(o)) else base.zero_like(o) for o in outs]


def _linearize(nonzero: Mask, *primals: Any, kernel: UserKernel, batch: Any, mapped: Any) -> Any:
    outs = list(bind(user_kernel_p, *primals, kernel=kernel, batch=batch, mapped=mapped))
    if not {"jvp", "vjp"} & kernel.rules.keys():
        raise _no_rule(kernel, "vjp jvp")

    def linear(*live: Any) -> list[Any]:
        if "vjp" in kernel.rules:
            return _bind_tangent([*primals, *outs, *live], kernel=kernel, batch=batch, mapped=mapped, wrt=nonzero)
        given = iter(live)
        tangents = [next(given) if m else base.zero_like(x) for m, x in zip(nonzero, primals, strict=True)]
        return _tangents(kernel, primals, outs, tangents, batch, mapped)

    return outs, tuple(has_tangent(base.dtype_of(o)) for o in outs), linear


def _transpose(cts: Values, *operands: Any, kernel: UserKernel, **params: Any) -> Any:
    raise NotDifferentiableError(
        at_user_line(
            f"the jvp rule of a kernel applies kernel `{kernel.name}` to tangents, which cannot be run backwards: for "
            "grad and vjp, give the kernel that has this jvp rule a vjp rule as well."
        )
    )


user_kernel_p = register(
    Primitive(
        "user_kernel",
        Family.USER,
        _abstract,
        _jvp,
        _batch,
        _transpose,
        linearize=_linearize,
        multiple_results=True,
        doc="A kernel of the user's own, written with Numba.",
    )
)


# -- the tangent of a kernel with a vjp rule: operands are the kernel's, its results, tangents of those in ``wrt`` -----


def _float_results(*avals: ShapedArray, kernel: UserKernel, batch: Any, mapped: Any, wrt: Mask) -> list[ShapedArray]:
    outs = _abstract(*avals[: len(mapped)], kernel=kernel, batch=batch, mapped=mapped)
    return [a for a in outs if has_tangent(a.dtype)]


def _no_pushforward(*args: Any, kernel: UserKernel, **params: Any) -> Any:
    raise _no_rule(kernel, "jvp")


user_pushforward_p = register(
    Primitive(
        "user_pushforward",
        Family.USER,
        _float_results,
        _no_pushforward,
        _no_pushforward,
        multiple_results=True,
        doc="Stands for tangents of a user's kernel that has a vjp rule only; reached forwards, it is an error.",
    )
)


def _bind_tangent(operands: Values, *, kernel: UserKernel, batch: Any, mapped: Sequence[Mask], wrt: Mask) -> list[Any]:
    params: dict[str, Any] = {"kernel": kernel, "batch": batch, "mapped": mapped, "wrt": wrt}
    n, first_live = len(mapped), len(operands) - sum(wrt)

    def run(*args: Any) -> tuple[list[Any], None]:
        if "jvp" not in kernel.rules:
            return list(bind(user_pushforward_p, *args, **params)), None
        live, primals = iter(args[first_live:]), args[:n]
        tangents = [next(live) if m else base.zero_like(x) for m, x in zip(wrt, primals, strict=True)]
        return _tangents(kernel, primals, args[n:first_live], tangents, batch, mapped), None

    avals = tuple(get_aval(x).strip_weak() for x in operands)
    program, _ = trace_to_jaxpr(run, avals, f"{kernel.name}'s rule")
    name = f"tangent of {kernel.name}"
    return list(bind(user_tangent_p, *operands, jaxpr=program, name=name, **params))


def _tangent_jvp(primals: Values, tangents: Values, *, jaxpr: ClosedJaxpr, name: str, **params: Any) -> Any:
    return jit_p.jvp(primals, tangents, jaxpr=jaxpr, name=name)  # type: ignore[operator]


def _tangent_linearize(nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, name: str, **params: Any) -> Any:
    return jit_p.linearize(nonzero, *primals, jaxpr=jaxpr, name=name)  # type: ignore[misc]


def _tangent_batch(
    args: Values, dims: Sequence[int | None], trace: BatchTrace, *, jaxpr: ClosedJaxpr, name: str, kernel: UserKernel,
    batch: Any, mapped: Sequence[Mask], wrt: Mask,
) -> Any:  # fmt: skip
    """A primal and its tangent get the axis together, the results always."""
    size = trace.axis.size
    n, first_live = len(mapped), len(args) - sum(wrt)
    at = iter(dims[first_live:])
    needed = [(m and next(at) is not None) or d is not None for m, d in zip(wrt, dims[:n], strict=True)]
    live = [m for m, is_live in zip(needed, wrt, strict=True) if is_live]
    fronts = [*needed, *[True] * (first_live - n), *live]
    operands = [base.to_front(x, d, size) if m else x for x, d, m in zip(args, dims, fronts, strict=True)]
    masks = tuple((m, *old) for m, old in zip(needed, mapped, strict=True))
    outs = _bind_tangent(operands, kernel=kernel, batch=(size, *batch), mapped=masks, wrt=wrt)
    return outs, [0] * len(outs)


def _tangent_transpose(
    cts: Values, *operands: Any, jaxpr: ClosedJaxpr, name: str, kernel: UserKernel, batch: tuple[int, ...],
    mapped: Sequence[Mask], wrt: Mask,
) -> list[Any]:  # fmt: skip
    n, first_live = len(mapped), len(operands) - sum(wrt)
    known = operands[:first_live]
    live = [has_tangent(base.dtype_of(x)) for x in known[n:]]
    full = [base.instantiate(ct) for ct in cts]
    given: list[int] = []

    def rule(*args: Any) -> list[Any]:
        rest = iter(args[first_live:])
        shares = _pull(kernel, args[:n], args[n:first_live], [next(rest) if m else None for m in live])
        given[:] = [i for i, share in enumerate(shares) if share is not None]
        return [shares[i] for i in given]

    masks = [*mapped, *[_whole(batch)] * (first_live - n + len(full))]
    found: dict[int, Any] = {}
    for i, share in zip(given, _each(kernel.name, batch, masks, rule, [*known, *full]), strict=True):
        found[i] = base.sum_axes(share, [d for d, m in enumerate(mapped[i]) if not m])
    return [*[None] * first_live, *[found.get(i) for i, m in enumerate(wrt) if m]]


user_tangent_p = means_its_program(
    "user_tangent",
    jvp=_tangent_jvp,
    batch=_tangent_batch,
    transpose=_tangent_transpose,
    linearize=_tangent_linearize,
    doc="The tangent of a user's kernel; its transpose is the kernel's vjp rule.",
)
