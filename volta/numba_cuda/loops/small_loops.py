"""Loops of small bodies on a GPU: which of them run as one kernel, and what a block of threads does in it.

Between two launches lie one or two microseconds: more than a body of a few thousand numbers computes in. So where a
body consists of elementwise loops, products and short reductions, a block of threads takes them one after the other,
iteration after iteration, and meets between one that writes and one that reads; those of choices run under their
conditions. Many rows, such as a batch, that never
ask for each other are shared out to blocks, which never wait for one another. What else the body writes, such as the
number of the iteration, each block computes for itself. Temporaries, and what is carried if it is small, lie in shared
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from volta.emit.args import Address, Word, given_words, laid_out, loop_words
from volta.numba_cuda.codegen.ptx import KernelSource, shared_of
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.loops.rows_apart import Apart, Work, ways_apart, work_of
from volta.numba_cuda.loops.small_loop_code import LINKS, build_settling, build_small_loop
from volta.numba_cuda.processors import filling
from volta.ops.primitive import REGISTRY
from volta.xla_like.control_calls import Around, Switch, bound
from volta.xla_like.dot import Dot, item_size
from volta.xla_like.kernels import Access, Compute, KernelCall, LoopKernel
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.views import Ints

ITERATIONS = 4096
"""Of one launch: between launches the stop word is looked at, which is to be often enough for who waits."""

THREADS = 512
"""Of a block, at most."""

_BUSY, _BLOCKS = 128, 132
"""Elements that a block has at least of the largest step, if there are so many; blocks, if rows allow it."""

OWN = 1 << 14
"""Bytes up to which a block keeps what is carried in shared memory."""

_LAUNCH, _FAR, _ROUND, _OPERATION, _EXCHANGE, _MEETING = 2000, 400, 100, 2, 200, 30
"""Nanoseconds that an iteration takes for a launch; in a kernel for what a step reads of device memory, a thread's
element, an operation on it, the exchange behind a row of elements, a meeting of threads. (Seen on an H200: loops are
done in a half to all of the time that follows from these.)"""

_LINK, _WARP_LINK, _BYTES = 4, 1, 300
"""Likewise for a multiply-add of a thread's chain, and for what a warp reads for one, of which one comes after the
other; and bytes of a right operand in a nanosecond."""


@attrs.frozen
class Slot:
    """Memory of the body. ``row``: bytes from one of its rows to the next (0: it has none that are shared out).

    Of the block's own, ``shared`` says where it begins in shared memory, and ``nbytes`` are its bytes there; what has
    a ``word`` is that word of the args in device memory: read from there at first, and ``written`` back at last, where
    there are several blocks and no rows by the first block, at the word ``settled``."""

    nbytes: int
    row: int = 0
    word: int | None = None
    shared: int | None = None
    written: bool = False
    settled: int | None = None


@attrs.frozen
class Step:
    """A loop or a product of the body: its args as `loop_words` has them, of which ``addresses`` are (word, slot,
    distance) and ``passed`` (word, word of the kernel's own args). ``meets``: the threads meet before it. ``rows``: of
    its ``elements`` a block computes those of its rows. It runs ``only`` where the int32 of each slot is a number."""

    kernel: LoopKernel | Dot
    words: Ints
    addresses: tuple[Address, ...]
    passed: tuple[tuple[int, int], ...]
    elements: int
    rows: bool
    meets: bool
    only: tuple[tuple[int, int], ...] = ()

    def text(self) -> str:
        how = f"{self.addresses} {self.passed} {self.rows} {self.meets} {self.only}"
        return f"{self.kernel.text()}\n{self.words} {how}"


@attrs.frozen
class SmallLoop:
    """What blocks of ``threads`` run until the int32 of slot ``flag`` is 0: each has ``each`` of ``rows`` rows."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    flag: int
    rows: int
    each: int
    threads: int
    shared: int

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.each)

    def text(self) -> str:
        slots = "\n".join(str(attrs.astuple(s)) for s in self.slots)
        steps = "\n".join(s.text() for s in self.steps)
        how = f"flag={self.flag} rows={self.rows}/{self.each} threads={self.threads} links={LINKS}"
        return f"{how}\n{slots}\n{steps}"


