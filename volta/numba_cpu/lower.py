"""From an ExecutionPlan to a launch table: kernels compiled as one unit, args blocks filled, addresses to patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from volta.core.errors import UnsupportedOperationError
from volta.numba_cpu import user_entry
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.launch import Executable, LaunchTable
from volta.numba_cpu.launches import Launch
from volta.numba_cpu.schedule import KERNELS
from volta.numba_cpu.unit import KernelSource, compile_kernels
from volta.numba_cpu.user import native_function, reporting
from volta.numba_cpu.user_entry import REPORT
from volta.numba_cpu.user_store import NativeFunction
from volta.numba_cpu.work import is_small
from volta.xla_like.control_calls import Around, While, bound
from volta.xla_like.kernels import Kernel, KernelCall, LibraryKernel, describe, kernel_class, kernel_name
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import is_user


def source_of(kernel: Kernel) -> KernelSource:
    """A kernel as text and builder for the compilation unit."""
    build = KERNELS.get(kernel_class(kernel))
    if build is None:
        raise UnsupportedOperationError(f"the CPU backend has no kernel for {describe(kernel)!r}")
    spec = kernel.spec if isinstance(kernel, LibraryKernel) else kernel
    return KernelSource(kernel_name(kernel), kernel.text(), lambda m, n: build(m, n, spec))


Locate = Callable[[int, int], tuple[int | None, int]]
"""Where a buffer's byte lies: (the number of an address of the call, distance), or (None, address)."""


class Rows:
    """Writes the rows of a plan, and those of the plans that its loops and choices run, into one launch table."""

    def __init__(self, kernels: Mapping[str, int]) -> None:
        self.table, self._kernels = LaunchTable(), kernels
        self.user_calls: list[KernelCall] = []
        self.functions: list[NativeFunction] = []
        self._stops: list[int] = []

    def add(self, plan: ExecutionPlan, locate: Locate) -> None:
        assert isinstance(plan, HostPlan)
        for call, launches in zip(plan.calls, plan.launches, strict=True):
            start, stops = len(self.table), len(self._stops)
            if isinstance(call.kernel, While):
                self._loop(call, launches, locate)
            elif call.plans:
                self._choice(call, locate)
            if call.plans and len(self._stops) == stops:
                self.table.walk_alone(start, len(self.table))
            for launch in () if call.plans else launches:
                row = self._launch(launch, locate, is_small(call, plan.buffers))
                if is_user(call):
                    self._go_on_unless_raised(launch, row, locate)

    def _launch(self, launch: Launch, locate: Locate, alone: bool = False) -> int:
        words = list(launch.words)
        for word, other in launch.functions:
            words[word] = self._kernels[kernel_name(other.kernel)]
        pieces = 0 if alone else launch.pieces
        row = self.table.append(self._kernels[kernel_name(launch.kernel)], words, launch.tasks, pieces)
        for word, buffer, distance in launch.addresses:
            self._put(row, word, *locate(buffer, distance))
        return row

    def _put(self, row: int, word: int, position: int | None, at: int) -> None:
        if position is None:
            self.table.set_arg(row, word, at)
        else:
            self.table.patch(row, word, position, at)

    def _unless(self, call: KernelCall, number: int, locate: Locate) -> int:
        """A row that goes on only if the call's flag is a number; where else to go is still to be said."""
        flag = call.accesses[0]
        assert flag.buffer is not None
        row = self.table.jump_unless(number)
        self._put(row, 0, *locate(flag.buffer, flag.offset))
        return row

    def _go_on_unless_raised(self, launch: Launch, row: int, locate: Locate) -> None:
        assert isinstance(launch.kernel, LibraryKernel)
        function = native_function(launch.kernel.spec)
        self.table.set_arg(row, user_entry.FUNCTION, function.address)
        self.table.set_arg(row, user_entry.NUMBER, len(self.user_calls))
        self.user_calls.append(launch.call)
        self.functions.append(function)
        test = self.table.jump_unless(0)
        self._put(test, 0, *locate(REPORT, 8 * user_entry.FLAG))
        self._stops.append(test)

    def end(self) -> None:
        """Behind the last row: here goes on what stops."""
        for row in self._stops:
            self.table.set_target(row, len(self.table))

    def _loop(self, call: KernelCall, launches: Sequence[Launch], locate: Locate) -> None:
        """Rows that run again: those of the body's plan, or the launches that stand for many iterations of it."""
        ((plan, around),) = bound(call)
        start = self._unless(call, 1, locate)
        for launch in launches:
            self._launch(launch, locate)
        if not launches:
            self.add(plan, _inside(around, locate))
        again = self._unless(call, 0, locate)
        self.table.set_target(again, start + 1)
        self.table.set_target(start, len(self.table))

    def _choice(self, call: KernelCall, locate: Locate) -> None:
        ends = []
        for number, (plan, around) in enumerate(bound(call)):
            test = self._unless(call, number, locate)
            self.add(plan, _inside(around, locate))
            ends.append(self._unless(call, -1, locate))  # it never is: on to the end
            self.table.set_target(test, len(self.table))
        for row in ends:
            self.table.set_target(row, len(self.table))


def _inside(around: Around, locate: Locate) -> Locate:
    """Where the bytes of a nested plan's buffers lie."""

    def inside(buffer: int, distance: int) -> tuple[int | None, int]:
        if buffer == REPORT:
            return locate(buffer, distance)
        outer, at = around(buffer)
        return locate(outer, at + distance)

    return inside


def compiled(calls: Mapping[str, KernelCall]) -> Mapping[str, int]:
    """The addresses of the kernels of calls as LLVM, good as long as what is returned is held."""
    return compile_kernels(source_of(call.kernel) for call in calls.values())


def kernel_calls(plan: HostPlan) -> dict[str, KernelCall]:
    """By the name of each kernel that a plan runs: the first call that runs it, as one of that kernel."""
    found: dict[str, KernelCall] = {}
    for launch in plan.all_launches():
        for x in launch.each():
            found.setdefault(kernel_name(x.kernel), attrs.evolve(x.call, kernel=x.kernel))
    return found


def lower(
    plan: HostPlan,
    const_addresses: tuple[int, ...],
    keep: object = None,
    addresses: Callable[[Mapping[str, KernelCall]], Mapping[str, int]] = compiled,
) -> Executable:
    """Compile a plan's kernels and bind what never moves; the rest are inputs of ``Executable.call``.

    The call takes the addresses that ``plan.address_slots`` counts, in that order. ``addresses`` makes the kernels
    of calls, by the kernels' names, and says where they are; where what it gives has a ``walker``, that one walks the
    table (`LaunchTable.build`).
    """
    slots, count = plan.address_slots()
    fixed = dict(zip(plan.consts, const_addresses, strict=True))

    def locate(buffer: int, distance: int) -> tuple[int | None, int]:
        if buffer == REPORT:
            return count, distance
        if buffer in fixed:
            return None, fixed[buffer] + distance
        position, base = slots[buffer]
        return position, base + distance

    kernels = addresses(kernel_calls(plan))
    rows = Rows(kernels)
    rows.add(plan, locate)
    rows.end()
    own = rows.user_calls
    brief = plan.work < 1 << 12 and not own and not any(c.plans for c in plan.calls)  # how long these take is unknown
    executable = rows.table.build(
        count + bool(own),
        scratch_bytes=plan.scratch_bytes,
        parallel=plan.parallel,
        keep_gil=brief,
        keep=(keep, kernels, rows.functions),
        walker=getattr(kernels, "walker", 0),
    )
    if own:
        executable.user_calls = tuple(own)
        executable.call = reporting(executable.call, count, own)
    return executable
