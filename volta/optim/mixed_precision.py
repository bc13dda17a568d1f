"""Mixed precision: parameters in one dtype, computation in another, and losses scaled where float16 would underflow.

The names are those of jmp. Everything is a pure function over pytrees, and strict: operands in 16 bits are multiplied
exactly and added in chains of float32, the same on every backend. Tensor cores are a matter of the level and of
`volta.default_matmul_precision`.

>>> import volta.numpy as vnp
>>> from volta import optim
>>> policy = optim.get_policy("params=float32,compute=bfloat16,output=float32")
>>> policy.cast_to_compute({"w": vnp.ones(2), "step": vnp.arange(2)})
{'step': Array([0, 1], dtype=int64), 'w': Array([1, 1], dtype=bfloat16)}
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import lax
from volta.core import dtypes, pytrees
from volta.core.array import Array, ArrayLike
from volta.core.interp import get_aval
from volta.numpy.promotion import aval_of

PyTree = Any

_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "half": "bfloat16",
    "full": "float32",
}


def half_dtype() -> np.dtype:
    """What policies call 'half': bfloat16, which needs no loss scaling."""
    return dtypes.bfloat16


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """The tree with its float leaves in ``dtype``; all others are left alone."""
    dtype = dtypes.canonicalize(dtype)

    def cast(x: Any) -> Any:
        return vnp.asarray(x, dtype) if dtypes.is_float(get_aval(x).dtype) else x

    return pytrees.map(cast, tree)


@attrs.frozen
class Policy:
    """The dtypes in which a model keeps its parameters, computes, and gives its results."""

    param_dtype: np.dtype = attrs.field(converter=dtypes.canonicalize)
    compute_dtype: np.dtype = attrs.field(converter=dtypes.canonicalize)
    output_dtype: np.dtype = attrs.field(converter=dtypes.canonicalize)

    def cast_to_param(self, tree: PyTree) -> PyTree:
        """Float leaves in the dtype of parameters."""
        return cast_floats(tree, self.param_dtype)

    def cast_to_compute(self, tree: PyTree) -> PyTree:
        """Float leaves in the dtype of computation; its gradient comes back in that of the leaves."""
        return cast_floats(tree, self.compute_dtype)

    def cast_to_output(self, tree: PyTree) -> PyTree:
        """Float leaves in the dtype of results."""
        return cast_floats(tree, self.output_dtype)

    def with_output_dtype(self, output_dtype: Any) -> Policy:
        """The same policy with another dtype of results."""
        return attrs.evolve(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        return f"params={self.param_dtype.name},compute={self.compute_dtype.name},output={self.output_dtype.name}"


def get_policy(text: str) -> Policy:
    """A policy from its text: one dtype for all, or ``params=…,compute=…,output=…`` (also ``p=…,c=…,o=…``).

    Dtypes have their names or ``f16``, ``bf16``, ``f32``, ``f64``, ``full`` (float32), ``half`` (bfloat16). Computing
    has the dtype of parameters where it is not given, results that of computing. Raises ValueError for another text.

    >>> print(get_policy("p=f32,c=bf16"))
    params=float32,compute=bfloat16,output=bfloat16
    """
    if "=" not in text:
        return Policy(*[_dtype(text, text)] * 3)
    given: dict[str, np.dtype] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        name = {"p": "params", "c": "compute", "o": "output"}.get(key, key)
        if name not in ("params", "compute", "output") or name in given:
            raise ValueError(f"policy {text!r}: {part.strip()!r} is not one of params=…, compute=…, output=…")
        given[name] = _dtype(value, text)
    if "params" not in given:
        raise ValueError(f"policy {text!r} does not say params=…")
    compute = given.get("compute", given["params"])
    return Policy(given["params"], compute, given.get("output", compute))


def _dtype(name: str, text: str) -> np.dtype:
    try:
        found = dtypes.canonicalize(_DTYPES.get(name, name))
    except TypeError:
        found = None
    if found is None or not dtypes.is_float(found):
        raise ValueError(f"policy {text!r}: {name!r} is no float dtype")
    return found


# -- loss scaling ------------------------------------------------------------------------------------------------------


class NoOpLossScale:
    """No scaling, under the interface of the others."""

    loss_scale = 1

    def scale(self, tree: PyTree) -> PyTree:
        return tree

    def unscale(self, tree: PyTree) -> PyTree:
        return tree

    def adjust(self, grads_finite: Array) -> NoOpLossScale:
        return self


pytrees.register_node(NoOpLossScale, lambda _: ((), None), lambda aux, children: NoOpLossScale())


def _scaled(tree: PyTree, factor: Array) -> PyTree:
    return pytrees.map(lambda x: x * vnp.asarray(factor, aval_of("scale", x).dtype), tree)


def _unscaled(tree: PyTree, factor: Array) -> PyTree:
    inverse = 1 / vnp.asarray(factor, dtypes.float32)
    return pytrees.map(lambda x: x * vnp.asarray(inverse, aval_of("unscale", x).dtype), tree)


@pytrees.register_dataclass
@attrs.frozen
class StaticLossScale:
    """Losses and gradients times a number, and back. Use a power of two: then scaling moves no bit of a gradient."""

    loss_scale: Array

    def scale(self, tree: PyTree) -> PyTree:
        """The leaves times the scale (of a loss, before it is differentiated)."""
        return _scaled(tree, self.loss_scale)

    def unscale(self, tree: PyTree) -> PyTree:
        """The leaves divided by the scale (of gradients, in float32)."""
        return _unscaled(tree, self.loss_scale)

    def adjust(self, grads_finite: Array) -> StaticLossScale:
        return self


def _of_kind(x: Array, like: Array) -> Array:
    """``x`` in the dtype of ``like`` and as weakly typed: state of one type, for which a step is compiled once."""
    aval = get_aval(like)
    return lax.convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


def _register_dynamic(cls: Any) -> Any:
    return pytrees.register_dataclass(cls, static=("period", "factor"))


@_register_dynamic
@attrs.frozen
class DynamicLossScale:
    """A scale that grows by ``factor`` after ``period`` finite steps, and shrinks by it after one that overflowed.

    It is a pytree, to be carried from step to step; it never falls below ``min_loss_scale``.
    """

    loss_scale: Array
    counter: Array = attrs.field(factory=lambda: vnp.zeros((), dtypes.int32))
    period: int = 2000
    factor: int = 2
    min_loss_scale: Array = attrs.field(factory=lambda: vnp.ones((), dtypes.float32))

    def scale(self, tree: PyTree) -> PyTree:
        """The leaves times the scale (of a loss, before it is differentiated)."""
        return _scaled(tree, self.loss_scale)

    def unscale(self, tree: PyTree) -> PyTree:
        """The leaves divided by the scale (of gradients, in float32)."""
        return _unscaled(tree, self.loss_scale)

    def adjust(self, grads_finite: Array) -> DynamicLossScale:
        """The scale for the next step, given whether this step's gradients were finite (see :func:`all_finite`)."""
        now = vnp.asarray(self.loss_scale)
        larger = now * vnp.asarray(self.factor, now.dtype)
        larger = vnp.where(vnp.isfinite(larger), larger, now)
        smaller = vnp.maximum(vnp.asarray(self.min_loss_scale, now.dtype), now / vnp.asarray(self.factor, now.dtype))
        counter = vnp.asarray(self.counter)
        due = counter == self.period - 1
        scale = vnp.where(grads_finite, vnp.where(due, larger, now), smaller)
        zero = vnp.zeros((), counter.dtype)
        following = vnp.where(vnp.logical_and(grads_finite, vnp.logical_not(due)), counter + 1, zero)
        return attrs.evolve(
            self, loss_scale=_of_kind(scale, self.loss_scale), counter=_of_kind(following, self.counter)
        )


LossScale = NoOpLossScale | StaticLossScale | DynamicLossScale


def all_finite(tree: PyTree) -> Array:
    """Whether every element of every leaf is finite, as a boolean array of rank 0."""
    found = [vnp.all(vnp.isfinite(x)) for x in pytrees.leaves(tree)]
    if not found:
        return vnp.asarray(True)
    return vnp.all(vnp.stack(found))


def select_tree(pred: ArrayLike, a: PyTree, b: PyTree) -> PyTree:
    """The tree ``a`` where ``pred`` (a boolean of rank 0) holds, else ``b``: skips a step whose gradients overflowed.

    Raises TypeError for another kind of ``pred``.
    """
    aval = get_aval(pred)
    if aval.shape != () or aval.dtype != dtypes.bool_:
        raise TypeError(f"select_tree: pred must be a boolean of rank 0, not {aval.short()}")
    return pytrees.map(lambda x, y: vnp.where(pred, x, y), a, b)
