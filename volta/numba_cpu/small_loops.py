"""Loops of small bodies: which of them run as one native function, and what that function does.

Between two kernels of a launch table lie about 12 ns: more than a body of a few numbers computes in. So where a body is
small, all of its kernels become the iteration of one kernel. Maps of few elements are written out in it, element by
element; what else there is, it calls. Small buffers are its own: LLVM keeps them in registers from one map to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import attrs

from volta.emit.args import Address, given_words
from volta.numba_cpu.launches import Launch
from volta.numba_cpu.loop_schedule import VectorLoop
from volta.ops.primitive import REGISTRY
from volta.xla_like.control_calls import bound
from volta.xla_like.kernels import Compute, Kernel, KernelCall, LibraryKernel, LoopKernel, kernel_name
from volta.xla_like.plan import Buffer, ExecutionPlan
from volta.xla_like.user import is_user
from volta.xla_like.views import Ints

NAME = "small_loop"

ITERATIONS = 1024
"""Of one launch: between launches the table is asked whether to stop, and a body takes microseconds at most."""

SMALL = 1 << 14
"""Bytes that a small body touches: a few hundred nanoseconds, in which no second thread could help."""

OWN = 256
"""Bytes of the largest buffer that the function keeps to itself: four registers of AVX-512."""

WRITTEN_OUT = 2000
"""Operations written out in one function, functions counted by their cost: LLVM takes about 0.1 ms for ten."""

_SCALARS = 4
"""Up to so many elements are computed one by one: a vector of them would be taken apart again by what reads one."""


@attrs.frozen
class Slot:
    """A buffer of the body: its bytes, and the word of the args that is its address (None: it lives in one iteration).

    The function keeps what is its ``own`` to itself, from entry to return; it gives back what is ``written``.
    """

    nbytes: int
    word: int | None
    own: bool
    written: bool


@attrs.frozen
class Step:
    """A kernel of the body with its args: ``addresses`` are (word, slot, distance), ``passed`` words that are words of
    the function's own args: constants, and addresses of kernels. ``callee`` is the one that is the address of the
    kernel itself (None: it is written out)."""

    kernel: Kernel
    words: Ints
    addresses: tuple[Address, ...]
    passed: tuple[tuple[int, int], ...]
    tasks: int
    callee: int | None = None

    def __str__(self) -> str:
        how = self.kernel.text() if self.callee is None else f"call {self.callee} {kernel_name(self.kernel)}"
        return f"{how}\n  args={self.words} at={self.addresses} passed={self.passed} tasks={self.tasks}"


@attrs.frozen
class SmallLoop:
    """The body that one function runs until the int32 of slot ``flag`` is 0, `ITERATIONS` times at most."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    flag: int
    vector_bits: int

    def __str__(self) -> str:
        """The kernel's text: all that its code depends on."""
        slots = "\n".join(str(attrs.astuple(s)) for s in self.slots)
        steps = "\n".join(map(str, self.steps))
        return f"{self.vector_bits} flag={self.flag} most={ITERATIONS}\n{slots}\n{steps}"


def pieces(n: int, register: int) -> Iterator[tuple[int, int]]:
    """Elements 0 … n-1 as (first, lanes) of vectors."""
    first = 0
    while first < n:
        lanes = 1 if n <= _SCALARS else min(register, 1 << ((n - first).bit_length() - 1))
        yield first, lanes
        first += lanes


def register_lanes(kernel: LoopKernel, vector_bits: int) -> int:
    """Elements of one register."""
    return vector_bits // (8 * max([4, *(x.dtype.itemsize for x in kernel.body if isinstance(x, Compute))]))


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """The launch of a loop whose body is small; of others none."""
    (plan,) = call.plans
    # A `HostPlan`: bodies have their launches first. Its module imports the schedule, which imports this one.
    body = plan.all_launches()  # type: ignore[attr-defined]
    if not body or any(c.plans or is_user(c) for c in plan.calls) or _touched(plan) > SMALL:
        return []
    return [_Maker(call, body, vector_bits).launch()]


