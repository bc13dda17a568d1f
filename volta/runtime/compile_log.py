"""What is compiled, why, and how long it takes, said on request: by ``log_compiles`` or ``VOLTA_LOG_COMPILES=1``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter

import attrs

from volta.core.ir import ClosedJaxpr
from volta.core.source import user_source
from volta.xla_like.plan import ExecutionPlan

LOG = logging.getLogger("volta")

_wanted: ContextVar[bool] = ContextVar("volta_log_compiles", default=os.environ.get("VOLTA_LOG_COMPILES", "0") != "0")

wanted: Callable[[], bool] = _wanted.get
"""Whether compilations in this thread are said now."""


@contextmanager
def log_compiles(enable: bool = True) -> Iterator[None]:
    """Say of each program compiled inside the block what it is, why it is compiled, and how long that takes.

    The lines go to the logger ``volta`` as warnings, so they are seen without further settings. Programs that are known
    already are not compiled, and nothing is said of them. ``VOLTA_LOG_COMPILES=1`` in the environment does so for a
    whole process.

    >>> import volta
    >>> with volta.log_compiles():
    ...     y = volta.jit(lambda x: x + 1)(2.0)
    """
    token = _wanted.set(enable)
    try:
        yield
    finally:
        _wanted.reset(token)


@attrs.define
class Watch:
    """One compilation: when it began, and when its plan was ready."""

    program: ClosedJaxpr
    name: str
    place: str
    why: Callable[[], str] | None
    began: float = attrs.field(factory=perf_counter)
    planned: float = 0.0

    def done(self, plan: ExecutionPlan) -> None:
        """Say it, if that is wanted."""
        asked, self.why = self.why, None  # it knows the arguments, which nothing compiled may keep
        if not wanted():
            return
        end = perf_counter()
        took = f"{_ms(end - self.began)} (plan {_ms(self.planned - self.began)}, code {_ms(end - self.planned)})"
        kinds = ", ".join(aval.short() for aval in self.program.in_avals)
        why = asked() if asked else "compiled ahead of time"
        source = user_source()
        LOG.warning(
            "compiled `%s` for (%s) on %s in %s, kernel calls: %d; %s%s",
            self.name, kinds, self.place, took, len(plan.calls), why, f"\n{source.pointer()}" if source else "",
        )  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
