"""A compiled program on the CPU: what the gateway hands out. Calling it runs the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.errors import ArgumentError, DonatedBufferError
from volta.core.ir import ClosedJaxpr
from volta.core.later import import_later
from volta.core.source import at_user_line
from volta.emit import arrays as taking
from volta.runtime.array import ConcreteArray, intern_aval
from volta.runtime.memory import default_pool
from volta.xla_like.plan import ExecutionPlan

_SLAB_LIMIT = 4096
"""Outputs up to this many bytes share one block; larger ones live and die alone."""


_OWN = 2
"""References to the memory of a donated array that nobody else has: the array's, and the native call's."""


class Executable:
    """A compiled program: call it with a list of arrays, get a list of arrays."""

    __slots__ = (
        "_arena", "_bounds", "_donated", "_elsewhere", "_layout", "_limits", "_native", "_repeated", "_returns",
        "_slab", "_there", "plan", "program",
    )  # fmt: skip

    def __init__(
        self, plan: ExecutionPlan, program: ClosedJaxpr, native: Any, elsewhere: Callable[[int], Executable]
    ) -> None:
        self.plan = plan
        self._elsewhere = elsewhere  # the same program on a GPU, for arguments that lie there
        self._there: dict[Any, Callable[[Sequence[ConcreteArray]], list[ConcreteArray]]] = {}  # what runs it, by device
        self.program = program  # after the passes; also keeps the constants alive
        self._native = native.call
        self._donated = plan.donated
        # The small arrays of one slab have their memory in common, and are overwritten where no other call runs.
        sizes = [plan.buffers[plan.inputs[d]].nbytes for d in plan.donated]
        beside = [_OWN] * len(sizes)
        alone = [taking.ANY if nbytes <= _SLAB_LIMIT else _OWN for nbytes in sizes]
        self._bounds = taking.limits(alone, beside), taking.limits(*[[taking.ALWAYS] * len(sizes)] * 2)
        self._limits = int(self._bounds[0].ctypes.data)
        self._arena = plan.arena_bytes
        # Output buffers in the order the native call takes them: (nbytes, offset in the slab or -1).
        self._layout: list[tuple[int, int]] = []
        number: dict[int, int] = {}
        slab = 0
        for b in plan.buffers:
            if b.kind == "output" and b.alias is None:
                number[b.id] = len(self._layout)
                size = -(-b.nbytes // 64) * 64
                if size <= _SLAB_LIMIT:
                    self._layout.append((b.nbytes, slab))
                    slab += size
                else:
                    self._layout.append((b.nbytes, -1))
        self._slab = slab or int(any(at >= 0 for _, at in self._layout))  # empty results have an address too
        # Results: (aval, kind, position): 0 a new output, 1 an input itself, 2 memory of a donated input, by its number
        # among these, 3 a constant.
        position = {b: i for i, b in enumerate(plan.inputs)}
        self._returns: list[tuple[ShapedArray, int, int]] = []
        self._repeated = [k for k, b in enumerate(plan.outputs) if plan.outputs.count(b) > 1]
        for out, aval in zip(plan.outputs, plan.out_avals, strict=True):
            aval = intern_aval(aval)
            alias = plan.buffers[out].alias
            source = position.get(out if alias is None else alias)
            if out in number:
                self._returns.append((aval, 0, number[out]))
            elif source is None:
                self._returns.append((aval, 3, plan.consts.index(out)))
            elif source in plan.donated:
                self._returns.append((aval, 2, plan.donated.index(source)))
            else:
                self._returns.append((aval, 1, source))

    def __call__(self, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        """Run the plan.

        Args:
            arrays: one for each input of the program, of its shape and dtype (not checked here). Donated ones are gone
                afterwards.

        Raises:
            DonatedBufferError: an array is gone already, or a donated one was passed twice.
            MemoryBudgetError: there is no memory for the results.
        """
        if arrays and not arrays[0].address:  # on a GPU, or gone
            there = self._there.get((arrays[0]._buffer or arrays[0].buffer()).stream.device)
            if there is not None:
                return there(arrays)
        return self._run(arrays)

    def _run(self, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        pool = default_pool()
        blocks = []
        places = []  # where outputs and the arena lie: numbers for the native call
        if self._slab:
            slab = pool.allocate(self._slab)
            base = slab.address
        for nbytes, offset in self._layout:
            if offset >= 0:
                blocks.append((slab, base + offset))
                places.append(base + offset)
            else:
                block = pool.allocate(nbytes)
                blocks.append((block, block.address))
                places.append(block.address)
        if self._arena:
            arena = pool.allocate(self._arena)
            places.append(arena.address)
        if self._donated:
            return self._run_donating(arrays, places, blocks)
        # One step: it looks up the arrays' addresses, and holds their memory until the plan has run.
        absent = self._native(*arrays, *places)
        if absent is not None:
            return self._run_there(arrays[absent], arrays)
        out = []
        for aval, kind, i in self._returns:
            if kind == 0:
                block, address = blocks[i]
                out.append(ConcreteArray(aval, block, address))
            else:
                out.append(passed(aval, arrays[i] if kind == 1 else self.program.consts[i]))
        for k in self._repeated:
            out[k].share()
        return out

    def _run_there(self, first: ConcreteArray, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        """Run the program on the GPU that an argument lies on."""
        device = first.buffer().stream.device
        there = self._there.get(device)
        if there is None:
            there = self._there[device] = self._elsewhere(device.index)._run
        return there(arrays)

    def _run_donating(
        self, arrays: Sequence[ConcreteArray], places: list[int], blocks: list[Any]
    ) -> list[ConcreteArray]:
        donated, limits, inputs = self._donated, self._limits, arrays
        if len(arrays) > 1:
            refuse_repeated(arrays, donated)
        given = tuple(map(arrays.__getitem__, donated))
        while True:
            # One step: it takes the memory away from the arrays that are donated, and runs the plan.
            memory = self._native(*inputs, *places, given, limits)
            if type(memory) is tuple:
                break
            if memory != taking.REFUSED:
                return self._run_there(inputs[memory], arrays)
            # Others read the memory: what is overwritten is a copy.
            inputs = list(arrays)
            for d in donated:
                inputs[d] = ConcreteArray.from_numpy(arrays[d]._view()).retyped(arrays[d].aval)
            limits = int(self._bounds[1].ctypes.data)
        out = []
        for aval, kind, i in self._returns:
            if kind == 0:
                out.append(ConcreteArray(aval, *blocks[i]))
            elif kind == 2:
                own = inputs[donated[i]]
                out.append(ConcreteArray(aval, memory[i] if inputs is arrays else own.buffer(), own.address))
            else:
                out.append(passed(aval, arrays[i] if kind == 1 else self.program.consts[i]))
        for k in self._repeated:
            out[k].share()
        return out

    # -- inspection ----------------------------------------------------------------------------------------------------

    @property
    def peak_live_bytes(self) -> int:
        """Bytes of inputs, constants, outputs and temporaries that are live at once, as planned."""
        return self.plan.peak_live_bytes

    def memory_report(self) -> str:
        return self.plan.memory_report()

    def kernel_texts(self) -> dict[str, str]:
        """The readable text of each kernel, by symbol."""
        return self.plan.kernel_texts()

    def llvm_ir(self, symbol: str) -> str:
        """The optimised LLVM IR of one kernel."""
        return import_later("volta.numba_cpu.unit").llvm_ir(symbol)

    def asm(self, symbol: str) -> str:
        """The machine code of one kernel as assembly text."""
        return import_later("volta.numba_cpu.unit").asm(symbol)

    def as_text(self, dialect: str | None = None) -> str:
        """The plan, then the text of every kernel; with ``"numba"`` as Python functions that Numba compiles: of a
        program for a GPU as ``kernels="cuda.jit"`` runs it.

        Raises:
            ArgumentError: for another dialect.
            UnsupportedOperationError: a kernel has no text for Numba.

        >>> import volta
        >>> compiled = volta.jit(lambda x: x * 2).lower(volta.numpy.ones(3)).compile()
        >>> print(compiled.as_text("numba").splitlines()[-1].strip())
        store_f32(out0, i * 4, v2)
        """
        if dialect == "numba":
            texts, plan = self._generated()
            found: str = texts.listing(plan)
            return found
        if dialect is not None:
            raise ArgumentError(at_user_line(f"as_text: there is no text {dialect!r}; there are 'numba' and None"))
        return self.plan.as_text() + "\n\n" + "\n\n".join(f"{k}:\n{v}" for k, v in self.kernel_texts().items())

    def source(self, kernel: str) -> str:
        """One kernel as Python that can be run: the function that ``kernels="njit"`` compiles, on a GPU ``"cuda.jit"``,
        and what it calls.

        Args:
            kernel: its name, as the plan's text has it, or a part of it that no other kernel's name has.

        Raises:
            ArgumentError: no kernel or several have that name.
            UnsupportedOperationError: the kernel has no text for Numba.

        >>> import volta
        >>> compiled = volta.jit(lambda x: x * 2).lower(volta.numpy.ones(3)).compile()
        >>> "for i in range(" in compiled.source("map")
        True
        """
        texts, plan = self._generated()
        found: str = texts.source(plan, kernel)
        return found

    def kernel(self, kernel: str) -> Any:
        """One kernel as a Numba dispatcher, to call, inspect and profile: ``kernel(args, begin, end, scratch)``.

        ``args`` is an array of int64 with the words that its text reads: sizes, addresses, strides in bytes; ``begin``
        and ``end`` are tasks. The name, and what is raised, are as for :meth:`source`.

        >>> import numpy as np, volta
        >>> compiled = volta.jit(lambda x: x * 2).lower(volta.numpy.ones(3)).compile()
        >>> compiled.kernel("map").signatures
        [(int64*, int64, int64, int64)]
        """
        texts, plan = self._generated()
        return texts.dispatcher(plan, kernel)

    def _generated(self) -> tuple[Any, ExecutionPlan]:
        """What lists kernels as texts, and the plan that it is to list."""
        listing = import_later("volta.numba_source.listing")
        return listing, listing.text_plan(self.plan, self.program)


def refuse_repeated(arrays: Sequence[ConcreteArray], donated: Sequence[int]) -> None:
    ids = list(map(id, arrays))
    if len(set(ids)) != len(ids) and any(ids.count(ids[d]) > 1 for d in donated):
        raise DonatedBufferError(
            at_user_line("the same array was passed as a donated argument and once more; pass a copy instead")
        )


def passed(aval: ShapedArray, source: ConcreteArray) -> ConcreteArray:
    """A result that is an argument or a constant: another array over the same memory."""
    return ConcreteArray(aval, source.share(), source.address)
