"""Derivative rules of users as rules over flat values: what they are given, and what they must return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import optree

from volta.api.arguments import flat_outputs, float0, name_of, numbers_among, value_of, values_of, with_numbers
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, ShapeError, TreeError, VoltaError
from volta.core.extended import is_key
from volta.core.interp import get_aval
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.ops.base import bind_named, zeros_of
from volta.ops.primitive import Zero
from volta.trace.custom import Pull
from volta.trace.jvp import has_tangent


@attrs.frozen
class SymbolicZero:
    """A tangent or cotangent that is known to be zero, as rules with ``symbolic_zeros=True`` get and return it.

    >>> import volta
    >>> volta.custom_derivatives.SymbolicZero(volta.eval_shape(lambda x: x, 1.0).aval).shape
    ()
    """

    aval: ShapedArray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype if has_tangent(self.aval.dtype) else float0

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval.short()})"


@attrs.frozen
class CustomVJPPrimal:
    """An argument as the ``fwd`` rule with ``symbolic_zeros=True`` gets it: ``perturbed`` if it is differentiated.

    >>> import volta
    >>> volta.custom_derivatives.CustomVJPPrimal(1.0, perturbed=False).value
    1.0
    """

    value: Any
    perturbed: bool


class Call:
    """One call: its arguments' structure, those that are not differentiated, and the output as it becomes known."""

    def __init__(self, name: str, tree: TreeSpec, leaves: Sequence[Any], values: Sequence[Any], fixed: dict[int, Any]):
        self.name, self.tree, self.fixed = name, tree, fixed
        self.avals = tuple(get_aval(x) for x in values)
        self._numbers = numbers_among(leaves, values)
        self.out_tree: Any = None
        self.out_avals: Sequence[ShapedArray] | None = None

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments that may be differentiated. A Python number that is still itself is one to the function."""
        return tuple(pytrees.unflatten(self.tree, with_numbers(leaves, self._numbers)))

    def whole(self, leaves: Sequence[Any]) -> list[Any]:
        """All arguments, in their places."""
        args = list(self.arguments(leaves))
        for i, x in self.fixed.items():
            args.insert(i, x)
        return args

    def gave(self, tree: TreeSpec, avals: Sequence[ShapedArray]) -> None:
        """The function has run: what a rule's output must be like."""
        self.out_tree, self.out_avals = tree, avals

    def check(self, what: str, tree: TreeSpec, outs: list[Any]) -> list[Any]:
        """A rule's outputs as the function's, if that has run."""
        if self.out_avals is None:
            self.out_tree = tree
            return outs
        if tree != self.out_tree:
            raise TreeError(
                at_user_line(
                    f"{what} must return first the output of `{self.name}`, which has the structure "
                    f"{pytrees.text(self.out_tree)}, "
                    f"but it returned {pytrees.text(tree)}"
                )
            )
        fitted = [_fitted(x, aval) for x, aval in zip(outs, self.out_avals, strict=True)]
        if any(x is None for x in fitted):
            got, want = (_shown(tree, avals) for avals in ([get_aval(x) for x in outs], self.out_avals))
            raise _mismatch(
                [get_aval(x) for x in outs],
                self.out_avals,
                f"{what} must return first the output of `{self.name}`, which is {want}, but it returned {got}",
            )
        return fitted


def _shown(tree: TreeSpec, avals: Sequence[ShapedArray]) -> str:
    return str(pytrees.unflatten(tree, [a.short() for a in avals])).replace("'", "")


def _mismatch(got: Sequence[Any], want: Sequence[ShapedArray], text: str) -> VoltaError:
    shapes = any(a.shape != b.shape for a, b in zip(got, want, strict=True))
    return (ShapeError if shapes else DTypeError)(at_user_line(text))


def _fitted(x: Any, aval: ShapedArray) -> Any:
    """A value as one of the given type, or None: a Python number takes the dtype that is expected."""
    own = get_aval(x)
    if own == aval:
        return x
    number = any(dtypes.is_number(a.dtype, a.weak_type) for a in (own, aval))
    kinds = not is_key(aval.dtype) and dtypes.promote((own.dtype, True), (aval.dtype, False))[0] == aval.dtype
    if own.shape != aval.shape or (own.dtype != aval.dtype and not (number and kinds)):
        return None
    return bind_named("convert_element_type", x, new_dtype=aval.dtype, weak_type=aval.weak_type)


