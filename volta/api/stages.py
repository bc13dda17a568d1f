"""The stages of a jitted function, each readable: traced, lowered, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from volta.api import limits
from volta.api.arguments import ShapeDtypeStruct, call_paths, value_of
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.errors import ContextError, TracerError, TreeError
from volta.core.interp import Tracer
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.core.treedefs import PyTreeDef
from volta.runtime import gateway
from volta.runtime.capabilities import LEVELS
from volta.runtime.context import current_context, execution_context
from volta.runtime.executable import Executable
from volta.runtime.parts import Parts
from volta.xla_like.counting import counts


@attrs.frozen(eq=False)
class Traced:
    """A function traced for one kind of arguments: ``jaxpr`` is its program."""

    jaxpr: ClosedJaxpr
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    name: str
    donated: tuple[int, ...]
    spread: Callable[[], Any] = lambda: None  # compiles it for several workers, if it is theirs
    keywords: bool = False  # whether the tree is one of arguments and keywords
    budget: int | None = None  # of memory; None: the context's

    @property
    def out_info(self) -> Any:
        """The output as a pytree of :class:`ShapeDtypeStruct`."""
        structs = [ShapeDtypeStruct(a.shape, a.dtype, a.weak_type) for a in self.jaxpr.out_avals]
        return self.out_tree.unflatten(structs)

    def lower(self) -> Lowered:
        """The next stage."""
        return Lowered(self)

    def as_text(self) -> str:
        """The program as text."""
        return str(self.jaxpr)

    def _repr_html_(self) -> str:
        return self.jaxpr._repr_html_()


@attrs.frozen(eq=False)
class Lowered:
    """A traced function that is ready to compile."""

    traced: Traced

    @property
    def out_info(self) -> Any:
        """The output as a pytree of :class:`ShapeDtypeStruct`."""
        return self.traced.out_info

    @property
    def in_tree(self) -> PyTreeDef:
        """The structure of the positional arguments, or of (arguments, keywords)."""
        return self.traced.in_tree

    @property
    def out_tree(self) -> PyTreeDef:
        """The structure of the output."""
        return self.traced.out_tree

    def cost_analysis(self) -> dict[str, float]:
        """What the program costs as traced: ``flops``, ``transcendentals`` (exp, sin, …) and ``bytes accessed``.

        The body of a scan counts for each iteration, that of another loop once, of a choice the dearest branch.

        >>> import volta
        >>> import volta.numpy as vnp
        >>> volta.jit(vnp.matmul).lower(vnp.ones((3, 5)), vnp.ones((5, 2))).cost_analysis()["flops"]
        60.0
        """
        return counts(self.traced.jaxpr).analysis()

    def as_text(self) -> str:
        """The program as traced, before any pass."""
        return self.traced.as_text()

    def _repr_html_(self) -> str:
        return self.traced._repr_html_()

    def compile(self) -> Compiled:
        """Compile for the arguments' shapes and dtypes, in the current execution context.

        Raises:
            UnsupportedOperationError: an operation has no kernel at the context's level.
            MemoryBudgetError: the plan's peak exceeds the context's budget.
        """
        traced = self.traced
        with execution_context(memory_budget=traced.budget):
            executable = traced.spread() or gateway.compile(traced.jaxpr, donated=traced.donated, name=traced.name)
        return Compiled(traced, executable)


@attrs.frozen
class MemoryAnalysis:
    """The bytes of a compiled function, under JAX's names."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int


