"""What products of precision "exact" mean, as equations: products of 8-bit integers, which add in any order.

EXACT of the bit contract. Each row of the left operand, and each column of the right one, is brought to integers of 31
bits by a power of two, and these are cut into four digits of base 256. The digits' products are products of int8 with
sums in int32, which are exact, and so is what they add up to in int64. Then comes one conversion. So backends need
nothing but products of int8, and whoever has units for these (tensor cores, dot products of bytes) is fast.
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

DIGITS = EXACT_DIGITS
"""Digits of an element; products of digits i and j are taken where i + j is below this."""

BLOCK = 1 << 15
"""Terms whose digits' products int32 holds: of one term they are at most 49152."""

_GROUP, _LEAST = 16, 64
"""A block's terms are filled up with zeros to a multiple of the one from the other on: copies go by so many bytes."""

_BITS = 8 * DIGITS - 2
"""A row's integers are below two to this in size, so that every digit is within int8."""

_WAY = _BITS - 4 * (DIGITS - 1)
"""Half of the power of two that a sum of products of integers has more than what the digits' sums are joined to."""

_SIZE = 0x7FFFFFFF
"""The bits of a float32 without its sign."""


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
    """An operand as batch axes, free axes, blocks of k, digits and k; without the last three, the scale of each row: a
    power of two that joined sums are multiplied by, or NaN."""

    numbers: Any
    scale: Any


def _product(eqn: Eqn, x: Recorded, y: Recorded, known: dict[Any, _Digits]) -> Any:
    """``known``: the digits of operands of other products of the program."""
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    out, k = eqn.outputs[0].aval, math.prod(shape_of(x)[d] for d in lc)
    if k == 0 or 0 in out.shape:  # sums of nothing, or no sums
        found = lax.dot_general(x, y, ((lc, rc), (lb, rb)), "float32", out.dtype)
    else:
        left, right = _once(known, x, lc, lb, False), _once(known, y, rc, rb, True)
        batch, total = len(lb), None
        # the shortest product comes last: what joins the sums runs with it
        parts = [_sums(left.numbers, right.numbers, batch, weight) for weight in reversed(range(DIGITS))]
        for part in reversed([lax.convert_element_type(x, dtypes.int64) for x in parts]):
            total = part if total is None else lax.add(lax.shift_left(total, 8), part)
        shape = out.shape
        rows = lax.broadcast_in_dim(left.scale, shape, tuple(range(len(shape_of(left.scale)))))
        own = range(len(shape) - (len(shape_of(right.scale)) - batch), len(shape))
        columns = lax.broadcast_in_dim(right.scale, shape, (*range(batch), *own))
        found = lax.mul(lax.mul(lax.convert_element_type(total, dtypes.float64), rows), columns)
        found = lax.convert_element_type(found, out.dtype)
    return found


def _once(known: dict[Any, _Digits], x: Recorded, contract: Axes, batch: Axes, backwards: bool) -> _Digits:
    """An operand's digits, made once for all products of it."""
    key = x.atom, contract, batch, backwards
    if key not in known:
        known[key] = _digits(x, contract, batch, backwards)
    return known[key]


def _sums(left: Any, right: Any, batch: int, weight: int) -> Any:
    """The sums of the products of digits i and j with i + j = weight: a product over digits and k, for each block."""
    sides, numbers = [], []
    for x, first in ((left, 0), (right, DIGITS - 1 - weight)):
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
    rank, k = len(shape_of(x)), math.prod(shape_of(x)[d] for d in contract)
    free = [d for d in range(rank) if d not in contract and d not in batch]
    x = lax.convert_element_type(x, dtypes.float32)
    size = lax.bitwise_and(lax.bitcast_convert_type(x, dtypes.int32), _SIZE)
    field = lax.shift_right_logical(lax.reduce_max(size, tuple(contract)), 23)
    field = lax.max(field, 1)  # of subnormal numbers that of the least normal one
    left = sorted((*batch, *free))
    field = lax.transpose(field, tuple(left.index(d) for d in (*batch, *free)))
    x = lax.transpose(x, (*batch, *free, *contract))
    kept = shape_of(field)
    blocks, length = _blocks(k)
    x = lax.reshape(x, (*kept, k))
    if blocks * length > k:
        x = lax.pad(x, np.float32(0), [(0, 0, 0)] * len(kept) + [(0, blocks * length - k, 0)])
    x = lax.reshape(x, (*kept, blocks, length) if blocks > 1 else (*kept, length))
    rows = tuple(range(len(kept)))
    exponent = lax.sub(field, 126)  # the largest element is below two to this
    scale = lax.select_n(lax.eq(field, 255), _power(lax.sub(exponent, _WAY)), float("nan"))
    # a kernel of its own: what reduces nothing can write the digits where they belong
    (up,) = bind_named("optimization_barrier", _power(lax.sub(_BITS, exponent)))
    number = lax.mul(lax.convert_element_type(x, dtypes.float64), lax.broadcast_in_dim(up, shape_of(x), rows))
    rest = lax.convert_element_type(lax.round(number), dtypes.int32)
    digits = [lax.convert_element_type(rest, dtypes.int8)]  # wraps around: from -128 to 127
    for _ in range(DIGITS - 1):
        rest = lax.shift_right_arithmetic(lax.add(rest, 128), 8)
        digits.insert(len(digits) if backwards else 0, lax.convert_element_type(rest, dtypes.int8))
    joined = lax.concatenate(digits, len(shape_of(x)) - 1)
    return _Digits(lax.reshape(joined, (*kept, blocks, DIGITS, length)), scale)


def _blocks(k: int) -> tuple[int, int]:
    """Into how many blocks so many terms are cut, and how long each is."""
    blocks = -(-k // BLOCK)
    length = -(-k // blocks)
    return blocks, length if length < _LEAST else -(-length // _GROUP) * _GROUP


def _power(exponent: Any) -> Any:
    """Two to the power of an integer, as float64."""
    field = lax.convert_element_type(lax.add(exponent, 1023), dtypes.int64)
    return lax.bitcast_convert_type(lax.shift_left(field, 52), dtypes.float64)
