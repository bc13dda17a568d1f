"""Kernels loaded on the device: compiled once a process, many in one module."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from volta.numba_cuda import driver, ptx
from volta.numba_cuda.ptx import KernelSource

_lock = threading.RLock()
_functions: dict[str, Any] = {}
_texts: dict[str, str] = {}
_modules: list[driver.Module] = []


def capability() -> str:
    """What kernels are compiled for here."""
    return ptx.best_for(*driver.info().capability)


def functions_of(sources: Iterable[KernelSource]) -> dict[str, Any]:
    """Loaded kernels by symbol; what this process lacks is compiled as one module."""
    wanted = {s.name: s for s in sources}
    with _lock:
        missing = [s for s in wanted.values() if s.name not in _functions]
        for s in wanted.values():
            if _texts.get(s.name, s.text) != s.text:
                raise ValueError(f"two different kernels are both named {s.name}")
        if missing:
            module = driver.Module(ptx.compile_ptx(missing, capability()))
            _modules.append(module)
            for s in missing:
                _functions[s.name], _texts[s.name] = module.function(s.name), s.text
        return {name: _functions[name] for name in wanted}
