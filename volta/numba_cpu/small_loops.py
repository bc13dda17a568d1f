"""Loops of small bodies: which of them run as one native function, and what that function does.

Between two kernels of a launch table lie about 12 ns: more than a body of a few numbers computes in. So where a body is
small, all of its kernels become the iteration of one kernel. Maps and products of few elements are written out in it,
element by element; what else there is, it calls. Choices become branches of it, and inner loops that count loops of it.
Small buffers are its own: LLVM keeps them in registers from one map to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import attrs

from volta.emit.args import Address, given_words
from volta.emit.dot_args import Arg
from volta.numba_cpu.dot_schedule import TileSpec
from volta.numba_cpu.launches import Launch
from volta.numba_cpu.loop_schedule import VectorLoop
from volta.numba_cpu.work import touched
from volta.ops.primitive import REGISTRY
from volta.xla_like.control_calls import Around, Control, While, bound
from volta.xla_like.dot import CHUNK, Dot, item_size
from volta.xla_like.kernels import Compute, Kernel, KernelCall, LibraryKernel, LoopKernel, Operation, kernel_name
from volta.xla_like.plan import Buffer, ExecutionPlan
from volta.xla_like.user import is_user
from volta.xla_like.views import Ints

NAME = "small_loop"

ITERATIONS = 1024
"""Of one launch, those of inner loops counted: between launches the table is asked whether to stop, and a body takes
microseconds at most."""

SMALL = 1 << 14
"""Bytes that a small body touches, inner loops as often as they run: a few hundred nanoseconds, in which no second
thread could help."""

OWN = 256
"""Bytes of the largest buffer that the function keeps to itself: four registers of AVX-512."""

WRITTEN_OUT = 2000
"""Operations written out in one function, functions counted by their cost: LLVM takes about 0.1 ms for ten."""

PRODUCT = 128
"""Fused multiply-adds of a product that is written out, each counted by the numbers that are read for it one by one."""

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
class Inner:
    """A loop in the body: it runs ``steps`` while the int32 of slot ``flag`` is not 0."""

    flag: int
    steps: Steps

    def __str__(self) -> str:
        return f"while {self.flag}\n{_indented(self.steps)}"


@attrs.frozen
class Choice:
    """A choice in the body: of ``branches`` it runs the one whose number the int32 of slot ``flag`` is."""

    flag: int
    branches: tuple[Steps, ...]

    def __str__(self) -> str:
        return "\n".join([f"switch {self.flag}", *(f"case\n{_indented(x)}" for x in self.branches)])


Steps = tuple[Step | Inner | Choice, ...]


def _indented(steps: Steps) -> str:
    return "\n".join(map(str, steps)).replace("\n", "\n  ")


def flat(steps: Steps) -> Iterator[Step]:
    """The kernels among steps, those of loops and choices too."""
    for step in steps:
        if isinstance(step, Step):
            yield step
        else:
            for inner in (step.steps,) if isinstance(step, Inner) else step.branches:
                yield from flat(inner)


@attrs.frozen
class SmallLoop:
    """The body that one function runs until the int32 of slot ``flag`` is 0, ``most`` times at most."""

    slots: tuple[Slot, ...]
    steps: Steps
    flag: int
    most: int
    vector_bits: int

    def __str__(self) -> str:
        """The kernel's text: all that its code depends on."""
        slots = "\n".join(str(attrs.astuple(s)) for s in self.slots)
        steps = "\n".join(map(str, self.steps))
        return f"{self.vector_bits} flag={self.flag} most={self.most}\n{slots}\n{steps}"


def pieces(n: int, register: int) -> Iterator[tuple[int, int]]:
    """Elements 0 … n-1 as (first, lanes) of vectors."""
    first = 0
    while first < n:
        lanes = 1 if n <= _SCALARS else min(register, 1 << ((n - first).bit_length() - 1))
        yield first, lanes
        first += lanes


def runs(n: int, register: int) -> Iterator[tuple[int, int]]:
    """Columns 0 … n-1 of a product as (first, lanes) of vectors: as few as may be."""
    first = 0
    while first < n:
        lanes = min(register, 1 << ((n - first).bit_length() - 1))
        yield first, lanes
        first += lanes


def product_of(kernel: Kernel) -> TileSpec | None:
    """What a kernel that multiplies matrices is for; None of others."""
    return kernel.spec if isinstance(kernel, LibraryKernel) and kernel.name in ("dot", "dot_row") else None


