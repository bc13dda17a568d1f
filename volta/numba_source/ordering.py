"""Scans and sorts as text: one task a row, one element after the other, in the order of the definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volta.core.contract import DEFINITIONS
from volta.emit.builder import Value, compute_dtype, is_float
from volta.emit.reducers import Reducer
from volta.numba_source.bodies import calculated_read
from volta.numba_source.builder import TextBuilder
from volta.numba_source.functions import expression
from volta.numba_source.python_ir import text_of
from volta.numba_source.text import Lines, Module
from volta.xla_like.ordering import SCANS, ScanSpec, SortSpec

Notes = Mapping[int, str]

_SCAN_BLOCK = DEFINITIONS.scan_block


def scan_text(spec: ScanSpec, module: Module, notes: Notes) -> list[str]:
    """Blocks of 256 are summed one element after the other; each result is what came before its block, and that."""
    lines, dtype = Lines(), spec.dtype.name
    b, kind = TextBuilder(lines, module), compute_dtype(spec.dtype.name)
    reducer = Reducer(SCANS[spec.kind], kind)

    def join(x: str, y: str) -> str:
        values = [b.token(x, kind), b.token(y, kind)]
        label = f"{reducer.kind}{'' if kind == 'float32' else '_' + kind}"
        return expression(b, label, lambda b, x, y: reducer.combine(b, (x,), (y,))[0], values)

    item = spec.dtype.itemsize
    place = "length - 1 - i" if spec.reverse else "i"
    lines.line("source, out, length = args[0], args[1], args[3]")
    with lines.block(f"for row in {module.dialect.tasks}:"):
        lines.line(f"start = row * length * {item}")
        identity = text_of(reducer.identity(b)[0].ir)
        lines.line(f"before = {identity}", "all blocks that came before")
        with lines.block(f"for block in range(0, length, {_SCAN_BLOCK}):"):
            lines.line(f"local = {identity}", "this block, from its first element on")
            with lines.block(f"for i in range(block, min(block + {_SCAN_BLOCK}, length)):"):
                lines.line(f"at = start + ({place}) * {item}")
                x = b.named("x", *calculated_read(b, "source", "at", dtype))
                lines.line(f"local = {join('local', text_of(x.ir))}")
                lines.line("total = local")
                with lines.block("if block > 0:"):
                    lines.line(f"total = {join('before', 'local')}")
                b.write(b.token("total", kind), "out", "at", dtype)
            lines.line("before = total")
    return lines.lines


def sort_text(spec: SortSpec, module: Module, notes: Notes) -> list[str]:
    """A merge sort of positions; equal keys keep their order. Scratch memory holds the positions, twice."""
    lines = Lines()
    b = TextBuilder(lines, module)
    names = [f"in{k}" for k in spec.read] + [f"out{k}" for k in range(len(spec.dtypes))]
    words = [f"args[{i}]" for i in range(len(names))]
    lines.line(f"{', '.join(names)} = {', '.join(words)}")
    lines.line(f"length = args[{len(names) + 1}]")
    lines.lines += module.dialect.own_scratch
    before = _before(module, spec)
    with lines.block(f"for row in {module.dialect.tasks}:"):
        lines.line("here, there = scratch, scratch + 8 * length", "positions in sorted runs, and merged")
        with lines.block("for i in range(length):"):
            lines.line("store_i64(here, i * 8, i)")
        lines.line("width = 1", "the length of a run")
        with lines.block("while width < length:"):
            with lines.block("for low in range(0, length, 2 * width):"):
                lines.line("middle, high = min(low + width, length), min(low + 2 * width, length)")
                lines.line("left, right = low, middle", "the first of each run that is not merged yet")
                with lines.block("for i in range(low, high):"):
                    lines.line("take_right = right < high and left == middle")
                    with lines.block("if right < high and left < middle:"):
                        lines.line("p, q = load_i64(here, left * 8), load_i64(here, right * 8)")
                        keys = []
                        for k in range(spec.num_keys):
                            for name, position in ((f"x{k}", "p"), (f"y{k}", "q")):
                                keys.append(_element(b, spec, k, position, name))
                        pairs = [x for pair in zip(keys[1::2], keys[::2], strict=True) for x in pair]
                        lines.line(f"take_right = {before}({', '.join(text_of(x.ir) for x in pairs)})")
                    with lines.block("if take_right:"):
                        lines.line("store_i64(there, i * 8, load_i64(here, right * 8))")
                        lines.line("right += 1")
                    with lines.block("else:"):
                        lines.line("store_i64(there, i * 8, load_i64(here, left * 8))")
                        lines.line("left += 1")
            lines.line("here, there = there, here")
            lines.line("width *= 2")
        with lines.block("for i in range(length):"):
            lines.line("p = load_i64(here, i * 8)")
            for k, dtype in enumerate(spec.dtypes):
                x = _element(b, spec, k, "p", f"x{k}")
                b.write(x, f"out{k}", f"(row * length + i) * {dtype.itemsize}", dtype.name)
    return lines.lines


def _element(b: TextBuilder, spec: SortSpec, k: int, position: str, name: str) -> Value:
    """Operand ``k`` at a position of the row."""
    dtype = spec.dtypes[k]
    if k == spec.positions:
        cast = b.token(f"i{8 * dtype.itemsize}({position})", dtype.name)
        return b.named(name, cast)
    distance = f"(row * length + {position}) * {dtype.itemsize}"
    return b.named(name, *calculated_read(b, f"in{k}", distance, dtype.name))


def _before(module: Module, spec: SortSpec) -> str:
    """The name of the function that says whether one element sorts strictly before another, key by key."""
    b = TextBuilder(Lines(), module)
    kinds = [compute_dtype(d.name) for d in spec.dtypes[: spec.num_keys]]
    parameters = [f"{side}{k}" for k in range(len(kinds)) for side in "xy"]
    values = [b.token(p, kinds[i // 2]) for i, p in enumerate(parameters)]
    pairs = list(zip(values[::2], values[1::2], strict=True))
    b.lines.line(f"return {text_of(_sorts_before(b, pairs).ir)}")
    comment = "Whether the x sort strictly before the y: NaNs are equal and come last, the first key counts most."
    return module.function("before", parameters, b.lines.lines, comment)


def _sorts_before(b: TextBuilder, keys: Sequence[tuple[Value, Value]]) -> Value:
    (x, y), rest = keys[0], keys[1:]
    less = _less(b, x, y)
    return less | (~_less(b, y, x) & _sorts_before(b, rest)) if rest else less


def _less(b: TextBuilder, x: Value, y: Value) -> Value:
    if x.dtype == "bool":
        return ~x & y
    less = x < y
    return less | (~b.isnan(x) & b.isnan(y)) if is_float(x.dtype) else less


def epilogue_text(parts: int, module: Module, notes: Notes) -> list[str]:
    """Kernels one after the other on bands of tasks: a band of the first one's results is read while it is near."""
    lines = Lines()
    lines.line("step = args[0]", "tasks in a band")
    with lines.block("for low in range(begin, end, step):"):
        lines.line("high = min(low + step, end)")
        for part in range(parts):
            kernel, first, ratio = (f"args[{1 + 3 * part + word}]" for word in range(3))
            lines.line(f"run_kernel({kernel}, args, {first}, low * {ratio}, high * {ratio}, scratch)")
    return lines.lines