def launches(call: KernelCall, ctx: LaunchContext, instead: int) -> Iterator[Launch]:
    """The launches of an iteration and those that follow it, up to `ITERATIONS`; none where ``instead``, one launch for
    each kernel of the body, are faster."""
    ((plan, around),) = bound(call)
    memory = _Memory(plan, around)
    works = memory.works()
    if works is None:
        return
    maker = min((_Maker(works, memory, apart, ctx) for apart in ways_apart(works)), key=_Maker.work)
    if maker.nanoseconds() <= _LAUNCH * instead and maker.place():
        yield from maker.launches(call)


class _Scope:
    """A plan that the kernel runs: the loop's, or that of a choice in it."""

    def __init__(self, plan: ExecutionPlan, around: Around, parent: _Scope | None = None) -> None:
        self.plan, self.around, self._parent = plan, around, parent
        self._places, _ = plan.address_slots()
        self._same = {b.id: b.alias for b in plan.buffers if b.kind == "temp" and b.alias is not None}
        for call in plan.calls:
            if call.elided:
                self._same.update((to, self._same.get(of, of)) for of, to in call.inplace)

    def is_temporary(self, buffer: int) -> bool:
        return self.plan.buffers[buffer].kind in ("temp", "unstored")

    def find(self, buffer: int) -> tuple[_Scope, int]:
        """The buffer that stands for all that are the same memory, not only in this layout of temporaries, and the plan
        it is of: for what a choice's plan is given, one further out."""
        buffer = self._same.get(buffer, buffer)
        if self.is_temporary(buffer):
            return self, buffer
        if self._parent is not None:
            outer, at = self.around(buffer)
            assert at == 0, "plans are given whole buffers"
            return self._parent.find(outer)
        position = self._places[buffer]
        return self, min(b for b, place in self._places.items() if place == position and not self.is_temporary(b))


class _Memory:
    """What the body's buffers are, numbered through all of its plans."""

    def __init__(self, plan: ExecutionPlan, around: Around) -> None:
        self._body = _Scope(plan, around)
        self._found: list[tuple[_Scope, int]] = []

    def works(self) -> list[Work] | None:
        """The steps that the body consists of, those of choices under their conditions; None where there are others."""
        return self._works(self._body, ())

    def _works(self, scope: _Scope, only: tuple[tuple[int, int], ...]) -> list[Work] | None:
        found: list[Work] = []
        for call in scope.plan.calls:
            if call.elided:
                continue
            several: list[list[Work] | Work | None]
            if isinstance(call.kernel, Switch):
                flag = self.number(scope, call.kernel.flag)
                several = [self._works(_Scope(*x, scope), (*only, (flag, i))) for i, x in enumerate(bound(call))]
            else:
                several = [self._work(scope, part, only) for part in call.each()]
            for x in several:
                if x is None:
                    return None
                found += x if isinstance(x, list) else [x]
        return found

    def _work(self, scope: _Scope, part: KernelCall, only: tuple[tuple[int, int], ...]) -> Work | None:
        numbers = (None if a.buffer is None else self.number(scope, a.buffer) for a in part.accesses)
        accesses = tuple(attrs.evolve(a, buffer=n) for a, n in zip(part.accesses, numbers, strict=True))
        return work_of(attrs.evolve(part, accesses=accesses), only)

    def number(self, scope: _Scope, buffer: int) -> int:
        key = scope.find(buffer)
        if key not in self._found:
            self._found.append(key)
        return self._found.index(key)

    @property
    def flag(self) -> int:
        """Of the loop."""
        return self.number(self._body, self._body.plan.outputs[0])

    def is_temporary(self, number: int) -> bool:
        scope, buffer = self._found[number]
        return scope.is_temporary(buffer)

    def nbytes(self, number: int) -> int:
        scope, buffer = self._found[number]
        return scope.plan.buffers[buffer].nbytes

    def outside(self, number: int) -> Access:
        """Where what is no temporary lies."""
        scope, buffer = self._found[number]
        return Access(*scope.around(buffer), ())


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _threads_of(work: Work) -> int:
    """Threads that compute a step's elements at once: a warp reduces a row."""
    return work.elements * (WARP if work.reduces else 1)