def _given(t: Any, aval: ShapedArray, symbolic: bool) -> Any:
    """A tangent or cotangent of a value of this type, as rules get it: that of a Python number is one too."""
    if isinstance(t, Zero):
        if symbolic:
            return SymbolicZero(t.aval)
        if not has_tangent(aval.dtype):
            return np.zeros(aval.shape, float0)
        t = value_of(zeros_of(aval.strip_weak()))
    if aval.weak_type:
        return bind_named("convert_element_type", t, new_dtype=aval.dtype, weak_type=True)
    return t


def _is_zero(x: Any) -> bool:
    return isinstance(x, SymbolicZero) or getattr(x, "dtype", None) == float0


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of a value: an array of zeros (float0 of integers), or a :class:`SymbolicZero`.

    >>> import volta
    >>> float(volta.custom_derivatives.zero_from_primal(3.0))
    0.0
    """
    aval = value_of(val).aval
    return _given(Zero(aval.strip_weak()), aval, symbolic_zeros)


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """The arguments of a ``fwd`` rule with ``symbolic_zeros=True`` as the values that they hold.

    Raises:
        TypeError: a leaf is no :class:`CustomVJPPrimal`.

    >>> import volta
    >>> rules = volta.custom_derivatives
    >>> rules.custom_vjp_primal_tree_values({"w": rules.CustomVJPPrimal(1.0, True)})
    {'w': 1.0}
    """

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, CustomVJPPrimal):
            raise TypeError(
                at_user_line(f"custom_vjp_primal_tree_values: a leaf is no CustomVJPPrimal but {type(leaf).__name__}")
            )
        return leaf.value

    return pytrees.map(value, tree)


# -- forward -----------------------------------------------------------------------------------------------------------


def forward(
    call: Call, jvp: Callable[..., Any], symbolic: bool, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """A user's ``jvp`` over flat values: outputs and their tangents."""
    what = f"the jvp rule `{name_of(jvp)}` of `{call.name}`"
    given = [_given(t, get_aval(x), symbolic) for t, x in zip(tangents, primals, strict=True)]
    both = call.arguments(primals), tuple(pytrees.unflatten(call.tree, given))
    out, out_dot = _pair(jvp(*call.fixed.values(), *both), what, "the output and its tangent")
    outs, tree = flat_outputs(out, name_of(jvp))
    dots, dot_tree = pytrees.flatten(out_dot)
    if dot_tree != tree:
        raise TreeError(
            at_user_line(
                f"{what} must return an output and a tangent of one structure, but it returned "
                f"{pytrees.text(tree)} and {pytrees.text(dot_tree)}"
            )
        )
    found = [_tangent(t, get_aval(x).strip_weak()) for t, x in zip(dots, outs, strict=True)]
    if any(t is None for t in found):
        wanted = [get_aval(x).strip_weak() for x in outs]
        rows = [
            f"  the tangent of {a.short()} must be {a.short() if has_tangent(a.dtype) else _zero_of(a)}, "
            f"but it is {_short(t)}"
            for a, t, ok in zip(wanted, dots, found, strict=True)
            if ok is None
        ]
        got = [x if _is_zero(x) else get_aval(x) for x in dots]
        shapes = any(a.shape != b.shape for a, b in zip(got, wanted, strict=True))
        text = f"{what} returned an output and a tangent that do not go together:\n" + "\n".join(rows)
        raise (ShapeError if shapes else DTypeError)(at_user_line(text))
    return call.check(what, tree, outs), found


def _zero_of(aval: ShapedArray) -> str:
    return f"float0[{','.join(map(str, aval.shape))}] (numpy.zeros(shape, volta.float0))"


def _short(x: Any) -> str:
    if isinstance(x, SymbolicZero):
        return repr(x)
    return f"float0[{','.join(map(str, x.shape))}]" if _is_zero(x) else get_aval(x).short()


def _tangent(t: Any, aval: ShapedArray) -> Any:
    """A tangent that a rule returned, of the type that is expected; None where it is not."""
    if _is_zero(t):
        fits = t.shape == aval.shape and (isinstance(t, SymbolicZero) or not has_tangent(aval.dtype))
        return Zero(aval) if fits else None
    value = value_of(t)
    return _fitted(value, aval) if has_tangent(aval.dtype) else None


def _pair(out: Any, what: str, parts: str) -> Any:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        seen = f"{type(out).__name__} of length {len(out)}" if isinstance(out, (tuple, list)) else f"{out!r:.80}"
        raise TreeError(at_user_line(f"{what} must return a pair, {parts}, but it returned {seen}"))
    return out


def zeros_like(out: Any) -> Any:
    """The zero tangent of an output, a pytree."""
    return pytrees.map(lambda x: _given(Zero(get_aval(x).strip_weak()), get_aval(x).strip_weak(), False), out)


