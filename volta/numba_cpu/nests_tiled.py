"""Loop nests of tiles on the CPU: loops one after the other, a value of the tile's digit in each lane (`tiles.py`).

Loops' sizes, and where arrays lie in scratch memory, are the kernel's own; how far apart the arrays' elements lie, and
how many values a digit has, are arguments. The last tile ends with the digit, and so does the last block of a row:
what they share with those before is computed twice, from the same operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loop_body import given
from volta.emit.loops import I64, for_range, load_arg, load_pointer, minimum, offset, prefetch
from volta.numba_cpu import weaving
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.tile_layout import LINE, Part, Tiled, Together, memory_of
from volta.numba_cpu.turning import turn_in, turn_out
from volta.xla_like.kernels import Compute, ConstValue, GivenValue, IndexValue

Turn = Callable[[ir.Module, str, int, int], ir.Function]

Offsets = list[ir.Value]
"""Of each walk of a part, how many bytes it is from where its accesses begin."""


class _Words:
    """The args block, read from its beginning on."""

    def __init__(self, b: ir.IRBuilder, args: ir.Value) -> None:
        self.b, self.args, self.at = b, args, 0

    def number(self) -> ir.Value:
        self.at += 1
        return load_arg(self.b, self.args, self.at - 1)

    def pointer(self) -> ir.Value:
        self.at += 1
        return load_pointer(self.b, self.args, self.at - 1)


class _Body(BodyEmitter):
    """A loop's body and the loops around it."""

    def __init__(self, b: ir.IRBuilder, words: _Words, kernel: Tiled, part: Part, scratch: ir.Value) -> None:
        self.words_of, self.tiled, self.part, self.scratch = words, kernel, part, scratch
        self.memory_of = memory_of(part.kernel)
        super().__init__(b, words.args, part.kernel)
        self.wide = self.builder(kernel.lanes)
        self.at: Offsets = []
        self.local: dict[tuple[int, ...], ir.Value] = {}
        self.staged: dict[int, ir.Value] = {}  # where what is in rows has been turned into lanes, by access
        self.rows = [g for g in part.groups if g.kind == "rows"]
        self.woven = {k: g for g in part.groups if g.kind == "woven" for k in g.members}

    def _read_args(self) -> None:
        self.walks = [[self.words_of.number() if m else None for m in moves] for moves in self.part.walks]
        self.bases: list[ir.Value | None] = []
        for spot in self.part.spots:
            if spot.kind == "tile":
                self.bases.append(None)
            elif spot.near:
                self.bases.append(offset(self.b, self.scratch, spot.first))
            else:
                self.bases.append(self.words_of.number() if spot.kind == "number" else self.words_of.pointer())

    # -- places --------------------------------------------------------------------------------------------------------

    def place(self, access: int) -> ir.Value:
        spot, base = self.part.spots[access], self.bases[access]
        if base is None:
            return offset(self.b, offset(self.b, self.scratch, self.local[spot.strides]), spot.first)
        return offset(self.b, base, self.at[spot.walk])

    def lane_stride(self, access: int) -> ir.Value:
        stride = self.walks[self.part.spots[access].walk][len(self.part.sizes) + self.tiled.lane]
        return I64(0) if stride is None else stride

    def moved(self, at: Offsets, piece: int, by: ir.Value) -> Offsets:
        return [self._sum(x, walk[piece], by) for x, walk in zip(at, self.walks, strict=True)]

    def _sum(self, x: ir.Value, stride: ir.Value | None, by: ir.Value) -> ir.Value:
        return x if stride is None else self.b.add(x, self.b.mul(by, stride))

    # -- loops ---------------------------------------------------------------------------------------------------------

    def emit(self, firsts: Sequence[ir.Value]) -> None:
        """The loop's elements of a tile that begins at these values of the digits."""
        at: Offsets = [I64(0) for _ in self.walks]
        for k, first in enumerate(firsts):
            at = self.moved(at, len(self.part.sizes) + k, first)
        self._nest(0, at, {s.strides: I64(0) for s in self.part.spots if s.kind == "tile"})

    def _nest(self, depth: int, at: Offsets, local: dict[tuple[int, ...], ir.Value]) -> None:
        sizes = self.part.sizes
        if depth == len(sizes):
            self._element(at, local)
        elif self.rows and depth == len(sizes) - 1:
            self._blocks(at, local)
        else:
            with for_range(self.b, 0, sizes[depth]) as i:
                self._nest(depth + 1, self.moved(at, depth, i), self._inside(local, depth, i))

    def _inside(
        self, local: dict[tuple[int, ...], ir.Value], piece: int, by: ir.Value
    ) -> dict[tuple[int, ...], ir.Value]:
        b = self.b
        return {key: b.add(x, b.mul(by, I64(key[piece]))) if key[piece] else x for key, x in local.items()}

    def _blocks(self, at: Offsets, local: dict[tuple[int, ...], ir.Value]) -> None:
        """The innermost loop in blocks, whose rows are turned into lanes and back."""
        b, last, block = self.b, len(self.part.sizes) - 1, self.part.block
        size = self.part.sizes[last]
        with for_range(b, 0, size, block) as begin:
            first = begin if size % block == 0 else minimum(b, begin, I64(size - block))
            start = self.moved(at, last, first)
            memory = len(self.memory)
            places = self._staging()
            for group, place in zip(self.rows, places, strict=True):
                if group.members[0] < memory:
                    self._turn(turn_in, group, place, start)
            with for_range(b, 0, block) as j:
                for group, place in zip(self.rows, places, strict=True):
                    count = len(group.members)
                    line = self.tiled.lanes * group.size
                    element = b.mul(b.sub(I64(block - 1), j) if group.back else j, I64(count * line))
                    for m, k in enumerate(group.members):
                        self.staged[k] = offset(b, offset(b, place, element), m * line)
                index = b.add(first, j)
                self._element(self.moved(at, last, index), self._inside(local, last, index))
            for group, place in zip(self.rows, places, strict=True):
                if group.members[0] >= memory:
                    self._turn(turn_out, group, place, start)

    def _staging(self) -> list[ir.Value]:
        places, at = [], self.tiled.passed
        for group in self.rows:
            places.append(offset(self.b, self.scratch, at))
            at += self.part.staged(group, self.tiled.lanes)
        return places

    def _turn(self, function: Turn, group: Together, place: ir.Value, start: Offsets) -> None:
        """A block of each row, from where it begins; and ask for that of the next task."""
        b, first = self.b, group.members[0]
        spot, base = self.part.spots[first], self.bases[first]
        assert base is not None
        here = offset(b, base, start[spot.walk])
        if group.back:
            step = self.walks[spot.walk][len(self.part.sizes) - 1]
            here = offset(b, here, b.mul(step, I64(self.part.block - 1)))
        width = self.part.block * len(group.members)
        turn = function(b.module, self._dtype(first), self.tiled.lanes, width)
        b.call(turn, [here, self.lane_stride(first), place, self._to_next(first)])

    def _to_next(self, access: int) -> ir.Value:
        """Bytes from what an access touches to where it does in the next task, if that is elsewhere."""
        tile, spot = self.tiled, self.part.spots[access]
        digit = 0 if tile.near else tile.digits - 1
        step = None if spot.near else self.walks[spot.walk][len(self.part.sizes) + digit]
        if step is None:
            return I64(0)
        return self.b.mul(step, I64(tile.lanes)) if digit == tile.lane else step

    def _dtype(self, access: int) -> str:
        return self.memory_of[access].dtype.name

    # -- elements ------------------------------------------------------------------------------------------------------

    def _element(self, at: Offsets, local: dict[tuple[int, ...], ir.Value]) -> None:
        self.at, self.local = at, local
        self._ask()
        values: dict[int, Value] = {}
        self.evaluate(range(len(self.kernel.body)), values, self.tiled.lanes, {}, None)
        memory = len(self.memory)
        given_to: dict[int, Value] = {}
        for n, s in enumerate(self.kernel.stores):
            value = self._widened(values[s.value], self.wide)
            if value.dtype != compute_dtype(s.dtype.name):
                value = self.wide.cast(value, s.dtype.name)
            given_to[memory + n] = value
        for k, value in given_to.items():
            self._write(k, value, given_to)

    def _ask(self) -> None:
        """Ask for what the next task touches: tiles go from place to place, which processors do not foresee."""
        for k, spot in enumerate(self.part.spots):
            leads = spot.kind == "beside" or (spot.kind == "woven" and self.woven[k].members[0] == k)
            ahead = self._to_next(k) if leads else I64(0)
            if isinstance(ahead, ir.Constant):
                continue
            there = offset(self.b, self.place(k), ahead)
            count = len(self.woven[k].members) if k in self.woven else 1
            size = self.tiled.lanes * count * self.memory_of[k].dtype.itemsize
            for line in range(0, size, LINE):
                prefetch(self.b, offset(self.b, there, line), writes=k >= len(self.memory))

    def _write(self, k: int, value: Value, given_to: dict[int, Value]) -> None:
        kind, dtype = self.part.spots[k].kind, self._dtype(k)
        if kind == "woven":
            group = self.woven[k]
            if group.members[0] == k:
                weaving.store(self.wide, [given_to[m] for m in group.members], self.place(k), dtype, None)
        elif kind == "rows":
            self.wide.store(value, self.staged[k], dtype)
        elif kind == "apart":
            self.wide.store_strided(value, self.place(k), self.lane_stride(k), dtype)
        else:
            self.wide.store(value, self.place(k), dtype)

    def _value(
        self, i: int, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        """What is the same in all lanes is computed in one."""
        x = self.kernel.body[i]
        if isinstance(x, ConstValue):
            return super()._value(i, values, 1, row, index, reduced)
        if isinstance(x, Compute):
            lanes = max((values[a].builder.lanes for a in x.args), default=1)
            return super()._value(i, values, lanes, row, index, reduced)
        k = self.memory.index(i)
        if isinstance(x, GivenValue):
            return given(x, self.builder(1), self.bases[k])
        if isinstance(x, IndexValue):
            return self._number(k, x)
        kind, dtype = self.part.spots[k].kind, self._dtype(k)
        if kind == "same":
            return self.builder(1).load(self.place(k), dtype)
        if kind == "woven":
            members = self.woven[k].members
            found = weaving.load(self.wide, self.place(members[0]), dtype, len(members), None)
            values.update(zip((self.memory[m] for m in members), found, strict=True))
            return values[i]
        if kind == "rows":
            return self.wide.load(self.staged[k], dtype)
        if kind == "apart":
            return self.wide.load_strided(self.place(k), self.lane_stride(k), dtype)
        return self.wide.load(self.place(k), dtype)

    def _number(self, k: int, x: IndexValue) -> Value:
        spot, one = self.part.spots[k], Builder(self.b, 1)
        first = one.value(self.b.add(self.bases[k], self.at[spot.walk]), "int64")
        stride = self.walks[spot.walk][len(self.part.sizes) + self.tiled.lane]
        if stride is None:
            return one.cast(first, x.dtype.name)
        wide = self.wide
        return wide.cast(wide.splat(first) + wide.iota("int64") * wide.splat(one.value(stride, "int64")), x.dtype.name)


def build_tiled(module: ir.Module, name: str, kernel: Tiled) -> ir.Function:
    """Args: see `tiles.launches`."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch_address = function.args
    scratch = b.inttoptr(scratch_address, ir.PointerType())
    words = _Words(b, args)
    counts = [words.number() for _ in range(kernel.digits)]
    lanes = I64(kernel.lanes)
    blocks = [b.sdiv(b.add(n, I64(kernel.lanes - 1)), lanes) if k == kernel.lane else n for k, n in enumerate(counts)]
    bodies = [_Body(b, words, kernel, part, scratch) for part in kernel.parts]
    with for_range(b, begin, end) as task:
        firsts = bodies[0].unravel(task, blocks)
        k = kernel.lane
        firsts[k] = minimum(b, b.mul(firsts[k], lanes), b.sub(counts[k], lanes))
        for body in bodies:
            body.emit(firsts)
    b.ret_void()
    return function
