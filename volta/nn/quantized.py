"""Weights in blocks of few bits: what they stand for, and products with them that never hold a whole matrix in float32.

The formats are GGUF's (``volta.core.block_formats``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import lax as loops
from volta.core import dtypes, pytrees
from volta.core.array import Array, ArrayLike
from volta.core.avals import ShapedArray
from volta.core.block_formats import FORMATS, LAYOUTS, WORD, Bits, BlockFormat, Halves, Pieces
from volta.core.errors import ArgumentError, DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.policy import default_precision, use_precision
from volta.core.source import at_user_line
from volta.numpy.promotion import promote_floats
from volta.ops import lax
from volta.trace.block_product import block_product
from volta.trace.meaning import CACHED, meaning

_AT_ONCE, _AT_ONCE_NARROW = 1 << 24, 1 << 26
"""Numbers that a product holds at once, about, where no kernel unpacks them, in float32 or in what a precision rounds
them to: enough for a GPU, whose tensor cores would wait for the launches of more and smaller pieces."""


@attrs.frozen(eq=False, repr=False)
class QuantizedArray:
    """A float32 array (..., n) that is kept as blocks of few bits along its last axis.

    A pytree: ``packed``, a uint8 array (..., bytes of a row), is its leaf, ``format`` a part of the structure. So it
    goes through ``jit``, ``vmap`` and ``scan`` as any parameter does.

    Args:
        packed: uint8, whole blocks along the last axis.
        format: a name of GGUF's: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K or Q6_K. With ``_R64`` behind it
            what :meth:`interleaved` makes.

    Raises:
        ArgumentError: for a format that there is not.
        ShapeError, DTypeError: ``packed`` are no such blocks.

    >>> from volta import nn
    >>> block = np.uint8([0, 60] + [1] * 32)  # Q8_0: the float16 number 1, then 32 int8
    >>> w = nn.QuantizedArray(block[None], "Q8_0")
    >>> w.shape, float(w.dequantize().sum())
    ((1, 32), 32.0)
    """

    packed: Any
    format: str

    def __attrs_post_init__(self) -> None:
        if self.format not in LAYOUTS:
            text = f"QuantizedArray: no format {self.format!r:.40}; there are {', '.join(FORMATS)}"
            raise ArgumentError(at_user_line(text))
        shape, dtype = getattr(self.packed, "shape", None), getattr(self.packed, "dtype", None)
        if shape is None or dtype is None:
            return  # structure only: what stands where an array would
        if dtype != dtypes.uint8:
            raise DTypeError(at_user_line(f"QuantizedArray: blocks are bytes, of dtype uint8, not {dtype}"))
        size, rows = self._blocks.unit[1], self._blocks.rows
        if not shape or shape[-1] % size or (rows > 1 and len(shape) < 2):
            many = "rows" if rows == 1 else f"{rows} rows"
            text = f"QuantizedArray: {many} of {self.format} are blocks of {size} bytes; got uint8 of shape {shape}"
            raise ShapeError(at_user_line(text))

    @property
    def _blocks(self) -> BlockFormat:
        return LAYOUTS[self.format]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array of numbers."""
        fmt, (*leading, size) = self._blocks, self.packed.shape
        if fmt.rows > 1:
            if not leading:
                text = f"QuantizedArray: rows of {self.format} are not taken one by one; by_rows() first"
                raise ShapeError(at_user_line(text))
            leading[-1] *= fmt.rows
        return (*leading, size // fmt.unit[1] * fmt.unit[0])

    @property
    def ndim(self) -> int:
        return len(self.packed.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the numbers: float32."""
        return dtypes.float32

    @property
    def nbytes(self) -> int:
        """What the blocks take."""
        return int(np.prod(self.packed.shape))

    def __repr__(self) -> str:
        return f"QuantizedArray(shape={self.shape}, format={self.format})"

    def __getitem__(self, index: Any) -> QuantizedArray:
        """Parts along the axes before the last one, as of any array; the last one stays whole."""
        leading = index if isinstance(index, tuple) else (index,)
        if len(leading) >= self.ndim or any(i is None or i is Ellipsis for i in leading):
            text = f"QuantizedArray: only the axes before the last of {self.shape} are indexed; dequantize() first"
            raise ShapeError(at_user_line(text))
        if self._blocks.rows > 1:
            return self._rows(index) if self.ndim == 2 and _counts(index) else self.by_rows()[index]
        return QuantizedArray(vnp.asarray(self.packed)[index], self.format)

    def interleaved(self) -> QuantizedArray:
        """The same numbers, with the words of 64 rows side by side: products of one row are faster on a CPU that need
        not bring them there, others as fast. A GPU has no kernel for them, and puts them back for each product.

        Raises:
            ShapeError: other sizes than multiples of 64 rows and of 256 numbers each.

        >>> from volta import nn
        >>> w = nn.QuantizedArray(np.zeros((128, 144), np.uint8), "Q4_K").interleaved()
        >>> w, w.packed.shape
        (QuantizedArray(shape=(128, 256), format=Q4_K_R64), (2, 9216))
        """
        if self._blocks.rows > 1:
            return self
        fmt, packed = self._blocks.interleaved(), vnp.asarray(self.packed)
        if not self.interleaves:
            text = (
                f"QuantizedArray: rows that interleave are {fmt.rows} of whole {fmt.unit[0]} numbers; got {self.shape}"
            )
            raise ShapeError(at_user_line(text))
        *leading, count, nbytes = packed.shape
        chunks, size = self.shape[-1] // fmt.unit[0], self._blocks.chunk_bytes
        x = packed.reshape(*leading, count // fmt.rows, fmt.rows, chunks, size)
        x = vnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, fmt.chunk_bytes - size)])
        x = x.reshape(*x.shape[:-1], fmt.chunk_bytes // WORD, WORD)
        x = vnp.moveaxis(x, -4, -2)
        return QuantizedArray(x.reshape(*leading, count // fmt.rows, chunks * fmt.unit[1]), fmt.name)

    @property
    def interleaves(self) -> bool:
        """Whether :meth:`interleaved` has the sizes that it needs."""
        fmt = self._blocks if self._blocks.rows > 1 else self._blocks.interleaved()
        return self.ndim >= 2 and self.shape[-2] % fmt.rows == 0 and self.shape[-1] % fmt.unit[0] == 0

    def by_rows(self) -> QuantizedArray:
        """The same numbers, row behind row, as files have them."""
        fmt = self._blocks
        if fmt.rows == 1:
            return self
        x = vnp.moveaxis(self._words(), -2, -4)
        return _joined(fmt, x, self.shape[:-1])

    def _words(self) -> Array:
        """Interleaved: (..., count of rows, chunk, word, row, byte)."""
        fmt, packed = self._blocks, vnp.asarray(self.packed)
        chunks = packed.shape[-1] // fmt.unit[1]
        return packed.reshape(*packed.shape[:-1], chunks, fmt.chunk_bytes // WORD, fmt.rows, WORD)

    def _rows(self, index: Any) -> QuantizedArray:
        """Some rows of interleaved ones, which alone are read."""
        fmt, (count, _) = self._blocks, self.shape
        i = vnp.asarray(index)
        i = vnp.where(i < 0, i + count, i)
        x = self._words()[i // fmt.rows, :, :, i % fmt.rows]
        return _joined(fmt, x, i.shape)

    def dequantize(self) -> Array:
        """All numbers, as a float32 array."""
        if self._blocks.rows > 1:
            return self.by_rows().dequantize()
        fmt, packed = self._blocks, vnp.asarray(self.packed)
        blocks = packed.reshape(*packed.shape[:-1], packed.shape[-1] // fmt.nbytes, fmt.nbytes)
        return _numbers(fmt, blocks).reshape(self.shape)


def _counts(index: Any) -> bool:
    """Whether an index is a number of a row, or an array of such."""
    kind = getattr(index, "dtype", None)
    return type(index) is int or (kind is not None and dtypes.is_integer(kind))


def _joined(fmt: BlockFormat, words: Array, rows: tuple[int, ...]) -> QuantizedArray:
    """Words (..., chunk, word, byte) of rows as these."""
    own = FORMATS[fmt.name.removesuffix(f"_R{fmt.rows}")]
    chunks = words.reshape(*rows, words.shape[-3], fmt.chunk_bytes)[..., : own.chunk_bytes]
    return QuantizedArray(chunks.reshape(*rows, words.shape[-3] * own.chunk_bytes), own.name)


def _flatten(w: QuantizedArray) -> tuple[tuple[Any], str]:
    return (w.packed,), w.format


def _unflatten(fmt: str, children: Sequence[Any]) -> QuantizedArray:
    made = object.__new__(QuantizedArray)  # a leaf may be anything on the way through a transformation
    object.__setattr__(made, "packed", children[0])
    object.__setattr__(made, "format", fmt)
    return made


pytrees.register_node(QuantizedArray, _flatten, _unflatten)


def _numbers(fmt: BlockFormat, blocks: Array) -> Array:
    """Blocks (..., bytes) as numbers (..., elements): the definition, in ordinary operations."""
    leading = blocks.shape[:-1]
    q = None
    for bits, left in fmt.parts:
        part = _bits(blocks, bits, fmt.elements)
        q = part << np.uint8(left) if q is None else q | (part << np.uint8(left))
    assert q is not None
    scale, offset = _halves(blocks, fmt.scale), None if fmt.offset is None else _halves(blocks, fmt.offset)
    groups = max(scale.shape[-1], 1 if offset is None else offset.shape[-1])
    q = _integers(q, fmt.bias, fmt.signed).reshape(*leading, groups, fmt.elements // groups)
    y = scale[..., None] * q
    if offset is not None:
        y = y - offset[..., None] if fmt.subtracts else y + offset[..., None]
    return y.reshape(*leading, fmt.elements)


def _integers(q: Array, bias: int, signed: bool) -> Array:
    """Bytes as the integers that they are, in float32."""
    if signed or bias:
        q = lax.bitcast_convert_type(q, np.int8)  # with a bias they are below 128
        q = q - np.int8(bias) if bias else q
    return q.astype(np.float32)


def _bits(blocks: Array, bits: Bits, elements: int) -> Array:
    """The integer of each element that these bits make."""
    leading, size = blocks.shape[:-1], bits.nbytes(elements)
    x = blocks[..., bits.offset : bits.offset + size].reshape(*leading, size // bits.run, 1, bits.run)
    if bits.shared > 1:
        # counted, not kept as a constant: a program with constants is compiled anew at each eager call
        shifts = lax.broadcasted_iota(np.uint8, (bits.shared, 1), 0) * np.uint8(bits.width)
        x = (x >> shifts) & np.uint8((1 << bits.width) - 1)
    return x.reshape(*leading, elements)


def _halves(blocks: Array, halves: Halves) -> Array:
    """The float16 number of each block, or its products with the groups' integers: (..., 1 or groups)."""
    low, high = (blocks[..., i : i + 1].astype(np.uint16) for i in (halves.at, halves.at + 1))
    one = lax.bitcast_convert_type(low | (high << np.uint16(8)), np.float16).astype(np.float32)
    if not halves.groups:
        return one
    integers = vnp.concatenate([_piece(blocks, pieces) for pieces in halves.groups], axis=-1)
    return one * _integers(integers, halves.bias, halves.signed)


def _piece(blocks: Array, pieces: Pieces) -> Array:
    total = None
    for p in pieces:
        x = ((blocks[..., p.byte : p.byte + 1] >> np.uint8(p.shift)) & np.uint8((1 << p.width) - 1)) << np.uint8(p.left)
        total = x if total is None else total | x
    assert total is not None
    return total


def linear(x: ArrayLike, weight: ArrayLike | QuantizedArray, bias: ArrayLike | None = None) -> Array:
    """x weightᵀ + bias: the layer of models whose weights are kept as (outputs, inputs), quantized ones among them.

    The bits are those of ``x @ weight.T``, of a quantized weight those of ``x @ weight.dequantize().T``. Of such a one
    some rows at a time become float32, never all; in the gradient they do once more.

    Args:
        x: (..., inputs), any float array; computed in float32 where the weight is quantized.
        weight: (outputs, inputs).
        bias: (outputs,), or None.

    Raises:
        ShapeError: where the sizes do not fit.

    >>> linear(np.float32([1, 2]), np.float32([[1, 0], [0, 1], [1, 1]]))
    Array([1., 2., 3.], dtype=float32)
    """
    shape = tuple(np.shape(x)) if not hasattr(x, "shape") else tuple(x.shape)
    other = tuple(weight.shape)
    if not shape or len(other) != 2 or shape[-1] != other[1]:
        text = f"linear: x {shape} and weight {other} do not fit. Wanted: x (..., inputs), weight (outputs, inputs)."
        raise ShapeError(at_user_line(text))
    if isinstance(weight, QuantizedArray):
        y = _product(promote_floats("linear", x)[0], weight)
    else:
        x, weight = promote_floats("linear", x, weight)
        y = vnp.matmul(x, vnp.transpose(weight))
    return y if bias is None else y + bias


def _product(x: Array, weight: QuantizedArray) -> Array:
    own, (outputs, inputs) = get_aval(x).dtype, weight.shape
    rows = math.prod(x.shape[:-1])
    flat = x.reshape(rows, inputs).astype(np.float32)
    if rows and outputs and inputs:
        precision = default_precision()
        products = _Products(weight.format, precision)
        y = block_product(flat, vnp.asarray(weight.packed), products, weight.format, precision)
    else:
        y = vnp.zeros((rows, outputs), np.float32)
    return y.reshape(*x.shape[:-1], outputs).astype(dtypes.float32 if own == dtypes.float64 else own)


@attrs.frozen
class _Products:
    """Products with weights of a format at a precision, as operations that hold some numbers at once."""

    format: str
    precision: str | None

    @property
    def at_once(self) -> int:
        return _AT_ONCE if self.precision is None else _AT_ONCE_NARROW

    def program(self, rows: int, packed: tuple[int, ...]) -> ClosedJaxpr:
        return _program(self, rows, packed)

    def numbers(self, packed: Array) -> Array:
        return QuantizedArray(packed, self.format).dequantize()

    def forth(self, x: Array, packed: Array) -> Array:
        """Some rows of the weights at a time."""
        outputs, nbytes = packed.shape  # or as many times more as are interleaved
        rows = LAYOUTS[self.format].rows
        some = max(1, self.at_once // (x.shape[1] * rows))
        if some >= outputs:
            return vnp.matmul(x, self.numbers(packed).T)
        steps = outputs // some
        rest = vnp.matmul(x, self.numbers(packed[steps * some :]).T)
        parts = packed[: steps * some].reshape(steps, some, nbytes)
        _, found = loops.scan(lambda _, part: (None, vnp.matmul(x, self.numbers(part).T)), None, parts)
        y = vnp.moveaxis(found, 0, 1).reshape(x.shape[0], steps * some * rows)
        return vnp.concatenate([y, rest], axis=1) if steps * some < outputs else y

    def back(self, ct: Array, packed: Array) -> Array:
        with use_precision(self.precision):  # that of the product, whenever its gradient is asked for
            return self._back(ct, packed)

    def _back(self, ct: Array, packed: Array) -> Array:
        """A block of every row at a time, below float32 all: its columns of the result are DOT over all rows."""
        elements, size = LAYOUTS[self.format].unit
        if self.precision is not None and math.prod(packed.shape) // size * elements <= self.at_once:
            return vnp.matmul(ct, self.numbers(packed))
        parts = packed.reshape(packed.shape[0], packed.shape[1] // size, size)
        _, found = loops.scan(
            lambda _, part: (None, vnp.matmul(ct, self.numbers(part))), None, vnp.moveaxis(parts, 1, 0)
        )
        return vnp.moveaxis(found, 0, 1).reshape(ct.shape[0], -1)


@lru_cache(CACHED)
def _program(products: _Products, rows: int, packed: tuple[int, ...]) -> ClosedJaxpr:
    elements, size = LAYOUTS[products.format].unit
    inputs = packed[1] // size * elements
    avals = (ShapedArray((rows, inputs), dtypes.float32), ShapedArray(packed, dtypes.uint8))
    with use_precision(products.precision):
        return meaning(products.forth, avals, "linear")
