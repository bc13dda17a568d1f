"""Matrix products: from a call to the launches of its kernels.

A block computes a tile of the output. Each element is one chain of FMAs in ascending k from +0.0 for each 256 of k, and
these chains' sums are added in ascending order, those of 4096 of k, which are joined in pairs; so whatever is chosen
here (dot_choice.py) changes no bit. Elements beyond the edges are computed from the last row or column and not stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import attrs

from volta.emit.args import Word, loop_words
from volta.emit.dot_args import Arg, dot_words
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.ptx_semaphore import CLEAR_THREADS, build_clear
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Regions, aligned, touched
from volta.numba_cuda.products import dot_rounded, dot_tensor
from volta.numba_cuda.products.beside import ahead_words
from volta.numba_cuda.products.dot_blocks import tile_bytes, tree_bytes, tree_words
from volta.numba_cuda.products.dot_build import build_dot, build_join, shared_bytes
from volta.numba_cuda.products.dot_choice import blocks_of, choose, choose_unpack, choose_vector
from volta.numba_cuda.products.dot_epilogue import epilogue_of
from volta.numba_cuda.products.dot_problem import Problem
from volta.numba_cuda.products.dot_serial import semaphore_words, serial_blocks, serial_bytes
from volta.numba_cuda.products.dot_sharing import Sharing, with_words
from volta.numba_cuda.products.dot_split import parts_of, slots_of
from volta.numba_cuda.products.dot_stream import StreamVariant, build_stream
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.numba_cuda.products.dot_unpack import UnpackVariant, build_unpack
from volta.numba_cuda.products.dot_vector import VectorVariant, build_vector
from volta.xla_like.dot import CHUNK, CHUNKS, Dot, DotSpec, item_size
from volta.xla_like.kernels import Access, Joined, KernelCall
from volta.xla_like.views import Ints

_NOTHING = Access(None, 0, ())

_IN_COMPANY = ("clear_semaphores", "dot_unpack")
"""Kernels of which several launches may become one: they read memory, and how fast does not depend on their order."""


@attrs.frozen
class DotLaunch:
    """One launch of a product: which of its kernels and which variant of that, its blocks, its words (the arrays of
    `Arg`, then the integers of `Arg` and `Sharing`), the loops of its epilogue, and what it touches."""

    kernel: str
    variant: Any
    grid: int
    accesses: tuple[Access, ...]
    sizes: tuple[int, ...]
    loops: tuple[KernelCall, ...]
    reads: Ints
    writes: Ints

    def words(self) -> list[Word]:
        """The args of the launch."""
        return [*self.accesses, *self.sizes, *(word for loop in self.loops for word in loop_words(loop))]


def problem_of(call: KernelCall) -> Problem:
    """The product of a call, or of one that is joined with its epilogue."""
    epilogue, loops = epilogue_of(call) if isinstance(call.kernel, Joined) else (None, ())
    head = call.parts[0] if epilogue else call
    assert isinstance(head.kernel, Dot)
    lhs, rhs, out = head.accesses
    return Problem(head.kernel, lhs, rhs, out, epilogue, loops)


def planned(call: KernelCall, regions: Regions, capability: str, beside: int = 0) -> list[DotLaunch]:
    """A product's launches by name: 'dot', 'dot_join', 'dot_vector', 'dot_unpack' or 'dot_tc', and 'clear_semaphores',
    which comes before serial split-K. ``beside``: the columns of all products that run with it, if not its own alone.
    """
    problem = problem_of(call)
    dot, spec, loops = problem.dot, problem.dot.spec, problem.loops
    out = problem.out if problem.epilogue is None or problem.epilogue.stored else _NOTHING
    sizes = (*dot_words(dot, problem.strides), *(0 for _ in Sharing))
    accesses = (problem.lhs, problem.rhs, out, _NOTHING)
    first = DotLaunch("dot_tc", None, 0, accesses, sizes, loops, call.reads, call.writes)
    if dot.name == "dot_tc" or dot_tensor.takes_strictly(problem, capability):
        tensor, tiles, grid = dot_tensor.chosen(problem, capability, _label(call, "dot_tc"))
        return [attrs.evolve(first, variant=tensor, grid=grid, sizes=with_words(sizes, {Sharing.WHOLE: tiles}))]
    if spec.blocks is not None:
        unpack, grid = choose_unpack(problem, capability, max(beside, dot.n))
        sizes = dot_words(dot, problem.strides)
        return [attrs.evolve(first, kernel="dot_unpack", variant=unpack, grid=grid, sizes=sizes)]
    vector = choose_vector(problem, capability)
    if vector is not None:
        return [attrs.evolve(first, kernel="dot_vector", variant=vector, grid=vector.blocks(dot.n, dot.batches))]
    found = choose(problem, capability)
    v, tiles = found.variant, blocks_of(found.variant.tile, dot)
    first = attrs.evolve(first, kernel="dot", variant=v, grid=tiles)
    nbytes = tile_bytes(v.tile, item_size(spec.accumulator))
    if v.serial:
        taken, tree_slots = tiles - found.whole, found.tree_slots if v.tree_slots else 0
        tree = tree_bytes(taken + tree_slots, dot.k, nbytes)
        first = _with_room(first, regions, dot.k, tree, serial_bytes(max(1, taken), nbytes, tree_slots))
        return _serial(first, found.whole, taken * serial_blocks(dot.k, v.halves), max(1, taken), tree_slots)
    if not found.per:
        return [_with_room(first, regions, dot.k, tree_bytes(tiles, dot.k, nbytes))]
    chunks, cut = -(-dot.k // CHUNK), tiles - found.whole
    slots = cut * slots_of(chunks, found.per) * nbytes
    first = _with_room(first, regions, dot.k, tree_bytes(found.whole, dot.k, nbytes), slots)
    words = {Sharing.WHOLE: found.whole, Sharing.PER: found.per, Sharing.TILES: cut * (chunks // CHUNKS)}
    first = attrs.evolve(
        first, sizes=with_words(first.sizes, words), grid=found.whole + cut * parts_of(chunks, found.per, v.apart)
    )
    region = first.accesses[Arg.WORKSPACE].buffer
    assert region is not None
    join = attrs.evolve(
        first, kernel="dot_join", grid=cut * nbytes // (16 * v.tile.threads),
        reads=(region, *(b for loop in loops for b in loop.reads)), writes=first.writes if v.long else call.writes,
    )  # fmt: skip
    return [first, join]


def _with_room(launch: DotLaunch, regions: Regions, k: int, tree: int, before: int = 0) -> DotLaunch:
    """A product with scratch memory, where it needs any: so many bytes for its tree, behind those of something else."""
    if not tree + before:
        return launch
    region = regions.new(aligned(before) + tree)
    accesses = (*launch.accesses[: Arg.WORKSPACE], Access(region, 0, ()))
    sizes = with_words(launch.sizes, tree_words(k, before))
    return attrs.evolve(launch, sizes=sizes, accesses=accesses, writes=(*launch.writes, region))


def _serial(product: DotLaunch, whole: int, serial: int, taken: int, tree_slots: int) -> list[DotLaunch]:
    """What clears the semaphores in a product's scratch memory, and the product, with so many blocks in series at its
    last tiles."""
    place, count = product.accesses[Arg.WORKSPACE], semaphore_words(taken, tree_slots)
    region = place.buffer
    assert region is not None
    sizes = with_words(product.sizes, {Sharing.TILES: taken, Sharing.WHOLE: whole, Sharing.TREE_SLOTS: tree_slots})
    clear = DotLaunch("clear_semaphores", None, -(-count // CLEAR_THREADS), (place,), (count,), (), (), (region,))
    return [clear, attrs.evolve(product, sizes=sizes, grid=whole + serial)]


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of a product, with its epilogue where there is one."""
    problem = problem_of(call)
    if dot_tensor.wants_numbers(problem, ctx.capability):
        room = ctx.scratch(2 * problem.dot.n * problem.dot.k)
        yield dot_rounded.unpacked(problem, room, ctx)
        call = _with_numbers(call, problem, room)
        problem = problem_of(call)
    for x in planned(call, ctx.regions, ctx.capability, ctx.beside):
        if isinstance(x.variant, StreamVariant):
            x = attrs.evolve(x, variant=attrs.evolve(x.variant, early=problem.rhs.buffer in ctx.fixed))
        found = dict.fromkeys(ctx.ranges(x.accesses))
        for loop in x.loops:
            found.update(dict.fromkeys(r for ranges in touched(loop, ctx.nbytes) for r in ranges))
        reads, writes = (tuple(r for r in found if r[0] in buffers) for buffers in (x.reads, x.writes))
        source, threads, shared = _kernel_of(x, problem.dot.spec)
        words = x.words() + (ahead_words(ctx, x.grid) if x.kernel == "dot_unpack" else [])
        mapped = isinstance(x.variant, TensorVariant) and x.variant.mapped
        if mapped:
            words += dot_tensor.maps_of(problem, x.variant, len(words))
        yield ctx.launch(
            source, x.grid, threads, words, shared, label=_label(call, x.kernel), touched=(reads, writes),
            alone=x.kernel not in _IN_COMPANY, mapped=mapped,
        )  # fmt: skip


