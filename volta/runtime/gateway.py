"""The gateway: the only door to execution.

Every operation, eager or jitted, training or inference, becomes a plan here, is checked (determinism, capabilities,
memory budget) and gets an :class:`Executable` from the backend. Nothing else calls a backend; a test holds that.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.errors import DeviceError, DonatedBufferError, MemoryBudgetError
from volta.core.ir import ClosedJaxpr
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.numba_cpu import backend as cpu
from volta.numba_cpu import unit
from volta.runtime import devices
from volta.runtime.array import CALLS, HELD, Array, SharedBuffer, as_array, intern_aval, release_held
from volta.runtime.capabilities import BackendCapabilities
from volta.runtime.context import ExecutionContext, current_context
from volta.runtime.memory import Buffer, default_pool
from volta.runtime.plan_cache import PLAN_CACHE, has_constants, program_key
from volta.xla_like.compile import build_plan
from volta.xla_like.passes import Evaluate
from volta.xla_like.plan import ExecutionPlan

CPU = BackendCapabilities("cpu", tuple((k, DeterminismLevel.STRICT) for k in cpu.KERNEL_CLASSES))

BACKENDS: dict[str, tuple[Any, BackendCapabilities]] = {"cpu": (cpu, CPU)}
"""Backends that are loaded; CUDA's is by the first program that asks for it."""


def _backend(name: str) -> tuple[Any, BackendCapabilities]:
    if name == "cuda" and name not in BACKENDS:
        BACKENDS["cuda"] = (devices.cuda(), cuda_capabilities())
    if name not in BACKENDS:
        raise DeviceError(f"no backend {name!r}; there are 'cpu' and 'cuda'")
    return BACKENDS[name]


def cuda_capabilities() -> BackendCapabilities:
    """What the CUDA backend can run; asking needs no GPU."""
    return BackendCapabilities("cuda", devices.cuda_kernel_classes())


_SLAB_LIMIT = 4096
"""Outputs up to this many bytes share one block; larger ones live and die alone."""


