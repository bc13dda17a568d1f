"""What products of precision "exact" mean, as equations: products of 8-bit integers, which add in any order.

EXACT of the bit contract. Each row of the left operand, and each column of the right one, is brought to integers by a
power of two, and these are cut into digits of base 256. The digits' products are products of int8 with sums in int32,
which are exact, and so is what they add up to in int64. Then comes one conversion. So backends need nothing but
products of int8, and whoever has units for these (tensor cores, dot products of bytes) is fast.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.contract import EXACT_DIGITS
from volta.core.interp import use_trace
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from volta.ops import lax
from volta.ops.base import bind_named, shape_of
from volta.xla_like.recorder import Recorded, Recorder

Axes = tuple[int, ...]

BLOCK = {4: 1 << 15, 7: 1 << 14}
"""By digits, terms whose digits' products int32 holds: of one term they are at most 49152, or 98304."""

_GROUP, _LEAST = 16, 64
"""A block's terms are filled up with zeros to a multiple of the one from the other on: copies go by so many bytes."""

_NEAR = 4
"""Weights whose sums one int64 holds; what those of a longer product lack, a second one does."""

_FAR = 600
"""The largest exponent of a factor: a larger power of two is two of them."""


@attrs.frozen
class _Format:
    """Of operands of a dtype: their digits, and how their bits lie."""

    dtype: np.dtype
    digits: int
    word: np.dtype
    mantissa: int
    bias: int

    @property
    def bits(self) -> int:
        """A row's integers are below two to this in size, so that every digit is within int8."""
        return 8 * self.digits - 2

    @property
    def way(self) -> int:
        """Half of the power of two that a sum of products of integers has more than what the digits' sums make."""
        return self.bits - 4 * (self.digits - 1)

    @property
    def wide(self) -> bool:
        """Whether powers of two may be beyond float64, so that they are two factors."""
        return self.dtype == dtypes.float64


_FORMATS = {
    dtypes.float32: _Format(dtypes.float32, EXACT_DIGITS["float32"], dtypes.int32, 23, 127),
    dtypes.float64: _Format(dtypes.float64, EXACT_DIGITS["float64"], dtypes.int64, 52, 1023),
}


def is_exact(eqn: Eqn) -> bool:
    """Whether an equation is a product of precision "exact"."""
    return eqn.primitive.name == "dot_general" and eqn.params["precision"] == "exact"