def _with_numbers(call: KernelCall, problem: Problem, room: Access) -> KernelCall:
    """The product with an array, in bfloat16, in place of weights in blocks."""
    dot, size = problem.dot, item_size(problem.dot.spec.lhs)
    assert room.buffer is not None
    plain = attrs.evolve(dot, spec=attrs.evolve(dot.spec, rhs=dot.spec.lhs))
    rhs = attrs.evolve(room, strides=(0, 0, size, size * dot.k))
    reads = tuple(room.buffer if b == problem.rhs.buffer else b for b in call.reads)
    return attrs.evolve(call, kernel=plain, accesses=(problem.lhs, rhs, problem.out), reads=reads)


def _label(call: KernelCall, kernel: str) -> str:
    return call.describe() if call.parts and kernel != "clear_semaphores" else kernel


def _kernel_of(launch: DotLaunch, spec: DotSpec) -> tuple[KernelSource, int, int]:
    """The kernel of a launch, the threads of a block, and their dynamic shared memory."""
    if launch.kernel == "clear_semaphores":
        return KernelSource("volta_clear_semaphores", "clear", build_clear), CLEAR_THREADS, 0
    if launch.kernel == "dot_tc":
        return dot_tensor.kernel_of(spec, launch.variant)
    v, text = launch.variant, f"{launch.kernel} {spec} {launch.variant}"
    name = f"volta_{launch.kernel}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if isinstance(v, VectorVariant):
        source = KernelSource(name, text, lambda module, symbol: build_vector(module, symbol, spec, v))
        return source, v.threads, v.shared_bytes(spec)
    if isinstance(v, StreamVariant):
        source = KernelSource(name, text, lambda module, symbol: build_stream(module, symbol, spec, v))
        return source, v.threads, v.shared_bytes(spec)
    if isinstance(v, UnpackVariant):
        source = KernelSource(name, text, lambda module, symbol: build_unpack(module, symbol, spec, v))
        return source, v.threads, v.shared_bytes(spec)
    build = build_join if launch.kernel == "dot_join" else build_dot
    source = KernelSource(name, text, lambda module, symbol: build(module, symbol, spec, v))
    return source, v.threads, shared_bytes(spec, v) if build is build_dot else 0
