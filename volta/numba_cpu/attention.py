"""The attention kernels of the CPU: forward, the cotangent of queries, those of keys and values, and all in one.

A task is a run of query rows (of `build_attention_dkv` a block of keys) of one head of one batch item, or a whole head.
Keys are packed to vectors of keys once a block; scores of up to 64 rows by 64 keys stay in scratch memory, in the
nearest caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import Builder, item_size
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I32, I64, PTR, for_range, if_then, intrinsic, load_arg, loop, minimum, offset
from volta.numba_cpu.attention_rows import Row, add_part, back, merge, weigh
from volta.numba_cpu.attention_schedule import Tasks, VectorSpec, row_elements, scratch
from volta.numba_cpu.attention_seen import copy_rows, seen_words
from volta.numba_cpu.attention_tile import at_step, product, vectors_of
from volta.numba_cpu.dot_pack import pack
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.attention import BLOCK, KernelName

NULL = ir.Constant(PTR, None)

FEW_ROWS = 16
"""Below this many query rows the kernel asks for the next keys while it works on these."""


class _Rows:
    """Rows of one operand where a product reads them: a pointer and a stride."""

    def __init__(self, pointer: ir.Value, stride: ir.Value) -> None:
        self.pointer, self.stride = pointer, stride

    def from_row(self, b: ir.IRBuilder, row: ir.Value) -> _Rows:
        return _Rows(at_step(b, self.pointer, row, self.stride), self.stride)


class _Kernel:
    """What the three kernels share: their args, their scratch memory and the products of one block."""

    def __init__(self, module: ir.Module, name: str, kernel: KernelName, spec: VectorSpec) -> None:
        self.module, self.spec, self.kernel = module, spec, kernel
        self.function, self.b = new_kernel(module, name)
        block, self.begin, self.end, memory = self.function.args
        self.args = {arg: load_arg(self.b, block, int(arg)) for kind in (Arg, Tasks) for arg in kind}
        layout = scratch(spec, kernel)
        base = self.b.inttoptr(memory, PTR)
        self.scratch = {name: offset(self.b, base, at) for name, at in layout.offsets.items()}
        self.dtype, self.bits = spec.accumulator, spec.vector_bits
        self.size, self.in_size = item_size(self.dtype), item_size(spec.dtype)
        self.lanes = self.bits // (8 * self.size)
        self.row_bytes = BLOCK * self.size
        self.builder = Builder(self.b, self.lanes)
        self.by_group: ir.Value | None = None

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def tasks(self, count: Arg) -> Iterator[tuple[ir.Value, ir.Value]]:
        """For each task: its first row and how many it has; the head's operands are ready.

        Runs of neighbouring tasks alternate between the beginning and the end of a head, so that under a causal mask
        every thread gets short and long rows.
        """
        b, args = self.b, self.args
        size = args[Tasks.TASK_ROWS]
        total = args[count]
        if self.kernel == "attention":  # one row a head: the heads that share a key head are the rows
            self.by_group = b.icmp_signed("==", args[Arg.T], I64(1))
            total = b.select(self.by_group, args[Arg.GROUP], total)
        per_head = ceil_div(b, total, size)
        with for_range(b, self.begin, self.end) as task:
            item = b.sdiv(task, per_head)
            place = b.sub(task, b.mul(item, per_head))
            half = b.ashr(place, I64(1))
            from_end = b.sub(b.sub(per_head, I64(1)), half)
            odd = b.icmp_signed("==", b.and_(place, I64(1)), I64(1))
            first = b.mul(b.select(odd, from_end, half), size)
            self.enter(item)
            yield first, minimum(b, b.sub(total, first), size)

    @contextmanager
    def heads(self) -> Iterator[None]:
        """For each task: one head of one batch item."""
        with for_range(self.b, self.begin, self.end) as task:
            self.enter(task)
            yield

    def enter(self, item: ir.Value) -> None:
        """Make ready one head of one batch item."""
        b, args = self.b, self.args
        group = I64(1) if self.by_group is None else b.select(self.by_group, args[Arg.GROUP], I64(1))
        self.item = b.mul(item, group)
        self.batch = b.sdiv(self.item, args[Arg.N])
        self.head = b.sub(self.item, b.mul(self.batch, args[Arg.N]))
        self.key_head = b.sdiv(self.head, args[Arg.GROUP])
        self.start: ir.Value = I64(0)
        if self.spec.started:
            at = at_step(b, b.inttoptr(args[Arg.START], PTR), self.batch, args[Arg.START_B])
            self.start = b.sext(b.load(at, align=4, typ=I32), I64)

    def rows_of(self, operand: Arg, strides: Arg, head: ir.Value) -> _Rows:
        """An operand's rows of this batch item and head."""
        b, args = self.b, self.args
        pointer = b.inttoptr(args[operand], PTR)
        pointer = at_step(b, pointer, self.batch, args[strides])
        by_head, by_row = (args[Arg(strides + i)] for i in (1, 2))
        if self.by_group is not None and operand not in (Arg.K, Arg.V):
            by_row = b.select(self.by_group, by_head, by_row)
        return _Rows(at_step(b, pointer, head, by_head), by_row)

    def statistics(self, operand: Arg, row: ir.Value) -> ir.Value:
        """Where M, L or DELTA has a row of this head."""
        b, args = self.b, self.args
        at = b.add(b.mul(self.item, args[Arg.T]), row)
        return at_step(b, b.inttoptr(args[operand], PTR), at, I64(self.size))

    # -- operands ------------------------------------------------------------------------------------------------------

    def left(self, rows: _Rows, name: str, count: ir.Value, elements: int) -> _Rows:
        """Rows whose elements are taken one by one: as they lie, or converted."""
        return rows if self.spec.dtype == self.dtype else self.copied(rows, name, count, elements)

    def right(self, rows: _Rows, name: str, count: ir.Value, elements: int) -> _Rows:
        """Rows that are read as whole vectors: as they lie if they consist of these, or copied."""
        direct = self.spec.dtype == self.dtype and elements % self.lanes == 0
        return rows if direct else self.copied(rows, name, count, elements)

    def copied(self, rows: _Rows, name: str, count: ir.Value, elements: int) -> _Rows:
        row_bytes = row_elements(elements) * self.size
        copy = copy_rows(self.module, self.spec.dtype, self.dtype, self.bits, elements, row_bytes)
        self.b.call(copy, [self.scratch[name], rows.pointer, rows.stride, count])
        return _Rows(self.scratch[name], I64(row_bytes))

    def ahead(self, rows: _Rows, count: ir.Value, elements: int) -> None:
        """Ask for rows that will be read soon."""
        b, i32 = self.b, ir.IntType(32)
        fetch = intrinsic(b.module, "llvm.prefetch.p0", ir.VoidType(), [PTR, i32, i32, i32])
        with for_range(b, 0, count) as i:
            line = at_step(b, rows.pointer, i, rows.stride)
            for at in range(0, elements * self.in_size, 64):
                b.call(fetch, [offset(b, line, at), i32(0), i32(2), i32(1)])

    def packed(self, rows: _Rows, name: str, count: ir.Value, elements: int) -> _Rows:
        """Rows (keys) transposed: for each element of a head, one row of 64 keys."""
        b = self.b
        function = pack(self.module, self.spec.dtype, self.dtype, self.lanes)
        to = self.scratch[name]
        strip, near = I64(self.lanes * self.size), I64(self.in_size)
        b.call(function, [to, I64(self.row_bytes), strip, rows.pointer, near, rows.stride, count, I64(elements)])
        return _Rows(to, I64(self.row_bytes))

    # -- one block -----------------------------------------------------------------------------------------------------

    def seen(self, name: str, row: ir.Value, rows: ir.Value, key: ir.Value, keys: ir.Value) -> ir.Value:
        """Fill the words of a block from query ``row`` and ``key`` on; returns all of them joined."""
        b, args, spec = self.b, self.args, self.spec
        by_key = name == "seen_by"
        function = seen_words(self.module, spec.causal, spec.masked, by_key)
        step = I64(1) if self.by_group is None else b.select(self.by_group, I64(0), I64(1))
        position = b.sub(b.add(self.start, b.mul(row, step)), key)
        mask: list[ir.Value] = [NULL, I64(0), I64(0)]
        if spec.masked:
            rows_of_mask = self.rows_of(Arg.MASK, Arg.MASK_B, self.head).from_row(b, row)
            pointer = at_step(b, rows_of_mask.pointer, key, args[Arg.MASK_S])
            mask = [pointer, rows_of_mask.stride, args[Arg.MASK_S]]
        count, width = (keys, rows) if by_key else (rows, keys)
        found: ir.Value = b.call(function, [self.scratch[name], count, width, position, step, *mask])
        return found

    def scores(self, name: str, left: _Rows, transposed: _Rows, rows: ir.Value, depth: int) -> None:
        """Chains over the elements of a head, for rows by 64 keys."""
        function = product(self.module, self.dtype, self.bits, BLOCK // self.lanes, depth)
        to = [self.scratch[name], I64(self.row_bytes)]
        source = [left.pointer, left.stride, I64(self.size), transposed.pointer, transposed.stride]
        self.b.call(function, [*to, *source, rows, self.scratch["seen"]])

    def values(self, name: str, right: _Rows, rows: ir.Value, elements: int, seen: str = "seen") -> None:
        """Chains over what each row sees, into "part"; for ``seen_by`` the matrix ``name`` is read by columns."""
        function = product(self.module, self.dtype, self.bits, vectors_of(elements, self.lanes), None)
        to = [self.scratch["part"], I64(row_elements(elements) * self.size)]
        strides = [I64(self.row_bytes), I64(self.size)]
        source = [self.scratch[name], *(strides if seen == "seen" else strides[::-1]), right.pointer, right.stride]
        self.b.call(function, [*to, *source, rows, self.scratch[seen]])

    def add(self, name: str, row: ir.Value, rows: ir.Value, elements: int, seen: str = "seen") -> None:
        """Add "part" to rows of a sum."""
        function = add_part(self.module, self.dtype, self.bits, vectors_of(elements, self.lanes))
        row_bytes = I64(row_elements(elements) * self.size)
        total = at_step(self.b, self.scratch[name], row, row_bytes)
        self.b.call(function, [total, self.scratch["part"], self.scratch[seen], row_bytes, rows])

    def clear(self, name: str, rows: ir.Value, elements: int) -> None:
        count = self.b.mul(rows, I64(row_elements(elements)))
        self.fill(self.scratch[name], count, 0.0)

    def fill(self, pointer: ir.Value, count: ir.Value, number: float) -> None:
        """Whole vectors of a number."""
        with for_range(self.b, 0, count, self.lanes) as i:
            self.builder.store(self.builder.const(self.dtype, number), at_step(self.b, pointer, i, I64(self.size)))

    def scaled(self, name: str, to: _Rows, rows: ir.Value, elements: int, scaled: bool) -> None:
        """Write a sum to memory, times the scale if wanted."""
        factor = Row(self.b, self.dtype, self.bits).scalar(self.args[Arg.SCALE])
        with for_range(self.b, 0, rows) as i:
            line = at_step(self.b, self.scratch[name], i, I64(row_elements(elements) * self.size))
            out = at_step(self.b, to.pointer, i, to.stride)
            for builder, source, place in self.elements(line, out, elements):
                value = builder.load(source, self.dtype)
                builder.store(value * builder.splat(factor) if scaled else value, place, self.spec.dtype)

    def elements(self, line: ir.Value, out: ir.Value, count: int) -> Iterator[tuple[Builder, ir.Value, ir.Value]]:
        """Vectors of a row, then what is left one by one: a builder, and where to read and to write."""
        whole = count - count % self.lanes
        for width, start, stop in ((self.lanes, 0, whole), (1, whole, count)):
            if start < stop:
                with for_range(self.b, start, stop, width) as j:
                    source, to = (at_step(self.b, p, j, I64(n)) for p, n in ((line, self.size), (out, self.in_size)))
                    yield Builder(self.b, width), source, to

    def last_key(self, row: ir.Value) -> ir.Value:
        """How many keys can be seen by rows before ``row``."""
        if not self.spec.causal:
            return self.args[Arg.S]
        if self.by_group is not None:
            row = self.b.select(self.by_group, I64(1), row)
        return minimum(self.b, self.args[Arg.S], self.b.add(self.start, row))


def build_attention(module: ir.Module, name: str, spec: VectorSpec) -> ir.Function:
    """Add the forward kernel for ``spec`` to a module, with the CPU kernel ABI."""
    k = _Kernel(module, name, "attention", spec)
    b, h, hv = k.b, spec.head, spec.value_head
    vectors = vectors_of(hv, k.lanes)
    wide = I64(row_elements(hv) * k.size)
    join, weights = merge(module, k.dtype, k.bits, vectors), weigh(module, k.dtype, k.bits)
    with k.tasks(Arg.T) as (first, count):
        queries = k.rows_of(Arg.Q, Arg.Q_B, k.head).from_row(b, first)
        queries = k.left(queries, "q", count, h)
        keys, values = (k.rows_of(x, s, k.key_head) for x, s in ((Arg.K, Arg.K_B), (Arg.V, Arg.V_B)))
        k.clear("sum", count, hv)
        k.fill(k.scratch["m"], count, float("-inf"))
        k.fill(k.scratch["l"], count, 0.0)
        last = k.last_key(b.add(first, count))
        with for_range(b, 0, last, BLOCK) as key:
            width = minimum(b, b.sub(k.args[Arg.S], key), BLOCK)
            with if_then(b, b.icmp_signed("<", count, I64(FEW_ROWS))):  # memory is all that such rows wait for
                k.ahead(values.from_row(b, key), width, hv)
                k.ahead(keys.from_row(b, b.add(key, width)), minimum(b, b.sub(last, b.add(key, width)), BLOCK), h)
            transposed = k.packed(keys.from_row(b, key), "kt", width, h)
            held = k.right(values.from_row(b, key), "v", width, hv)
            with for_range(b, 0, count, BLOCK) as row:
                rows = minimum(b, b.sub(count, row), BLOCK)
                some = k.seen("seen", b.add(first, row), rows, key, width)
                with if_then(b, b.icmp_signed("!=", some, I64(0))):
                    k.scores("scores", queries.from_row(b, row), transposed, rows, h)
                    block = [k.scratch["block_m"], k.scratch["block_l"]]
                    b.call(weights, [k.scratch["scores"], k.scratch["seen"], *block, k.args[Arg.SCALE], rows])
                    k.values("scores", held, rows, hv)
                    m, l = (at_step(b, k.scratch[x], row, I64(k.size)) for x in ("m", "l"))  # noqa: E741
                    total = at_step(b, k.scratch["sum"], row, wide)
                    b.call(join, [m, l, total, *block, k.scratch["part"], k.scratch["seen"], wide, rows])
        out = k.rows_of(Arg.OUT, Arg.OUT_B, k.head).from_row(b, first)
        one = Builder(b, 1)
        with for_range(b, 0, count) as i:
            at = b.mul(i, I64(k.size))
            top, total = (one.load(offset(b, k.scratch[x], at), k.dtype) for x in ("m", "l"))
            for value, operand in ((top, Arg.M), (total, Arg.L)):
                one.store(value, k.statistics(operand, b.add(first, i)))
            line, to = at_step(b, k.scratch["sum"], i, wide), at_step(b, out.pointer, i, out.stride)
            for builder, source, place in k.elements(line, to, hv):
                divisor = builder.splat(total)  # 0 for a row that sees no key: with any, one weight is 1
                value = builder.load(source, k.dtype) / divisor
                builder.store(builder.select(divisor == 0.0, 0.0, value), place, spec.dtype)
    b.ret_void()
    return k.function


def build_attention_dq(module: ir.Module, name: str, spec: VectorSpec) -> ir.Function:
    """Add the kernel of the queries' cotangent for ``spec`` to a module, with the CPU kernel ABI."""
    k = _Kernel(module, name, "attention_dq", spec)
    b, h, hv = k.b, spec.head, spec.value_head
    cotangents = back(module, k.dtype, k.bits)
    with k.tasks(Arg.T) as (first, count):
        queries = k.left(k.rows_of(Arg.Q, Arg.Q_B, k.head).from_row(b, first), "q", count, h)
        outs = k.left(k.rows_of(Arg.DO, Arg.DO_B, k.head).from_row(b, first), "do", count, hv)
        keys, values = (k.rows_of(x, s, k.key_head) for x, s in ((Arg.K, Arg.K_B), (Arg.V, Arg.V_B)))
        k.clear("sum", count, h)
        with for_range(b, 0, k.last_key(b.add(first, count)), BLOCK) as key:
            width = minimum(b, b.sub(k.args[Arg.S], key), BLOCK)
            transposed = k.packed(keys.from_row(b, key), "kt", width, h)
            values_transposed = k.packed(values.from_row(b, key), "vt", width, hv)
            held = k.right(keys.from_row(b, key), "k", width, h)
            with for_range(b, 0, count, BLOCK) as row:
                rows = minimum(b, b.sub(count, row), BLOCK)
                some = k.seen("seen", b.add(first, row), rows, key, width)
                with if_then(b, b.icmp_signed("!=", some, I64(0))):
                    k.scores("scores", queries.from_row(b, row), transposed, rows, h)
                    k.scores("weights", outs.from_row(b, row), values_transposed, rows, hv)
                    stats = [k.statistics(x, b.add(first, row)) for x in (Arg.M, Arg.L, Arg.DELTA)]
                    matrices = [k.scratch[x] for x in ("scores", "weights", "seen")]
                    b.call(cotangents, [*matrices, *stats, k.args[Arg.SCALE], rows])
                    k.values("scores", held, rows, h)
                    k.add("sum", row, rows, h)
        k.scaled("sum", k.rows_of(Arg.DQ, Arg.DQ_B, k.head).from_row(b, first), count, h, scaled=True)
    b.ret_void()
    return k.function


def build_attention_dkv(module: ir.Module, name: str, spec: VectorSpec) -> ir.Function:
    """Add the kernel of the keys' and values' cotangents for ``spec`` to a module, with the CPU kernel ABI."""
    k = _Kernel(module, name, "attention_dkv", spec)
    with k.tasks(Arg.S) as (key, width):
        _key_block(k, key, width, None)
    k.b.ret_void()
    return k.function


def build_attention_backward(module: ir.Module, name: str, spec: VectorSpec) -> ir.Function:
    """Add the kernel of all cotangents for ``spec``: a task is one head, whose blocks of keys are taken in order."""
    k = _Kernel(module, name, "attention_backward", spec)
    b, t, h = k.b, k.args[Arg.T], spec.head
    k.scratch["query_sum"] = offset(b, b.inttoptr(k.function.args[3], PTR), scratch(spec, k.kernel).total)
    with k.heads():
        k.clear("query_sum", t, h)
        with for_range(b, 0, k.args[Arg.S], BLOCK) as key:
            _key_block(k, key, minimum(b, b.sub(k.args[Arg.S], key), BLOCK), "query_sum")
        k.scaled("query_sum", k.rows_of(Arg.DQ, Arg.DQ_B, k.head), t, h, scaled=True)
    b.ret_void()
    return k.function


def _key_block(k: _Kernel, key: ir.Value, width: ir.Value, query_sum: str | None) -> None:
    """The cotangents of one block of keys and values; what it adds to those of the queries too, where wanted."""
    b, spec = k.b, k.spec
    h, hv = spec.head, spec.value_head
    cotangents = back(k.module, k.dtype, k.bits)
    keys, values = (k.rows_of(x, s, k.key_head) for x, s in ((Arg.K, Arg.K_B), (Arg.V, Arg.V_B)))
    transposed = k.packed(keys.from_row(b, key), "kt", width, h)
    values_transposed = k.packed(values.from_row(b, key), "vt", width, hv)
    held = None if query_sum is None else k.right(keys.from_row(b, key), "k", width, h)
    k.clear("sum", width, h)
    k.clear("value_sum", width, hv)
    queries, outs = k.rows_of(Arg.Q, Arg.Q_B, k.head), k.rows_of(Arg.DO, Arg.DO_B, k.head)
    first: ir.Value = I64(0)
    if spec.causal:  # rows before the first key see none of them
        before = b.sub(key, k.start)
        first = b.and_(b.select(b.icmp_signed("<", before, I64(0)), I64(0), before), I64(-BLOCK))
    with loop(b, first, k.args[Arg.T], BLOCK) as it:
        row = it.index
        rows = minimum(b, b.sub(k.args[Arg.T], row), BLOCK)
        some = k.seen("seen", row, rows, key, width)
        with if_then(b, b.icmp_signed("!=", some, I64(0))):
            k.seen("seen_by", row, rows, key, width)
            query_rows = k.right(queries.from_row(b, row), "q", rows, h)
            out_rows = k.right(outs.from_row(b, row), "do", rows, hv)
            k.scores("scores", query_rows, transposed, rows, h)
            k.scores("weights", out_rows, values_transposed, rows, hv)
            stats = [k.statistics(x, row) for x in (Arg.M, Arg.L, Arg.DELTA)]
            matrices = [k.scratch[x] for x in ("scores", "weights", "seen")]
            b.call(cotangents, [*matrices, *stats, k.args[Arg.SCALE], rows])
            k.values("weights", out_rows, width, hv, "seen_by")
            k.add("value_sum", I64(0), width, hv, "seen_by")
            k.values("scores", query_rows, width, h, "seen_by")
            k.add("sum", I64(0), width, h, "seen_by")
            if query_sum is not None and held is not None:
                k.values("scores", held, rows, h)
                k.add(query_sum, row, rows, h)
    k.scaled("sum", k.rows_of(Arg.DK, Arg.DK_B, k.head).from_row(b, key), width, h, scaled=True)
    k.scaled("value_sum", k.rows_of(Arg.DV, Arg.DV_B, k.head).from_row(b, key), width, hv, scaled=False)
