"""Scaling models: what a configuration costs before anything runs, and batches that are larger than memory.

Losses that are scaled for float16 are in `volta.optim` (`StaticLossScale`, `DynamicLossScale`).

>>> from volta import models, scaling
>>> gpt2 = models.Config(50257, 768, 12, 12, 12, 64, 3072, context=1024, kind="gpt2")
>>> found = scaling.estimate(gpt2, batch=8, length=1024, rates=scaling.Rates(operations=5e13, bytes=3e12))
>>> found.parameters
124439808
>>> round(found.steps_per_second, 2)
7.33
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs
import numpy as np

import volta.numpy as vnp
from volta.api.arguments import check_callable
from volta.api.jit import JitFunction, jit
from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import ArgumentError
from volta.core.recent import Recent
from volta.core.sharding import Cut, Layout, even_bounds
from volta.core.source import at_user_line
from volta.models.decoder import Config
from volta.runtime.context import current_context
from volta.runtime.turns import AXIS, Turns

P = ParamSpec("P")
R = TypeVar("R")

_KEPT = 64
"""Kinds of arguments that an accumulated function is compiled for at once."""

_TRAINING = 3
"""A training step's products are a forward pass's three times: the results', and both operands' gradients."""


@attrs.frozen
class Rates:
    """What a machine does in a second: floating-point ``operations`` of large products, ``bytes`` read and written."""

    operations: float
    bytes: float


@attrs.frozen
class Part:
    """A part of a model, ``count`` times: its parameters and the operations of a forward pass, of all of them."""

    name: str
    count: int
    parameters: int
    operations: int


@attrs.frozen
class Estimate:
    """What :func:`estimate` found; printed it is a table.

    ``operations`` are those of a step, ``state_bytes`` those of parameters, gradients and the optimizer's state,
    ``kept_bytes`` those of what the forward pass keeps for the backward one, if nothing is computed again.
    """

    parts: tuple[Part, ...]
    operations: int
    state_bytes: int
    kept_bytes: int
    rates: Rates

    @property
    def parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(part.parameters for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes that a training step holds, if nothing is computed again."""
        return self.state_bytes + self.kept_bytes

    @property
    def steps_per_second(self) -> float:
        """By the model that operations and bytes take turns: each byte that is held is written once and read once."""
        return 1 / (self.operations / self.rates.operations + 2 * self.bytes / self.rates.bytes)

    def __str__(self) -> str:
        lines = [f"{'part':<12}{'count':>6}{'parameters':>18}{'operations':>22}"]
        lines += [f"{p.name:<12}{p.count:>6}{p.parameters:>18,}{p.operations:>22,}" for p in self.parts]
        lines.append(f"{'a step':<12}{'':>6}{self.parameters:>18,}{self.operations:>22,}")
        lines.append(f"{self.state_bytes:,} bytes of state, {self.kept_bytes:,} kept for the backward pass")
        return "\n".join([*lines, f"{self.steps_per_second:.3g} steps a second"])


def estimate(config: Config, batch: int, length: int, *, rates: Rates, moments: int = 2, itemsize: int = 4) -> Estimate:
    """What training a decoder costs, from its configuration alone.

    Args:
        config: the decoder's shape.
        batch, length: texts in a step, and tokens in each.
        rates: the machine's, as :func:`measured_rates` finds them, or a data sheet's.
        moments: numbers that the optimizer keeps for each parameter: 2 for Adam, 1 for momentum, 0 for plain descent.
        itemsize: bytes of a number.

    Raises:
        ArgumentError: sizes that are not positive, or more tokens than the decoder's context.
    """
    if min(batch, length, itemsize) < 1 or moments < 0 or length > config.context:
        text = f"batch {batch}, length {length} (of at most {config.context}), itemsize {itemsize}, moments {moments}"
        raise ArgumentError(at_user_line(f"scaling.estimate: {text} must be positive"))
    parts, tokens = _parts(config, batch, length), batch * length
    c, gated = config, config.kind == "llama"
    kept = c.width * 4 + (2 * c.heads + 2 * c.key_heads) * c.head_size + (3 if gated else 2) * c.hidden
    number = sum(p.parameters for p in parts)
    operations = _TRAINING * sum(p.operations for p in parts) + (2 + 4 * moments) * number
    return Estimate(
        parts, operations, itemsize * number * (2 + moments),
        itemsize * tokens * (c.layers * kept + c.width + c.vocabulary), rates,
    )  # fmt: skip


