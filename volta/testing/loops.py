"""Programs with loops and choices, each beside the same written out in Python: their bits must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from volta import lax
from volta import numpy as vnp
from volta.core import pytrees
from volta.ops.lax import dynamic_update_slice, sort


@attrs.frozen
class LoopProgram:
    """A function with loops or choices, the same written out, and arguments for both.

    ``differentiable``: in reverse too, in the arguments of float32. ``known``: what is written out can be traced, as it
    needs no argument's value.
    """

    name: str
    f: Callable[..., Any]
    written_out: Callable[..., Any]
    args: tuple[Any, ...]
    differentiable: bool = True
    known: bool = True

    @property
    def floats(self) -> tuple[int, ...]:
        """The numbers of the arguments of float32."""
        return tuple(i for i, x in enumerate(self.args) if np.asarray(x).dtype == np.float32)


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar that all results of ``f`` reach, by a slope that differs from element to element."""
    return lambda *args: sum((x * vnp.cos(x)).sum() for x in pytrees.leaves(f(*args)))


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def written_scan(f: Callable[..., Any], init: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """`scan` as a Python loop, over one array; ``f`` gives one array an iteration."""
    n, ys, carry = xs.shape[0], {}, init
    for i in reversed(range(n)) if reverse else range(n):
        carry, ys[i] = f(carry, xs[i])
    return carry, vnp.stack([ys[i] for i in range(n)])


def _cell(params: Any, h: Any, x: Any) -> Any:
    w, u, b = params
    h = vnp.tanh(h @ w + x @ u + b)
    return h, h * 2


def _recurrent(run: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    return lambda w, u, b, h, xs: run(lambda h, x: _cell((w, u, b), h, x), h, xs, **more)


_RECURRENT = (_normal(8, 8), _normal(5, 8), _normal(8), _normal(3, 8), _normal(6, 3, 5))


def _swapped(carry: Any, x: Any) -> Any:
    a, b = carry
    return (b, a * x), a + b


def _nested(run: Callable[..., Any]) -> Callable[..., Any]:
    def row(total: Any, xs: Any) -> Any:
        inner, ys = run(lambda c, x: (vnp.sin(c) + x, c * x), total, xs)
        return inner, ys.sum() + inner

    return lambda total, xs: run(row, total, xs)


def _newton(a: Any) -> Any:
    return lax.while_loop(lambda s: s[2] < 6, lambda s: (0.5 * (s[0] + s[1] / s[0]), s[1], s[2] + 1), (a, a, 0))[0]


def _newton_written_out(a: Any) -> Any:
    x = a
    for _ in range(6):
        x = 0.5 * (x + a / x)
    return x


_BRANCHES = (
    lambda x, y: (vnp.sin(x) * y, x),
    lambda x, y: (x * x * x, y),
    lambda x, y: (vnp.exp(y) * y + x, x + y),
)


def _table(rows: Any, values: Any) -> Any:
    """Writes into a part of what it carries."""
    place = dynamic_update_slice
    body = lambda i, t: place(t, values[i][None] + t[:1], (2 * i, np.int32(0)))  # noqa: E731
    return lax.fori_loop(np.int32(0), np.int32(3), body, rows)


def _table_written_out(rows: Any, values: Any) -> Any:
    for i in range(3):
        rows = dynamic_update_slice(rows, values[i][None] + rows[:1], (np.int32(2 * i), np.int32(0)))
    return rows


def _choosing(xs: Any) -> Any:
    """A choice in each iteration of a loop."""
    step = lambda c, x: (lax.cond(c.sum() > 0, lambda c: c - x * x, lambda c: c + vnp.exp(x), c), c)  # noqa: E731
    return lax.scan(step, vnp.zeros_like(xs[0]), xs)


def _choosing_written_out(xs: Any) -> Any:
    c, ys = vnp.zeros_like(xs[0]), []
    for i in range(xs.shape[0]):
        ys.append(c)
        c = vnp.where(c.sum() > 0, c - xs[i] * xs[i], c + vnp.exp(xs[i]))
    return c, vnp.stack(ys)


def _sorting(x: Any, n: Any) -> Any:
    """Library kernels in a loop of unknown length."""
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, sort(s[1] * 1.5 - s[1][::-1])), (np.int32(0), x))[1]


def _sorting_written_out(x: Any, n: Any) -> Any:
    for _ in range(int(n)):
        x = sort(x * 1.5 - x[::-1])
    return x


def loop_programs() -> tuple[LoopProgram, ...]:
    """All of them."""
    xs = _normal(5, 4)
    choices = tuple(
        LoopProgram(
            f"switch {i}",
            lambda x, y, i: lax.switch(i, _BRANCHES, x, y),
            lambda x, y, i: _BRANCHES[min(max(int(i), 0), 2)](x, y),
            (_normal(7), _normal(7, seed=1), np.int32(i)),
            known=False,
        )
        for i in (-1, 0, 1, 2, 9)
    )
    return (
        LoopProgram("recurrent", _recurrent(lax.scan), _recurrent(written_scan), _RECURRENT),
        LoopProgram("recurrent by threes", _recurrent(lax.scan, unroll=4), _recurrent(written_scan), _RECURRENT),
        LoopProgram(
            "recurrent backwards",
            _recurrent(lax.scan, reverse=True),
            _recurrent(written_scan, reverse=True),
            _RECURRENT,
        ),
        LoopProgram(
            "swapped",
            lambda a, b, xs: lax.scan(_swapped, (a, b), xs),
            lambda a, b, xs: written_scan(_swapped, (a, b), xs),
            (_normal(4), _normal(4, seed=2), xs),
        ),
        LoopProgram("nested", _nested(lax.scan), _nested(written_scan), (np.float32(0.5), xs)),
        LoopProgram("newton", _newton, _newton_written_out, (np.float32(2.0),), differentiable=False),
        LoopProgram("table", _table, _table_written_out, (_normal(7, 3), _normal(3, 3))),
        LoopProgram("choosing", _choosing, _choosing_written_out, (xs,)),
        LoopProgram(
            "powers",
            lambda x: lax.fori_loop(0, 5, lambda i, v: v * x + i, x),
            lambda x: ((((x * x) * x + 1) * x + 2) * x + 3) * x + 4,
            (_normal(4),),
        ),
        LoopProgram(
            "no iterations",
            lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x[:0]),
            lambda x: (x[0], x[:0]),
            (xs,),
        ),
        LoopProgram("sorting", _sorting, _sorting_written_out, (_normal(50), np.int32(4)), False, known=False),
        *choices,
    )  # fmt: skip
