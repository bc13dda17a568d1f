"""A compiled program on a GPU: the same protocol as on the CPU, in the order of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.errors import DeviceError, OutOfMemoryError
from volta.core.ir import ClosedJaxpr
from volta.core.later import import_later
from volta.core.source import at_user_line
from volta.emit import arrays as taking
from volta.runtime import devices
from volta.runtime.array import ConcreteArray
from volta.runtime.devices import DeviceBuffer
from volta.runtime.executable import Executable, passed, refuse_repeated
from volta.runtime.memory import Buffer
from volta.runtime.shared_buffer import SharedBuffer
from volta.xla_like.plan import ExecutionPlan

_NONE: list[Buffer] = []

_OWN = 3
"""References to memory that only the array has which is donated: its own, and those of the call."""


class DeviceExecutable(Executable):
    """A program compiled for a GPU: arguments in host memory are copied there, results stay there. Where arguments lie
    on another GPU, it runs there."""

    __slots__ = ("_as_texts", "_device", "_fresh", "_kernels", "_loops", "_sizes", "_waiting")

    def __init__(
        self,
        plan: ExecutionPlan,
        program: ClosedJaxpr,
        native: Any,
        elsewhere: Callable[[int], Executable],
        device: Any,
        as_texts: Callable[[], ExecutionPlan],
    ) -> None:
        """``as_texts`` gives the plan as ``kernels="cuda.jit"`` runs it, to be read."""
        super().__init__(plan, program, native, elsewhere)
        self._device = device
        self._kernels = native
        self._as_texts = as_texts
        self._loops: bool = native.loops
        self._arena = plan.device_arena_bytes  # type: ignore[attr-defined]
        self._waiting = plan.host_arena_bytes  # page-locked memory of the host
        # Results where each is an output of its own, as most are: (aval, bytes, position).
        own = [(aval, self._layout[i][0], i) for aval, kind, i in self._returns if kind == 0]
        self._fresh = own if len(own) == len(self._returns) == len(self._layout) and not self._donated else []
        self._sizes = [nbytes for nbytes, _ in self._layout] + [self._arena] * (self._arena > 0)

    def _run(self, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        # What comes before the launch is waited for, what comes after runs beside it.
        given, device = arrays, self._device
        stream = device.stream() if device.beside else device.main
        held = [a._buffer for a in arrays]  # until the launch: what is held is not overwritten
        buffer: Buffer | None = None
        for buffer in held:
            if buffer is None or buffer.stream is not stream:
                there = next((x for x in arrays if x.buffer().stream is not None), None)
                if there is not None and there.buffer().stream.device is not device:
                    return self._run_there(there, arrays)
                arrays = self._placed(arrays, stream)
                held = [a.buffer() for a in arrays]
                break
        del buffer  # it would count as held by others
        addresses = [x.address for x in held]  # type: ignore[union-attr]
        take, blocks, taken = device.pool.take, [], _NONE
        try:
            for nbytes in self._sizes:  # those of outputs, then the arena's
                block = take(nbytes, stream)
                blocks.append(block)
                addresses.append(block.address)
            if self._waiting:
                blocks.append(self._room_to_wait(stream))
                addresses.append(blocks[-1].address)
            stretch: Any = None
            if self._loops or stream.flight is not None:
                stretch = self._stretch(arrays, stream)
            if self._donated:
                refuse_repeated(given, self._donated)
                taken = self._launch_donating(given, arrays, addresses, stream)
            else:
                self._native(stream, addresses)
            if self._loops:
                stretch.launched()
        except BaseException as error:
            for block in blocks:
                block.give_back()
            if isinstance(error, MemoryError) and not isinstance(error, OutOfMemoryError):
                raise self._out_of_memory(error) from None
            raise
        if self._waiting:
            blocks.pop().give_back()
        if self._arena:
            blocks.pop().give_back()  # the stream orders its next use after this one
        out: list[ConcreteArray] = []
        if self._fresh:
            for aval, nbytes, i in self._fresh:
                out.append(ConcreteArray(aval, DeviceBuffer(blocks[i], nbytes, stream), 0))
            if stretch is not None:
                for x in out:
                    x.buffer().stretch = stretch
            return out
        fresh = [DeviceBuffer(block, nbytes, stream) for block, nbytes in zip(blocks, self._sizes, strict=False)]
        for written in (*fresh, *taken):
            written.stretch = stretch
        for aval, kind, i in self._returns:
            if kind == 0:
                out.append(ConcreteArray(aval, fresh[i], 0))
            elif kind == 2:
                out.append(ConcreteArray(aval, taken[i], 0))
            else:
                out.append(passed(aval, arrays[i] if kind == 1 else self.program.consts[i]))
        for k in self._repeated:
            out[k].share()
        return out

    def _room_to_wait(self, stream: Any) -> Any:
        """The host's memory in which values wait.

        Raises:
            OutOfMemoryError: the host has none to lock.
        """
        try:
            return self._device.pinned.take(self._waiting, stream)
        except MemoryError:
            text = (
                f"RESOURCE_EXHAUSTED: the host has no page-locked memory for {self._waiting:,} bytes, in which values "
                f"of the plan {self.plan.name!r} wait to keep {self._device.name} within its budget. Raise "
                "memory_budget, so that fewer are moved, or use smaller shapes. The arrays that were there are as they "
                "were."
            )
            raise OutOfMemoryError(at_user_line(text)) from None

    def _stretch(self, arrays: Sequence[ConcreteArray], stream: Any) -> Any:
        """What results belong to on a stream that has loops, or is about to have one: None where no loop that is under
        way could spoil them.

        Raises:
            CutShortError: an argument was to come from a loop that was cut short.
        """
        found, spoiled = stream.watched().begin(self._loops), self._loops
        for a in arrays:
            buffer = a.buffer()
            if buffer.stretch is not None:
                devices.refuse_lost(buffer, a.aval)
                spoiled = True
        return found if spoiled else None

    def _placed(self, arrays: Sequence[ConcreteArray], stream: Any) -> list[ConcreteArray]:
        """The arguments in this device's memory, to be used by a stream.

        Raises:
            DonatedBufferError: an array is gone.
            DeviceError: one lies on another GPU.
        """
        device, placed = self._device, []
        for i, a in enumerate(arrays):
            buffer = a.buffer()
            if buffer.stream is None:  # in host memory
                number = not a.aval.shape and i not in self._donated
                a = devices.number(a, device) if number else devices.place(a, device.name, stream)
                buffer = a.buffer()
            elif buffer.stream.device is not device:
                raise DeviceError(
                    at_user_line(
                        f"the arguments of one call lie on {device.name} and {buffer.device}: "
                        "move them with volta.device_put"
                    )
                )
            if buffer.stream is not stream:
                devices.refuse_lost(buffer, a.aval)
                devices.visible_to(buffer, stream)
            placed.append(a)
        return placed

    def _launch_donating(
        self, given: Sequence[ConcreteArray], arrays: Sequence[ConcreteArray], addresses: list[int], stream: Any
    ) -> list[Buffer]:
        """Launch, and take their memory away from the donated arrays, in one step; returns what is overwritten.

        Where a copy on the device stands in for a donated array, or others read its memory, that is the copy.
        """
        donated = self._donated
        donors = tuple([given[d] for d in donated])
        own = [arrays[d].buffer() for d in donated]
        limits = taking.limits(*[[taking.ALWAYS if arrays[d] is not given[d] else _OWN for d in donated]] * 2)
        while True:
            for d, buffer in zip(donated, own, strict=True):
                if type(buffer) is not SharedBuffer:  # else the launch is refused
                    buffer.written_by(stream)  # type: ignore[attr-defined]
                addresses[d] = buffer.address
            del buffer  # it would count as held by others
            if self._native(stream, addresses, (donors, limits.ctypes.data)) != taking.REFUSED:
                return own
            own = [self._copy(arrays[d].buffer(), stream) for d in donated]
            limits[:] = taking.ALWAYS

    def _copy(self, buffer: Buffer, stream: Any) -> DeviceBuffer:
        copy = DeviceBuffer(self._device.pool.take(buffer.nbytes, stream), buffer.nbytes, stream)
        self._device.copy(copy.address, buffer.address, buffer.nbytes, stream)
        return copy

    def _out_of_memory(self, error: MemoryError) -> OutOfMemoryError:
        return OutOfMemoryError(
            at_user_line(
                f"{devices.no_memory(error, self._device)}.\nThe plan {self.plan.name!r} needs "
                f"{self.plan.peak_live_bytes:,} bytes at its peak, its arguments included:\n"
                f"{self.plan.memory_report()}\n{devices.WAY_OUT}"
            )
        )

    def _generated(self) -> tuple[Any, ExecutionPlan]:
        return import_later("volta.numba_source.cuda.listing"), self._as_texts()

    def kernel(self, kernel: str) -> Any:
        """One kernel as a dispatcher of numba-cuda: ``kernel[blocks, threads](args)``, without contraction.

        ``args`` is an array of int64 on the device, with the words that its text reads. The name, and what is raised,
        are as for :meth:`source`; numba-cuda must be installed.
        """
        listing, plan = self._generated()
        return import_later("volta.numba_source.cuda.compiling").dispatcher(listing.found(plan, kernel))

    def llvm_ir(self, symbol: str) -> str:
        """The LLVM IR that is emitted for one kernel."""
        return str(self._kernels.llvm_ir(symbol))

    def asm(self, symbol: str) -> str:
        """One kernel as PTX, the assembly text that the driver is given."""
        return str(self._kernels.ptx(symbol))
