"""The discrete Fourier transform along one axis, as one equation that means a program of a few passes.

It is linear and its matrix is symmetric, so tangents and cotangents are transformed as the values are. That of real
numbers to half of their transform has the one back as its transpose, up to conjugation and to the weights of the half
that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.recent import Recent
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.ops.primitive import Zero
from volta.runtime import devices
from volta.runtime.array import ConcreteArray
from volta.trace.fourier import Table, factors, from_real, half_turns, to_real, transform
from volta.trace.meaning import CACHED, meaning, means_its_program

_NAME = "fft"


@attrs.frozen
class Fourier:
    """A transform of n elements along an axis.

    ``complex``: of complex numbers, ``back`` with exp(+2πi…). ``half``: of real numbers to elements 0 to n // 2.
    ``real``: back from these to real numbers.
    """

    kind: str
    axis: int
    n: int
    back: bool = False
    scale: float | None = None
    """What the sums are multiplied by."""

    def __call__(self, x: Any) -> Any:
        aval = get_aval(x).strip_weak()
        table = _table(self.kind == "complex", self.n, dtypes.part_dtype(aval.dtype), _device(x))
        program = _program(self, (aval, get_aval(table)))
        return fft_p.bind(x, table, jaxpr=program, name=_NAME, fourier=self)[0]

    def transposed(self, ct: Any) -> Any:
        if self.kind == "complex":
            return self(ct)
        if self.kind == "half":
            return attrs.evolve(self, kind="real")(_weighted(lax.conj(ct), self, 0.5))
        return _weighted(lax.conj(attrs.evolve(self, kind="half")(ct)), self, 2.0)


def _weighted(x: Any, of: Fourier, weight: float) -> Any:
    """A half of a transform, of which each element that has a mirror image in the other half is weighted."""
    size = shape_of(x)[of.axis]
    at = lax.broadcasted_iota(np.int32, shape_of(x), of.axis)
    own = lax.eq(at, np.int32(0))
    if of.n % 2 == 0:
        own = lax.bitwise_or(own, lax.eq(at, np.int32(size - 1)))
    return lax.select(own, x, lax.mul(x, np.asarray(weight, base.dtype_of(x))[()]))


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
    def value(x: Any, numbers: Any) -> Any:
        table = Table(numbers)
        if of.kind == "half":
            return lax.complex(*from_real(x, of.axis, table, of.scale))
        re, im = lax.real(x), lax.imag(x)
        if of.kind == "real":
            return to_real((re, im), of.axis, of.n, table, of.scale)
        if of.back:
            im, re = transform((im, re), of.axis, table, of.scale)
        else:
            re, im = transform((re, im), of.axis, table, of.scale)
        return lax.complex(re, im)

    return meaning(value, avals, _NAME)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, fourier: Fourier, **params: Any) -> Any:
    out, t = fourier(primals[0]), tangents[0]
    return [out], [base.zero_like(out) if isinstance(t, Zero) else fourier(t)]


def _linearize(nonzero: Sequence[bool], *primals: Any, fourier: Fourier, **params: Any) -> Any:
    return [fourier(primals[0])], (True,), lambda t: [fourier(t)]


def _transpose(cts: Sequence[Any], *operands: Any, fourier: Fourier, **params: Any) -> list[Any]:
    return [None if isinstance(cts[0], Zero) else fourier.transposed(cts[0]), None]


def _batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, fourier: Fourier, **params: Any) -> Any:
    x = base.to_front(args[0], dims[0], trace.axis.size)
    return [attrs.evolve(fourier, axis=fourier.axis + 1)(x)], [0]


fft_p = means_its_program(
    _NAME,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="Discrete Fourier transform along an axis: means exactly its program.",
)
