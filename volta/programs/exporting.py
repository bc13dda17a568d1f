"""``export``: a function as a program that travels, for one size of each argument or for all sizes of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.arguments import ShapeDtypeStruct
from volta.api.jit import JitFunction, jit
from volta.api.stages import Traced
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.errors import TreeError, UnsupportedOperationError, VoltaError
from volta.core.ir import ClosedJaxpr
from volta.core.sizes import Size
from volta.core.source import at_user_line
from volta.io import structure
from volta.io.format import compact
from volta.programs.document import Reader, Writer, has_rules
from volta.programs.exported import Exported
from volta.programs.sizes import Differs, Merger, Values, said, traced_sizes
from volta.programs.symbolic import Symbolic, ranges_of
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


def _for_all_sizes(jitted: JitFunction[Any, Any], args: Any, kwargs: Any) -> Exported:
    """The function traced at several sizes, as one program of the symbols in the shapes of its arguments."""
    ranges = ranges_of([leaf.shape for leaf in pytrees.leaves((args, kwargs)) if _is_symbolic(leaf)])
    points = traced_sizes(ranges)
    traces = [_traced_at(jitted, args, kwargs, point) for point in points]
    writers = [Writer() for _ in traces]
    documents = [writer.program(traced.jaxpr) for writer, traced in zip(writers, traces, strict=True)]
    first = traces[0]
    try:
        if any(traced.out_tree != first.out_tree for traced in traces):
            raise Differs("its results have another structure")
        document = Merger(points).program(documents)
        if not all(_same_arrays(writer.constants, writers[0].constants) for writer in writers):
            raise Differs(
                "an array that it closes over, or that is made of numbers known when it is traced, is another"
            )
    except Differs as error:
        eqns = inline_calls(first.jaxpr).eqns
        source = eqns[error.equation].source if error.equation is not None and error.equation < len(eqns) else None
        where = f"\n{source.pointer()}" if source is not None else ""
        way = f"volta.symbolic_shape(..., constraints=['{next(iter(ranges))} >= 2'])"
        raise UnsupportedOperationError(
            at_user_line(
                f"export: `{first.name}` is no one program for all sizes of {', '.join(ranges)}: {error.what}. Export "
                f"it for numbers, or for fewer sizes, as {way}{where}"
            )
        ) from None
    symbolic = Symbolic(ranges, document, writers[0].constants)
    return _exported(first, symbolic.program(symbolic.least), symbolic)


def _traced_at(jitted: JitFunction[Any, Any], args: Any, kwargs: Any, point: Values) -> Traced:
    def concrete(leaf: Any) -> Any:
        if not _is_symbolic(leaf):
            return leaf
        shape = [x.at(point) if isinstance(x, Size) else x for x in leaf.shape]
        return ShapeDtypeStruct(shape, leaf.dtype, leaf.weak_type)

    given, named = pytrees.map(concrete, (args, kwargs))
    try:
        return jitted.trace(*given, **named)
    except VoltaError as error:
        error.add_note(f"This is at {said(point)}: symbolic_shape(..., constraints=[...]) says what symbols may be.")
        raise


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
