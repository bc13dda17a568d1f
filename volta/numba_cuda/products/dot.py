"""Matrix products: from a call to the launches of its kernels.

A block computes a tile of the output. Each element is one chain of FMAs in ascending k from +0.0 for each 256 of k, and
these chains' sums are added in ascending order, those of 4096 of k, which are joined in pairs; so whatever is chosen
here (dot_choice.py) changes no bit. Elements beyond the edges are computed from the last row or column and not stored.
"""

from __future__ import annotations

import hashlib

import attrs

from volta.emit.dot_args import Arg, dot_words
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.ptx_turns import CLEAR_THREADS, build_clear
from volta.numba_cuda.launches import Regions, aligned
from volta.numba_cuda.products.dot_blocks import tile_bytes, tree_bytes, tree_words
from volta.numba_cuda.products.dot_build import build_dot, build_join, shared_bytes
from volta.numba_cuda.products.dot_choice import blocks_of, choose, choose_vector
from volta.numba_cuda.products.dot_epilogue import Epilogue, epilogue_of
from volta.numba_cuda.products.dot_problem import Problem
from volta.numba_cuda.products.dot_sharing import Sharing, with_words
from volta.numba_cuda.products.dot_split import slots_of
from volta.numba_cuda.products.dot_turns import turn_bytes, turn_words, turns_of
from volta.numba_cuda.products.dot_vector import VectorVariant, build_vector
from volta.xla_like.dot import CHUNK, Dot, item_size, strides_of
from volta.xla_like.kernels import Access, Joined, KernelCall, LibraryKernel


def prepare(call: KernelCall, regions: Regions, capability: str) -> list[KernelCall]:
    """A product's launches, as calls of 'dot' and 'dot_join' that name their variant, and of what clears the turns of
    blocks; other calls as they are.

    Those of a product with an epilogue have the product and the epilogue's loops as their parts.
    """
    epilogue: Epilogue | None = None
    loops: tuple[KernelCall, ...] = ()
    if isinstance(call.kernel, Joined):
        epilogue, loops = epilogue_of(call)
    head = call.parts[0] if epilogue else call
    dot = head.kernel
    if not isinstance(dot, Dot):
        return [call]
    spec, (lhs, rhs, result) = dot.spec, head.accesses
    problem = Problem(dot, lhs, rhs, result, epilogue, loops)
    out = result if epilogue is None or epilogue.stored else Access(None, 0, ())
    sizes = (*dot_words(dot, strides_of(head)), *(0 for _ in Sharing))
    accesses, parts = (lhs, rhs, out, Access(None, 0, ())), (head, *loops) if epilogue else ()
    first = attrs.evolve(call, sizes=sizes, accesses=accesses, parts=parts)
    if dot.name == "dot_tc":
        return [attrs.evolve(first, kernel=LibraryKernel("dot_tc", problem), tasks=dot.batches)]
    vector = choose_vector(problem, capability)
    if vector is not None:
        blocks = vector.blocks(dot.n, dot.batches)
        first = attrs.evolve(first, kernel=LibraryKernel("dot_vector", (spec, vector)), tasks=blocks)
        waiting = tree_bytes(vector.owners(dot.n, dot.batches), dot.k, vector.sums_bytes(spec))
        return [_with_room(first, regions, dot.k, waiting)]
    found = choose(problem, capability)
    v, tiles = found.variant, blocks_of(found.variant.tile, dot)
    first = attrs.evolve(first, kernel=LibraryKernel("dot", (spec, v)), tasks=tiles)
    nbytes = tile_bytes(v.tile, item_size(spec.accumulator))
    if v.turns:
        taken, rooms = tiles - found.whole, found.rooms if v.rooms else 0
        tree = tree_bytes(taken + rooms, dot.k, nbytes)
        first = _with_room(first, regions, dot.k, tree, turn_bytes(max(1, taken), nbytes, rooms))
        return _in_turn(call, first, found.whole, taken * turns_of(dot.k, v.halves), max(1, taken), rooms)
    if not found.per:
        return [_with_room(first, regions, dot.k, tree_bytes(tiles, dot.k, nbytes))]
    chunks, cut = -(-dot.k // CHUNK), tiles - found.whole
    slots = cut * slots_of(chunks, found.per) * nbytes
    first = _with_room(first, regions, dot.k, tree_bytes(found.whole, dot.k, nbytes), slots)
    sizes = with_words(first.sizes, {Sharing.WHOLE: found.whole, Sharing.PER: found.per})
    first = attrs.evolve(first, sizes=sizes, tasks=found.whole + cut * -(-chunks // found.per))
    region = first.accesses[Arg.WORKSPACE].buffer
    assert region is not None
    join = attrs.evolve(
        first, kernel=LibraryKernel("dot_join", (spec, v)), tasks=cut * nbytes // (16 * v.tile.threads),
        reads=(region, *(b for loop in loops for b in loop.reads)), inplace=(),
        writes=first.writes if v.long else call.writes,
    )  # fmt: skip
    return [first, join]


def _with_room(call: KernelCall, regions: Regions, k: int, tree: int, before: int = 0) -> KernelCall:
    """A product with scratch memory, where it needs any: so many bytes for its tree, behind those of something else."""
    if not tree + before:
        return call
    region = regions.new(aligned(before) + tree)
    accesses = (*call.accesses[: Arg.WORKSPACE], Access(region, 0, ()))
    sizes = with_words(call.sizes, tree_words(k, before))
    return attrs.evolve(call, sizes=sizes, accesses=accesses, writes=(*call.writes, region))


def _in_turn(call: KernelCall, product: KernelCall, whole: int, turns: int, taken: int, rooms: int) -> list[KernelCall]:
    """What clears the turns in a product's scratch memory, and the product, with so many turns at its last tiles."""
    place, count = product.accesses[Arg.WORKSPACE], turn_words(taken, rooms)
    region = place.buffer
    assert region is not None
    sizes = with_words(product.sizes, {Sharing.TILES: taken, Sharing.WHOLE: whole, Sharing.ROOMS: rooms})
    clear = attrs.evolve(
        call, kernel=LibraryKernel("clear_turns", ()), sizes=(count,), accesses=(place,), reads=(), writes=(region,),
        tasks=-(-count // CLEAR_THREADS), inplace=(), parts=(),
    )  # fmt: skip
    return [clear, attrs.evolve(product, sizes=sizes, tasks=whole + turns)]


def launch_of(call: KernelCall) -> tuple[KernelSource, int, int]:
    """The kernel of a prepared call, the threads of a block, and their dynamic shared memory."""
    assert isinstance(call.kernel, LibraryKernel)
    if call.kernel.name == "clear_turns":
        return KernelSource("volta_clear_turns", "clear", build_clear), CLEAR_THREADS, 0
    spec, v = call.kernel.spec
    text = f"{call.kernel.name} {spec} {v}"
    name = f"volta_{call.kernel.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if isinstance(v, VectorVariant):
        source = KernelSource(name, text, lambda module, symbol: build_vector(module, symbol, spec, v))
        return source, v.threads, v.shared_bytes(spec)
    build = build_join if call.kernel.name == "dot_join" else build_dot
    source = KernelSource(name, text, lambda module, symbol: build(module, symbol, spec, v))
    return source, v.threads, shared_bytes(spec, v) if build is build_dot else 0