def register_lanes(kernel: LoopKernel, vector_bits: int) -> int:
    """Elements of one register."""
    return vector_bits // (8 * max([4, *(x.dtype.itemsize for x in kernel.body if isinstance(x, Compute))]))


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """The launch of a loop whose body is small; of others none."""
    (plan,) = call.plans
    touched, turns = _weight(plan)
    if not touched or touched > SMALL or turns > ITERATIONS:
        return []
    return [_Maker(call, vector_bits, ITERATIONS // turns).launch()]


_NEVER = 1 << 62


def _weight(plan: ExecutionPlan) -> tuple[int, int]:
    """What a run of a plan touches in bytes, of a large array what is reached, and how often its kernels may run.

    Nothing is small that has an inner loop of which that is unknown, or code of the user's own.
    """
    total, most = 0, 1
    for call in plan.calls:
        if is_user(call):
            return _NEVER, _NEVER
        if call.plans:
            weights = [_weight(p) for p in call.plans]
            turns = 1
            if isinstance(call.kernel, While):
                turns = call.kernel.turns or _NEVER
            total += turns * max(touched for touched, _ in weights)
            most = max(most, turns * max(often for _, often in weights))
        elif not call.elided:
            apart = call.parts and _is_small(call.parts[0].kernel)
            total += sum(_touched(part, plan.buffers) for part in (call.parts if apart else (call,)))
    return total, most


def _is_small(kernel: Kernel | Operation) -> bool:
    """Whether a kernel is a product that may be written out; beside others the time between kernels matters little."""
    return isinstance(kernel, Dot) and kernel.batches * kernel.m * kernel.k * -(-kernel.n // 8) <= PRODUCT


def _touched(call: KernelCall, buffers: Sequence[Buffer]) -> int:
    dot = call.kernel
    if isinstance(dot, Dot) and _is_small(dot):
        return touched(call, buffers, 8 * dot.batches * max(dot.m * dot.n, dot.m * dot.k, dot.k * dot.n))
    return touched(call, buffers)


class _Scope:
    """A plan that the function runs: the loop's, or one inside of it. What its buffers are, and where they lie."""

    def __init__(self, plan: ExecutionPlan, around: Around, parent: _Scope | None = None) -> None:
        self.plan, self._around, self._parent = plan, around, parent
        self._positions, _ = plan.address_slots()
        self._shared: dict[int, int] = {  # those in another's memory, and temporaries that an elided copy makes one
            b.id: b.alias for b in plan.buffers if b.kind == "temp" and b.alias is not None
        }
        for inner in plan.calls:
            if inner.elided:
                self._shared.update((to, self._shared.get(of, of)) for of, to in inner.inplace)

    def find(self, buffer: int) -> tuple[_Scope, int]:
        """The buffer that stands for one, and the plan it is of: for what an inner plan is given, one further out."""
        buffer = self._shared.get(buffer, buffer)
        if self._parent is None or self.plan.buffers[buffer].kind == "temp":
            return self, buffer
        outer, at = self._around(buffer)
        assert at == 0, "plans are given whole buffers"
        return self._parent.find(outer)

    def key(self, buffer: int) -> object:
        """The same for buffers that share memory by what they are, not only in this layout of temporaries."""
        scope, buffer = self.find(buffer)
        if scope.plan.buffers[buffer].kind == "temp":
            return id(scope), buffer
        return scope._positions[buffer]

    def place(self, buffer: int) -> tuple[int, int]:
        """The buffer of the loop's call that one lies in, and how far into it."""
        outer, at = self._around(buffer)
        if self._parent is None:
            return outer, at
        further, start = self._parent.place(outer)
        return further, start + at

    def inner(self, call: KernelCall) -> list[_Scope]:
        """The plans that a call runs."""
        return [_Scope(plan, around, self) for plan, around in bound(call)]

    def written(self) -> set[object]:
        """The keys of what the plan's calls write."""
        return {self.key(b) for x in self.plan.calls if not x.elided for b in x.writes}


class _Maker:
    """Numbers the buffers, addresses and functions that the kernels of a body need."""

    def __init__(self, call: KernelCall, vector_bits: int, most: int) -> None:
        self._call, self._bits, self._most = call, vector_bits, most
        ((plan, around),) = bound(call)
        self._body = _Scope(plan, around)
        self._scopes = [self._body]  # they are told apart by what they are, so none may go
        self._written = self._body.written()
        self._numbers: dict[object, int] = {}
        self._slots: list[Slot] = []
        self._addresses: list[Address] = []
        self._functions: list[tuple[int, Launch]] = []
        self._words: list[int] = []
        self._cost = self._scratch = 0

    def launch(self) -> Launch:
        steps = self._steps(self._body)
        flag = self._slot(self._body, self._body.plan.outputs[0])
        spec = SmallLoop(tuple(self._slots), steps, flag, self._most, self._bits)
        kernel, words = LibraryKernel(NAME, spec), tuple(self._words)
        return Launch(kernel, self._call, words, tuple(self._addresses), 1, self._scratch, tuple(self._functions))

    def _steps(self, scope: _Scope) -> Steps:
        found: list[Step | Inner | Choice] = []
        # A `HostPlan`: it has the launches of its calls. Its module imports the schedule, which imports this one.
        for call, launches in zip(scope.plan.calls, scope.plan.launches, strict=True):  # type: ignore[attr-defined]
            if call.plans:
                found.append(self._control(scope, call))
            else:
                for launch in launches:
                    for x in self._apart(launch):
                        found.append(self._step(scope, x, self._is_written_out(x)))
        return tuple(found)

    def _apart(self, x: Launch) -> list[Launch]:
        """A product and the loops behind it, one by one, if the product may be written out; else the launch itself."""
        parts = [other for _, other in x.functions]
        return parts if parts and self._product_cost(parts[0]) is not None else [x]

    def _control(self, scope: _Scope, call: KernelCall) -> Inner | Choice:
        scopes = scope.inner(call)
        self._scopes += scopes
        self._written |= {key for inner in scopes for key in inner.written()}
        branches = tuple(self._steps(inner) for inner in scopes)
        assert isinstance(call.kernel, Control)
        flag = self._slot(scope, call.kernel.flag)
        return Inner(flag, branches[0]) if isinstance(call.kernel, While) else Choice(flag, branches)

    def _is_written_out(self, x: Launch) -> bool:
        """Whether a launch is: a map or a product of few elements, while there is room."""
        cost = self._map_cost(x) if product_of(x.kernel) is None else self._product_cost(x)
        if cost is None or self._cost + cost > WRITTEN_OUT:
            return False
        self._cost += cost
        return True

    def _product_cost(self, x: Launch) -> int | None:
        """Operations of a product that is written out: one chain for each element."""
        spec, dot = product_of(x.kernel), x.call.kernel
        if spec is None or not isinstance(dot, Dot) or dot.batch[0] > 1 or not 0 < dot.k <= CHUNK:
            return None
        if spec.quads or spec.converts_lhs or spec.converts_rhs or spec.converts_out:
            return None
        neighbours = x.words[Arg.RHS_N] == item_size(spec.rhs)  # else a vector of columns is read number by number
        links = dot.batches * dot.m * dot.k * sum(1 if neighbours else lanes for _, lanes in runs(dot.n, spec.lanes))
        return 3 * links if links <= PRODUCT else None

    def _map_cost(self, x: Launch) -> int | None:
        kernel = x.kernel
        if not isinstance(kernel, VectorLoop) or kernel.mode != "map" or prod(x.words[: kernel.rank]) > OWN:
            return None
        lanes = register_lanes(kernel, self._bits)
        copies = prod(x.words[: kernel.rank - 1]) * sum(1 for _ in pieces(x.words[kernel.rank - 1], lanes))
        body = (REGISTRY[i.name].cost if isinstance(i, Compute) else 1 for i in kernel.body)
        cost = copies * (sum(body) + len(kernel.stores))
        return None if copies > 8 else cost

    def _step(self, scope: _Scope, x: Launch, written_out: bool) -> Step:
        self._scratch = max(self._scratch, x.scratch_bytes)
        addresses = tuple((word, self._slot(scope, buffer), distance) for word, buffer, distance in x.addresses)
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

    def _slot(self, scope: _Scope, buffer: int) -> int:
        key = scope.key(buffer)
        if key not in self._numbers:
            scope, buffer = scope.find(buffer)
            described = scope.plan.buffers[buffer]
            own, word = described.nbytes <= OWN, None
            if not own or described.kind != "temp":
                word = self._word()
                self._addresses.append((word, *scope.place(buffer)))
            self._numbers[key] = len(self._slots)
            self._slots.append(Slot(described.nbytes, word, own, key in self._written))
        return self._numbers[key]
