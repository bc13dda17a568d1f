"""Matrix products on tensor cores, for levels below strict.

An element's sum goes through its instructions in ascending k, 128 bytes of operands at a time with zeros behind the
last k, whatever the sizes of the other dimensions: so a row of a batch has the bits that it has alone. How one
instruction adds is the hardware's: the bits are those of one architecture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda.processors import H200, filling
from volta.numba_cuda.products.dot_epilogue import Epilogue, epilogue_of, fits
from volta.numba_cuda.products.dot_tensor_load import BLOCK, LINE, PIECE, Operand, line_along
from volta.numba_cuda.products.dot_tensor_piped import PipedProduct
from volta.numba_cuda.products.dot_tensor_product import Product
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.numba_cuda.target.ptx import CAPABILITIES, KernelSource, level_of
from volta.numba_cuda.target.ptx_tensor_map import MAP_WORDS, map_words
from volta.numba_cuda.target.threads import HEADER, new_entry
from volta.xla_like.dot_schedule import Arg, DotSpec, item_size
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel


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

    def time(self, tiles: int, depth: int) -> float:
        """What so many tiles take, each so many tiles of k deep."""
        rounds, rest = divmod(-(-tiles // filling(H200)), self.resident)
        last = depth * max(self.alone, self.together * rest / self.resident) + self.besides if rest else 0.0
        return rounds * (depth * self.together + self.besides) + last


_SHAPES: dict[str, tuple[Shape, ...]] = {
    "piped": (
        Shape(128, 256, 4, 1, 0.69, 0.69, 1.45), Shape(128, 192, 5, 1, 0.535, 0.535, 1.2),
        Shape(128, 128, 6, 1, 0.37, 0.37, 0.8), Shape(64, 128, 4, 2, 0.22, 0.41, 0.6),
        Shape(128, 64, 8, 1, 0.26, 0.26, 0.3), Shape(64, 64, 6, 2, 0.17, 0.34, 0.2),
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


def prepare(call: KernelCall) -> KernelCall:
    """A product with its epilogue as a call of 'dot_tc': its parts are the product and the epilogue's loops."""
    head, *_ = call.parts
    assert isinstance(head.kernel, LibraryKernel)
    epilogue, loops = epilogue_of(call)
    out = head.accesses[Arg.OUT] if epilogue.stored else Access(None, 0, ())
    return attrs.evolve(
        call, kernel=LibraryKernel("dot_tc", (head.kernel.spec, epilogue)), sizes=head.sizes, parts=(head, *loops),
        accesses=(*head.accesses[: Arg.OUT], out, *head.accesses[Arg.OUT + 1 :]),
    )  # fmt: skip


