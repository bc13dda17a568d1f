"""Attention as text: one row of queries (or key) after the other, in blocks of 64, in the definition's words.

A kernel finds out which rows its tasks are, and calls a function for each: `forward`, `queries` (the cotangent of a row
of queries), `keys` (those of a key and its value). Nothing is packed, so no scratch memory is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import dedent
from typing import Any

from volta.emit import attention_merge
from volta.emit.attention_args import Arg
from volta.emit.builder import Value, item_size
from volta.emit.reducers import LANES, Reducer
from volta.numba_cpu.attention_schedule import Tasks
from volta.numba_source.builder import TextBuilder, array_dtype, memory_word
from volta.numba_source.functions import calculated, expression
from volta.numba_source.python_ir import text_of
from volta.numba_source.reductions import ReductionText
from volta.numba_source.text import Lines, Module
from volta.ops import REGISTRY
from volta.xla_like.attention import BLOCK, AttentionSpec

Notes = Mapping[int, str]


class _Words:
    """What the texts of one spec have in common."""

    def __init__(self, spec: AttentionSpec, module: Module) -> None:
        self.spec, self.module, self.kind = spec, module, spec.accumulator
        self.item, self.size = item_size(spec.dtype), item_size(spec.accumulator)
        b = TextBuilder(Lines(), module)
        self.zero, self.least = (text_of(b.const(self.kind, x).ir) for x in (0.0, float("-inf")))
        self.real = "f64" if self.kind == "float64" else "f32"
        self.memory = memory_word(spec.dtype)
        self.b = b

    def array(self, size: int, dtype: str = "") -> str:
        """A new array, of the accumulator's dtype where nothing is said."""
        return self.module.dialect.array(size, dtype or array_dtype(self.kind))

    def exp(self, x: str) -> str:
        meaning = REGISTRY["exp"].emit
        assert meaning is not None
        return expression(self.b, self.named("exp"), meaning, [self.b.token(x, self.kind)])

    def larger(self, x: str, y: str) -> str:
        values = [self.b.token(v, self.kind) for v in (x, y)]
        return expression(self.b, self.named("max"), lambda b, x, y: b.max(x, y), values)

    def factors(self, before: str, own: str) -> str:
        """The line that gives the largest score of blocks before and of one more, ``both``, and the factors of their
        sums, ``keep`` and ``take``."""

        def one(b: TextBuilder, name: str, meaning: Any, *values: Value) -> Value:
            return calculated(b, self.named(name), meaning, values, [b.lines.new_name()])[0]

        def meaning(b: TextBuilder, x: Value, y: Value) -> Sequence[Value]:
            both = one(b, "max", lambda b, x, y: b.max(x, y), x, y)
            return both, *attention_merge.factors(b, x, y, both, lambda v: one(b, "exp", REGISTRY["exp"].emit, v))

        inside, values = TextBuilder(Lines(), self.module), [self.b.token(v, self.kind) for v in (before, own)]
        calculated(inside, self.named("merge_factors"), meaning, values, ["both", "keep", "take"])
        return inside.lines.lines[0]

    def merged(self, before: str, own: str) -> str:
        """A sum over the blocks before and one over one more, as one."""
        values = [self.b.token(v, self.kind) for v in (before, "keep", own, "take")]
        return expression(self.b, self.named("merged"), attention_merge.merged, values)

    def named(self, name: str) -> str:
        """What a function of the accumulator's dtype is called."""
        return name if self.kind == "float32" else f"{name}_f64"

    def folded(self) -> str:
        """The sum of 64 lanes, which must have the name ``lanes``."""
        return ReductionText(self.module, Reducer("sum", self.kind)).folded()

    # -- operands ------------------------------------------------------------------------------------------------------

    def heads(self, names: str) -> list[str]:
        """Lines that give where each operand's head begins, and its step from row to row."""
        lines = []
        for name in names.split():
            first = Arg[f"{name.upper()}_B"]
            head = "head // group" if name in ("k", "v") else "head"
            address = f"args[{int(Arg[name.upper()])}]"
            lines.append(f"{name} = {address} + batch * args[{int(first)}] + {head} * args[{first + 1}]")
            lines.append(f"{name}_step = args[{first + 2}]")
        return lines

    def load(self, name: str, row: str, element: str) -> str:
        return f"load_{self.memory}({name}, {row} * {name}_step + {element} * {self.item})"

    def store(self, name: str, row: str, element: str, value: str) -> str:
        return f"store_{self.memory}({name}, {row} * {name}_step + {element} * {self.item}, {value})"

    def statistics(self, names: str) -> list[str]:
        """Lines that give where numbers for each row of queries begin for this head."""
        step = f"(batch * heads + head) * rows * {self.size}"
        return [f"{name} = args[{int(Arg[name.upper()])}] + {step}" for name in names.split()]

    def statistic(self, name: str) -> str:
        return f"load_{self.real}({name}, i * {self.size})"

    def sizes(self) -> list[str]:
        names = {"heads": Arg.N, "group": Arg.GROUP, "rows": Arg.T, "count": Arg.S}
        return [f"{', '.join(names)} = {', '.join(f'args[{int(a)}]' for a in names.values())}"]

    def scale(self) -> str:
        bits = f"args[{int(Arg.SCALE)}]"
        return f"scale = bits_{self.real}({bits if self.size == 8 else f'i32({bits})'})"

    def start(self) -> list[str]:
        """The position of the first query among the keys."""
        if not self.spec.started:
            return ["first = 0"] if self.spec.causal else []
        return [f"first = i64(load_i32(args[{int(Arg.START)}], batch * args[{int(Arg.START_B)}]))"]

    def visible(self) -> str:
        """Whether row i of queries sees key j."""
        conditions = ["j <= first + i"] if self.spec.causal else []
        if self.spec.masked:
            steps = [f"{x} * args[{Arg.MASK_B + d}]" for d, x in enumerate(("batch", "head", "i", "j"))]
            conditions.append(f"load_i8(args[{int(Arg.MASK)}], {' + '.join(steps)}) != i8(0)")
        return " and ".join(conditions) or "True"

    # -- functions -----------------------------------------------------------------------------------------------------

    def chain(self, name: str, x: str, y: str, count: int) -> list[str]:
        """A chain of fused multiply-adds over the elements of a head."""
        return [f"{name} = {self.zero}", f"for e in range({count}):", f"    {name} = fma({x}, {y}, {name})"]

    def _begin(self, heads: str, statistics: str = "m l delta") -> list[str]:
        return [*self.sizes(), self.scale(), *self.start(), *self.heads(heads), *self.statistics(statistics)]

    def function(self, name: str, body: str, more: Mapping[str, Sequence[str]], comment: str) -> str:
        """A function of a head of a batch item and one row or key; a line that is ``{word}`` stands for lines."""
        lines = []
        for line in dedent(body).strip().splitlines():
            word = line.strip().strip("{}")
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + x for x in more[word]] if word in more else [line]
        last = "j" if name.endswith("keys") else "i"
        return self.module.function(f"attention_{name}", ["args", "batch", "head", last], lines, comment)

    def forward(self) -> str:
        """The function of one row of the result."""
        body = f"""
            {{begin}}
            total, part = {self.array(self.spec.value_head)}, {self.array(self.spec.value_head)}
            score, weight = {self.array(BLOCK)}, {self.array(BLOCK)}
            lanes, seen = {self.array(LANES)}, {self.array(BLOCK, "np.bool_")}
            total[:] = {self.zero}
            largest, divisor = {self.least}, {self.zero}
            for block in range(0, count, {BLOCK}):
                width, some = min({BLOCK}, count - block), False
                top = {self.least}
                for n in range(width):  # the scores of a block of keys, and the largest
                    j = block + n
                    seen[n] = {self.visible()}
                    if seen[n]:
                        {{score}}
                        score[n] = chain * scale
                        top = {self.larger("top", "score[n]")}
                        some = True
                if some:
                    weight[:], lanes[:] = {self.zero}, {self.zero}
                    for n in range(width):  # their weights; each key has a lane of the sum
                        if seen[n]:
                            weight[n] = {self.exp("score[n] - top")}
                            lanes[n] = weight[n]
                    {self.factors("largest", "top")}  # the block joins those before it
                    divisor = {self.merged("divisor", self.folded())}
                    part[:] = {self.zero}
                    for n in range(width):
                        if seen[n]:
                            for e in range({self.spec.value_head}):
                                part[e] = fma(weight[n], {self.load("v", "(block + n)", "e")}, part[e])
                    for e in range({self.spec.value_head}):
                        total[e] = {self.merged("total[e]", "part[e]")}
                    largest = both
            for e in range({self.spec.value_head}):
                value = total[e] / divisor if divisor != {self.zero} else {self.zero}
                {self.store("out", "i", "e", "value")}
            store_{self.real}(m, i * {self.size}, largest)
            store_{self.real}(l, i * {self.size}, divisor)
        """
        more = {
            "begin": self._begin("q k v out", "m l"),
            "score": self.chain("chain", self.load("q", "i", "e"), self.load("k", "j", "e"), self.spec.head),
        }
        return self.function("forward", body, more, "Row i of queries: blocks of keys in ascending order.")

    def _pair(self) -> list[str]:
        """What a row of queries and a key that it sees have: the weight p, and the cotangent ds of their score."""
        return [
            *self.chain("chain", self.load("q", "i", "e"), self.load("k", "j", "e"), self.spec.head),
            *self.chain("product", self.load("do", "i", "e"), self.load("v", "j", "e"), self.spec.value_head),
            f"top, divisor = {self.statistic('m')}, {self.statistic('l')}",
            f"p = {self.exp('chain * scale - top')} / divisor",
            f"ds = p * (product - {self.statistic('delta')})",
        ]

    def queries(self) -> str:
        """The function of one row of the queries' cotangent."""
        body = f"""
            {{begin}}
            total, part = {self.array(self.spec.head)}, {self.array(self.spec.head)}
            slope, seen = {self.array(BLOCK)}, {self.array(BLOCK, "np.bool_")}
            total[:] = {self.zero}
            for block in range(0, count, {BLOCK}):
                width, some = min({BLOCK}, count - block), False
                for n in range(width):
                    j = block + n
                    seen[n] = {self.visible()}
                    if seen[n]:
                        {{pair}}
                        slope[n] = ds
                        some = True
                if some:
                    part[:] = {self.zero}
                    for n in range(width):
                        if seen[n]:
                            for e in range({self.spec.head}):
                                part[e] = fma(slope[n], {self.load("k", "(block + n)", "e")}, part[e])
                    for e in range({self.spec.head}):
                        total[e] = total[e] + part[e]
            for e in range({self.spec.head}):
                {self.store("dq", "i", "e", "total[e] * scale")}
        """
        begin = self._begin("q k v do dq")
        more = {"begin": begin, "pair": self._pair()}
        return self.function("queries", body, more, "The cotangent of row i of queries: blocks of keys, ascending.")

    def keys(self) -> str:
        """The function of the cotangents of one key and its value."""
        body = f"""
            {{begin}}
            total, part = {self.array(self.spec.head)}, {self.array(self.spec.head)}
            values, value_part = {self.array(self.spec.value_head)}, {self.array(self.spec.value_head)}
            slope, weight = {self.array(BLOCK)}, {self.array(BLOCK)}
            seen = {self.array(BLOCK, "np.bool_")}
            total[:], values[:] = {self.zero}, {self.zero}
            for block in range(0, rows, {BLOCK}):
                width, some = min({BLOCK}, rows - block), False
                for n in range(width):
                    i = block + n
                    seen[n] = {self.visible()}
                    if seen[n]:
                        {{pair}}
                        slope[n], weight[n] = ds, p
                        some = True
                if some:
                    value_part[:] = {self.zero}
                    for n in range(width):
                        if seen[n]:
                            for e in range({self.spec.value_head}):
                                value_part[e] = fma(weight[n], {self.load("do", "(block + n)", "e")}, value_part[e])
                    for e in range({self.spec.value_head}):
                        values[e] = values[e] + value_part[e]
                    part[:] = {self.zero}
                    for n in range(width):
                        if seen[n]:
                            for e in range({self.spec.head}):
                                part[e] = fma(slope[n], {self.load("q", "(block + n)", "e")}, part[e])
                    for e in range({self.spec.head}):
                        total[e] = total[e] + part[e]
            for e in range({self.spec.head}):
                {self.store("dk", "j", "e", "total[e] * scale")}
            for e in range({self.spec.value_head}):
                {self.store("dv", "j", "e", "values[e]")}
        """
        begin = self._begin("q k v do dk dv")
        more = {"begin": begin, "pair": self._pair()}
        return self.function("keys", body, more, "The cotangents of key j and its value: blocks of rows, ascending.")


