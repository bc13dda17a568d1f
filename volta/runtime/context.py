"""The execution context: determinism level, memory budget and backend, explicit and printed with every plan."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from volta.core.errors import ContextError
from volta.core.policy import DeterminismLevel, product_precision, use_precision
from volta.core.source import at_user_line
from volta.xla_like.compile import CompileOptions


@attrs.frozen(cache_hash=True)
class ExecutionContext:
    """What a compilation is for.

    ``memory_budget`` bounds a plan's peak live bytes (None: no bound), ``device`` is the number of the GPU where the
    backend is 'cuda', ``matmul_precision`` is that of products that name none (`default_matmul_precision`), ``kernels``
    is how they are made, one of `KERNELS`, ``refused`` is what no result may have (`debug_nans`, `debug_infs`).
    """

    level: DeterminismLevel = DeterminismLevel.STRICT
    backend: str = "cpu"
    memory_budget: int | None = None
    options: CompileOptions = attrs.field(factory=CompileOptions)
    device: int = 0
    matmul_precision: str | None = None
    kernels: str = "llvm"
    refused: tuple[str, ...] = ()


ON_GPUS = "cuda.jit"
"""Kernels that are functions of numba-cuda, and run plans on GPUs alone."""

KERNELS = ("llvm", "njit", "python", ON_GPUS)
"""How a plan's kernels are made: as LLVM; on the CPU as Numba functions, or as the Python that these are written in; on
a GPU as functions of numba-cuda."""


def _checked_kernels(kernels: Any, asked: str) -> str:
    if kernels in KERNELS:
        return str(kernels)
    text = f"{asked}: there are no kernels {kernels!r}; there are {', '.join(map(repr, KERNELS))}"
    raise ContextError(at_user_line(text))


def _default() -> ExecutionContext:
    setting = os.environ.get("VOLTA_KERNELS")
    return ExecutionContext(kernels=_checked_kernels(setting, "VOLTA_KERNELS") if setting else "llvm")


_current: ContextVar[ExecutionContext] = ContextVar("volta_execution_context", default=_default())  # noqa: B039


current_context: Callable[[], ExecutionContext] = _current.get
"""The context that compilations in this thread use now. (Every call of a jitted function asks: it costs no frame.)"""


@contextmanager
def use_context(context: ExecutionContext) -> Iterator[None]:
    """Compile for this context inside the block."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def use_backend(backend: str, device: int = 0) -> Iterator[None]:
    """Compile for another backend, or another device of it, inside the block."""
    token = _current.set(attrs.evolve(current_context(), backend=backend, device=device))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def execution_context(
    level: DeterminismLevel | str | None = None,
    memory_budget: int | str | None = None,
    options: CompileOptions | None = None,
    kernels: str | None = None,
) -> Iterator[ExecutionContext]:
    """Use another determinism level, memory budget, compile options or kernels inside the block.

    ``memory_budget`` is a number of bytes, or a text as ``"8 GiB"``: a plan that would need more computes values again
    until it does not (docs/budgets.md), and is refused where that is not enough.
    What is not given stays as it is outside. ``kernels`` says how plans are run, with the same bits: by ``"llvm"`` that
    Volta writes (the default, and the fast way); on the CPU as ``"njit"`` functions that Numba compiles, or by
    ``"python"``, which runs the text of these as it stands, for a debugger; on a GPU as ``"cuda.jit"`` functions, which
    numba-cuda compiles (docs/numba.md). Kernels of one kind run no plan for the other kind of device.

    Raises:
        ContextError: a level that is none, a budget that is no number of bytes, or kernels that are none. A ValueError
            too.

    >>> import volta
    >>> with volta.execution_context(memory_budget=10**9):
    ...     pass
    """
    context = current_context()
    changes: dict[str, object] = {}
    if level is not None:
        changes["level"] = _level(level)
    if memory_budget is not None:
        changes["memory_budget"] = bytes_of(memory_budget, "execution_context")
    if options is not None:
        changes["options"] = options
    if kernels is not None:
        changes["kernels"] = _checked_kernels(kernels, "execution_context")
    token = _current.set(attrs.evolve(context, **changes))  # type: ignore[arg-type]
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def _level(level: Any) -> DeterminismLevel:
    try:
        return DeterminismLevel(level)
    except ValueError:
        levels = ", ".join(repr(x.value) for x in DeterminismLevel)
        text = f"execution_context: there is no determinism level {level!r}; there are {levels}"
        raise ContextError(at_user_line(text)) from None


_UNITS = {
    "B": 1, **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("kMGT")}, "KB": 1000,
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}  # fmt: skip
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*\Z")


def bytes_of(budget: Any, what: str) -> int:
    """A number of bytes, or a text as ``"8 GiB"``, as an integer.

    Raises:
        ContextError: it is neither; ``what`` says whose budget it is.
    """
    if isinstance(budget, (int, np.integer)) and not isinstance(budget, bool) and budget >= 0:
        return int(budget)
    match = _AMOUNT.match(budget) if isinstance(budget, str) else None
    if match and match[2] in _UNITS:
        return int(Fraction(match[1]) * _UNITS[match[2]])
    text = f"{what}: memory_budget must be a number of bytes, as 10**9 or '8 GiB', not {budget!r}"
    raise ContextError(at_user_line(text))


@contextmanager
def default_matmul_precision(precision: Any) -> Iterator[None]:
    """The precision of products inside the block that name none; ``"bfloat16"``, ``"highest"``, ``"exact"``, …

    As in JAX it counts while a function is traced. ``"float32"`` is what Volta does without it. Precisions of tensor
    cores need a determinism level below strict (:func:`execution_context`).

    >>> import volta
    >>> with volta.default_matmul_precision("highest"):
    ...     y = volta.numpy.ones((2, 3)) @ volta.numpy.ones((3, 2))
    """
    precision = product_precision("default_matmul_precision", "default" if precision is None else precision)
    token = _current.set(attrs.evolve(current_context(), matmul_precision=precision))
    try:
        with use_precision(precision):
            yield
    finally:
        _current.reset(token)
