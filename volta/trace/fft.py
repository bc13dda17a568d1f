"""The discrete Fourier transform as one equation, of pairs of real arrays.

It is linear in them, and its matrix is symmetric: so tangents are transformed, and a cotangent by the transform in the
other direction. That of real numbers to half of their transform has the one back as its transpose, up to the weights of
the half that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.recent import Recent
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.runtime import devices
from volta.runtime.array import ConcreteArray
from volta.trace.fourier import Table, factors, from_real, half_turns, to_real, transform
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.meaning import CACHED, means_its_program

_NAME = "fft"


@attrs.frozen
class Fourier:
    """A transform along an axis.

    ``complex``: (re, im) to (re, im), ``back`` with exp(+2πi…). ``half``: real numbers to elements 0 to n // 2 of their
    transform. ``real``: back from these to real numbers.
    """

    kind: str
    axis: int
    n: int
    back: bool = False
    scale: float | None = None
    """What the sums are multiplied by."""

    def __call__(self, *parts: Any) -> list[Any]:
        dtype = base.dtype_of(parts[0])
        avals = tuple(get_aval(x).strip_weak() for x in parts)
        table = _table(self.kind == "complex", self.n, dtype, _device(parts[0]))
        program = _program(self, (*avals, get_aval(table)))
        return fft_p.bind(*parts, table, jaxpr=program, name=_NAME, fourier=self)

    def transposed(self, *cts: Any) -> list[Any]:
        if self.kind == "complex":
            return attrs.evolve(self, back=not self.back)(*cts)
        if self.kind == "half":
            return attrs.evolve(self, kind="real")(*(_weighted(x, self, 0.5) for x in cts))
        re, im = attrs.evolve(self, kind="half")(*cts)
        return [_weighted(re, self, 2.0), _weighted(im, self, 2.0)]


def _weighted(x: Any, of: Fourier, weight: float) -> Any:
    """A half of a transform, of which each element that has a mirror image in the other half is weighted."""
    size = shape_of(x)[of.axis]
    at = lax.broadcasted_iota(np.int32, shape_of(x), of.axis)
    own = lax.eq(at, np.int32(0))
    if of.n % 2 == 0:
        own = lax.bitwise_or(own, lax.eq(at, np.int32(size - 1)))
    return lax.select(own, x, lax.mul(x, weight))


# -- tables ------------------------------------------------------------------------------------------------------------

_tables: Recent[Any, ConcreteArray] = Recent(32)


def _table(whole: bool, n: int, dtype: np.dtype, device: str) -> ConcreteArray:
    """What a transform multiplies with, on the device of its operand: kept, as lengths recur."""
    key = (whole, n, dtype, device)
    found = _tables.get(key)
    if found is None:
        found = _tables.find(key)
    if found is None:
        halved = not whole and n % 2 == 0
        numbers = np.concatenate([half_turns(n, dtype), factors(n // 2, dtype)]) if halved else factors(n, dtype)
        found = _tables.keep(key, devices.put(ConcreteArray.from_numpy(numbers), device))
    return found


def _device(x: Any) -> str:
    return x.device if type(x) is ConcreteArray else "cpu:0"


# -- its meaning and its rules -----------------------------------------------------------------------------------------


@lru_cache(maxsize=CACHED)
def _program(of: Fourier, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    def run(*operands: Any) -> tuple[list[Any], None]:
        *parts, numbers = operands
        table = Table(numbers)
        if of.kind == "half":
            return list(from_real(parts[0], of.axis, table, of.scale)), None
        if of.kind == "real":
            return [to_real((parts[0], parts[1]), of.axis, of.n, table, of.scale)], None
        x = transform((parts[1], parts[0]) if of.back else (parts[0], parts[1]), of.axis, table, of.scale)
        return list(reversed(x) if of.back else x), None

    program, _ = trace_to_jaxpr(run, avals, _NAME)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(e.replace(source=None) for e in program.eqns)), program.consts)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, fourier: Fourier, **params: Any) -> Any:
    outs = fourier(*primals[:-1])
    if base.all_zero(tangents[:-1]):
        return outs, [base.zero_like(x) for x in outs]
    return outs, fourier(*map(base.instantiate, tangents[:-1]))


def _linearize(nonzero: Sequence[bool], *primals: Any, fourier: Fourier, **params: Any) -> Any:
    outs = fourier(*primals[:-1])

    def linear(*live: Any) -> list[Any]:
        given = iter(live)
        pairs = zip(nonzero[:-1], primals[:-1], strict=True)
        return fourier(*(next(given) if m else base.instantiate(base.zero_like(x)) for m, x in pairs))

    return outs, (True,) * len(outs), linear


def _transpose(cts: Sequence[Any], *operands: Any, fourier: Fourier, **params: Any) -> list[Any]:
    if base.all_zero(cts):
        return [None] * len(operands)
    return [*fourier.transposed(*map(base.instantiate, cts)), None]


def _batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, fourier: Fourier, **params: Any) -> Any:
    outs = attrs.evolve(fourier, axis=fourier.axis + 1)(
        *(base.to_front(x, d, trace.axis.size) for x, d in zip(args[:-1], dims[:-1], strict=True))
    )
    return outs, [0] * len(outs)


fft_p = means_its_program(
    _NAME,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="Discrete Fourier transform along an axis, of real and imaginary parts: means exactly its program.",
)
