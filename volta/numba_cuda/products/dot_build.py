"""The kernels of products in tiles."""

from __future__ import annotations

from llvmlite import ir

from volta.numba_cuda.codegen.threads import new_entry
from volta.numba_cuda.products.dot_fma import FmaNest
from volta.numba_cuda.products.dot_join import emit_join
from volta.numba_cuda.products.dot_mma import MmaNest
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_slices import emit_slices, group_bytes
from volta.numba_cuda.products.dot_tile import DotVariant, Tile
from volta.xla_like.dot import DotSpec, item_size


def build_dot(module: ir.Module, name: str, spec: DotSpec, variant: DotVariant) -> ir.Function:
    """Add a product kernel; its args are those of `Arg` and `Sharing`."""
    function, b = new_entry(module, name, variant.threads, variant.tile.blocks if variant.slices == 1 else 1)
    nest = engine(variant.tile)(b, spec, variant, function)
    if variant.slices > 1:
        emit_slices(nest)
    else:
        nest.emit()
    b.ret_void()
    return function


def build_join(module: ir.Module, name: str, spec: DotSpec, variant: DotVariant) -> ir.Function:
    """Add the kernel of the second launch of a product in parts (see dot_split.py)."""
    function, b = new_entry(module, name, variant.tile.threads)
    emit_join(engine(variant.tile)(b, spec, variant, function))
    b.ret_void()
    return function


def engine(tile: Tile) -> type[Nest]:
    """What multiplies a tile's stages."""
    return MmaNest if tile.mma else FmaNest


def shared_bytes(spec: DotSpec, v: DotVariant) -> int:
    """Dynamic shared memory of a block: the stages, and the totals of long products."""
    layout, t = engine(v.tile).layout, v.tile
    stage = layout(t, v.lhs, t.rows).bytes + layout(t, v.rhs, t.cols).bytes
    size = item_size(spec.accumulator)
    if v.slices > 1:
        return v.slices * group_bytes(t, stage, size)
    return max(t.stages * stage + (t.rows * t.cols * size if v.waits else 0), v.least_shared)
