"""Arrays of other libraries through DLPack, under the names of ``jax.dlpack``.

>>> from_dlpack(np.float32([1, 2])).tolist()
[1.0, 2.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.numpy.outside import from_dlpack

__all__ = ["from_dlpack", "is_supported_dtype"]


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of a dtype are exported.

    >>> is_supported_dtype("float32"), is_supported_dtype("bfloat16")
    (True, False)
    """
    return dtypes.canonicalize(dtype) != dtypes.bfloat16


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