@attrs.frozen(eq=False)
class Compiled:
    """A compiled function for one kind of arguments. What the executable knows (``plan``, ``peak_live_bytes``,
    ``memory_report()``, …) can be asked of it."""

    traced: Traced
    executable: Any
    _limits: limits.Limits = attrs.field(init=False)

    @_limits.default
    def _limits_of_arguments(self) -> limits.Limits:
        return limits.limits_of(self.traced.jaxpr)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run. Static arguments are left out; the others must be of the kind that was compiled for.

        Raises:
            TreeError: for another tree, shape or dtype.
            OverflowError: for a Python integer that does not fit what it meets.
            TracerError: inside of a transformation.
            ContextError: in a context whose level promises more than the level that was compiled for.
        """
        self._check_level()
        leaves, tree = pytrees.flatten((args, kwargs) if kwargs else args)
        values = [value_of(x) for x in leaves]
        if any(isinstance(x, Tracer) for x in values):
            raise TracerError(
                at_user_line(
                    f"`{self.traced.name}` is compiled: its code runs on arrays and cannot be traced, batched or "
                    "differentiated. Call the jitted function instead; it takes part in every transformation."
                )
            )
        expected = self.traced.jaxpr.in_avals
        if tree != self.traced.in_tree.spec:
            raise TreeError(
                at_user_line(
                    f"`{self.traced.name}` was compiled for arguments {self.traced.in_tree}, got {pytrees.text(tree)}. "
                    "Call the jitted function instead, which compiles for each kind of arguments."
                )
            )
        for i, (x, aval) in enumerate(zip(values, expected, strict=True)):
            if x.aval.shape != aval.shape or x.aval.dtype != aval.dtype:
                raise TreeError(
                    at_user_line(
                        f"`{self.traced.name}` was compiled for {aval.short()} as leaf {i} of its arguments, "
                        f"got {x.aval.short()}. Call the jitted function instead: it compiles for each kind."
                    )
                )
        limits.check(leaves, self._limits, self.traced.name, lambda: call_paths(args, kwargs, range(len(args))))
        return self.traced.out_tree.unflatten(self.executable(values))

    def cost_analysis(self) -> dict[str, float]:
        """What the program costs after all passes, and the bytes that the calls of its plan read and write.

        Keys and counts are those of :meth:`Lowered.cost_analysis`; a loop is one call of the plan.
        """
        found = counts(getattr(self.executable, "program", self.traced.jaxpr))
        if isinstance(self.executable, Executable):  # one plan
            plan = self.executable.plan
            moved = sum(plan.buffers[b].nbytes for call in plan.calls for b in (*call.reads, *call.writes))
            found = attrs.evolve(found, bytes_accessed=float(moved))
        return found.analysis()

    def memory_analysis(self) -> MemoryAnalysis:
        """The bytes of arguments, results, results in arguments' place, and temporaries; ``memory_report`` says more.

        >>> import volta
        >>> volta.jit(lambda x: x + 1).lower(volta.numpy.ones(16)).compile().memory_analysis().output_size_in_bytes
        64
        """
        plan = self.executable.plan
        size = {kind: sum(b.nbytes for b in plan.buffers if b.kind == kind) for kind in ("input", "output")}
        alias = sum(b.nbytes for b in plan.buffers if b.kind == "output" and b.alias is not None)
        return MemoryAnalysis(size["input"], size["output"], alias, plan.arena_bytes)

    def _check_level(self) -> None:
        """The level of a run is that of its context, so what promises less does not run in it, whatever it would do."""
        executable = self.executable
        kept = executable.level if isinstance(executable, Parts) else executable.plan.level
        asked = current_context().level
        if LEVELS.index(kept) < LEVELS.index(asked):
            name = self.traced.name
            raise ContextError(
                at_user_line(
                    f"`{name}` was compiled for determinism level {kept.value!r} and is called at level "
                    f"{asked.value!r}, which promises more. Call it inside "
                    f'`with volta.execution_context(level="{kept.value}")`, compile it at level {asked.value!r}, or '
                    "call the jitted function, which is compiled for each level."
                )
            )

    @property
    def out_info(self) -> Any:
        """The output as a pytree of :class:`ShapeDtypeStruct`."""
        return self.traced.out_info

    def _repr_html_(self) -> str:
        html: str = self.executable.plan._repr_html_()
        return html

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.executable, name)
