"""DOT: what a matrix product is. Pure data; how it is cut into tasks, tiled and packed is each backend's affair.

Each output element is the sum, in ascending order, of chunks of `CHUNK` products; each chunk is one chain of FMAs in
ascending k that starts at +0.0. Longer sums than `BLOCK` products are cut into such blocks, which combine in a binary
tree of adjacent pairs. No schedule changes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import attrs

from volta.core.block_formats import LAYOUTS, BlockFormat
from volta.core.contract import DEFINITIONS
from volta.core.policy import TENSOR_PRECISIONS
from volta.xla_like.kernels import KernelCall, Operation
from volta.xla_like.views import Ints

CHUNK = DEFINITIONS.dot_chunk
"""Length of one FMA chain, part of the definition of DOT."""

BLOCK = DEFINITIONS.dot_block
"""Products whose chunks are added one after the other, likewise."""

CHUNKS = BLOCK // CHUNK
"""Chunks of a block."""

BLOCK_PRODUCT = "block_product"
"""The primitive whose right operand is kept in blocks of few bits: it means a program, which backends may have a kernel
for."""

Precision = Literal["default", "highest", "tf32", "bf16"]

_ITEM_SIZES = {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
_NARROW_FLOATS = ("float16", "bfloat16", "float32")
_WITH_BLOCKS = (("float32", "float32", "default"), ("bfloat16", "float32", "bf16"))


def item_size(dtype: str) -> int:
    """Bytes of one element in memory."""
    return _ITEM_SIZES[dtype]


def levels_of(k: int) -> int:
    """How many partial sums of blocks of k wait at once, at most, for those that they are added to."""
    return (max(1, -(-k // BLOCK)) - 1).bit_length()


@attrs.frozen
class DotSpec:
    """The dtypes of a product and its precision: what a kernel for products of any sizes is compiled for.

    `precision` "highest" takes float16, bfloat16 or float32 operands, multiplies and adds in float64, and rounds once.
    "tf32" and "bf16" are for tensor cores alone: no definition says their bits. `rhs` may name a format of blocks,
    whose numbers are float32, at precision "bf16" rounded to bfloat16.
    Raises ``ValueError`` for a combination that DOT does not define.
    """

    lhs: str
    rhs: str
    out: str
    precision: Precision = "default"

    def __attrs_post_init__(self) -> None:
        if self.blocks is not None:
            if (self.lhs, self.out, self.precision) not in _WITH_BLOCKS:
                text = f"{self.lhs} to {self.out} at precision {self.precision!r}"
                raise ValueError(f"products with {self.rhs} are of float32, got {text}")
            return
        for dtype in (self.lhs, self.rhs, self.out):
            if dtype not in _ITEM_SIZES:
                raise ValueError(f"dot is not defined for {dtype}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {get_args(Precision)}, got {self.precision!r}")
        floats = [dtype in (*_NARROW_FLOATS, "float64") for dtype in (self.lhs, self.rhs, self.out)]
        if any(floats) != all(floats):
            raise ValueError(f"dot mixes integers and floats: {self.lhs} and {self.rhs} to {self.out}")
        if self.precision != "default" and not all(d in _NARROW_FLOATS for d in (self.lhs, self.rhs, self.out)):
            raise ValueError(
                f"precision {self.precision!r} is for float32 and narrower, got {self.lhs}, {self.rhs}, {self.out}"
            )
        if all(floats) and "float64" in (self.lhs, self.rhs) and self.out != "float64":
            raise ValueError(f"a float64 product must have a float64 result, got {self.out}")

    @property
    def blocks(self) -> BlockFormat | None:
        """The format of the right operand, if it is kept in blocks: rows of them, each a column of it. Its stride of k
        is that of whole chunks, and that of its columns what one takes, wherever its words lie."""
        return LAYOUTS.get(self.rhs)

    @property
    def accumulator(self) -> str:
        """The dtype in which products are formed and added."""
        if "int" in self.out:
            return "int64" if item_size(self.out) == 8 else "int32"  # sums wrap around, so the sign does not matter
        return "float64" if self.precision == "highest" or self.out == "float64" else "float32"


@attrs.frozen
class Dot(Operation):
    """out[b, i, j] = DOT over k of lhs[b, i, k] and rhs[b, k, j], for each item of a batch of two dimensions.

    The call's accesses are lhs, rhs and out; their strides, in bytes, are over (batch 0, batch 1, m, k), (batch 0,
    batch 1, k, n) and (batch 0, batch 1, m, n). Any may be 0 or negative but for the output's, whose columns are
    neighbours.
    """

    spec: DotSpec
    batch: tuple[int, int]
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """Products on tensor cores are another class: their bits are those of one architecture."""
        return "dot_tc" if self.spec.precision in TENSOR_PRECISIONS else "dot"

    @property
    def batches(self) -> int:
        """Items of the batch."""
        return self.batch[0] * self.batch[1]

    def details(self) -> str:
        outer, inner = self.batch
        batch = f"{outer}x{inner}" if outer > 1 else str(inner)
        precision = f" precision={self.spec.precision}" if self.spec.precision != "default" else ""
        return f"m={self.m} n={self.n} k={self.k} batch={batch}{precision}"


@attrs.frozen
class DotStrides:
    """The strides of a product's arrays, in bytes, over the dimensions that `Dot` names."""

    lhs: Ints
    rhs: Ints
    out: Ints


