"""Generated kernels compiled by numba-cuda: PTX that a plan runs, and dispatchers to call and inspect."""

from __future__ import annotations

from functools import partial
from typing import Any

from volta.core.errors import UnsupportedOperationError
from volta.core.recent import Recent
from volta.numba_cuda.codegen import ptx
from volta.numba_source.compiling import dispatcher_of
from volta.numba_source.cuda.launches import TextSource
from volta.numba_source.cuda.words import NAMES, Uncontracted, cuda_jit

_compiled: Recent[Any, str] = Recent(1024)


def ptx_of(source: TextSource, capability: str) -> str:
    """A kernel as PTX, checked against the rules of strict kernels; the same one is compiled once in a process.

    Raises:
        UnsupportedOperationError: it breaks one.
    """
    key = source.name, source.text, capability
    found = _compiled.find(key)
    if found is not None:
        return found
    made = dispatcher(source, capability).ptx(source.name)
    wrong = ptx.violations(made)
    if wrong:
        raise UnsupportedOperationError(f"NVVM made of {source.name} what no strict kernel has: {'; '.join(wrong[:3])}")
    return _compiled.keep(key, made)


def dispatcher(source: TextSource, capability: str | None = None) -> Uncontracted:
    """A kernel as numba-cuda's dispatcher: for the GPU that is there, or for a capability (its ``ptx``)."""
    level = None if capability is None else ptx.level_of(capability)
    names: dict[str, Any] = {**NAMES, "cuda_jit": partial(cuda_jit, level=level)}
    found: Uncontracted = dispatcher_of(source.kernel(), names, f"cuda {capability}")
    return found
