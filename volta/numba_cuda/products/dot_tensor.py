"""Matrix products on tensor cores: of floats for levels below strict; of int8, whose sums are exact, at any level.

An element's sum goes through its instructions in ascending k, 128 bytes of operands at a time with zeros behind the
last k, whatever the sizes of the other dimensions: so a row of a batch has the bits that it has alone. How one
instruction adds floats is the hardware's: the bits are those of one architecture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.emit.args import Word
from volta.numba_cuda.codegen.ptx import CAPABILITIES, KernelSource, level_of
from volta.numba_cuda.codegen.ptx_tensor_map import map_words
from volta.numba_cuda.codegen.threads import new_entry
from volta.numba_cuda.processors import H200, filling
from volta.numba_cuda.products.dot_epilogue import fits
from volta.numba_cuda.products.dot_problem import Problem
from volta.numba_cuda.products.dot_tensor_load import BLOCK, ITEMS, LINE, PIECE, OperandLayout, line_along
from volta.numba_cuda.products.dot_tensor_persistent import PersistentProduct
from volta.numba_cuda.products.dot_tensor_product import Product
from volta.numba_cuda.products.dot_tensor_unpack import UnpackingProduct
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.xla_like.dot import DotSpec, item_size
from volta.xla_like.kernels import Access


@attrs.frozen
class Shape:
    """A block's tile: rows, columns, tiles of k in shared memory, and blocks of a multiprocessor.

    Times in microseconds, measured on an H200 where all multiprocessors are at work: of a tile of k where a block has
    its own for itself, and where all that fit are there (of all of them together); and what a tile takes besides.
    """

    rows: int
    cols: int
    stages: int
    resident: int
    alone: float
    together: float
    besides: float
    unpacking: int = 0  # threads that unpack weights

    def time(self, tiles: int, depth: int) -> float:
        """What so many tiles take, each so many tiles of k deep."""
        rounds, rest = divmod(-(-tiles // filling(H200)), self.resident)
        last = depth * max(self.alone, self.together * rest / self.resident) + self.besides if rest else 0.0
        return rounds * (depth * self.together + self.besides) + last


_SHAPES: dict[str, tuple[Shape, ...]] = {
    "persistent": (
        Shape(128, 256, 4, 1, 0.69, 0.69, 1.45), Shape(128, 192, 5, 1, 0.535, 0.535, 1.2),
        Shape(128, 128, 6, 1, 0.37, 0.37, 0.8), Shape(64, 128, 4, 2, 0.22, 0.41, 0.6),
        Shape(128, 64, 8, 1, 0.26, 0.26, 0.3), Shape(64, 64, 6, 2, 0.17, 0.34, 0.2),
    ),
    "unpacking": (
        Shape(128, 128, 4, 1, 0.24, 0.24, 0.8, 256), Shape(64, 128, 5, 1, 0.15, 0.15, 0.5, 256),
    ),
    "writing": (Shape(128, 128, 5, 1, 0.37, 0.37, 0.8),),
    "wgmma": (
        Shape(128, 256, 4, 1, 0.95, 0.95, 4.0), Shape(128, 192, 5, 1, 0.78, 0.78, 3.0),
        Shape(128, 128, 3, 2, 0.57, 1.15, 2.0), Shape(128, 64, 3, 3, 0.37, 1.11, 1.5),
        Shape(64, 64, 4, 3, 0.30, 0.66, 1.0),
    ),
    "mma": (Shape(128, 128, 3, 2, 0.9, 1.7, 2.0), Shape(64, 64, 3, 2, 0.4, 0.7, 1.5)),
    "staged": (Shape(128, 128, 2, 1, 1.7, 1.7, 3.0), Shape(64, 64, 2, 1, 0.8, 0.8, 2.0)),
}  # fmt: skip


OLDEST = (8, 0)
"""The oldest compute capability whose tensor cores take these precisions."""


_UNPACKED_ROWS = 128
"""Rows up to which a product unpacks weights in blocks itself: of 64 it takes a third of the time of an array and its
product (4096 x 4096: 9.8 us for 33), as its bytes are few; of 512 that is as fast or faster."""

_LEAST = 8
"""Rows and columns of products of int8 from which on tensor cores have them."""


def takes_strictly(problem: Problem, capability: str) -> bool:
    """Whether tensor cores compute a product that is strict: one of int8 with sums in int32, of which both operands lie
    along k in pieces of 16 bytes."""
    dot, spec = problem.dot, problem.dot.spec
    if (spec.lhs, spec.rhs, spec.out) != ("int8", "int8", "int32") or level_of(capability) < OLDEST:
        return False
    sides = [_operand("int8", side) for side in _sides(problem)]
    return min(dot.m, dot.n) >= _LEAST and all((x.along, x.load) == ("k", "async") for x in sides)


def chosen(problem: Problem, capability: str, label: str) -> tuple[TensorVariant, int, int]:
    """The kernel for a product on a GPU of this compute capability, its tiles, and the blocks that compute them.

    Raises UnsupportedOperationError where the GPU has no tensor cores for it.
    """
    dot, spec = problem.dot, problem.dot.spec
    if level_of(capability) < OLDEST:
        newer = " ".join(c for c in CAPABILITIES if level_of(c) >= OLDEST and not c.endswith("a"))
        raise UnsupportedOperationError(
            f"{label} at precision {spec.precision!r} needs a GPU of compute capability 8.0 or newer, not "
            f"{capability}; leave the precision at None, or compile for newer GPUs only (volta offline: --capability "
            f"{newer})"
        )
    variant = choose(problem, capability)
    tiles = dot.batches * -(-dot.m // variant.rows) * -(-dot.n // variant.cols)
    return variant, tiles, min(tiles, variant.resident * filling(H200)) if variant.mapped else tiles


def kernel_of(spec: DotSpec, variant: TensorVariant) -> tuple[KernelSource, int, int]:
    """A variant's kernel, the threads of a block, and their dynamic shared memory."""
    name = f"dot_tc_{spec.lhs}_{spec.out}_{variant.suffix()}"
    if variant.epilogue:
        name += f"{variant.together}_{hashlib.sha256(repr(variant.epilogue).encode()).hexdigest()[:16]}"
    source = KernelSource(
        name, f"dot_tc {spec.lhs} {spec.out} {variant}", lambda module, s: build_tensor_dot(module, s, spec, variant)
    )
    return source, variant.threads, variant.shared_bytes(item_size(spec.out))


