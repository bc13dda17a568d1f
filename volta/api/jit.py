"""``jit``: trace once for each kind of arguments, compile, and run the compiled program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, overload

import attrs
import optree

from volta.api import compile_reasons, limits
from volta.api.arguments import aval_of, call_paths, check_callable, name_of, resolve_positions, values_of
from volta.api.programs import KINDS, CallCache, FlatCall
from volta.api.shardings import Shardings
from volta.api.stages import Lowered, Traced
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary, hide_own_frames
from volta.core.errors import StaticArgumentError
from volta.core.interp import _state
from volta.core.recent import Recent
from volta.core.source import at_user_line
from volta.core.treedefs import PyTreeDef
from volta.runtime import gateway
from volta.runtime.array import ConcreteArray
from volta.runtime.context import ExecutionContext, bytes_of, current_context, execution_context
from volta.runtime.eager import scalar
from volta.runtime.sharded import ShardedArray
from volta.trace.calls import jit_p
from volta.trace.tracer import TransformTracer

P = ParamSpec("P")
R = TypeVar("R")

_LEAF = pytrees.structure(0)


class _Switch(threading.local):
    """Of a thread: how many `disable_jit` blocks it is in."""

    disabled = 0


_switch = _Switch()


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Inside the block this thread's jitted functions run operation by operation, so that values can be inspected.

    In strict mode the results have the same bits. Values inside of ``grad`` and ``vmap`` stay traced, and print with
    their numbers: a differentiated value with its own, a mapped one with those of the whole batch.

    >>> import volta
    >>> with volta.disable_jit():
    ...     y = volta.jit(lambda x: x + 1)(2.0)
    """
    before = _switch.disabled
    try:
        _switch.disabled = before + disable
        yield
    finally:
        _switch.disabled = before


def jit_is_disabled() -> bool:
    """Whether `disable_jit` holds here."""
    return _switch.disabled > 0


@attrs.frozen(eq=False, slots=True)
class _Entry:
    """What one kind of arguments needs at each call."""

    run: Callable[[Sequence[Any]], list[Any]]
    unflatten: Callable[[list[Any]], Any] | None  # None: the output is the one leaf itself
    avals: list[ShapedArray]
    context: ExecutionContext | None
    limits: limits.Limits = ()


def _no_number(x: Any) -> None:
    """What is kept for others is nothing to donate."""


_NONE = _Entry(lambda leaves: [], None, [], None)


