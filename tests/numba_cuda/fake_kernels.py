"""Kernels that the stand-in for the driver runs on the host: LLVM's, and texts as Python runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volta.numba_cuda import conditional_nodes
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.host.host import HostKernels
from volta.numba_source.cuda.host import TextKernels
from volta.numba_source.cuda.launches import TextSource

_LLVM, _TEXTS = HostKernels(), TextKernels()
_known: dict[str, Any] = {}
"""Kernels by name, whichever stand-in they were compiled for."""


def kernel_of(sources: Mapping[str, KernelSource], name: str) -> Any:
    """What runs a kernel; all of LLVM's that are new are compiled as one."""
    if name not in _known:
        fresh = [s for s in sources.values() if s.name not in _known and s is not conditional_nodes.CONDITION]
        _known.update(_TEXTS.of(s for s in fresh if isinstance(s, TextSource)))
        _known.update(_LLVM.of(s for s in fresh if not isinstance(s, TextSource)))
    return _known[name]