def maps_of(problem: Problem, variant: TensorVariant, before: int) -> list[Word]:
    """The operands' tensor maps, as words behind so many of a launch: they begin at `TensorVariant.maps`."""
    words: list[Word] = [0] * (variant.maps - before)
    for side, operand, length in zip(
        _sides(problem), (variant.lhs, variant.rhs), (variant.rows, variant.cols), strict=True
    ):
        if operand.load != "map":
            continue
        along_k = line_along(operand, variant.kind) == "k"
        (outer, inner), batch = problem.dot.batch, side.array.strides[:2]
        steps = [(side.count, side.own) if along_k else (problem.dot.k, side.k), (inner, batch[1]), (outer, batch[0])]
        steps = [(n, step) if n > 1 and step else (1, PIECE) for n, step in steps]
        sizes = [problem.dot.k if along_k else side.count, *(n for n, _ in steps)]
        found = map_words(item_size(operand.dtype), sizes, [step for _, step in steps], length if along_k else BLOCK)
        words += [side.array, *found[1:]]  # the first word is the address
    return words


@attrs.frozen
class _Side:
    """An operand: where it lies, how many rows or columns it has, and its strides over these and over k."""

    array: Access
    count: int
    own: int
    k: int


def _sides(problem: Problem) -> tuple[_Side, _Side]:
    (*_, lhs_m, lhs_k), (*_, rhs_k, rhs_n) = problem.lhs.strides, problem.rhs.strides
    return _Side(problem.lhs, problem.dot.m, lhs_m, lhs_k), _Side(problem.rhs, problem.dot.n, rhs_n, rhs_k)


