"""What is used of numba-cuda's inside, in one place. It is loaded when the first ``@cuda.jit`` function is compiled: no
plan of Volta's own needs it, nor a GPU."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

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


@contextmanager
def _loading() -> Iterator[None]:
    """What its modules want while they are imported, which who runs a program cannot mend: that a warning is no error
    (numba-cuda 0.30 does what NumPy 2.5 warns of), and what NumPy 2.5 has no longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gone = not hasattr(np, "row_stack")
        if gone:
            vars(np)["row_stack"] = np.vstack
        try:
            yield
        finally:
            if gone:
                del vars(np)["row_stack"]


@functools.cache
def tools() -> Tools:
    """numba-cuda.

    Raises:
        UnsupportedOperationError: it is not there, or cannot be loaded.
    """
    load = importlib.import_module
    try:
        with _loading():
            return Tools(
                load("numba.cuda"), load("numba.core.types"), load("numba.cuda.cgutils"), load("numba.cuda.compiler"),
                load("numba.cuda.dispatcher"), load("numba.cuda.np.arrayobj"),
                load("numba.cuda.np.numpy_support").from_dtype, load("numba.cuda.extending").intrinsic,
                load("numba.cuda.typing.templates"), load("numba.cuda.core.imputils"),
                load("numba.cuda.descriptor").cuda_target,
            )  # fmt: skip
    except (ImportError, AttributeError) as error:
        raise UnsupportedOperationError(
            f"a kernel written with @cuda.jit needs numba-cuda, which is not there or does not load "
            f"({type(error).__name__}: {error}): pip install 'volta[numba-cuda]'"
        ) from error