def _touched(plan: ExecutionPlan) -> int:
    """Bytes that a run of a plan reads and writes: of a large array those that a map reaches."""
    total = 0
    for call in plan.calls:
        if not call.elided:
            reached = 1 << 62
            if isinstance(call.kernel, LoopKernel):
                reached = 8 * prod(call.sizes[: call.kernel.rank + (call.kernel.mode != "map")])
            total += sum(min(plan.buffers[b].nbytes, reached) for b in (*call.reads, *call.writes))
    return total


class _Maker:
    """Numbers the buffers, addresses and functions that the kernels of a body need."""

    def __init__(self, call: KernelCall, launches: Sequence[Launch], vector_bits: int) -> None:
        self._call, self._launches, self._bits = call, launches, vector_bits
        ((self._plan, self._around),) = bound(call)
        self._positions, _ = self._plan.address_slots()
        self._shared: dict[int, int] = {}  # temporaries that a copy which need not run makes one
        for inner in self._plan.calls:
            if inner.elided:
                self._shared.update((to, self._shared.get(of, of)) for of, to in inner.inplace)
        self._written = {self._key(b) for x in self._plan.calls if not x.elided for b in x.writes}
        self._numbers: dict[object, int] = {}
        self._slots: list[Slot] = []
        self._addresses: list[Address] = []
        self._functions: list[tuple[int, Launch]] = []
        self._words: list[int] = []
        self._cost = 0

    def launch(self) -> Launch:
        steps = [self._step(x, self._is_written_out(x)) for x in self._launches]
        spec = SmallLoop(tuple(self._slots), tuple(steps), self._slot(self._plan.outputs[0]), self._bits)
        scratch = max(x.scratch_bytes for x in self._launches)
        kernel, words = LibraryKernel(NAME, spec), tuple(self._words)
        return Launch(kernel, self._call, words, tuple(self._addresses), 1, scratch, tuple(self._functions))

    def _is_written_out(self, x: Launch) -> bool:
        """Whether a launch is: a map of few elements, while there is room."""
        kernel = x.kernel
        if not isinstance(kernel, VectorLoop) or kernel.mode != "map" or prod(x.words[: kernel.rank]) > OWN:
            return False
        lanes = register_lanes(kernel, self._bits)
        copies = prod(x.words[: kernel.rank - 1]) * sum(1 for _ in pieces(x.words[kernel.rank - 1], lanes))
        body = (REGISTRY[i.name].cost if isinstance(i, Compute) else 1 for i in kernel.body)
        cost = copies * (sum(body) + len(kernel.stores))
        if copies > 8 or self._cost + cost > WRITTEN_OUT:
            return False
        self._cost += cost
        return True

    def _step(self, x: Launch, written_out: bool) -> Step:
        addresses = tuple((word, self._slot(buffer), distance) for word, buffer, distance in x.addresses)
        given = given_words(x.kernel) if isinstance(x.kernel, LoopKernel) else []
        passed = [(word, self._word(x.words[word])) for word in given]
        passed += [(word, self._function(other)) for word, other in x.functions]
        words = list(x.words)
        for word, _ in passed:
            words[word] = 0
        callee = None if written_out else self._function(x)
        return Step(x.kernel, tuple(words), addresses, tuple(passed), x.tasks, callee)

    def _word(self, value: int = 0) -> int:
        """A new word of the args."""
        self._words.append(value)
        return len(self._words) - 1

    def _function(self, x: Launch) -> int:
        """The word that is the address of a launch's kernel."""
        name = kernel_name(x.kernel)
        for word, other in self._functions:
            if kernel_name(other.kernel) == name:
                return word
        self._functions.append((self._word(), attrs.evolve(x, functions=())))
        return self._functions[-1][0]

    def _key(self, buffer: int) -> object:
        """The same for buffers that share memory by what they are, not only in this layout of temporaries."""
        buffer = self._shared.get(buffer, buffer)
        return buffer if self._plan.buffers[buffer].kind == "temp" else self._positions[buffer]

    def _slot(self, buffer: int) -> int:
        key = self._key(buffer)
        if key not in self._numbers:
            buffer = self._shared.get(buffer, buffer)
            described = self._plan.buffers[buffer]
            own, word = described.nbytes <= OWN, None
            if not own or described.kind != "temp":
                word = self._word()
                self._addresses.append((word, *self._around(buffer)))
            self._numbers[key] = len(self._slots)
            self._slots.append(Slot(described.nbytes, word, own, key in self._written))
        return self._numbers[key]