def choose(problem: Problem, capability: str) -> TensorVariant:
    """The kernel for a product. Nothing that is chosen here changes a bit."""
    dot, spec, sides = problem.dot, problem.dot.spec, _sides(problem)
    if spec.blocks is not None:
        return _unpacking(problem)
    # the right one is rounded to tf32 when it comes here (`round_operands`); doing it again changes nothing
    kind = spec.lhs if item_size(spec.lhs) < 4 else {"bf16": "bfloat16", "tf32": "tf32"}[spec.precision]
    lhs, rhs = (_operand(dtype, side) for dtype, side in zip((spec.lhs, spec.rhs), sides, strict=True))
    if capability == "9.0a" and _has_maps(lhs, rhs, problem):
        lhs, rhs = (attrs.evolve(x, load="map") for x in (lhs, rhs))
    elif not lhs.load == rhs.load == "async":
        lhs, rhs = (_through_registers(x, side.count, dot.k) for x, side in zip((lhs, rhs), sides, strict=True))
    steps = (*problem.out.strides[:3], problem.out.offset)
    store: Literal["pieces", "pairs", "single"] = "single"
    if dot.n % 2 == 0 and not any(step % (2 * item_size(spec.out)) for step in steps):
        pieces = item_size(spec.out) == 2 and dot.n % 8 == 0 and not any(step % PIECE for step in steps)
        store = "pieces" if pieces else "pairs"
    instruction: Literal["mma", "wgmma"] = "wgmma" if capability == "9.0a" else "mma"
    depth = -(-dot.k * ITEMS[kind] // LINE)

    def time(shape: Shape) -> float:
        tiles = dot.batches * -(-dot.m // shape.rows) * -(-dot.n // shape.cols)
        return shape.time(tiles, depth)

    shapes = {"map": "writing" if problem.epilogue else "persistent", "async": instruction}.get(lhs.load, "staged")
    best = min(_SHAPES[shapes], key=time)
    v = TensorVariant(instruction, kind, best.rows, best.cols, best.stages, lhs, rhs, store, best.resident)
    if problem.epilogue is None:
        return v
    return attrs.evolve(v, store="single", epilogue=problem.epilogue, together=_together(problem, steps))


def wants_numbers(problem: Problem, capability: str) -> bool:
    """Whether weights in blocks of few bits must become an array before tensor cores multiply with them: for many rows,
    and where no kernel of the GPU's unpacks them."""
    dot = problem.dot
    if dot.name != "dot_tc" or dot.spec.blocks is None:
        return False
    rows = _operand(dot.spec.lhs, _sides(problem)[0])
    return capability != "9.0a" or dot.m > _UNPACKED_ROWS or rows != OperandLayout(dot.spec.lhs, "k", "async")


def _unpacking(problem: Problem) -> TensorVariant:
    """The kernel for a product with weights in blocks."""
    dot, spec = problem.dot, problem.dot.spec
    depth = -(-dot.k * ITEMS[spec.lhs] // LINE)
    lhs, rhs = OperandLayout(spec.lhs, "k", "map"), OperandLayout(spec.rhs, "k", "blocks")
    store: Literal["pairs", "single"] = "pairs" if dot.n % 2 == 0 else "single"

    def variant(shape: Shape) -> TensorVariant:
        return TensorVariant(
            "wgmma", spec.lhs, shape.rows, shape.cols, shape.stages, lhs, rhs, store, shape.resident,
            unpacking=shape.unpacking,
        )  # fmt: skip

    def time(shape: Shape) -> float:
        return shape.time(-(-dot.m // shape.rows) * -(-dot.n // shape.cols), depth)

    return variant(min(_SHAPES["unpacking"], key=time))


def _together(problem: Problem, steps: Sequence[int]) -> int:
    """Neighbours of a row that an epilogue takes at once: of the output up to 16 bytes."""
    size, stored = item_size(problem.dot.spec.out), problem.epilogue is None or problem.epilogue.stored
    for neighbours in (PIECE // size, PIECE // size // 2, 2):
        whole = problem.dot.n % neighbours == 0 and fits(problem.loops, neighbours)
        if whole and not (stored and any(step % (neighbours * size) for step in steps)):
            return neighbours
    return 1


def _has_maps(lhs: OperandLayout, rhs: OperandLayout, problem: Problem) -> bool:
    """Whether tensor maps can describe operands whose pieces lie as they should: no step is negative, and only one
    between the items of a batch is 0."""
    dot = problem.dot
    if not lhs.load == rhs.load == "async" or not (dot.m and dot.n and dot.k):
        return False
    for operand, side in zip((lhs, rhs), _sides(problem), strict=True):
        count, step = (side.count, side.own) if operand.along == "k" else (dot.k, side.k)
        if count > 1 and step <= 0:
            return False
        if any(n > 1 and stride < 0 for n, stride in zip(dot.batch, side.array.strides, strict=False)):
            return False
    return True


def _operand(dtype: str, side: _Side) -> OperandLayout:
    """How an operand is loaded."""
    item = item_size(dtype)
    along: Literal["k", "mn"] = "k" if side.k == item else "mn"
    inner, outer = (side.k, side.own) if along == "k" else (side.own, side.k)
    pieces = inner == item and not any(step % PIECE for step in (*side.array.strides[:2], side.array.offset, outer))
    if not pieces:
        return OperandLayout(dtype, along, "single")
    if item == 4 and along == "mn":
        return OperandLayout(dtype, along, "whole")  # to lie along k in shared memory it has to be turned
    return OperandLayout(dtype, along, "async")


def _through_registers(operand: OperandLayout, size: int, k: int) -> OperandLayout:
    """The same operand with loads that convert, and that read no byte beyond its end."""
    neighbours = k if operand.along == "k" else size
    whole = operand.load != "single" and neighbours % (PIECE // item_size(operand.dtype)) == 0
    return attrs.evolve(operand, load="whole" if whole else "single")


def build_tensor_dot(module: ir.Module, name: str, spec: DotSpec, variant: TensorVariant) -> ir.Function:
    """Add a kernel; its args are those of `Arg` and `Sharing`, with the operands' maps behind them."""
    function, b = new_entry(module, name, variant.threads, variant.resident)
    mapped = UnpackingProduct if variant.unpacking else PersistentProduct
    (mapped if variant.mapped else Product)(module, b, spec, variant, function).emit()
    b.ret_void()
    return function
