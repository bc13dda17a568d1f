"""One program with each kind of kernels: LLVM's, Numba functions, and the text of these as Python runs it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

from volta.api.jit import jit
from volta.core import pytrees
from volta.runtime.array import ConcreteArray
from volta.runtime.context import KERNELS, ON_GPUS, execution_context
from volta.testing.bits import assert_bits_equal

GENERATED = tuple(kind for kind in KERNELS[1:] if kind != ON_GPUS)
"""The kinds on the CPU that are compared with the first."""


def has_numba_cuda() -> bool:
    """Whether numba-cuda is installed. (Its files are asked, not its module's name, which a folder may have too.)"""
    try:
        importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def with_kernels(kind: str, f: Callable[..., Any], *args: Any) -> Any:
    """The result of ``f``, compiled anew with kernels of one kind, as NumPy arrays."""
    with execution_context(kernels=kind):
        found = jit(lambda *a: f(*a))(*args)
    return pytrees.map(lambda x: x.numpy() if isinstance(x, ConcreteArray) else x, found)


def assert_kernels_agree(f: Callable[..., Any], *args: Any, kinds: Sequence[str] = GENERATED) -> None:
    """Check that ``f(*args)`` has the same bits with each kind of kernels.

    Raises:
        AssertionError: with the first element that differs.

    >>> import numpy as np, volta
    >>> assert_kernels_agree(volta.numpy.tanh, np.ones(3, np.float32), kinds=["python"])
    """
    want = with_kernels(KERNELS[0], f, *args)
    for kind in kinds:
        assert_bits_equal(with_kernels(kind, f, *args), want, f"kernels={kind!r}")
