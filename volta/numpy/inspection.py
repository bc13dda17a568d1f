"""What there is: devices, dtypes and defaults, as the Python array API asks for them, and the limits of dtypes."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from volta.api.devices import default_backend, devices
from volta.core import dtypes
from volta.core.array import Array
from volta.numpy.types import KINDS
from volta.runtime.devices import resolve


@attrs.frozen
class FloatLimits:
    """Machine limits of a float dtype as Python numbers: see :func:`finfo`."""

    dtype: np.dtype
    bits: int
    eps: float
    epsneg: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    smallest_subnormal: float
    resolution: float
    precision: int
    nmant: int
    nexp: int
    iexp: int
    machep: int
    negep: int
    minexp: int
    maxexp: int


@attrs.frozen
class IntegerLimits:
    """Machine limits of an integer dtype as Python numbers: see :func:`iinfo`."""

    dtype: np.dtype
    bits: int
    max: int
    min: int


def _dtype_of(x: Any) -> np.dtype:
    held = isinstance(x, (Array, np.ndarray, np.generic))
    return dtypes.canonicalize(x.dtype if held else x)


def finfo(type: Any) -> FloatLimits:
    """Machine limits of a float dtype, of a complex one's parts, or of an array's: Python numbers, which keep the dtype
    they meet.

    Raises:
        DTypeError: for what is no dtype.
        ValueError: for a dtype that is none of floats.

    >>> finfo("float16").max, finfo(volta.numpy.ones(2)).bits
    (65504.0, 32)
    """
    dtype = _dtype_of(type)
    found = dtypes.finfo(dtype)
    number: dict[Any, Any] = {"int": int, "float": float}
    limits = {f.name: number[f.type](getattr(found, f.name)) for f in attrs.fields(FloatLimits)[1:]}
    return FloatLimits(dtypes.part_dtype(dtype), **limits)


def iinfo(type: Any) -> IntegerLimits:
    """Machine limits of an integer dtype, or of an array's.

    Raises:
        DTypeError: for what is no dtype.
        ValueError: for a dtype that is none of integers.

    >>> iinfo("int8").min
    -128
    """
    dtype = _dtype_of(type)
    found = dtypes.iinfo(dtype)
    return IntegerLimits(dtype, found.bits, int(found.max), int(found.min))


class NamespaceInfo:
    """What ``volta.numpy`` has: see :func:`__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks as indices and shapes that depend on values are there outside of transformed functions."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device on which arrays are made: its name."""
        return resolve(default_backend())

    def devices(self) -> tuple[str, ...]:
        """The names of all devices of the backend in use."""
        return tuple(devices())

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The dtypes that Python numbers and positions become; the same on every device."""
        if device is not None:
            resolve(device)
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": dtypes.DEFAULT_COMPLEX,
            "integral": dtypes.DEFAULT_INT,
            "indexing": dtypes.DEFAULT_INT,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """The array API's dtypes by name, or those of a kind (``'real floating'``) or of several; the same everywhere.

        Raises:
            ValueError: there is no such kind.
        """
        if device is not None:
            resolve(device)
        kinds = (*KINDS,) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        unknown = [k for k in kinds if k not in KINDS]
        if unknown:
            raise ValueError(f"dtypes: unknown kind {unknown[0]!r}; known are {', '.join(KINDS)}")
        wanted = {d for k in kinds for d in KINDS[k]}
        return {d.name: d for d in dtypes.ALL if d in wanted and d not in (dtypes.float16, dtypes.bfloat16)}


def __array_namespace_info__() -> NamespaceInfo:
    """The array API's inspection: devices, dtypes, defaults and what indexing can do.

    >>> __array_namespace_info__().default_dtypes()["real floating"]
    dtype('float32')
    """
    return NamespaceInfo()