def launch_of(call: KernelCall, capability: str) -> tuple[KernelSource, int, TensorVariant]:
    """The kernel of a call on tensor cores, its blocks, and how it runs, for a GPU of this compute capability.

    Raises UnsupportedOperationError where the GPU has no tensor cores for it.
    """
    assert isinstance(call.kernel, LibraryKernel)
    epilogue: Epilogue | None = None
    spec: DotSpec = call.kernel.spec
    if call.parts:
        spec, epilogue = call.kernel.spec
    if level_of(capability) < OLDEST:
        newer = " ".join(c for c in CAPABILITIES if level_of(c) >= OLDEST and not c.endswith("a"))
        raise UnsupportedOperationError(
            f"{call.describe()} at precision {spec.precision!r} needs a GPU of compute capability 8.0 or newer, not "
            f"{capability}; leave the precision at None, or compile for newer GPUs only (volta offline: --capability "
            f"{newer})"
        )
    variant = choose(spec, call, capability, epilogue)
    m, n = (call.sizes[which - Arg.BATCH1] for which in (Arg.M, Arg.N))
    name = f"dot_tc_{spec.lhs}_{spec.out}_{variant.suffix()}"
    if epilogue:
        name += f"{variant.together}_{hashlib.sha256(repr(epilogue).encode()).hexdigest()[:16]}"
    source = KernelSource(
        name, f"dot_tc {spec.lhs} {spec.out} {variant}", lambda module, s: build_tensor_dot(module, s, spec, variant)
    )
    tiles = call.tasks * -(-m // variant.rows) * -(-n // variant.cols)
    return source, min(tiles, variant.resident * filling(H200)) if variant.mapped else tiles, variant


def out_bytes(call: KernelCall) -> int:
    """Bytes of an element of a product."""
    assert isinstance(call.kernel, LibraryKernel)
    return item_size((call.kernel.spec[0] if call.parts else call.kernel.spec).out)


def maps_of(
    call: KernelCall, variant: TensorVariant
) -> tuple[list[int], list[tuple[int, int, int]]]:  # fmt: skip
    """The operands' tensor maps, as words from `TensorVariant.maps` on of a call's args block, and their addresses as
    those of `Launch`, from the call's first word on."""
    arg = {which: call.sizes[which - Arg.BATCH1] for which in Arg if which >= Arg.BATCH1}
    inner, first = arg[Arg.BATCH1], variant.maps - HEADER
    outer = call.tasks // inner
    words: list[int] = []
    addresses = []
    sides = (
        (Arg.M, Arg.LHS_M, Arg.LHS_K, Arg.LHS_BATCH0, variant.lhs, variant.rows),
        (Arg.N, Arg.RHS_N, Arg.RHS_K, Arg.RHS_BATCH0, variant.rhs, variant.cols),
    )
    for i, (size, own, k, batch, operand, length) in enumerate(sides):
        along_k = line_along(operand, variant.kind) == "k"
        lines = (arg[size], arg[own]) if along_k else (arg[Arg.K], arg[k])
        steps = [lines, (inner, arg[Arg(batch + 1)]), (outer, arg[batch])]
        steps = [(n, step) if n > 1 and step else (1, PIECE) for n, step in steps]
        sizes = [arg[Arg.K] if along_k else arg[size], *(n for n, _ in steps)]
        words += map_words(item_size(operand.dtype), sizes, [step for _, step in steps], length if along_k else BLOCK)
        access = call.accesses[i]
        assert access.buffer is not None
        addresses.append((first + i * MAP_WORDS, access.buffer, access.offset))
    return words, addresses


def choose(
    spec: DotSpec, call: KernelCall, capability: str, epilogue: Epilogue | None = None
) -> TensorVariant:  # fmt: skip
    """The kernel for a call. Nothing that is chosen here changes a bit."""
    arg = {which: call.sizes[which - Arg.BATCH1] for which in Arg if which >= Arg.BATCH1}
    # float32 operands are rounded to tf32 when they come here (`round_operands`); doing it again changes nothing
    kind = spec.lhs if item_size(spec.lhs) == 2 else {"bf16": "bfloat16", "tf32": "tf32"}[spec.precision]
    offsets = [access.offset for access in call.accesses[:3]]
    lhs = _operand(
        spec.lhs, (arg[Arg.LHS_BATCH0], arg[Arg.LHS_BATCH1], offsets[0]), arg[Arg.LHS_M],
        arg[Arg.LHS_K],
    )  # fmt: skip
    rhs = _operand(
        spec.rhs, (arg[Arg.RHS_BATCH0], arg[Arg.RHS_BATCH1], offsets[1]), arg[Arg.RHS_N],
        arg[Arg.RHS_K],
    )  # fmt: skip
    if capability == "9.0a" and _has_maps(lhs, rhs, arg, call.tasks):
        lhs, rhs = (attrs.evolve(x, load="map") for x in (lhs, rhs))
    elif not lhs.load == rhs.load == "async":
        lhs, rhs = (_through_registers(x, arg[size], arg[Arg.K]) for x, size in ((lhs, Arg.M), (rhs, Arg.N)))
    steps = (arg[Arg.OUT_BATCH0], arg[Arg.OUT_BATCH1], arg[Arg.OUT_M], offsets[2])
    store: Literal["pieces", "pairs", "single"] = "single"
    if arg[Arg.N] % 2 == 0 and not any(step % (2 * item_size(spec.out)) for step in steps):
        pieces = item_size(spec.out) == 2 and arg[Arg.N] % 8 == 0 and not any(step % PIECE for step in steps)
        store = "pieces" if pieces else "pairs"
    instruction: Literal["mma", "wgmma"] = "wgmma" if capability == "9.0a" else "mma"
    depth = -(-arg[Arg.K] * (4 if kind == "tf32" else 2) // LINE)

    def time(shape: Shape) -> float:
        tiles = call.tasks * -(-arg[Arg.M] // shape.rows) * -(-arg[Arg.N] // shape.cols)
        return shape.time(tiles, depth)

    shapes = {"map": "writing" if epilogue else "piped", "async": instruction}.get(lhs.load, "staged")
    best = min(_SHAPES[shapes], key=time)
    v = TensorVariant(instruction, kind, best.rows, best.cols, best.stages, lhs, rhs, store, best.resident)
    if epilogue is None:
        return v
    return attrs.evolve(v, store="single", epilogue=epilogue, together=_together(spec, call, epilogue, steps))


def _together(spec: DotSpec, call: KernelCall, epilogue: Epilogue, steps: Sequence[int]) -> int:
    """Neighbours of a row that an epilogue takes at once: of the output up to 16 bytes."""
    n, size = call.sizes[Arg.N - Arg.BATCH1], item_size(spec.out)
    for neighbours in (PIECE // size, PIECE // size // 2, 2):
        whole = n % neighbours == 0 and fits(call.parts[1:], neighbours)
        if whole and not (epilogue.stored and any(step % (neighbours * size) for step in steps)):
            return neighbours
    return 1


def _has_maps(lhs: Operand, rhs: Operand, arg: dict[Arg, int], tasks: int) -> bool:
    """Whether tensor maps can describe operands whose pieces lie as they should: no step is negative, and only one
    between the items of a batch is 0."""
    if not lhs.load == rhs.load == "async" or not all(arg[x] for x in (Arg.M, Arg.N, Arg.K)):
        return False
    outer = tasks // arg[Arg.BATCH1]
    for operand, size, own, k, batch in (
        (lhs, Arg.M, Arg.LHS_M, Arg.LHS_K, Arg.LHS_BATCH0), (rhs, Arg.N, Arg.RHS_N, Arg.RHS_K, Arg.RHS_BATCH0),
    ):  # fmt: skip
        count, step = (arg[size], arg[own]) if operand.along == "k" else (arg[Arg.K], arg[k])
        if (count > 1 and step <= 0) or (outer > 1 and arg[batch] < 0):
            return False
        if arg[Arg.BATCH1] > 1 and arg[Arg(batch + 1)] < 0:
            return False
    return True


def _operand(dtype: str, steps: tuple[int, ...], stride: int, k_stride: int) -> Operand:
    """How an operand is brought; `steps` are further distances in bytes between its rows, columns or items."""
    item = item_size(dtype)
    along: Literal["k", "mn"] = "k" if k_stride == item else "mn"
    inner, outer = (k_stride, stride) if along == "k" else (stride, k_stride)
    pieces = inner == item and not any(step % PIECE for step in (*steps, outer))
    if not pieces:
        return Operand(dtype, along, "single")
    if item == 4 and along == "mn":
        return Operand(dtype, along, "whole")  # to lie along k in shared memory it has to be turned
    return Operand(dtype, along, "async")


def _through_registers(operand: Operand, size: int, k: int) -> Operand:
    """The same operand with loads that convert, and that read no byte beyond its end."""
    neighbours = k if operand.along == "k" else size
    whole = operand.load != "single" and neighbours % (PIECE // item_size(operand.dtype)) == 0
    return attrs.evolve(operand, load="whole" if whole else "single")


def build_tensor_dot(module: ir.Module, name: str, spec: DotSpec, variant: TensorVariant) -> ir.Function:
    """Add a kernel; its args are those of `volta.xla_like.dot_schedule.Arg`, with the operands' maps behind them."""
    function, b = new_entry(module, name, variant.threads, variant.resident)
    (PipedProduct if variant.mapped else Product)(module, b, spec, variant, function).emit()
    b.ret_void()
    return function
