"""Several of Hopper's products by four warps (``wgmma``) begun together, and awaited where their sums are needed: what
`ptx_wgmma` says of products holds for these.

One operation begins them, since what products take in registers cannot be put there while others are under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from llvmlite import ir

from volta.emit.loops import I32, PTR
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register
from volta.numba_cuda.codegen.ptx_wgmma import F32, FIRST, GROUPS, UPPER, lower_word, pack, struct_of, unpack, wait_op
from volta.numba_cuda.codegen.ptx_wgmma_held import HELD, HELD_SCORES

_SHAPE = "wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16"
_COMMIT = "wgmma.commit_group.sync.aligned;"
_SCORES, _WORDS = 32, 16  # registers of 64 columns' sums, and of a left operand's 64 of k

Held = tuple[Sequence[ir.Value], ir.Value, Sequence[ir.Value]]
"""A left operand's words, the right operand, and sums that go on."""


@frozen
class _Groups:
    """Which products: those of `sides` by how often they take 64 of k, with left operands that are ``kept`` in
    registers or not; those that are held by their columns."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    kept: bool = False

    @property
    def before(self) -> int:
        """Sums that begin at 0."""
        return _SCORES * len(self.depths)

    @property
    def sums(self) -> int:
        """Sums that go on."""
        return sum(self.widths) // 2

    def cut(self, args: Sequence[ir.Value]) -> list[list[ir.Value]]:
        """The arguments: sums, words that are held, left operands that are kept, and pointers: of `sides`, then of
        what is held."""
        found = []
        for count in (self.sums, _WORDS * len(self.widths), _WORDS * sum(self.depths) * self.kept):
            found.append(list(args[:count]))
            args = args[count:]
        return [*found, list(args)]

    def types(self) -> tuple[ir.Type, ...]:
        places = sum(self.depths) * (1 if self.kept else 2) + len(self.widths)
        kept = _WORDS * sum(self.depths) * self.kept
        words = (I32,) * (_WORDS * len(self.widths))
        return (F32,) * self.sums + words + (I32,) * kept + (PTR,) * places

    def title(self) -> str:
        parts = *self.depths, "then", *self.widths, *["kept"] * self.kept
        return f"multiply_groups_{'_'.join(map(str, parts))}"

    # -- as PTX --------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Numbers of registers: results, the sums that go on once more, and then the arguments as they are cut."""
        first = self.before + 2 * self.sums
        kept = first + _WORDS * len(self.widths)
        places = kept + _WORDS * sum(self.depths) * self.kept
        scores, step = [], 0
        for number, depth in enumerate(self.depths):
            for _ in range(depth):
                scores += self._side(number, step, kept, places)
                step += 1
            scores.append(_COMMIT)
        places += step * (1 if self.kept else 2)
        start, held = self.before, []
        for number, width in enumerate(self.widths):
            held += self._held(start, width, first + _WORDS * number, places + number)
            start += width // 2
        parts = ["wgmma.fence.sync.aligned;", *scores, *held, *[_COMMIT] * bool(held)]
        return " ".join(["{ .reg .b64 a, b; .reg .b32 c;", *parts, "}"])

    def _side(self, number: int, step: int, kept: int, places: int) -> list[str]:
        """64 of k of the scores' products."""
        text, again = [], step - sum(self.depths[:number])
        sums = f"{_SHAPE.format(64)} {{{_names(_SCORES * number, _SCORES)}}}"
        for i in range(4):
            go_on = int(again > 0 or i > 0)
            if self.kept:
                left = f"{{{_names(kept + _WORDS * step + 4 * i, 4)}}}"
                text += [_descriptor("b", places + step, i * 32), f"{sums}, {left}, b, {go_on}, 1, 1, 0;"]
                continue
            text += [_descriptor(x, places + 2 * step + n, i * 32) for n, x in enumerate("ab")]
            text.append(f"{sums}, a, b, {go_on}, 1, 1, 0, 0;")
        return text

    def _held(self, start: int, width: int, words: int, place: int) -> list[str]:
        """64 of k of products whose left operand is held."""
        text, sums = [], f"{_SHAPE.format(width)} {{{_names(start, width // 2)}}}"
        for i in range(4):
            text.append(_descriptor("b", place, i * 2048))
            text.append(f"{sums}, {{{_names(words + 4 * i, 4)}}}, b, 1, 1, 1, 1;")
        return text

    def ptx(self, b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        *given, pointers = self.cut(args)
        held = len(self.widths)
        constraints = [*["=&f"] * self.before, *["=f"] * self.sums, *(str(self.before + i) for i in range(self.sums))]
        constraints += ["r"] * (sum(len(x) for x in given[1:]) + len(pointers)) + ["~{memory}"]
        along = ["k"] * (len(pointers) - held) + ["mn"] * held
        places = [lower_word(b, x, y) for x, y in zip(pointers, along, strict=True)]
        kind = struct_of(F32, self.before + self.sums)
        return assembly(b, self.text(), ",".join(constraints), kind, [*(x for some in given for x in some), *places])

    # -- on the host ---------------------------------------------------------------------------------------------------

    def host(self, b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        sums, words, kept, pointers = self.cut(args)
        found = []
        for depth in self.depths:
            some: list[ir.Value] = []
            for step in range(depth):
                if self.kept:
                    left, kept = kept[:_WORDS], kept[_WORDS:]
                    some = some or [F32(0.0)] * _SCORES
                    some = unpack(b, HELD_SCORES.host(b, [*some, *left, pointers.pop(0)]))
                else:
                    op = GROUPS["bfloat16", 64, ("k", "k")] if step else FIRST[64]
                    some = unpack(b, op.host(b, [*some, pointers.pop(0), pointers.pop(0)]))
            found += some
        start = 0
        for number, width in enumerate(self.widths):
            own, left = slice(start, start + width // 2), words[_WORDS * number : _WORDS * (number + 1)]
            sums[own] = unpack(b, HELD["bfloat16", width, 4].host(b, [*sums[own], *left, pointers.pop(0)]))
            start += width // 2
        return pack(b, [*found, *sums])


def _names(start: int, count: int) -> str:
    return ",".join(f"${i}" for i in range(start, start + count))


def _descriptor(name: str, place: int, beyond: int) -> str:
    """Have a descriptor of what lies so many bytes beyond a place, whose lower word is an argument."""
    return f"add.u32 c, ${place}, {beyond >> 4}; mov.b64 {name}, {{c, {UPPER}}};"


def _all_groups() -> list[_Groups]:
    """For heads of either size: the result, the gradient of queries, and those of keys and values."""
    found = [_Groups((1, 1), (64, 64))]
    for x in (1, 2):
        for y in (1, 2):
            found += [_Groups((x,), (64 * y, 64 * x))]
            found += [_Groups((x,), (), True), _Groups((x, y), (), True)]
            for kept in (False, True):
                found += [_Groups((x,), (64 * y,), kept), _Groups((x, y), (64 * x,), kept)]
    return found


_OPS = {
    x: register(Op(x.title(), struct_of(F32, x.before + x.sums), x.types(), x.ptx, x.host))
    for x in dict.fromkeys(_all_groups())
}


def multiply_groups(
    b: ir.IRBuilder, sides: Sequence[Sequence[tuple[ir.Value, ir.Value]]], held: Sequence[Held] = (),
    kept: Sequence[Sequence[ir.Value]] = (),
) -> tuple[list[list[ir.Value]], list[list[ir.Value]]]:  # fmt: skip
    """Begin several products: of `sides`, each 64 columns with sums from 0, as by `multiply_group` for each 128 bytes
    of k; then of what is `held`, as by `multiply_group_held`. Each of the first is a group to wait for, the others are
    one together. The left operands of `sides` may be ``kept`` in registers, as words.
    """
    groups = _Groups(tuple(len(x) for x in sides), tuple(2 * len(sums) for *_, sums in held), bool(kept))
    pointers = [x for some in sides for left, right in some for x in ((right,) if kept else (left, right))]
    words, sums = [x for some, *_ in held for x in some], [x for *_, some in held for x in some]
    lefts, rights = [x for some in kept for x in some], [right for _, right, _ in held]
    found = unpack(b, call(b, _OPS[groups], [*sums, *words, *lefts, *pointers, *rights]))
    cuts = [_SCORES] * len(sides) + [len(some) for *_, some in held]
    parts = [found[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]
    return parts[: len(sides)], parts[len(sides) :]


# -- waiting -----------------------------------------------------------------------------------------------------------

_EARLIER = {later: wait_op(F32, "f", _SCORES, later=later) for later in (1, 2)}
_HOLDING = {
    (count, words): wait_op(F32, "f", count, words)
    for count, words in ((64, 16), (96, 16), (96, 32), (128, 32), (160, 32))
}


def multiply_group_wait_earlier(b: ir.IRBuilder, sums: Sequence[ir.Value], later: int = 1) -> list[ir.Value]:
    """Wait for all products but so many groups that were begun last; gives the sums of one before."""
    return unpack(b, call(b, _EARLIER[later], list(sums)))


def multiply_group_wait_holding(
    b: ir.IRBuilder, sums: Sequence[ir.Value], words: Sequence[ir.Value], others: Sequence[ir.Value]
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Wait for all products; gives their sums. The left operands of those under way are `words`, which stay in
    registers until then; `others` are numbers that are computed before."""
    found = unpack(b, call(b, _HOLDING[len(sums) + len(others), len(words)], [*sums, *others, *words]))
    return found[: len(sums)], found[len(sums) :]