def _time_of(work: Work, warps: int) -> int:
    """Nanoseconds that an element takes a thread, where so many warps of a block compute one each."""
    call, kernel = work.call, work.call.kernel
    if isinstance(kernel, Dot):
        beside = call.accesses[1].strides[3] == item_size(kernel.spec.rhs)
        return _ROUND + kernel.k * max(_LINK, _WARP_LINK * warps) * (1 if beside else 4)
    assert isinstance(kernel, LoopKernel)
    operations = _OPERATION * sum(REGISTRY[x.name].cost for x in kernel.body if isinstance(x, Compute))
    if not work.reduces:
        return _ROUND + operations
    return _ROUND + _EXCHANGE + (_ROUND // 4 + operations) * -(-call.sizes[-1] // WARP)


def _bytes_read(work: Work) -> int:
    """Of a product's right operand, which a block reads whole."""
    kernel = work.call.kernel
    return kernel.batches * kernel.k * kernel.n * item_size(kernel.spec.rhs) if isinstance(kernel, Dot) else 0


class _Maker:
    """Shares rows out to blocks, and numbers slots and words."""

    def __init__(self, works: Sequence[Work], memory: _Memory, apart: Apart, ctx: LaunchContext) -> None:
        self._works, self._memory, self._apart, self._ctx = works, memory, apart, ctx
        self._rows, self._written = apart.rows, {b for work in works for b in work.writes}
        widest = max((_threads_of(works[i]) // apart.rows for i in apart.split), default=1)
        self._each = min(apart.rows, max(-(-apart.rows // filling(_BLOCKS)), -(-_BUSY // max(1, widest))))
        self._threads = min(THREADS, _up(max(self._share(i, _threads_of(w)) for i, w in enumerate(works)), WARP))
        self._slots: dict[int, Slot] = {}
        self._numbers: dict[int, int] = {}
        self._words: list[Word] = [ITERATIONS]
        self._shared = 0

    @property
    def _blocks(self) -> int:
        return -(-self._rows // self._each)

    def _share(self, number: int, amount: int) -> int:
        """Of an amount of work for a step, what one block has."""
        return -(-amount // self._rows) * self._each if number in self._apart.split else amount

    def work(self) -> float:
        """About what one block computes in an iteration. Several blocks are to spare it a fifth at least."""
        total = 0
        for i, work in enumerate(self._works):
            kernel, each = work.call.kernel, 1
            if isinstance(kernel, Dot):
                each = kernel.k
            elif work.reduces:
                each = work.call.sizes[-1]
            total += self._share(i, work.elements) * each
        return total if self._blocks == 1 else 1.25 * total

    def nanoseconds(self) -> int:
        """About how long an iteration takes."""
        total = 0
        for i, work in enumerate(self._works):
            share = self._share(i, _threads_of(work))
            rounds, warps = -(-share // self._threads), -(-min(share, self._threads) // WARP)
            total += _MEETING + rounds * _time_of(work, warps) + _bytes_read(work) // _BYTES
            total += 0 if all(self._is_kept(b) for b in work.reads) else _FAR
        return total

    def place(self) -> bool:
        """Number the slots and lay out those of the block's own; False where there is no room, or where what it would
        have to keep is no whole words."""
        for work in self._works:
            for buffer in (*work.reads, *work.writes):
                if buffer not in self._slots:
                    slot = self._slot(buffer)
                    if slot is None:
                        return False
                    self._numbers[buffer] = len(self._slots)
                    self._slots[buffer] = slot
        return self._shared <= shared_of(self._ctx.capability) // 2

    def _is_alone(self, buffer: int) -> bool:
        """Whether each block computes it for itself."""
        return buffer in self._written and buffer not in self._apart.nbytes and self._blocks > 1

    def _is_kept(self, buffer: int) -> bool:
        """Whether a block has it, or its rows of it, in shared memory."""
        memory, row = self._memory, self._apart.nbytes.get(buffer, 0)
        nbytes = memory.nbytes(buffer)
        mine = row * self._each if row else nbytes
        small = mine <= OWN and mine % 4 == 0 and row % 4 == 0 and row * self._rows in (0, nbytes)
        return memory.is_temporary(buffer) or self._is_alone(buffer) or (buffer in self._written and small)

    def _slot(self, buffer: int) -> Slot | None:
        memory, row = self._memory, self._apart.nbytes.get(buffer, 0)
        nbytes, temporary = memory.nbytes(buffer), memory.is_temporary(buffer)
        written = buffer in self._written
        alone, own = self._is_alone(buffer), self._is_kept(buffer)
        mine = row * self._each if row else nbytes
        if temporary and row and row * self._rows != nbytes or alone and mine % 4:
            return None
        word = None if temporary else self._word(memory.outside(buffer))
        if not own:
            return Slot(nbytes, row, word, written=written)
        start, self._shared = self._shared, _up(self._shared + mine, 16)
        settled = self._word(self._ctx.scratch(mine)) if alone and not temporary else None
        return Slot(mine, row, word, start, written and not temporary, settled)

    def _word(self, word: Word) -> int:
        self._words.append(word)
        return len(self._words) - 1

    def launches(self, call: KernelCall) -> Iterator[Launch]:
        """The loop's launch; where blocks have computed for themselves what others read, one that gives it back."""
        steps = tuple(self._steps())
        flag = self._numbers[self._memory.flag]
        slots = tuple(self._slots.values())
        loop = SmallLoop(slots, steps, flag, self._rows, self._each, self._threads, self._shared)
        name = f"volta_small_loop_{hashlib.sha256(loop.text().encode()).hexdigest()[:16]}"
        source = KernelSource(name, f"small loop\n{loop.text()}", partial(build_small_loop, loop=loop))
        moved = [(self._words[s.settled], self._words[s.word], s.nbytes) for s in slots if s.settled and s.word]
        kept = [x for x, _, _ in moved if isinstance(x, Access)]
        reads = self._ctx.ranges([Access(b, 0, ()) for b in call.reads])
        writes = self._ctx.ranges([*(Access(b, 0, ()) for b in call.writes), *kept])
        label = f"loop of {' '.join(w.call.describe() for w in self._works[:6])}{' …' * (len(self._works) > 6)}"
        yield self._ctx.launch(
            source, loop.blocks, loop.threads, self._words, loop.shared, label=label, alone=True,
            touched=(reads, writes),
        )  # fmt: skip
        if moved:
            sizes = tuple(nbytes for _, _, nbytes in moved)
            name = f"volta_settling_{'_'.join(map(str, sizes))}"
            source = KernelSource(name, f"settling {sizes}", partial(build_settling, sizes=sizes))
            words = [word for x, to, _ in moved for word in (x, to)]
            copy = self._ctx.launch(source, 1, WARP, words, label="copy", alone=True, touched=(writes, writes))
            yield attrs.evolve(copy, after=(0,))

    def _steps(self) -> Iterator[Step]:
        """The steps; threads meet where one reads what was written since they met, or writes what was used."""
        read, wrote = {self._memory.flag}, set[int]()
        for number, work in enumerate(self._works):
            meets = bool(wrote.intersection(work.reads) or (read | wrote).intersection(work.writes))
            if meets:
                read, wrote = set(), set()
            read.update(work.reads)
            wrote.update(work.writes)
            yield self._step(work, number in self._apart.split, meets)

    def _step(self, work: Work, rows: bool, meets: bool) -> Step:
        call = work.call
        words = loop_words(call)
        given = given_words(call.kernel) if isinstance(call.kernel, LoopKernel) else []
        passed = []
        for at in given:
            passed.append((at, self._word(words[at])))
            words[at] = 0
        numbers, addresses = laid_out(words)
        placed = tuple((at, self._numbers[b], distance) for at, b, distance in addresses)
        assert isinstance(call.kernel, (LoopKernel, Dot))
        only = tuple((self._numbers[flag], number) for flag, number in work.only)
        return Step(call.kernel, numbers, placed, tuple(passed), work.elements, rows, meets, only)
