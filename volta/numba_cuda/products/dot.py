"""Matrix products: from a call to the launches of its kernels.

A block computes a tile of the output. Each element is one chain of FMAs in ascending k from +0.0 for each 256 of k, and
these chains' sums are added in ascending order, those of 4096 of k, which are joined in pairs; so whatever is chosen
here (dot_choice.py) changes no bit. Elements beyond the edges are computed from the last row or column and not stored.
"""

from __future__ import annotations

import hashlib

import attrs

from volta.numba_cuda.launches import Regions, aligned
from volta.numba_cuda.products import dot_tensor
from volta.numba_cuda.products.dot_blocks import tile_bytes, tree_bytes, words_of
from volta.numba_cuda.products.dot_build import build_dot, build_join, shared_bytes
from volta.numba_cuda.products.dot_choice import Sizes, blocks_of, choose, choose_vector
from volta.numba_cuda.products.dot_epilogue import Epilogue, epilogue_of
from volta.numba_cuda.products.dot_split import PER, WHOLE, slots_of
from volta.numba_cuda.products.dot_turns import ALONE, ROOMS, TILES, turn_bytes, turn_words, turns_of
from volta.numba_cuda.products.dot_vector import VectorVariant, build_vector
from volta.numba_cuda.target.ptx import KernelSource
from volta.numba_cuda.target.ptx_turns import CLEAR_THREADS, build_clear
from volta.xla_like.dot_schedule import CHUNK, Arg, item_size
from volta.xla_like.epilogues import NAME as EPILOGUE
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel


def prepare(call: KernelCall, regions: Regions, capability: str) -> list[KernelCall]:
    """A product's launches, as calls of 'dot' and 'dot_join' that name their variant, and of what clears the turns of
    blocks; other calls as they are.

    Those of a product with an epilogue have the product and the epilogue's loops as their parts.
    """
    epilogue: Epilogue | None = None
    loops: tuple[KernelCall, ...] = ()
    if isinstance(call.kernel, LibraryKernel) and call.kernel.name == EPILOGUE:
        epilogue, loops = epilogue_of(call)
    head = call.parts[0] if epilogue else call
    kernel = head.kernel
    if not isinstance(kernel, LibraryKernel) or kernel.name not in ("dot", "dot_row") or not call.tasks:
        return [dot_tensor.prepare(call) if epilogue else call]
    spec = attrs.evolve(kernel.spec, vector_bits=512)  # the width of the CPU's registers means nothing here
    sizes = Sizes(head, epilogue, loops)
    out = head.accesses[Arg.OUT] if epilogue is None or epilogue.stored else Access(None, 0, ())
    accesses = (*head.accesses[: Arg.OUT], out, Access(None, 0, ()))  # the fourth is the CPU's
    parts = (head, *loops) if epilogue else ()
    first = attrs.evolve(call, sizes=head.sizes, accesses=accesses, parts=parts)
    vector = choose_vector(spec, sizes, capability)
    if vector is not None:
        blocks = vector.blocks(sizes.n, sizes.batches)
        first = attrs.evolve(first, kernel=LibraryKernel("dot_vector", (spec, vector)), tasks=blocks)
        waiting = tree_bytes(vector.owners(sizes.n, sizes.batches), sizes.k, vector.sums_bytes(spec))
        return [_with_room(first, regions, sizes.k, waiting)]
    found = choose(spec, sizes, capability)
    v, tiles = found.variant, blocks_of(found.variant.tile, sizes.m, sizes.n, sizes.batches)
    first = attrs.evolve(first, kernel=LibraryKernel("dot", (spec, v)), tasks=tiles)
    nbytes = tile_bytes(v.tile, item_size(spec.accumulator))
    if v.turns:
        taken, rooms = tiles - found.whole, found.rooms if v.rooms else 0
        tree = tree_bytes(taken + rooms, sizes.k, nbytes)
        first = _with_room(first, regions, sizes.k, tree, turn_bytes(max(1, taken), nbytes, rooms))
        return _in_turn(call, first, found.whole, taken * turns_of(sizes.k, v.halves), max(1, taken), rooms)
    if not found.per:
        return [_with_room(first, regions, sizes.k, tree_bytes(tiles, sizes.k, nbytes))]
    chunks, cut = -(-sizes.k // CHUNK), tiles - found.whole
    slots = cut * slots_of(chunks, found.per) * nbytes
    first = _with_room(first, regions, sizes.k, tree_bytes(found.whole, sizes.k, nbytes), slots)
    words = list(first.sizes)
    words[WHOLE - Arg.BATCH1], words[PER - Arg.BATCH1] = found.whole, found.per
    first = attrs.evolve(first, sizes=tuple(words), tasks=found.whole + cut * -(-chunks // found.per))
    region = first.accesses[Arg.PACKED].buffer
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
    accesses = (*call.accesses[: Arg.PACKED], Access(region, 0, ()))
    words = words_of(call.sizes, k, before)
    return attrs.evolve(call, sizes=tuple(words), accesses=accesses, writes=(*call.writes, region))


def _in_turn(call: KernelCall, product: KernelCall, whole: int, turns: int, taken: int, rooms: int) -> list[KernelCall]:
    """What clears the turns in a product's scratch memory, and the product, with so many turns at its last tiles."""
    place, count, words = product.accesses[Arg.PACKED], turn_words(taken, rooms), list(product.sizes)
    region = place.buffer
    assert region is not None
    words[TILES - Arg.BATCH1], words[ALONE - Arg.BATCH1] = taken, whole
    if rooms:
        words[ROOMS - Arg.BATCH1] = rooms
    clear = attrs.evolve(
        call, kernel=LibraryKernel("clear_turns", ()), sizes=(count,), accesses=(place,), reads=(), writes=(region,),
        tasks=-(-count // CLEAR_THREADS), inplace=(), parts=(),
    )  # fmt: skip
    return [clear, attrs.evolve(product, sizes=tuple(words), tasks=whole + turns)]


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