def exact_products(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program with what products of precision "exact" mean in their place; programs that it carries stay."""
    if not any(map(is_exact, program.eqns)):
        return program
    trace, env, known = Recorder(), dict[Var, Any](), dict[Any, _Digits]()

    def read(atom: Atom) -> Atom:
        return env[atom].atom if isinstance(atom, Var) and atom in env else atom

    with use_trace(trace):
        for eqn in program.eqns:
            trace.source = eqn.source
            eqn = eqn.replace(inputs=tuple(map(read, eqn.inputs)))
            if is_exact(eqn):
                left, right = (Recorded(trace, a) for a in eqn.inputs)
                env[eqn.outputs[0]] = _product(eqn, left, right, known)
            else:
                trace.eqns.append(eqn)
    jaxpr = program.jaxpr
    outs = tuple(map(read, jaxpr.outvars))
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, tuple(trace.eqns), outs), program.consts)


@attrs.frozen
class _Digits:
    """An operand as batch axes, free axes, blocks of k, digits and k; without the last three, the scales of each row:
    powers of two that joined sums are multiplied by, one after the other, or NaN."""

    numbers: Any
    scales: tuple[Any, ...]


def _product(eqn: Eqn, x: Recorded, y: Recorded, known: dict[Any, _Digits]) -> Any:
    """``known``: the digits of operands of other products of the program."""
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    out, k = eqn.outputs[0].aval, math.prod(shape_of(x)[d] for d in lc)
    if k == 0 or 0 in out.shape:  # sums of nothing, or no sums
        return lax.dot_general(x, y, ((lc, rc), (lb, rb)), "float32", out.dtype)
    left, right = _once(known, x, lc, lb, False), _once(known, y, rc, rb, True)
    digits, batch, shape = shape_of(left.numbers)[-2], len(lb), out.shape
    # the shortest product comes last: what joins the sums runs with it
    parts = [_sums(left.numbers, right.numbers, batch, weight) for weight in reversed(range(digits))]
    found = _joined([lax.convert_element_type(part, dtypes.int64) for part in reversed(parts)])
    for row, column in zip(left.scales, right.scales, strict=True):
        own = range(len(shape) - (len(shape_of(column)) - batch), len(shape))
        found = lax.mul(found, lax.broadcast_in_dim(row, shape, tuple(range(len(shape_of(row))))))
        found = lax.mul(found, lax.broadcast_in_dim(column, shape, (*range(batch), *own)))
    return lax.convert_element_type(found, out.dtype)


def _joined(parts: list[Any]) -> Any:
    """The digits' sums, those of the least weight first, as one integer of base 256, in float64."""
    totals = []
    for some in (parts[:_NEAR], parts[_NEAR:]):
        total = some[0] if some else None
        for part in some[1:]:
            total = lax.add(lax.shift_left(total, 8), part)
        totals.append(total)
    high, low = totals
    if low is None:
        return lax.convert_element_type(high, dtypes.float64)
    bits = 8 * (len(parts) - _NEAR)
    high = lax.add(high, lax.shift_right_arithmetic(low, bits))
    low = lax.bitwise_and(low, (1 << bits) - 1)
    high, low = (lax.convert_element_type(x, dtypes.float64) for x in (high, low))
    return lax.add(lax.mul(high, float(1 << bits)), low)


def _once(known: dict[Any, _Digits], x: Recorded, contract: Axes, batch: Axes, backwards: bool) -> _Digits:
    """An operand's digits, made once for all products of it."""
    key = x.atom, contract, batch, backwards
    if key not in known:
        known[key] = _digits(x, contract, batch, backwards)
    return known[key]


def _sums(left: Any, right: Any, batch: int, weight: int) -> Any:
    """The sums of the products of digits i and j with i + j = weight: a product over digits and k, for each block."""
    sides, numbers = [], []
    for x, first in ((left, 0), (right, shape_of(right)[-2] - 1 - weight)):
        rank = len(shape_of(x))
        sides.append(lax.slice_in_dim(x, first, first + weight + 1, axis=rank - 2))
        numbers.append(((rank - 2, rank - 1), (rank - 3, *range(batch))))
    blocks = shape_of(left)[-3]
    if blocks == 1:
        sides = [lax.squeeze(x, (len(shape_of(x)) - 3,)) for x in sides]
        numbers = [((a - 1, b - 1), rest[1:]) for (a, b), rest in numbers]
    found = lax.dot_general(sides[0], sides[1], tuple(zip(*numbers, strict=True)), None, dtypes.int32)
    if blocks == 1:
        return found
    return lax.reduce_sum(lax.convert_element_type(found, dtypes.int64), (0,))


def _digits(x: Any, contract: Axes, batch: Axes, backwards: bool) -> _Digits:
    """An operand's digits, of the right one the last one first, so that those that belong together meet."""
    x = lax.convert_element_type(x, dtypes.compute_dtype(x.aval.dtype))
    form, rank, k = _FORMATS[x.aval.dtype], len(shape_of(x)), math.prod(shape_of(x)[d] for d in contract)
    free = [d for d in range(rank) if d not in contract and d not in batch]
    size = lax.bitwise_and(lax.bitcast_convert_type(x, form.word), np.iinfo(form.word).max)  # without its sign
    field = lax.shift_right_logical(lax.reduce_max(size, contract), form.mantissa)
    field = lax.max(field, 1)  # of subnormal numbers that of the least normal one
    left = sorted((*batch, *free))
    field = lax.transpose(field, tuple(left.index(d) for d in (*batch, *free)))
    x = lax.transpose(x, (*batch, *free, *contract))
    kept = shape_of(field)
    blocks, length = _blocks(k, form.digits)
    x = lax.reshape(x, (*kept, k))
    if blocks * length > k:
        x = lax.pad(x, form.dtype.type(0), [(0, 0, 0)] * len(kept) + [(0, blocks * length - k, 0)])
    x = lax.reshape(x, (*kept, blocks, length) if blocks > 1 else (*kept, length))
    exponent = lax.sub(field, form.bias - 1)  # the largest element is below two to this
    finite = lax.ne(field, 2 * form.bias + 1)
    first, *more = _powers(lax.sub(exponent, form.way), form.wide)
    first = lax.select_n(finite, float("nan"), first)
    # kernels of their own: what reduces nothing can write the digits where they belong
    ups = bind_named("optimization_barrier", *_powers(lax.sub(form.bits, exponent), form.wide))
    number = lax.convert_element_type(x, dtypes.float64)
    for up in ups:
        number = lax.mul(number, lax.broadcast_in_dim(up, shape_of(x), tuple(range(len(kept)))))
    rest = lax.convert_element_type(lax.round(number), form.word)
    digits = [lax.convert_element_type(rest, dtypes.int8)]  # wraps around: from -128 to 127
    for _ in range(form.digits - 1):
        rest = lax.shift_right_arithmetic(lax.add(rest, 128), 8)
        digits.insert(len(digits) if backwards else 0, lax.convert_element_type(rest, dtypes.int8))
    joined = lax.concatenate(digits, len(shape_of(x)) - 1)
    return _Digits(lax.reshape(joined, (*kept, blocks, form.digits, length)), (first, *more))


def _blocks(k: int, digits: int) -> tuple[int, int]:
    """Into how many blocks so many terms are cut, and how long each is."""
    blocks = -(-k // BLOCK[digits])
    length = -(-k // blocks)
    return blocks, length if length < _LEAST else -(-length // _GROUP) * _GROUP


def _powers(exponent: Any, wide: bool) -> list[Any]:
    """Two to the power of an integer, as float64; two factors where it may be ``wide``."""
    exponent = lax.convert_element_type(exponent, dtypes.int64)
    if not wide:
        return [_power(exponent)]
    near = lax.max(lax.min(exponent, _FAR), -_FAR)
    return [_power(near), _power(lax.sub(exponent, near))]


def _power(exponent: Any) -> Any:
    return lax.bitcast_convert_type(lax.shift_left(lax.add(exponent, 1023), 52), dtypes.float64)
