"""From a plan's calls to launches: which kernel, its grid, and its args block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda import turns, user
from volta.numba_cuda.attention import attention_choice, attention_tensor_choice
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import HEADER
from volta.numba_cuda.launches import Launch, Regions, touched
from volta.numba_cuda.loops import combining, cutting, nests
from volta.numba_cuda.merging import merge
from volta.numba_cuda.ordering import steps
from volta.numba_cuda.ordering.call_steps import Steps
from volta.numba_cuda.processors import shared_out_for
from volta.numba_cuda.products import dot, dot_tensor
from volta.xla_like.control_calls import KINDS
from volta.xla_like.dot import item_size
from volta.xla_like.kernels import CombineKernel, Joined, KernelCall, LibraryKernel, LoopKernel, kernel_name
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import NAME as USER

KERNEL_CLASSES = (
    "loop", "combine", "dot", *steps.STEPS, *KINDS, USER,
    *attention_choice.KERNELS, attention_choice.BACKWARD,
)  # fmt: skip
"""Every one of them is strict."""

DEVICE_CLASSES = ("dot_tc", *attention_tensor_choice.TENSOR_KERNELS)
"""Those of level device: the same bits from run to run and batch to batch on one architecture."""

_ALONE = ("dot", "dot_join", "dot_vector", *DEVICE_CLASSES, *attention_choice.KERNELS)
"""Launches of these are not merged with others."""

_MOST_BLOCKS = (1 << 31) - 1


def launches_of(plan: ExecutionPlan, capability: str = "9.0") -> list[Launch]:
    """A plan's launches in order: those that may run together merged, their scratch memory laid out.

    Which kernel a call runs may depend on the GPU's compute capability; in strict mode its bits do not.
    """
    regions = Regions()
    return merge(plan, unmerged(plan, regions, capability), regions)


def unmerged(plan: ExecutionPlan, regions: Regions, capability: str = "9.0") -> list[Launch]:
    """The launches of a plan's calls: chains part after part, epilogues with their products; nothing is packed."""
    sizes = {b.id: b.nbytes for b in plan.buffers}

    def nbytes(buffer: int) -> int:
        return regions.size(buffer) if buffer < 0 else sizes[buffer]

    with shared_out_for(plan.processors):
        calls = [attention_choice.with_words(call) for call in plan.calls]
        parts = [part for call in calls for part in _parts_of(call, capability)]
        cut = cutting.cut(parts, regions, capability)
        calls = [found for call in cut for found in dot.prepare(call, regions, capability)]
        return [found for call in calls for found in _launch(call, regions, nbytes, capability)]


def _parts_of(call: KernelCall, capability: str) -> tuple[KernelCall, ...]:
    if isinstance(call.kernel, Joined):
        return (call,)
    return attention_choice.parts_of(attention_tensor_choice.settled(call, capability), capability)


def _launch(call: KernelCall, regions: Regions, nbytes: Callable[[int], int], capability: str) -> Iterator[Launch]:
    if not call.tasks:
        return
    if call.plans:
        yield from turns.launches(call, regions, nbytes, partial(launches_of, capability=capability))
        return
    kernel, shared, mapped = call.kernel, 0, False
    name = kernel_name(kernel)
    if isinstance(kernel, LoopKernel):
        loop = nests.plan_loop(call, capability)
        source, grid, threads, shared = loop.source, loop.grid, loop.threads, loop.shared
        words, addresses = _loop_words(call)
        words += loop.words
    elif isinstance(kernel, CombineKernel):
        combine = combining.choose_combine(call.sizes[1])
        grid, threads = -(-call.sizes[0] // combine.rows), combine.threads
        build = partial(combining.build_combine, kernel=kernel, v=combine)
        source = KernelSource(f"{name}_{combine.suffix()}", f"{kernel.text()}\n{combine.suffix()}", build)
        words, addresses = _loop_words(call)
    elif kernel.name in ("dot", "dot_join", "dot_vector", "clear_turns"):
        grid, (source, threads, shared) = call.tasks, dot.launch_of(call)
        words, addresses = _library_words(call)
    elif kernel.name == "dot_tc":
        source, grid, variant = dot_tensor.launch_of(call, capability)
        problem = dot_tensor.problem_of(call)
        threads, shared, mapped = variant.threads, variant.shared_bytes(item_size(problem.dot.spec.out)), variant.mapped
        words, addresses = _library_words(call)
        if mapped:
            more, places = dot_tensor.maps_of(problem, variant)
            words = words + [0] * (variant.maps - HEADER - len(words)) + more
            addresses = addresses + places
    elif kernel.name == "attention" and attention_choice.is_split(call):
        yield from attention_choice.split(call, Steps(call, regions, nbytes))
        return
    elif kernel.name in (*attention_choice.KERNELS, *attention_tensor_choice.TENSOR_KERNELS):
        tensor = kernel.name in attention_tensor_choice.TENSOR_KERNELS
        found = (attention_tensor_choice if tensor else attention_choice).choose(call, capability)
        source, grid, threads, shared = found.source, found.grid, found.threads, found.shared
        words, addresses = _library_words(call)
    elif kernel.name == attention_choice.BACKWARD:
        yield from attention_choice.backward(call, Steps(call, regions, nbytes), capability)
        return
    elif kernel.name == USER:
        yield from user.launches(call, nbytes, capability)
        return
    elif kernel.name in steps.STEPS:
        yield from steps.STEPS[kernel.name](call, Steps(call, regions, nbytes))
        return
    else:
        raise UnsupportedOperationError(
            f"operation {kernel.name!r} has no kernel on backend 'cuda' at determinism level 'strict'"
            f"{' (from ' + call.label + ')' if call.label else ''}"
        )
    if grid > _MOST_BLOCKS:
        raise UnsupportedOperationError(
            f"{call.describe()} on backend 'cuda' needs {grid:,} blocks, more than a grid has"
        )
    moved = [(word + HEADER, buffer, offset) for word, buffer, offset in addresses]
    reads, writes = touched(call, nbytes)
    header = (call.tasks, 0, 0, 0)
    alone = isinstance(kernel, LibraryKernel) and kernel.name in _ALONE
    yield Launch(
        source, grid, threads, (*header, *words), tuple(moved), 0, call.describe(), shared, reads, writes, alone=alone,
        mapped=mapped,
    )  # fmt: skip


class _Words:
    def __init__(self) -> None:
        self.words: list[int] = []
        self.addresses: list[tuple[int, int, int]] = []

    def address(self, access: Any) -> None:
        if access.buffer is None:
            self.words.append(access.offset)
        else:
            self.addresses.append((len(self.words), access.buffer, access.offset))
            self.words.append(0)


def _library_words(call: KernelCall) -> tuple[list[int], list[tuple[int, int, int]]]:
    w = _Words()
    for access in call.accesses:
        w.address(access)
    w.words.extend(call.sizes)
    for loop in call.parts[1:]:  # of an epilogue
        _add_loop(w, loop)
    return w.words, w.addresses


def _loop_words(call: KernelCall) -> tuple[list[int], list[tuple[int, int, int]]]:
    w = _Words()
    _add_loop(w, call)
    return w.words, w.addresses


def _add_loop(w: _Words, call: KernelCall) -> None:
    w.words.extend(call.sizes)
    for access in call.accesses:
        w.address(access)
        w.words.extend(access.strides)
        for stride, largest in access.terms:
            w.words.extend((stride, largest))