def _parts(c: Config, batch: int, length: int) -> tuple[Part, ...]:
    """A decoder's parts. Attention counts what a causal mask leaves."""
    tokens, gpt2 = batch * length, c.kind == "gpt2"
    inner, keys, norm = c.heads * c.head_size, c.key_heads * c.head_size, c.width * (2 if gpt2 else 1)
    seen = sum(min(t + 1, c.window or t + 1) for t in range(length))

    def products(*shapes: tuple[int, int]) -> tuple[int, int]:
        return sum(m * n + (n if gpt2 else 0) for m, n in shapes), sum(2 * tokens * m * n for m, n in shapes)

    attention, its_work = products((c.width, inner), (c.width, keys), (c.width, keys), (inner, c.width))
    ways = [(c.width, c.hidden)] * (1 if gpt2 else 2)
    block, block_work = products(*ways, (c.hidden, c.width))
    tables = c.vocabulary * c.width + (c.context * c.width if gpt2 else 0)
    return (
        Part("embedding", 1, tables, 0),
        Part("attention", c.layers, c.layers * (attention + norm), c.layers * (its_work + 4 * batch * seen * inner)),
        Part("block", c.layers, c.layers * (block + norm), c.layers * block_work),
        Part("output", 1, norm, 2 * tokens * c.width * c.vocabulary),
    )


def measured_rates(size: int = 1024) -> Rates:
    """What this machine does, in the current context: a product of ``size`` cubed in float32, and an array of 16 times
    its bytes that is read and written. The fastest of five runs each."""
    x = vnp.ones((size, size), np.float32)
    many = vnp.ones((16 * size, size), np.float32)

    def seconds(f: Callable[..., Any], *args: Any) -> float:
        f(*args).block_until_ready()
        taken = []
        for _ in range(5):
            begin = perf_counter()
            f(*args).block_until_ready()
            taken.append(perf_counter() - begin)
        return min(taken)

    product, copy = jit(lambda x: x @ x), jit(lambda x: x + 1)
    return Rates(2 * size**3 / seconds(product, x), 2 * many.nbytes / seconds(copy, many))


def accumulate(fun: Callable[P, R], parts: int, argnums: int | Sequence[int]) -> Callable[P, R]:
    """A function computed part by part of a batch, with the bits that the whole batch gives.

    The arguments in ``argnums`` are cut along their first dimension. Each part's share of the work is done before the
    next one's, so what a step holds besides its arguments and results is there for one part at a time; what is kept
    are the parts' terms of each sum over the batch, and values that all of them need. The sums are joined as
    docs/determinism.md defines them, so no bit depends on ``parts``. Where a sum's block of 4096 terms lies in two
    parts, terms of one are handed to the other.

    Args:
        fun: a pure function of pytrees of arrays, such as ``volta.value_and_grad(loss)``.
        parts: into how many.
        argnums: the positions of the arguments that are batches; their arrays have the batch first.

    Returns:
        A function of what ``fun`` takes, by position. It is compiled and runs at once: it takes no part in
        transformations.

    Raises:
        TypeError: ``fun`` is no function.
        ArgumentError: ``parts`` or ``argnums`` that are none; when it is called, a batch with fewer rows than parts.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> def loss(w, x):
    ...     return vnp.mean(vnp.tanh(x @ w) ** 2)
    >>> w, x = vnp.full((3, 2), 0.1), vnp.ones((16384, 3))
    >>> step = volta.scaling.accumulate(volta.value_and_grad(loss), 4, argnums=1)
    >>> whole = volta.jit(volta.value_and_grad(loss))(w, x)
    >>> step(w, x)[1].tobytes() == whole[1].tobytes()
    True
    """
    check_callable(fun, "scaling.accumulate")
    cut = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1 or not cut or min(cut) < 0:
        text = (
            f"scaling.accumulate: parts must be a positive integer and argnums positions, got {parts!r} and {argnums!r}"
        )
        raise ArgumentError(at_user_line(text))
    jitted = fun if isinstance(fun, JitFunction) else jit(fun)
    made: Recent[Any, Turns] = Recent(_KEPT)

    def accumulated(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs or max(cut) >= len(args):
            text = f"{len(args)} positional arguments and {len(kwargs)} by name"
            raise ArgumentError(at_user_line(f"scaling.accumulate: argnums {cut} are positions, and here are {text}"))
        traced = jitted.trace(*args)
        leaves, layouts = _cut(args, cut, parts)
        key = (traced.jaxpr, current_context())
        turns = made.find(key)
        if turns is None:
            turns = made.keep(key, Turns(traced.jaxpr, parts, layouts, traced.name))
        found: R = traced.out_tree.unflatten(turns(leaves))
        return found

    return accumulated


def _cut(args: Sequence[Any], cut: Sequence[int], parts: int) -> tuple[list[Any], list[Layout | None]]:
    """The leaves of arguments, and how each is cut (None: not at all)."""
    leaves: list[Any] = []
    layouts: list[Layout | None] = []
    for i, x in enumerate(args):
        own = pytrees.leaves(x)
        leaves += own
        for leaf in own:
            shape = np.shape(leaf)
            if i in cut and (not shape or shape[0] < parts):
                text = f"scaling.accumulate: argument {i} has an array of shape {shape}, to be cut into {parts} parts"
                raise ArgumentError(
                    at_user_line(f"{text}: its first dimension is the batch, with a row for each at least")
                )
            rest = (None,) * (len(shape) - 1)
            layouts.append((Cut((AXIS,), even_bounds(shape[0], parts)), *rest) if i in cut else None)
    return leaves, layouts


__all__ = ["Estimate", "Part", "Rates", "accumulate", "estimate", "measured_rates"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
