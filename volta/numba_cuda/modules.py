"""Kernels loaded on a device: compiled once a process, many in one module."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from volta.numba_cuda import ptx
from volta.numba_cuda.driver import Device
from volta.numba_cuda.graph import Module
from volta.numba_cuda.ptx import KernelSource

_lock = threading.RLock()
_texts: dict[str, str] = {}


def functions_of(device: Device, sources: Iterable[KernelSource]) -> dict[str, int]:
    """Loaded kernels by symbol; what the device lacks is compiled as one module."""
    wanted = {s.name: s for s in sources}
    with _lock:
        missing = [s for s in wanted.values() if s.name not in device.functions]
        for s in wanted.values():
            if _texts.get(s.name, s.text) != s.text:
                raise ValueError(f"two different kernels are both named {s.name}")
        if missing:
            capability = ptx.best_for(*device.info.capability)
            module = Module(device, ptx.compile_ptx(missing, capability))
            device.modules.append(module)
            for s in missing:
                device.functions[s.name], _texts[s.name] = module.function(s.name), s.text
        return {name: device.functions[name] for name in wanted}
