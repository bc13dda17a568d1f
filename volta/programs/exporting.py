"""``export``: a function as a program that travels, for one size of each argument or for all sizes of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from volta.api.arguments import ShapeDtypeStruct
from volta.api.jit import JitFunction, jit
from volta.api.stages import Traced
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.errors import TreeError, UnsupportedOperationError
from volta.core.ir import ClosedJaxpr
from volta.core.sizes import Size
from volta.core.source import at_user_line
from volta.io import structure
from volta.io.format import compact
from volta.programs.document import Reader, Writer, has_rules
from volta.programs.exported import Exported
from volta.programs.sizes import Differs, Merger, Values, said, traced_sizes
from volta.programs.symbolic import Ranges, Symbolic, ranges_of
from volta.xla_like.passes import inline_calls


@boundary
def export(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Exported:
    """A function as a program that travels: traced for arguments like these, to be saved in one file.

    What is loaded needs neither the function nor its source, and gives the function's bits, in any process, on any
    device. Values that the function closes over are in the program as they are now.

    Args:
        fun: a function of arrays, jitted or not; of a jitted one, static arguments are fixed and donations kept.
        args, kwargs: its arguments: pytrees of arrays, of numbers or of :class:`volta.ShapeDtypeStruct`. Containers are
            those that :func:`volta.io.load` can build: dicts, lists, tuples, namedtuples. Where sizes are symbols
            (:func:`volta.symbolic_shape`), the program is one for all of them.

    Raises:
        UnsupportedOperationError: the function calls Python (a callback) or a kernel of the user's own; or it does
            not do the same thing at all sizes of its symbols.
        ArgumentError: no size says what a symbol is, or a symbol has several constraints.
        TreeError: arguments or results in a registered class.

    >>> import os, tempfile
    >>> import volta
    >>> import volta.numpy as vnp
    >>> program = volta.export(lambda x: vnp.tanh(x) * 2, volta.ShapeDtypeStruct((3,), "float32"))
    >>> path = os.path.join(tempfile.mkdtemp(), "twice_tanh.volta")
    >>> program.save(path)
    >>> volta.load_program(path)(vnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """
    jitted = fun if isinstance(fun, JitFunction) else jit(fun)
    if any(map(_is_symbolic, pytrees.leaves((args, kwargs)))):
        return _for_all_sizes(jitted, args, kwargs)
    traced = jitted.trace(*args, **kwargs)
    writer = Writer()
    document = writer.program(traced.jaxpr)
    return _exported(traced, Reader(writer.constants).whole(document))


def _exported(traced: Traced, program: ClosedJaxpr, symbolic: Symbolic | None = None) -> Exported:
    inputs, outputs = (tree.unflatten(range(tree.num_leaves)) for tree in (traced.in_tree, traced.out_tree))
    for what, tree in (("arguments", inputs), ("results", outputs)):
        _check_containers(what, tree)
    rules = has_rules(traced.jaxpr)
    return Exported(
        traced.name, program, inputs, outputs, traced.donated, traced.keywords, rules, symbolic=symbolic
    )  # fmt: skip


def _is_symbolic(leaf: Any) -> bool:
    return isinstance(leaf, ShapeDtypeStruct) and leaf.symbolic


@attrs.frozen
class _Trace:
    """A function traced at sizes of its symbols."""

    point: Values
    traced: Traced
    document: dict[str, Any]
    constants: list[Any]


def _for_all_sizes(jitted: JitFunction[Any, Any], args: Any, kwargs: Any) -> Exported:
    """The function traced at several sizes, as one program of the symbols in the shapes of its arguments."""
    ranges = ranges_of([leaf.shape for leaf in pytrees.leaves((args, kwargs)) if _is_symbolic(leaf)])
    traces = [_traced_at(jitted, args, kwargs, point) for point in traced_sizes(ranges)]
    first = traces[0]
    try:
        document = _merged(traces)
    except Differs as error:
        raise UnsupportedOperationError(
            at_user_line(
                f"export: `{first.traced.name}` is no one program for all sizes of {', '.join(ranges)}: {error.what}. "
                f"{_way_out(traces, ranges)}{_line_of(first.traced, error.equation)}"
            )
        ) from None
    symbolic = Symbolic(ranges, document, first.constants)
    return _exported(first.traced, symbolic.program(symbolic.least), symbolic)


def _merged(traces: Sequence[_Trace]) -> dict[str, Any]:
    """Raises Differs where traces are no one program."""
    first = traces[0]
    if any(trace.traced.out_tree != first.traced.out_tree for trace in traces):
        raise Differs("its results have another structure")
    document = Merger([trace.point for trace in traces]).program([trace.document for trace in traces])
    if not all(_same_arrays(trace.constants, first.constants) for trace in traces):
        raise Differs("an array that it closes over, or that is made of numbers known when it is traced, is another")
    return document


def _way_out(traces: Sequence[_Trace], ranges: Ranges) -> str:
    """A size of 1 is often another program: nothing is broadcast, nothing is behind the first."""
    larger = [t for t in traces if all(t.point[name] > least for name, (least, _) in ranges.items())]
    constraints = [f"{name} > {least}" for name, (least, _) in ranges.items()]
    try:
        if not larger or not _merged(larger):
            raise Differs("")
    except Differs:
        return "Export it for numbers, or for sizes of which it is: volta.symbolic_shape(..., constraints=[...])"
    return f"It is one with volta.symbolic_shape(..., constraints={constraints}); export it for other sizes apart"


def _line_of(traced: Traced, equation: int | None) -> str:
    eqns = inline_calls(traced.jaxpr).eqns
    source = eqns[equation].source if equation is not None and equation < len(eqns) else None
    return f"\n{source.pointer()}" if source is not None else ""


def _traced_at(jitted: JitFunction[Any, Any], args: Any, kwargs: Any, point: Values) -> _Trace:
    def concrete(leaf: Any) -> Any:
        if not _is_symbolic(leaf):
            return leaf
        shape = [x.at(point) if isinstance(x, Size) else x for x in leaf.shape]
        return ShapeDtypeStruct(shape, leaf.dtype, leaf.weak_type)

    given, named = pytrees.map(concrete, (args, kwargs))
    try:
        traced = jitted.trace(*given, **named)
    except Exception as error:
        error.add_note(f"This is at {said(point)}: symbolic_shape(..., constraints=[...]) says what symbols may be.")
        raise
    writer = Writer()
    return _Trace(point, traced, writer.program(traced.jaxpr), writer.constants)


def _same_arrays(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        x, y = np.asarray(a), np.asarray(b)
        return a is b or (a.aval == b.aval and x.tobytes() == y.tobytes())

    return len(ones) == len(others) and all(map(same, ones, others))


def _check_containers(what: str, tree: Any) -> None:
    try:
        structure.rebuild(structure.parse(compact(structure.describe(tree)[0])), {}, None)
    except TreeError as error:
        raise TreeError(
            at_user_line(f"export: the {what} are in containers that no file can name: {str(error).partition(',')[0]}; "
                         "pass and return dicts, lists, tuples and namedtuples")
        ) from None  # fmt: skip
