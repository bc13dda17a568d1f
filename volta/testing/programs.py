"""Programs as data: small graphs of operations that can be printed, replayed and run under any transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta.api.checkpointing import checkpoint
from volta.api.jit import jit
from volta.core import dtypes
from volta.nn import dot_product_attention, log_softmax, softmax
from volta.ops import lax

Apply = Callable[..., Any]


@attrs.frozen
class Operation:
    """A function of arrays and of ``params``. ``smooth``: it may stand in a program that is differentiated."""

    name: str
    arity: int
    apply: Apply
    smooth: bool = True


@attrs.frozen
class Step:
    """One operation of a program on earlier values, by their numbers (inputs first)."""

    operation: str
    operands: tuple[int, ...]
    params: tuple[Any, ...] = ()


@attrs.frozen
class Program:
    """A graph of steps. Calling it with arrays like ``inputs`` (shape, dtype name) gives the values ``outputs``.

    >>> p = Program((((3,), "float32"),), (Step("tanh", (0,)), Step("sum", (1,), ((0,), False))), (2,))
    >>> p(np.zeros(3, np.float32))
    (Array(0., dtype=float32),)
    """

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        values: list[Any] = [vnp.asarray(x) for x in args]
        for step in self.steps:
            values.append(OPERATIONS[step.operation].apply(*(values[i] for i in step.operands), *step.params))
        return tuple(values[i] for i in self.outputs)

    def loss(self, *args: Any) -> Any:
        """A scalar of all float outputs, to differentiate."""
        total = None
        for x in self(*args):
            if dtypes.is_float(x.dtype):
                part = vnp.sum(vnp.tanh(x).astype(np.float32))
                total = part if total is None else total + part
        return vnp.zeros((), np.float32) if total is None else total


def _matched(f: Apply) -> Apply:
    """A function of two arrays whose second takes the first's dtype."""
    return lambda x, y: f(x, vnp.asarray(y).astype(x.dtype))


def _floating(f: Apply) -> Apply:
    """A function of a float array; others become float32."""
    return lambda x, *params: f(x if dtypes.is_float(x.dtype) else x.astype(np.float32), *params)


def _arithmetic(f: Apply) -> Apply:
    """A function of numbers; booleans become int32."""
    return lambda x, *params: f(x.astype(np.int32) if x.dtype == np.bool_ else x, *params)


def _layer_norm(x: Any, axis: int) -> Any:
    d = x - vnp.mean(x, axis, keepdims=True)
    return d / vnp.sqrt(vnp.mean(d * d, axis, keepdims=True) + 1e-3)


def _take(x: Any, i: Any, axis: int) -> Any:
    return vnp.take(x, vnp.ravel(i).astype(np.int32), axis=axis, mode="fill")


def _scatter(x: Any, y: Any, i: Any, op: str) -> Any:
    """Rows of ``x`` at the places ``i`` combined with the (broadcast) ``y``; places out of range are dropped."""
    where = vnp.ravel(i).astype(np.int32)
    y = vnp.broadcast_to(vnp.sum(y, dtype=y.dtype).astype(x.dtype), where.shape + x.shape[1:])
    factors = vnp.reshape(where.astype(x.dtype), where.shape + (1,) * (x.ndim - 1))
    return lax.scatter(x, y * factors, [where], (0,), op=op)


def _matmul(x: Any, y: Any, flip_x: bool, flip_y: bool) -> Any:
    """A matrix product after making the inner dimensions agree by cutting the longer one."""
    y = y.astype(x.dtype)
    a = vnp.swapaxes(x, -1, -2) if flip_x else x
    b = vnp.swapaxes(y, -1, -2) if flip_y else y
    k = min(a.shape[-1], b.shape[-2])
    return a[..., :k] @ b[..., :k, :]


def _attend(x: Any, causal: bool) -> Any:
    """Attention of an array to itself read backwards: (T, H), (T, N, H) or (B, T, N, H)."""
    q = vnp.tanh(vnp.expand_dims(x, 1) if x.ndim == 2 else x)
    out = dot_product_attention(q, vnp.flip(q, -3) * 2, vnp.sin(q), is_causal=causal)
    return vnp.reshape(out, x.shape)


