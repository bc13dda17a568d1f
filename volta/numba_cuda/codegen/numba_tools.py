"""What is used of numba-cuda's inside, in one place. It is loaded when the first ``@cuda.jit`` function is compiled: no
plan of Volta's own needs it, nor a GPU."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import attrs

from volta.core.errors import UnsupportedOperationError

OPTIONS = {"opt": 3, "fma": 0}
"""NVVM may contract no product with a sum; without, it writes the rounding of every operation, as Volta does."""


@attrs.frozen
class Tools:
    """Modules of numba-cuda, and what is needed of some."""

    cuda: Any
    types: Any
    cgutils: Any
    compiler: Any
    dispatcher: Any
    arrayobj: Any
    from_dtype: Any
    intrinsic: Any
    typing: Any
    lowering: Any
    target: Any


@functools.cache
def tools() -> Tools:
    """numba-cuda.

    Raises:
        UnsupportedOperationError: it is not there.
    """
    load = importlib.import_module
    try:
        return Tools(
            load("numba.cuda"), load("numba.core.types"), load("numba.cuda.cgutils"), load("numba.cuda.compiler"),
            load("numba.cuda.dispatcher"), load("numba.cuda.np.arrayobj"),
            load("numba.cuda.np.numpy_support").from_dtype, load("numba.cuda.extending").intrinsic,
            load("numba.cuda.typing.templates"), load("numba.cuda.core.imputils"),
            load("numba.cuda.descriptor").cuda_target,
        )  # fmt: skip
    except ImportError as error:
        raise UnsupportedOperationError(
            f"a kernel written with @cuda.jit needs numba-cuda, which is not there ({error}): "
            "pip install 'volta[numba-cuda]'"
        ) from error
