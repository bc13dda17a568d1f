"""Scatters as text: updates sorted by target, then combined slot by slot, in the order of the definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from volta.emit.builder import compute_dtype
from volta.emit.reducers import BLOCK, LANES, Reducer
from volta.numba_cpu.scatter_schedule import CHUNK, FEW_UPDATES, SCATTER_SLOTS, SortedUpdates
from volta.numba_source.bodies import calculated_read
from volta.numba_source.builder import HALVES, TextBuilder
from volta.numba_source.functions import Meaning, calculated
from volta.numba_source.python_ir import text_of
from volta.numba_source.reductions import ReductionText
from volta.numba_source.text import Lines, Module
from volta.xla_like.ordering import SCATTERS, ScatterSpec

Notes = Mapping[int, str]


class _Sorting:
    """What the kernels that sort updates have in common: their args, and how numbers and values lie in memory."""

    def __init__(self, what: SortedUpdates, lines: Lines) -> None:
        self.what, self.lines = what, lines
        self.index = what.index.itemsize
        names = ["updates", "targets", "out", None, "slots", "width", "count", "counts", "records", "places"]
        names += ["shift", "buckets", "chunks"]
        used = [(name, f"args[{i}]") for i, name in enumerate(names) if name is not None]
        for part in (used[:6], used[6:]):
            lines.line(f"{', '.join(n for n, _ in part)} = {', '.join(a for _, a in part)}")

    def number(self, base: str, index: str) -> str:
        """An element of an array of positions or counts."""
        at = index if index.isidentifier() else f"({index})"
        return f"i64(load_i{8 * self.index}({base}, {at} * {self.index}))"

    def write_number(self, base: str, index: str, value: str) -> None:
        at = index if index.isidentifier() else f"({index})"
        self.lines.line(f"store_i{8 * self.index}({base}, {at} * {self.index}, i{8 * self.index}({value}))")

    def item_of(self, each: str) -> None:
        """The batch item of a task, and where its parts begin."""
        size = self.what.scatter.dtype.itemsize
        self.lines.line(f"item, part = task // {each}, task % {each}")
        self.lines.line("target = targets + item * count * 8")
        self.lines.line(f"record = records + item * count * {2 * self.index}")
        self.lines.line(f"place = places + item * count * {self.index}")
        self.lines.line(f"updates_at = updates + item * count * width * {size}")

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """The updates of a task's chunk that have a target: position i, slot and bucket."""
        lines = self.lines
        lines.line(f"ends = counts + task * buckets * {self.index}", "a number a bucket")
        with lines.block(f"for i in range(part * {CHUNK}, min(part * {CHUNK} + {CHUNK}, count)):"):
            lines.line("slot = load_i64(target, i * 8)")
            with lines.block("if slot >= 0:"):
                lines.line("bucket = slot >> shift" if self.what.coarse else "bucket = slot")
                yield


def scatter_count_text(what: SortedUpdates, module: Module, notes: Notes) -> list[str]:
    """A task is a chunk of updates: how many each bucket of slots has of them."""
    lines = Lines()
    s = _Sorting(what, lines)
    with lines.block(f"for task in {module.dialect.tasks}:"):
        s.item_of("chunks")
        with lines.block("for bucket in range(buckets):"):
            s.write_number("counts", "task * buckets + bucket", "0")
        with s.chunk():
            s.write_number("ends", "bucket", f"{s.number('ends', 'bucket')} + 1")
    return lines.lines


def scatter_starts_text(what: SortedUpdates, module: Module, notes: Notes) -> list[str]:
    """A task is a batch item: where each bucket's updates belong, one chunk's behind another's."""
    lines = Lines()
    s = _Sorting(what, lines)
    with lines.block(f"for task in {module.dialect.tasks}:"):
        lines.line("running = 0")
        with lines.block("for bucket in range(buckets):"), lines.block("for chunk in range(chunks):"):
            lines.line("at = (task * chunks + chunk) * buckets + bucket")
            lines.line(f"number = {s.number('counts', 'at')}")
            s.write_number("counts", "at", "running")
            lines.line("running += number")
    return lines.lines


def scatter_place_text(what: SortedUpdates, module: Module, notes: Notes) -> list[str]:
    """A task is a chunk of updates, which go where they belong. Then the last chunk's numbers say where buckets end."""
    lines = Lines()
    s = _Sorting(what, lines)
    with lines.block(f"for task in {module.dialect.tasks}:"):
        s.item_of("chunks")
        with s.chunk():
            lines.line(f"at = {s.number('ends', 'bucket')}")
            s.write_number("ends", "bucket", "at + 1")
            if what.coarse:  # a record: the slot, then the position
                s.write_number("record", "2 * at", "slot")
                s.write_number("record", "2 * at + 1", "i")
            else:
                s.write_number("place", "at", "i")
    return lines.lines