def _dynamic_slice(x: Any, i: Any, axis: int) -> Any:
    start = vnp.sum(i.astype(np.int32))
    return lax.dynamic_slice_in_dim(x, start, max(1, x.shape[axis] // 2), axis)


def _mirror(x: Any, axes: tuple[int, ...]) -> Any:
    """A value meets itself at another place: what reads it both ways cannot be one loop with what makes it."""
    y = vnp.tanh(x)
    return y + vnp.sin(vnp.flip(y, axes))


def _swapped(x: Any, i: int, j: int) -> Any:
    """The same with two axes exchanged, cut to a common square."""
    n = min(x.shape[i], x.shape[j])
    y = vnp.tanh(lax.slice_in_dim(lax.slice_in_dim(x, 0, n, axis=i), 0, n, axis=j))
    return y * vnp.cos(vnp.swapaxes(y, i, j))


def _looked_up(x: Any, axis: int) -> Any:
    y = vnp.tanh(x)
    return y - vnp.take(y, vnp.arange(x.shape[axis])[::-1], axis=axis)


def _two_sums(x: Any, i: int, j: int) -> Any:
    """Sums along two axes, spread again."""
    y = vnp.tanh(x)
    return y * vnp.sum(y, i, keepdims=True) + vnp.sum(vnp.sin(y), j, keepdims=True)


def _wrapped(wrap: Any) -> Apply:
    return _floating(lambda x: wrap(lambda v: vnp.tanh(v) * vnp.sum(v))(x))


def _pair(name: str) -> Apply:
    f = _matched(getattr(vnp, name))
    return lambda x, y: _arithmetic(lambda v: f(v, y))(x)


def _reduce(name: str) -> Apply:
    f = getattr(vnp, name)
    return lambda x, axes, keep: f(x, axes, keepdims=keep)


def _scan(name: str) -> Apply:
    f = getattr(lax, name)
    return _arithmetic(lambda x, axis, reverse: f(x, axis, reverse=reverse))


def _table() -> dict[str, Operation]:
    found: dict[str, Operation] = {}

    def enter(name: str, arity: int, apply: Apply, smooth: bool = True) -> None:
        found[name] = Operation(name, arity, apply, smooth)

    for name in ("exp", "tanh", "sin", "log1p", "sqrt", "cbrt", "expm1"):
        enter(name, 1, _floating(getattr(vnp, name)))
    for name in ("erf", "logistic", "rsqrt"):
        enter(name, 1, _floating(getattr(lax, name)))
    for name in ("negative", "abs", "square", "sign"):
        enter(name, 1, _arithmetic(getattr(vnp, name)))
    enter("floor", 1, _floating(vnp.floor))
    for name in ("add", "multiply", "subtract", "maximum", "minimum"):
        enter(name, 2, _pair(name))
    enter("divide", 2, lambda x, y: _floating(lambda a: a / (1 + vnp.square(y.astype(a.dtype))))(x))
    for name in ("less", "equal"):
        enter(name, 2, _matched(getattr(vnp, name)), smooth=False)
    enter("where", 3, lambda c, x, y: vnp.where(c.astype(bool), x, vnp.asarray(y).astype(x.dtype)))
    enter("convert", 1, lambda x, dtype: x.astype(dtype))
    for name in ("sum", "prod", "max", "min"):
        enter(name, 1, _reduce(name))
    enter("mean", 1, _floating(lambda x, axes, keep: vnp.mean(x, axes, keepdims=keep)))
    enter("any", 1, lambda x, axes, keep: vnp.any(x.astype(bool), axes, keepdims=keep), smooth=False)
    enter("argmax", 1, lambda x, axis: vnp.argmax(x, axis), smooth=False)
    enter("argmin", 1, lambda x, axis: vnp.argmin(x, axis), smooth=False)
    enter("centre", 1, _floating(lambda x, axes: x - vnp.mean(x, axes, keepdims=True)))
    enter("softmax", 1, _floating(lambda x, axis: softmax(x, axis)))
    enter("log_softmax", 1, _floating(lambda x, axis: log_softmax(x, axis)))
    enter("layer_norm", 1, _floating(_layer_norm))
    enter("transpose", 1, lambda x, order: vnp.transpose(x, order))
    enter("reshape", 1, lambda x, shape: vnp.reshape(x, shape))
    enter("broadcast", 1, lambda x, shape: vnp.broadcast_to(x, shape))
    enter("slice", 1, lambda x, start, limit, step: lax.slice(x, start, limit, step))
    enter("flip", 1, lambda x, axes: vnp.flip(x, axes))
    enter("concatenate", 2, lambda x, y, axis: vnp.concatenate([x, y.astype(x.dtype), x], axis))
    enter("pad", 1, lambda x, config: lax.pad(x, vnp.zeros((), x.dtype), config))
    enter("take", 2, _take)
    enter("scatter", 3, _arithmetic(_scatter))
    enter("dynamic_slice", 2, _dynamic_slice)
    for name in ("cumsum", "cumprod", "cummax"):
        enter(name, 1, _scan(name))
    enter("sort", 1, lambda x, axis: vnp.sort(x, axis))
    enter("argsort", 1, lambda x, axis: vnp.argsort(x, axis), smooth=False)
    enter("matmul", 2, lambda x, y, fx, fy: _arithmetic(lambda v: _matmul(v, y, fx, fy))(x))
    enter("attention", 1, _floating(_attend))
    enter("index", 1, lambda x, axis: x + lax.broadcasted_iota(np.int32, x.shape, axis).astype(x.dtype))
    enter("mirror", 1, _floating(_mirror))
    enter("swapped", 1, _floating(_swapped))
    enter("looked_up", 1, _floating(_looked_up))
    enter("two_sums", 1, _floating(_two_sums))
    enter("barrier", 1, lambda x: lax.optimization_barrier(x)[0])
    enter("jit", 1, _wrapped(jit))
    enter("checkpoint", 1, _wrapped(checkpoint))
    return found


OPERATIONS: dict[str, Operation] = _table()
"""What random programs are made of, by name."""