def add_tangents(a: Any, b: Any) -> Any:
    """The sum of two tangents, pytrees; float0 stays."""

    def add(x: Any, y: Any) -> Any:
        if _is_zero(x) or _is_zero(y):
            return x
        fitted = _fitted(value_of(y), get_aval(x))
        return value_of(y) if fitted is None else bind_named("add", x, fitted)  # refused with the rule's result

    return pytrees.map(add, a, b)


# -- reverse -----------------------------------------------------------------------------------------------------------


def reverse(
    call: Call, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic: bool, primals: Sequence[Any],
    nonzero: Sequence[bool],
) -> tuple[list[Any], list[Any], Pull]:  # fmt: skip
    """A user's ``fwd`` over flat values: outputs, residuals, and ``bwd`` over flat values."""
    what = f"the fwd rule `{name_of(fwd)}` of `{call.name}`"
    given = [CustomVJPPrimal(x, nz) for x, nz in zip(primals, nonzero, strict=True)] if symbolic else primals
    out, kept = _pair(fwd(*call.whole(given)), what, f"the output of `{call.name}` and residuals for bwd")
    outs, tree = flat_outputs(out, name_of(fwd))
    leaves, kept_tree = pytrees.flatten(kept)
    residuals = values_of(leaves, f"{what}:", lambda: [f"residuals{path}" for path in pytrees.leaf_paths(kept)])
    outs = call.check(what, tree, outs)
    avals = [get_aval(x) for x in outs]

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        ct = pytrees.unflatten(tree, [_given(c, a, symbolic) for c, a in zip(cts, avals, strict=True)])
        result = bwd(*call.fixed.values(), pytrees.unflatten(kept_tree, residuals), ct)
        return _cotangents(call, f"the bwd rule `{name_of(bwd)}` of `{call.name}`", result)

    return outs, residuals, pull


def _cotangents(call: Call, what: str, result: Any) -> list[Any]:
    """What ``bwd`` returned, one cotangent an argument's leaf, each of its type."""
    dummy = pytrees.unflatten(call.tree, [_LEAF] * call.tree.num_leaves)
    if isinstance(result, list) and len(result) == len(dummy):
        result = tuple(result)
    spread: list[Any] | None = None
    if isinstance(result, tuple):
        try:
            spread = _below(result, dummy)
        except ValueError:
            spread = None
    if spread is None:
        seen = pytrees.structure(result, lambda x: x is None)
        raise TreeError(
            at_user_line(
                f"{what} must return a tuple with a cotangent an argument, of the arguments' structure "
                f"{pytrees.text(call.tree)} (None for 0), but it returned {pytrees.text(seen)}"
            )
        )
    found = []
    for i, (ct, aval) in enumerate(zip(spread, call.avals, strict=True)):
        own = _cotangent(ct, aval)
        if own is None:
            path = pytrees.structure_paths(call.tree)[i]
            raise _mismatch(
                [ct if _is_zero(ct) else get_aval(ct)],
                [aval],
                f"{what} must return cotangents like the arguments, but output{path} is {_short(ct)}, and the argument "
                f"{aval.short()}",
            )
        found.append(own)
    return found


_LEAF = object()


def _below(ct: Any, dummy: Any) -> list[Any]:
    """A cotangent for each leaf of an argument; None, or one array, may stand for a whole subtree.

    Raises:
        ValueError: the structures differ.
    """
    if ct is None or pytrees.structure(ct) == pytrees.structure(0):
        return [ct] * len(pytrees.leaves(dummy))
    if dummy is _LEAF:
        raise ValueError
    parts = optree.tree_flatten_one_level(ct, is_leaf=lambda x: x is None, namespace=pytrees.NAMESPACE)
    whole = optree.tree_flatten_one_level(dummy, namespace=pytrees.NAMESPACE)
    if type(ct) is not type(dummy) or list(parts.entries) != list(whole.entries):
        raise ValueError
    return [x for part, sub in zip(parts.children, whole.children, strict=True) for x in _below(part, sub)]


def _cotangent(ct: Any, aval: ShapedArray) -> Any:
    if ct is None or not has_tangent(aval.dtype):
        return Zero(aval.strip_weak())
    if _is_zero(ct):
        return Zero(aval.strip_weak()) if ct.shape == aval.shape and isinstance(ct, SymbolicZero) else None
    value, want = value_of(ct), aval.strip_weak()
    if value.aval.shape != want.shape:
        return None
    if value.aval == want:
        return value
    return bind_named("convert_element_type", value, new_dtype=want.dtype, weak_type=False)
