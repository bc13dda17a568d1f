"""What one task of a panel does, whatever its kind: a matrix, or some columns of right sides of one."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit import panels, reflections
from volta.emit.loops import I32, I64, minimum
from volta.emit.panels import at
from volta.xla_like.panels import PanelSpec

ARRAYS = {"cholesky": 2, "substitute": 3, "lu": 5, "qr": 4}
"""How many arrays a kind of panel reads and writes."""


def run_task(
    crew: reflections.Crew, spec: PanelSpec, arrays: Sequence[ir.Value], task: ir.Value, width: ir.Value,
    length: ir.Value, columns: int,
) -> None:  # fmt: skip
    """``columns``: of right sides that a task of a substitution has."""
    b, dtype = crew.b, spec.dtype.name

    def of(array: ir.Value, item: ir.Value, rows: ir.Value, columns: ir.Value, kind: str = dtype) -> ir.Value:
        return at(b, array, b.mul(item, b.mul(rows, columns)), kind)

    if spec.kind == "cholesky":
        source, out = (of(x, task, width, width) for x in arrays)
        panels.cholesky(crew, dtype, source, out, width)
    elif spec.kind == "substitute":
        each = b.sdiv(b.add(length, I64(columns - 1)), I64(columns))
        item = b.sdiv(task, each)
        start = b.mul(b.sub(task, b.mul(item, each)), I64(columns))
        triangle = of(arrays[0], item, width, width)
        source, out = (of(x, item, width, length) for x in arrays[1:])
        stop = minimum(b, b.add(start, I64(columns)), length)
        panels.substitute(crew, dtype, spec.unit, triangle, source, out, width, length, start, stop)
    elif spec.kind == "qr":
        source, first, out, factors = arrays
        start = b.sext(b.load(first, align=4, typ=I32), I64)
        reflections.reflect(
            crew, dtype, of(source, task, width, length), start, of(out, task, width, length),
            of(factors, task, I64(1), width), width, length,
        )  # fmt: skip
    else:
        source, first, out, moved, chosen = arrays
        start = b.sext(b.load(first, align=4, typ=I32), I64)
        panels.lu(
            crew, dtype, of(source, task, width, length), start, of(out, task, width, length),
            of(moved, task, I64(1), length, "int32"), of(chosen, task, I64(1), width, "int32"), width, length,
        )  # fmt: skip
