"""Matrix products as text: chains of 256 fused multiply-adds, 16 of them a block, blocks joined in a tree of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volta.emit.builder import HALF_DTYPES, Value, compute_dtype, is_float
from volta.emit.dot_args import Arg
from volta.emit.reducers import Reducer
from volta.numba_cpu.dot_schedule import TileSpec, Tiling
from volta.numba_source.bodies import calculated_read
from volta.numba_source.builder import TextBuilder, array_dtype
from volta.numba_source.functions import calculated, expression
from volta.numba_source.python_ir import text_of
from volta.numba_source.reductions import TREE, ReductionText
from volta.numba_source.text import Lines, Module
from volta.xla_like.dot import BLOCK, CHUNK, DotSpec, item_size

_COLUMNS = 64
"""Columns whose chains run side by side."""

_PLACES = {x.name.lower(): int(x) for kind in (Arg, Tiling) for x in kind}

_WORDS = {
    "sizes": "batch1 m n k",
    "lhs": "lhs lhs_batch0 lhs_batch1 lhs_m lhs_k",
    "rhs": "rhs rhs_batch0 rhs_batch1 rhs_k rhs_n",
    "out": "out out_batch0 out_batch1 out_m",
    "rows and columns of a task": "task_rows task_cols",
}


def dot_text(spec: DotSpec, module: Module, notes: Mapping[int, str]) -> list[str]:
    """``out[i, j]`` = the sum over p of ``lhs[i, p] * rhs[p, j]``, for each batch item."""
    lines = Lines()
    b = TextBuilder(lines, module)
    kind = spec.accumulator
    zero = text_of(b.const(kind, 0).ir)
    reduction = ReductionText(module, Reducer("sum", kind))
    _name_words(lines, list(_WORDS))
    if isinstance(spec, TileSpec) and spec.quads:
        lines.line("k, lhs_k, rhs_k = 4 * k, 1, 1", "of words of four bytes each")
    array = array_dtype(kind)
    lines.line(f"chain, panel = np.empty({_COLUMNS}, {array}), np.empty(({CHUNK}, {_COLUMNS}), {array})")
    lines.line("depth = 2", "how many blocks wait at once, at most")
    with lines.block(f"while {BLOCK} << (depth - 2) < k:"):
        lines.line("depth += 1")
    lines.line("row_tasks, col_tasks = (m + task_rows - 1) // task_rows, (n + task_cols - 1) // task_cols")
    with lines.block(f"for task in {module.dialect.tasks}:"):
        lines.line("band, low = task // row_tasks, task % row_tasks * task_rows")
        lines.line("item, left = band // col_tasks, band % col_tasks * task_cols")
        _name_items(lines)
        lines.line("rows = min(task_rows, m - low)")
        lines.line(f"total = np.empty((rows, {_COLUMNS}), {array})")
        lines.line(f"waiting = np.empty((rows, {_COLUMNS}, depth), {array})")
        with lines.block(f"for first in range(left, min(left + task_cols, n), {_COLUMNS}):"):
            lines.line(f"width = min({_COLUMNS}, min(left + task_cols, n) - first)")
            lines.line(f"top, after, total[:] = 0, 0, {zero}")
            with lines.block(f"for block in range(0, max(k, 1), {BLOCK}):"):
                with lines.block(f"for chunk in range(block, min(block + {BLOCK}, k), {CHUNK}):"):
                    lines.line(f"steps = min({CHUNK}, k - chunk)")
                    with lines.block("for p in range(steps):"), lines.block("for j in range(width):"):
                        y = _operand(b, "y", "rhs_item", "(chunk + p) * rhs_k + (first + j) * rhs_n", spec.rhs, kind)
                        lines.line(f"panel[p, j] = {text_of(y.ir)}")
                    with lines.block("for i in range(rows):"):
                        lines.line(f"chain[:] = {zero}")
                        with lines.block("for p in range(steps):"):
                            x = _operand(b, "x", "lhs_item", "(low + i) * lhs_m + (chunk + p) * lhs_k", spec.lhs, kind)
                            with lines.block("for j in range(width):", "side by side: a chain a column"):
                                values = [x, b.token("panel[p, j]", kind), b.token("chain[j]", kind)]
                                calculated(b, "multiply_add", _multiply_add, values, ["chain[j]"])
                        with lines.block("for j in range(width):"):
                            both = _sum(b, "total[i, j]", "chain[j]", kind)
                            lines.line(f"total[i, j] = chain[j] if chunk == block else {both}")
                with lines.block("for i in range(rows):"), lines.block("for j in range(width):"):
                    lines.line(f"after = {reduction.pushed(f'block // {BLOCK}', ['total[i, j]'], ['waiting[i, j]'])}")
                lines.line("top = after")
            with lines.block("for i in range(rows):"), lines.block("for j in range(width):"):
                (total,) = reduction.states(b, reduction.finished(["waiting[i, j]"]), "s")
                _write(b, total, "(low + i) * out_m + (first + j)", spec)
    return lines.lines


def dot_element_text(spec: DotSpec, module: Module, notes: Mapping[int, str]) -> list[str]:
    """The same, an element of the result a task: what has no cache of its own to keep operands in."""
    lines = Lines()
    b = TextBuilder(lines, module)
    kind = spec.accumulator
    zero = text_of(b.const(kind, 0).ir)
    reduction = ReductionText(module, Reducer("sum", kind))
    _name_words(lines, list(_WORDS)[:-1])
    lines.line(f"waiting = {module.dialect.array(TREE, array_dtype(kind))}", "blocks that wait for their neighbours")
    with lines.block(f"for task in {module.dialect.tasks}:"):
        lines.line("item, i, j = task // (m * n), task // n % m, task % n")
        _name_items(lines)
        lines.line("top = 0")
        with lines.block(f"for block in range(0, max(k, 1), {BLOCK}):"):
            lines.line(f"total = {zero}")
            with lines.block(f"for chunk in range(block, min(block + {BLOCK}, k), {CHUNK}):"):
                lines.line(f"chain = {zero}")
                with lines.block(f"for p in range(chunk, min(chunk + {CHUNK}, k)):"):
                    x = _operand(b, "x", "lhs_item", "i * lhs_m + p * lhs_k", spec.lhs, kind)
                    y = _operand(b, "y", "rhs_item", "p * rhs_k + j * rhs_n", spec.rhs, kind)
                    calculated(b, "multiply_add", _multiply_add, [x, y, b.token("chain", kind)], ["chain"])
                lines.line(f"total = chain if chunk == block else {_sum(b, 'total', 'chain', kind)}")
            lines.line(f"top = {reduction.pushed(f'block // {BLOCK}', ['total'], ['waiting'])}")
        (total,) = reduction.states(b, reduction.finished(["waiting"]), "s")
        _write(b, total, "i * out_m + j", spec)
    return lines.lines


def _name_words(lines: Lines, which: Sequence[str]) -> None:
    for what in which:
        names = _WORDS[what].split()
        lines.line(f"{', '.join(names)} = {', '.join(f'args[{_PLACES[name]}]' for name in names)}", what)


def _name_items(lines: Lines) -> None:
    """Where each operand of the batch item begins."""
    for name in ("lhs", "rhs", "out"):
        lines.line(f"{name}_item = {name} + item // batch1 * {name}_batch0 + item % batch1 * {name}_batch1")


def _sum(b: TextBuilder, x: str, y: str, kind: str) -> str:
    return expression(b, "add", lambda b, x, y: x + y, [b.token(x, kind), b.token(y, kind)])


def _write(b: TextBuilder, total: Value, place: str, spec: DotSpec) -> None:
    """A sum as an element of the result, at so many elements of a row (``... + j``)."""
    if compute_dtype(spec.out) != spec.accumulator or spec.out in HALF_DTYPES:
        (total,) = calculated(b, "rounded", lambda b, v: b.cast(v, spec.out), [total], ["result"])
    b.write(total, "out_item", f"{place} * {item_size(spec.out)}", spec.out)


def _multiply_add(b: TextBuilder, x: Value, y: Value, chain: Value) -> Value:
    return b.fma(x, y, chain) if is_float(x.dtype) else chain + x * y


def _operand(b: TextBuilder, name: str, base: str, distance: str, dtype: str, kind: str) -> Value:
    """An element of an operand, as the sums are."""
    (read,) = calculated_read(b, base, distance, dtype)
    if read.dtype == kind:
        return b.named(name, read)
    x = b.named(name, read)
    return calculated(b, "converted", lambda b, v: b.cast(v, kind), [x], [name])[0]


def dot_pack_text(spec: DotSpec, module: Module, notes: Mapping[int, str]) -> list[str]:
    """Nothing is packed: the product reads its operands where they lie."""
    return ["return"]
