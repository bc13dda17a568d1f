"""What a function would need, before anything runs: ``plan_for``."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from volta.api.arguments import check_callable
from volta.api.jit import JitFunction, jit
from volta.core.boundary import boundary
from volta.runtime import gateway
from volta.runtime.context import bytes_of, execution_context
from volta.xla_like.plan import ExecutionPlan


@attrs.frozen
class Forecast:
    """One line of :class:`Forecasts`: a function's plan for one profile of arguments and one budget.

    ``peak`` bytes are live at once at most; ``again`` operations run a second time for the budget, and ``more_work`` is
    their floating-point work as a share of the program's.
    """

    profile: str
    budget: int | None
    peak: int
    calls: int
    again: int
    more_work: float
    plan: ExecutionPlan = attrs.field(repr=False)

    @property
    def fits(self) -> bool:
        """Whether the plan keeps to its budget."""
        return self.budget is None or self.peak <= self.budget

    @property
    def moved(self) -> int:
        """The bytes that a plan for a GPU sends to the host's memory and has back, each way."""
        return self.plan.moved[1]


_COLUMNS = ("profile", "budget", "peak", "fits", "kernels", "again", "more work", "moved")


@attrs.frozen
class Forecasts(Sequence[Forecast]):
    """What :func:`plan_for` found; printed it is a table."""

    lines: tuple[Forecast, ...]

    def __getitem__(self, i: Any) -> Any:
        return self.lines[i]

    def __len__(self) -> int:
        return len(self.lines)

    def _rows(self) -> list[tuple[str, ...]]:
        """The names of the columns, then the cells of each line; what is moved only where something is."""
        cells = [
            (
                x.profile, "none" if x.budget is None else f"{x.budget:,}", f"{x.peak:,}", "yes" if x.fits else "no",
                str(x.calls), str(x.again), f"{100 * x.more_work:.1f}%", f"{x.moved:,}",
            )
            for x in self.lines
        ]  # fmt: skip
        return [row[: None if any(x.moved for x in self.lines) else -1] for row in (_COLUMNS, *cells)]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names, *cells = self._rows()
        head = "".join(f"<th>{c}</th>" for c in names)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@boundary
def plan_for(
    fun: Callable[..., Any],
    profiles: Mapping[str, tuple[Any, ...]] | Sequence[Any],
    memory_budgets: Sequence[int | str | None] = (None,),
) -> Forecasts:
    """What a function would take for arguments of some shapes within some budgets. Nothing runs, and no kernel is
    compiled.

    Args:
        fun: a function of arrays, jitted or not.
        profiles: arguments by the name of the profile, each a tuple of them (pytrees of arrays or of
            :class:`volta.ShapeDtypeStruct`); or one tuple of arguments.
        memory_budgets: bytes, texts as ``"8 GiB"``, or None for as much as it likes.

    Returns:
        A sequence of :class:`Forecast`, printed as a table: for each profile and budget the peak of live bytes, whether
        that fits, how many kernels run, and what is computed again, or on a GPU moved, for the budget.

    Raises:
        ContextError: a budget that is none.
        UnsupportedOperationError: an operation has no kernel at the context's level.

    >>> import volta
    >>> x = volta.ShapeDtypeStruct((1024, 1024), "float32")
    >>> print(volta.plan_for(lambda x: volta.numpy.tanh(x * x), (x,), [None, "4 MiB"]))
    profile       budget       peak  fits  kernels  again  more work
    arguments       none  8,388,608   yes        1      0       0.0%
    arguments  4,194,304  8,388,608    no        1      0       0.0%
    """
    check_callable(fun, "plan_for")
    named = dict(profiles) if isinstance(profiles, Mapping) else {"arguments": tuple(profiles)}
    jitted = fun if isinstance(fun, JitFunction) else jit(fun)
    budgets = [None if b is None else bytes_of(b, "plan_for") for b in memory_budgets]
    lines = []
    for name, args in named.items():
        traced = jitted.trace(*args)
        for budget in budgets:
            with execution_context(memory_budget=budget):
                plan = gateway.plan_here(traced.jaxpr, traced.name, traced.donated)
            lines.append(Forecast(name, budget, plan.peak_live_bytes, len(plan.calls), *plan.computed_again, plan))
    return Forecasts(tuple(lines))