class Executable:
    """A compiled program: call it with a list of arrays, get a list of arrays."""

    __slots__ = (
        "_arena", "_donated", "_elsewhere", "_layout", "_native", "_repeated", "_returns", "_slab", "plan", "program",
    )  # fmt: skip

    def __init__(
        self, plan: ExecutionPlan, program: ClosedJaxpr, native: Any, elsewhere: Callable[[], Executable] | None = None
    ) -> None:
        self.plan = plan
        self._elsewhere = elsewhere  # the same program on the GPU, for arguments that lie there
        self.program = program  # after the passes; also keeps the constants alive
        self._native = native.call
        self._donated = plan.donated
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
        # Results: (aval, kind, position): 'new' output, 'in' an input itself, 'alias' memory of a donated input.
        position = {b: i for i, b in enumerate(plan.inputs)}
        self._returns: list[tuple[ShapedArray, int, int]] = []
        self._repeated = [k for k, b in enumerate(plan.outputs) if plan.outputs.count(b) > 1]
        for out, aval in zip(plan.outputs, plan.out_avals, strict=True):
            aval = intern_aval(aval)
            alias = plan.buffers[out].alias
            if out in number:
                self._returns.append((aval, 0, number[out]))
            elif out in position:
                self._returns.append((aval, 1, position[out]))
            elif alias is not None:
                self._returns.append((aval, 2, position[alias]))
            else:
                self._returns.append((aval, 3, plan.consts.index(out)))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the plan.

        Args:
            arrays: one for each input of the program, of its shape and dtype (not checked here). Donated ones are gone
                afterwards.

        Raises:
            DonatedBufferError: an array is gone already, or a donated one was passed twice.
            MemoryBudgetError: there is no memory for the results.
        """
        CALLS.append(None)  # from here on no donor and no delete() lets go of memory that this call reads
        try:
            return self._run(arrays)
        finally:
            CALLS.pop()
            if HELD:
                release_held()

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        addresses = [a.address for a in arrays]
        if 0 in addresses:
            for a in arrays:
                a.buffer()  # raises DonatedBufferError
            assert self._elsewhere is not None
            return self._elsewhere()(arrays)
        pool = default_pool()
        blocks = []
        if self._slab:
            slab = pool.allocate(self._slab)
            base = slab.address
        for nbytes, offset in self._layout:
            if offset >= 0:
                blocks.append((slab, base + offset))
                addresses.append(base + offset)
            else:
                block = pool.allocate(nbytes)
                blocks.append((block, block.address))
                addresses.append(block.address)
        if self._arena:
            arena = pool.allocate(self._arena)
            addresses.append(arena.address)
        if self._donated:
            return self._run_donating(arrays, addresses, blocks)
        self._native(*addresses)
        out = []
        for aval, kind, i in self._returns:
            if kind == 0:
                block, address = blocks[i]
                out.append(Array(aval, block, address))
            else:
                out.append(_passed(aval, arrays[i] if kind == 1 else self.program.consts[i]))
        for k in self._repeated:
            out[k].share()
        return out

    def _run_donating(self, arrays: Sequence[Array], addresses: list[int], blocks: list[Any]) -> list[Array]:
        _refuse_repeated(arrays, self._donated)
        taken: dict[int, Buffer] = {}
        originals: list[tuple[Array, Buffer, int]] = []
        try:
            for d in self._donated:
                address, buffer = addresses[d], arrays[d].take()
                originals.append((arrays[d], buffer, address))
                if type(buffer) is SharedBuffer or len(CALLS) > 1:  # others read this memory: give away a copy
                    HELD.append(buffer)
                    copy = Array.from_numpy(Array(arrays[d].aval, buffer, address).numpy())
                    buffer, addresses[d] = copy.buffer(), copy.address
                taken[d] = buffer
        except BaseException:
            for array, buffer, address in originals:
                array.give_back(buffer, address)
            raise
        self._native(*addresses)
        out = []
        for aval, kind, i in self._returns:
            if kind == 0:
                out.append(Array(aval, *blocks[i]))
            elif kind != 3 and i in taken:
                out.append(Array(aval, taken[i], addresses[i]))
            else:
                out.append(_passed(aval, arrays[i] if kind == 1 else self.program.consts[i]))
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
        return unit.llvm_ir(symbol)

    def asm(self, symbol: str) -> str:
        """The machine code of one kernel as assembly text."""
        return unit.asm(symbol)

    def as_text(self) -> str:
        """The plan, then the text of every kernel."""
        return self.plan.as_text() + "\n\n" + "\n\n".join(f"{k}:\n{v}" for k, v in self.kernel_texts().items())


class DeviceExecutable(Executable):
    """A program compiled for the GPU: arguments that lie elsewhere are copied there, results stay there."""

    __slots__ = ()

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        placed = [devices.place(a) for a in arrays]
        taken = self._taken(arrays, placed)
        addresses = [a.buffer().address for a in placed]
        for d, buffer in taken.items():
            addresses[d] = buffer.address
        fresh = [devices.empty(nbytes) for nbytes, _ in self._layout]
        addresses += [buffer.address for buffer in fresh]
        if self._arena:
            arena = devices.empty(self._arena)  # goes back to the pool at once: the stream orders its next use
            addresses.append(arena.address)
        self._native(*addresses)
        out = []
        for aval, kind, i in self._returns:
            if kind == 0:
                out.append(Array(aval, fresh[i], 0))
            elif kind != 3 and i in taken:
                out.append(Array(aval, taken[i], 0))
            else:
                out.append(_passed(aval, placed[i] if kind == 1 else self.program.consts[i]))
        for k in self._repeated:
            out[k].share()
        for d in self._donated:
            arrays[d].delete()
        return out

    def _taken(self, arrays: Sequence[Array], placed: Sequence[Array]) -> dict[int, Buffer]:
        """The memory of donated arguments; of what others read as well, a copy."""
        _refuse_repeated(arrays, self._donated)
        taken: dict[int, Buffer] = {}
        for d in self._donated:
            buffer = placed[d].buffer()
            if type(buffer) is SharedBuffer:
                copy = devices.empty(buffer.nbytes)
                devices.cuda().driver.copy(copy.address, buffer.address, buffer.nbytes)
                buffer = copy
            taken[d] = buffer
        return taken


def _refuse_repeated(arrays: Sequence[Array], donated: Sequence[int]) -> None:
    ids = list(map(id, arrays))
    if len(set(ids)) != len(ids) and any(ids.count(ids[d]) > 1 for d in donated):
        raise DonatedBufferError(
            at_user_line("the same array was passed as a donated argument and once more; pass a copy instead")
        )


def _passed(aval: ShapedArray, source: Array) -> Array:
    """A result that is an argument or a constant: another array over the same memory."""
    return Array(aval, source.share(), source.address)


_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    CALLS.clear()  # calls of the parent's other threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def compile(  # noqa: A001 - the gateway's one verb
    program: ClosedJaxpr,
    *,
    donated: Sequence[int] = (),
    name: str = "main",
    context: ExecutionContext | None = None,
) -> Executable:
    """Compile a program for the current (or a given) execution context.

    The same program under the same context is compiled once: the plan cache compares the whole key, never a hash alone.
    A program with constants is compiled anew.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
        MemoryBudgetError: the plan's peak exceeds the context's budget; says what takes the bytes.
        DeviceError: the context names a backend that is not there.
    """
    context = context or current_context()
    _backend(context.backend)
    with _lock:
        key = None if has_constants(program) else program_key(program, tuple(donated), name, context)
        found = None if key is None else PLAN_CACHE.get(key)
        if found is not None:
            return found

        def elsewhere() -> Executable:
            return compile(program, donated=donated, name=name, context=attrs.evolve(context, backend="cuda"))

        def build(
            part: ClosedJaxpr, name: str, donated: Sequence[int], evaluate: Evaluate | None, where: str
        ) -> Executable:
            backend, capabilities = _backend(where)
            tensor_cores = capabilities.level_of("dot_tc") is not None
            options = attrs.evolve(context.options, vector_bits=backend.vector_bits(), tensor_cores=tensor_cores)
            plan, optimised = build_plan(
                part, name=name, donated=donated, level=context.level, options=options, evaluate=evaluate
            )
            capabilities.check(plan)
            _check_budget(plan, context.memory_budget)
            consts = tuple(as_array(c) for c in optimised.consts)
            if where == "cuda":
                consts = tuple(devices.place(c) for c in consts)
            # Arrays of the plan's own: its kernels are bound to this memory, whatever becomes of the user's arrays.
            consts = tuple(_passed(x.aval, x) for x in consts)
            native = backend.prepare(plan, tuple(c.address or c.buffer().address for c in consts), consts)
            kind = DeviceExecutable if where == "cuda" else Executable
            return kind(plan, ClosedJaxpr(optimised.jaxpr, consts), native, functools.cache(elsewhere))

        def evaluate(constants: ClosedJaxpr) -> list[Any]:
            return [x.numpy() for x in build(constants, "constants", (), None, "cpu")([])]

        executable = build(program, name, donated, evaluate, context.backend)
        if key is not None:
            PLAN_CACHE.put(key, executable)
        return executable


def _check_budget(plan: ExecutionPlan, budget: int | None) -> None:
    if budget is not None and plan.peak_live_bytes > budget:
        raise MemoryBudgetError(
            at_user_line(
                f"plan {plan.name!r} needs {plan.peak_live_bytes:,} bytes at its peak; the budget is {budget:,}.\n"
                f"{plan.memory_report()}\nRaise the budget, use smaller shapes, or recompute with volta.checkpoint."
            )
        )
