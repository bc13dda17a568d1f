"""``jax.numpy.float32`` and the like: dtypes that convert when they are called, as JAX's do and NumPy's do not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array


class ScalarMeta(type):
    """The type of such a type: it is equal to the dtype, and to NumPy's type, and its instances are NumPy's."""

    dtype: np.dtype

    def __call__(cls, x: Any = 0) -> Any:
        return vnp.asarray(x, cls.dtype)

    def __eq__(cls, other: Any) -> bool:
        return cls is other or other == cls.dtype.type or isinstance(other, np.dtype) and other == cls.dtype

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<class 'jax.numpy.{cls.__name__}'>"


def _scalar(dtype: np.dtype) -> ScalarMeta:
    name = dtype.name if dtype != dtypes.bool_ else "bool_"
    return ScalarMeta(name, (), {"dtype": dtype, "__module__": "jax.numpy"})


SCALARS: dict[str, Any] = {scalar.__name__: scalar for scalar in map(_scalar, dtypes.ALL)}
"""By their names in ``jax.numpy``."""

_NARROW = """
float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
float8_e8m0fnu int2 int4 uint2 uint4
""".split()
"""Libraries name these when they are imported; an array of one is a DTypeError."""

NAMES: dict[str, Any] = {
    **{name: _scalar(np.dtype(getattr(ml_dtypes, name))) for name in _NARROW if hasattr(ml_dtypes, name)},
    **SCALARS,
    "bool": SCALARS["bool_"],
    "double": SCALARS["float64"],
    "float_": SCALARS["float32"],
    "half": SCALARS["float16"],
    "int_": SCALARS["int32"],
    "ndarray": Array,
    "single": SCALARS["float32"],
    "uint": SCALARS["uint32"],
}