class JitFunction(Generic[P, R]):
    """A function that is traced once for each kind of arguments, compiled, and run as one compiled program."""

    def __init__(
        self,
        fun: Callable[P, R],
        static_argnums: Any = None,
        static_argnames: Any = None,
        donate_argnums: Any = None,
        donate_argnames: Any = None,
        in_shardings: Any = None,
        out_shardings: Any = None,
        memory_budget: Any = None,
    ):
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        self._name = name_of(fun)
        self._static = resolve_positions(fun, static_argnums, static_argnames, "static_argnums")
        self._donated = resolve_positions(fun, donate_argnums, donate_argnames, "donate_argnums")
        both = set(self._static.nums) & set(self._donated.nums)
        if both:
            raise StaticArgumentError(
                at_user_line(f"argument {min(both)} of `{self._name}` is both static and donated")
            )
        self._shardings = Shardings(self._name, in_shardings, out_shardings)
        self._budget = None if memory_budget is None else bytes_of(memory_budget, "jit")
        self._plain = not self._static.any and not self._shardings.given and self._budget is None
        self._calls = CallCache(fun, self._name, self._static, "jit traces")
        self._entries: Recent[tuple[Any, ...], _Entry] = Recent(KINDS)
        # Those of arrays alone: to flatten and hash their tree would cost a µs. And of these the one that was called
        # last: to look it up would hash its key.
        self._flat: Recent[tuple[Any, ...], _Entry] = Recent(KINDS)
        self._last = _NONE

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # The road of every call but the first. Each step was measured: keep it this bare.
            if self._plain and not kwargs:
                leaves: Sequence[Any] = args
                entry: _Entry | None
                avals = [x.aval for x in args if type(x) is ConcreteArray]
                context = current_context()
                numbers = len(avals) < len(args)
                if numbers:  # or trees, or NumPy's arrays
                    leaves = self._with_numbers(args)
                    avals = [x.aval for x in leaves if x is not None]
                if len(avals) == len(args):
                    entry = self._last
                    if entry.context is not context or entry.avals != avals:
                        entry = self._flat.get((context, *avals))
                        if entry is not None:
                            self._last = entry
                else:
                    leaves, tree = optree.tree_flatten(args, None, namespace=pytrees.NAMESPACE)  # type: ignore[arg-type]
                    try:
                        entry = self._entries.get((tree, None, context, *[x.aval for x in leaves]))
                        numbers = False
                    except AttributeError:
                        leaves = self._with_numbers(leaves)
                        known = not any(x is None for x in leaves)
                        entry = self._entries.get((tree, None, context, *[x.aval for x in leaves])) if known else None
                if numbers and entry is not None and entry.limits:
                    entry = None  # they may not fit
                if entry is not None and _state.trace is None and not _switch.disabled:
                    try:
                        outs = entry.run(leaves)
                    except (AttributeError, TypeError):
                        if any(type(x) is ShardedArray for x in leaves):
                            return self._call(args, kwargs)  # it may lie in another way than those before
                        self._refuse(leaves, args)
                        raise
                    return outs[0] if entry.unflatten is None else entry.unflatten(outs)
            return self._call(args, kwargs)
        except Exception as error:
            hide_own_frames(error)
            raise

    def _with_numbers(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrays and numbers as arrays; None for what is neither, and for numbers where memory may be donated."""
        number = _no_number if self._donated.any else scalar
        return [x if type(x) is ConcreteArray else number(x) for x in leaves]

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _switch.disabled:
            return self._fun(*args, **kwargs)
        if _state.trace is not None:
            return self._calls.bind(jit_p, args, kwargs)
        if self._budget is None:
            return self._run(args, kwargs)
        with execution_context(memory_budget=self._budget):
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._calls.flatten(args, kwargs)
        self._refuse_tracers(call.leaves)
        values = call.values(self._name)
        entry = self._entry(call, values)
        limits.check(call.leaves, entry.limits, self._name, call.paths)
        outs = entry.run(values)
        return outs[0] if entry.unflatten is None else entry.unflatten(outs)

    def _entry(self, call: FlatCall, values: Sequence[Any]) -> _Entry:
        context, avals = current_context(), [x.aval for x in values]
        placed = self._shardings.key(values)
        key = (call.tree, call.extra, context, *avals, *placed)
        entry = self._entries.find(key)
        if entry is None:
            traced = self._calls.trace(call, avals)
            self._refuse_tracers(traced.hoisted)
            donated = self._donated_leaves(call)
            executable: Any = self._shardings.compiled(traced, call, values, donated) or gateway.compile(
                traced.program,
                donated=donated,
                name=self._name,
                why=lambda: self._why(key, call),
                arguments=values,
            )
            unflatten = None if traced.out_tree == _LEAF else traced.out_tree.unflatten
            entry = self._entries.keep(key, _Entry(executable, unflatten, avals, context, traced.limits))
        if self._plain and not placed and call.extra is None and call.tree == pytrees.structure((0,) * len(avals)):
            self._flat.keep((context, *avals), entry)
        return entry

    def _why(self, key: tuple[Any, ...], call: FlatCall) -> str:
        """Why a program is compiled, in words."""
        known = [*self._entries, *self._entries.old]
        return compile_reasons.again(key, known, call.paths) if known else compile_reasons.first_time(self._fun)

    def _donated_leaves(self, call: FlatCall) -> tuple[int, ...]:
        """The flat positions of donated arguments."""
        if not self._donated.any:
            return ()
        static = {i for i, _ in call.static_args}
        places = [i for i in range(len(call.args) + len(static)) if i not in static]
        flags: list[bool] = []
        for place, arg in zip(places, call.args, strict=True):
            flags += [place in self._donated.nums] * len(pytrees.leaves(arg))
        for key in sorted(call.kwargs):
            flags += [key in self._donated.names] * len(pytrees.leaves(call.kwargs[key]))
        return tuple(i for i, donated in enumerate(flags) if donated)

    @staticmethod
    def _refuse_tracers(values: Sequence[Any]) -> None:
        for x in values:
            if isinstance(x, TransformTracer):
                raise x.leak_error()

    def _refuse(self, leaves: Sequence[Any], args: Any) -> None:
        self._refuse_tracers(leaves)
        values_of(leaves, f"an argument of `{self._name}`:", lambda: call_paths(args, {}))

    # -- looking inside ------------------------------------------------------------------------------------------------

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace for arguments of this kind (arrays or :class:`ShapeDtypeStruct`), without compiling."""
        call = self._calls.flatten(args, kwargs)
        avals = [aval_of(x) for x in call.leaves]
        traced = self._calls.trace(call, avals)
        self._refuse_tracers(traced.hoisted)
        donated = self._donated_leaves(call)
        spread = functools.partial(self._shardings.compiled, traced, call, call.leaves, donated)
        return Traced(
            traced.program,
            PyTreeDef(call.tree),
            PyTreeDef(traced.out_tree),
            self._name,
            donated,
            spread,
            bool(call.kwargs),
            self._budget,
        )

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and prepare for compiling: ``jit(f).lower(*args).compile()``.

        Arguments may be arrays or :class:`ShapeDtypeStruct`.

        >>> import volta
        >>> lowered = volta.jit(lambda x: x * 2).lower(volta.ShapeDtypeStruct((3,), "float32"))
        >>> "mul" in lowered.as_text()
        True
        """
        return self.trace(*args, **kwargs).lower()

    @boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the output, without computing it."""
        traced = self.trace(*args, **kwargs)
        return traced.out_info

    def clear_cache(self) -> None:
        """Forget all traced and compiled programs of this function."""
        self._entries.clear()
        self._flat.clear()
        self._last = _NONE
        self._calls.clear()

    def cache_size(self) -> int:
        """How many kinds of arguments have been compiled for."""
        return len(self._entries)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> JitFunction[P, R]: ...
    @overload  # Concatenate would say what arguments are left, but mypy loses those of functools.partial(volta.jit, …)
    def __get__(self, instance: object, owner: Any = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<volta.jit of {self._name}>"


@overload
def jit(
    fun: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    memory_budget: int | str | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> JitFunction[P, R]: ...
@overload
def jit(
    fun: None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    memory_budget: int | str | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
@explains_keywords
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    memory_budget: int | str | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Any:
    """Compile a function of arrays. In strict mode the result has the bits of the plain call.

    ``fun`` must be pure, its arrays may be in pytrees. It is traced once for each combination of tree, shapes, dtypes
    and static values. Called inside another transform, it becomes one operation of that program.

    Args:
        static_argnums, static_argnames: arguments that are settings, not data. They must be hashable; each new value
            traces again.
        donate_argnums, donate_argnames: arguments whose memory the call may reuse for its outputs. They are gone
            afterwards.
        in_shardings: how arguments are to lie on the devices of a mesh: a ``NamedSharding``, None for as they do, or a
            pytree prefix of the positional arguments of these. Arrays that lie on a mesh need none.
        out_shardings: how results are to lie; None for as they come out.
        memory_budget: bytes, or a text as ``"8 GiB"``, that a call may take at its peak, arguments and results included
            (None: what :func:`volta.execution_context` says). A plan that would take more computes values again, so
            that it does not; no bit moves. Of a function that is called inside of another jitted one, only the outer
            one's counts.
        keep_unused, inline: accepted for programs written for JAX. Neither changes a result: arguments that a program
            does not read are never copied, and a jitted function inside of another becomes a part of its program.

    Raises:
        TracerBoolConversionError: ``fun`` branches in Python on a traced value (and the like for ``int``, NumPy).
        StaticArgumentError: a static argument cannot be hashed, or the function has no such argument.
        ShardingError: arguments cannot be cut so, or lie on several meshes.
        MemoryBudgetError: the plan needs more than its budget, whatever is computed again.

    >>> import volta
    >>> @volta.jit
    ... def f(x):
    ...     return x * x + 1
    >>> float(f(3.0))
    10.0
    """
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            memory_budget=memory_budget,
        )
    check_callable(fun, "jit")
    return JitFunction(
        fun, static_argnums, static_argnames, donate_argnums, donate_argnames, in_shardings, out_shardings,
        memory_budget,
    )  # fmt: skip