def strides_of(call: KernelCall) -> DotStrides:
    """Those of a call's accesses."""
    return DotStrides(*(access.strides for access in call.accesses))


def canonical(dot: Dot, strides: DotStrides) -> tuple[Dot, DotStrides]:
    """The same product with strides of dimensions of size 1 as if contiguous, and with the rows of all items of a batch
    as one matrix where they are that."""
    a, b = item_size(dot.spec.lhs), item_size(dot.spec.rhs)
    (b0, b1), m = dot.batch, dot.m
    (la0, la1, lm, lk), (rb0, rb1, rk, rn), (o0, o1, om, on) = strides.lhs, strides.rhs, strides.out
    lk, rn = (a if dot.k == 1 else lk), (b if dot.n == 1 else rn)
    rk = b if dot.k == 1 and rn != b else rk
    if b1 > 1 and m >= 1 and rb1 == 0 and la1 == m * lm and o1 == m * om:
        m, b1, la1, o1 = m * b1, 1, 0, 0
    if b1 == 1 and b0 > 1 and rb0 == 0 and la0 == m * lm and o0 == m * om:
        m, b0, la0, o0 = m * b0, 1, 0, 0
    lm = a if m == 1 and lk != a else lm
    found = DotStrides((la0, la1, lm, lk), (rb0, rb1, rk, rn), (o0, o1, om, on))
    return Dot(dot.spec, (b0, b1), m, dot.n, dot.k), found


def column_as_row(dot: Dot, strides: DotStrides) -> tuple[Dot, DotStrides] | None:
    """A canonical product of one column as one of one row, of the operands in the other order, where its elements are
    neighbours; None for others. x * y + z is the same number as y * x + z, and rows are what kernels are made for."""
    if dot.n != 1 or dot.m <= 1 or strides.out[2] != item_size(dot.spec.out):
        return None
    lb0, lb1, lm, lk = strides.lhs
    rb0, rb1, rk, rn = strides.rhs
    spec = attrs.evolve(dot.spec, lhs=dot.spec.rhs, rhs=dot.spec.lhs)
    transposed = attrs.evolve(dot, spec=spec, m=1, n=dot.m)
    return canonical(transposed, DotStrides((rb0, rb1, rn, rk), (lb0, lb1, lk, lm), strides.out))


def fold_batch(
    sizes: Sequence[int], lhs: Sequence[int], rhs: Sequence[int], out: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Merge any number of batch dimensions (sizes and byte strides of each array) to two.

    Returns sizes and strides of the two, or None where the strides do not allow it: then an operand must be copied.
    """
    dims: list[tuple[int, int, int, int]] = []
    for size, *strides in zip(sizes, lhs, rhs, out, strict=True):
        if size == 1:
            continue
        if dims and all(outer == size * inner for outer, inner in zip(dims[-1][1:], strides, strict=True)):
            dims[-1] = (dims[-1][0] * size, *strides)  # type: ignore[assignment]
        else:
            dims.append((size, *strides))  # type: ignore[arg-type]
    if len(dims) > 2:
        return None
    dims = [(1, 0, 0, 0)] * (2 - len(dims)) + dims
    first, second = dims
    return tuple((first[i], second[i]) for i in range(4))  # type: ignore[return-value]
