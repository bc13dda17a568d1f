"""Kernels of programs as PTX and cubin for named compute capabilities, where there is no GPU and no driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from volta.core import contract
from volta.core.collector import uncollected
from volta.core.policy import DeterminismLevel
from volta.emit.jobs import in_threads
from volta.numba_cuda.codegen import nvjitlink, ptx
from volta.numba_cuda.codegen.nvjitlink import Resources
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import Launch, every
from volta.xla_like.plan import ExecutionPlan

CAPABILITIES = ("7.5", "8.0", "8.9", "9.0")
"""What is compiled for where nothing is said."""


@attrs.frozen
class LaunchInfo:
    """A launch: its kernel, blocks, threads in a block, bytes of dynamic shared memory, and calls that run in it."""

    kernel: str
    blocks: int
    threads: int
    shared: int
    calls: int


@attrs.frozen
class Compiled:
    """A program's kernels for one compute capability: PTX, its launches in order and, where asked for, machine code.

    ``cubin`` comes with what each kernel needs (``resources``) and the version of the assembler.
    """

    name: str
    capability: str
    ptx: str
    launches: tuple[LaunchInfo, ...]
    cubin: bytes | None = attrs.field(default=None, repr=False)
    resources: Mapping[str, Resources] = attrs.field(factory=dict)
    assembler: str = ""
    contract: str = contract.ID

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, in order of first use."""
        return list(dict.fromkeys(x.kernel for x in self.launches))


@uncollected
def compile_plan(
    plan: ExecutionPlan, capabilities: Sequence[str] = CAPABILITIES, *, cubin: bool = False
) -> list[Compiled]:
    """A plan's kernels as PTX (and ``cubin``) for each capability, checked against the rules of strict kernels.

    Raises:
        UnsupportedOperationError: a call of the plan has no CUDA kernel.
        DeviceError: there is no nvJitLink for a cubin.
        AssertionError: the text breaks a rule (a bug of Volta's).
        ValueError: an unknown capability.
    """
    assemblers = {c: nvjitlink.library_for(c) for c in capabilities} if cubin else {}

    def finished(capability: str, launches: Sequence[Launch], text: str) -> Compiled:
        text = ptx.assemble(text, capability)
        found = ptx.violations(text) if plan.level is DeterminismLevel.STRICT else []
        if found:
            raise AssertionError(f"{plan.name} for {capability}: " + "; ".join(found))
        table = tuple(LaunchInfo(x.source.name, x.grid, x.threads, x.shared, x.calls) for x in every(launches))
        done = Compiled(plan.name, capability, text, table)
        if capability in assemblers:
            code = assemblers[capability].assemble(text, capability)
            done = attrs.evolve(done, cubin=code.code, resources=code.resources, assembler=code.version)
        return done

    def parts() -> Iterator[tuple[str, Sequence[Launch], str]]:
        for capability in capabilities:
            launches = launches_of(plan, capability)
            sources = {x.source.name: x.source for x in every(launches)}
            yield capability, launches, ptx.emit_text(sources.values(), capability)

    return list(in_threads(finished, parts(), ptx.workers(len(capabilities))))