class _Slot:
    """Combines the updates of one slot, in order, and then with the slot, column by column."""

    def __init__(self, spec: ScatterSpec, module: Module) -> None:
        self.lines, self.dtype, self.item = Lines(), spec.dtype.name, spec.dtype.itemsize
        self.b = TextBuilder(self.lines, module)
        kind = compute_dtype(self.dtype)
        self.reduction = None if spec.op == "set" else ReductionText(module, Reducer(SCATTERS[spec.op], kind))
        if self.reduction is not None:
            self.reduction.arrays(self.lines)

    def write(self, number: str, row_of: str) -> None:
        """``number`` updates into the row at ``here``; ``row_of`` is an expression in i: the i-th one's row."""
        b, lines, dtype = self.b, self.lines, self.dtype
        update = f"({row_of} * width + column) * {self.item}"
        with lines.block("for column in range(width):"):
            if self.reduction is None:
                lines.line(f"i = {number} - 1", "the last one stays")
                x = b.named("x", *calculated_read(b, "updates_at", update, dtype))
                b.write(x, "here", f"column * {self.item}", dtype)
                return
            r = self.reduction
            lines.line("top = 0")
            with lines.block(f"for start in range(0, {number}, {BLOCK}):"):
                r.clear(b)
                with lines.block(f"for i in range(start, min(start + {BLOCK}, {number})):"):
                    x = b.named("x", *calculated_read(b, "updates_at", update, dtype))
                    r.absorb(b, f"i % {LANES}", x, "i")
                (found,) = r.states(b, r.folded(), "s")
                lines.line(f"top = {r.pushed(f'start // {BLOCK}', [text_of(found.ir)])}")
            (total,) = r.states(b, r.finished(), "s")
            if dtype in HALVES:  # the sum is a value of the dtype before it is added
                (total,) = calculated(b, "round", lambda b, v: b.round_to_half(v, dtype), [total], ["s"])
            old = b.named("old", *calculated_read(b, "here", f"column * {self.item}", dtype))
            label = r.label
            meaning: Meaning = lambda b, x, y: r.reducer.combine(b, (x,), (y,))[0]  # noqa: E731
            (value,) = calculated(b, label, meaning, [old, total], ["value"])
            b.write(value, "here", f"column * {self.item}", dtype)


def scatter_text(what: SortedUpdates, module: Module, notes: Notes) -> list[str]:
    """The runs of sorted updates, slot by slot. A task is a bucket of slots, which is sorted by slots first, or a few
    slots."""
    slot = _Slot(what.scatter, module)
    lines = slot.lines
    s = _Sorting(what, lines)
    if what.coarse:
        lines.lines += module.dialect.own_scratch
    else:
        lines.line(f"groups = (slots + {SCATTER_SLOTS - 1}) // {SCATTER_SLOTS}")
    with lines.block(f"for task in {module.dialect.tasks}:"):
        s.item_of("buckets" if what.coarse else "groups")
        lines.line(f"ends = counts + (item * chunks + chunks - 1) * buckets * {s.index}")
        if what.coarse:
            lines.line(f"low = {s.number('ends', 'part - 1')} if part > 0 else 0")
            lines.line(f"high = {s.number('ends', 'part')}")
            lines.line("first = part << shift")
            lines.line("own = min(slots - first, 1 << shift) if low < high else 0", "slots to look at")
            _sort_bucket(s)
            lines.line("ends, running = scratch, low")
        else:
            lines.line(f"first = part * {SCATTER_SLOTS}")
            lines.line(f"own = min(slots - first, {SCATTER_SLOTS})")
            lines.line(f"running = {s.number('ends', 'first - 1')} if part > 0 else 0")
        with lines.block("for slot in range(own):"):
            lines.line(f"high = {s.number('ends', 'slot' if what.coarse else 'first + slot')}")
            lines.line("low, running, number = running, high, high - running")
            lines.line(f"here = out + (item * slots + first + slot) * width * {slot.item}")
            with lines.block("if number > 0:"):
                slot.write("number", s.number("place", "low + i"))
    return lines.lines


def _sort_bucket(s: _Sorting) -> None:
    """A bucket's records by slots: their positions, and in scratch memory where each slot's end."""
    lines = s.lines
    slot = f"slot = {s.number('record', '2 * i')} - first"
    with lines.block("for slot in range(own):"):
        s.write_number("scratch", "slot", "0")
    with lines.block("for i in range(low, high):"):
        lines.line(slot)
        s.write_number("scratch", "slot", f"{s.number('scratch', 'slot')} + 1")
    lines.line("running = low")
    with lines.block("for slot in range(own):"):
        lines.line(f"number = {s.number('scratch', 'slot')}")
        s.write_number("scratch", "slot", "running")
        lines.line("running += number")
    with lines.block("for i in range(low, high):"):
        lines.line(slot)
        lines.line(f"at = {s.number('scratch', 'slot')}")
        s.write_number("scratch", "slot", "at + 1")
        s.write_number("place", "at", s.number("record", "2 * i + 1"))


def scatter_few_text(spec: ScatterSpec, module: Module, notes: Notes) -> list[str]:
    """Few updates: each slot's are found by comparing targets. A task is a batch item."""
    slot = _Slot(spec, module)
    lines = slot.lines
    lines.line("updates, targets, out = args[0], args[1], args[2]")
    lines.line("slots, width, count = args[4], args[5], args[6]")
    lines.line(f"rows = {module.dialect.array(FEW_UPDATES, 'np.int64')}", "the updates of one slot")
    with lines.block(f"for item in {module.dialect.tasks}:"):
        lines.line("target = targets + item * count * 8")
        lines.line(f"updates_at = updates + item * count * width * {slot.item}")
        with lines.block("for u in range(count):"):
            lines.line("wanted = load_i64(target, u * 8)")
            lines.line("number, seen = 0, 0")
            with lines.block("for v in range(count):"), lines.block("if load_i64(target, v * 8) == wanted:"):
                lines.line("seen += v < u", "an earlier update has combined all of this slot")
                lines.line("rows[number] = v")
                lines.line("number += 1")
            lines.line(f"here = out + (item * slots + wanted) * width * {slot.item}")
            with lines.block("if wanted >= 0 and seen == 0:"):
                slot.write("number", "rows[i]")
    return lines.lines