def _in_tasks(function: str, count: Arg, tasks: str) -> list[str]:
    """A task is a few rows (or keys) of one head of one batch item."""
    return (
        dedent(f"""
        heads, total, size = args[{int(Arg.N)}], args[{int(count)}], args[{int(Tasks.TASK_ROWS)}]
        per_head = (total + size - 1) // size
        for task in {tasks}:
            item, low = task // per_head, task % per_head * size
            for row in range(low, min(low + size, total)):
                {function}(args, item // heads, item % heads, row)
    """)
        .strip()
        .splitlines()
    )


def attention_text(spec: AttentionSpec, module: Module, notes: Notes) -> list[str]:
    """The result, and of each row the largest score and the sum of weights."""
    function = _Words(spec, module).forward()
    one_row = (
        dedent(f"""
        if args[{int(Arg.T)}] == 1:  # one row a head: the heads that share a key head are the rows of a task
            heads, group, size = args[{int(Arg.N)}], args[{int(Arg.GROUP)}], args[{int(Tasks.TASK_ROWS)}]
            per_head = (group + size - 1) // size
            for task in {module.dialect.tasks}:
                item, low = task // per_head, task % per_head * size
                for row in range(low, min(low + size, group)):
                    head = item * group + row
                    {function}(args, head // heads, head % heads, 0)
            return
    """)
        .strip()
        .splitlines()
    )
    return [*one_row, *_in_tasks(function, Arg.T, module.dialect.tasks)]


def attention_dq_text(spec: AttentionSpec, module: Module, notes: Notes) -> list[str]:
    """The cotangent of the queries."""
    return _in_tasks(_Words(spec, module).queries(), Arg.T, module.dialect.tasks)


def attention_dkv_text(spec: AttentionSpec, module: Module, notes: Notes) -> list[str]:
    """The cotangents of keys and values, one for each query head."""
    return _in_tasks(_Words(spec, module).keys(), Arg.S, module.dialect.tasks)


def attention_backward_text(spec: AttentionSpec, module: Module, notes: Notes) -> list[str]:
    """All cotangents: a task is one head of one batch item."""
    words = _Words(spec, module)
    return (
        dedent(f"""
        heads, rows, count = args[{int(Arg.N)}], args[{int(Arg.T)}], args[{int(Arg.S)}]
        for task in {module.dialect.tasks}:
            for row in range(rows):
                {words.queries()}(args, task // heads, task % heads, row)
            for key in range(count):
                {words.keys()}(args, task // heads, task % heads, key)
    """)
        .strip()
        .splitlines()
    )
