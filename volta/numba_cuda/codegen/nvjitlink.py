"""NVIDIA's assembler as a library: PTX to machine code (cubin) where there is no GPU and no driver.

nvJitLink comes as a wheel (`pip install 'volta[offline]'`) or with a CUDA toolkit. CUDA 13's knows compute capabilities
from 7.5 on; 7.0 needs that of CUDA 12 (`volta[cuda12]`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from volta.core.errors import DeviceError
from volta.numba_cuda.codegen.ptx import CAPABILITIES, level_of

_PTX_INPUT = 2
_OLDEST = {12: (5, 0), 13: (7, 5)}
"""The oldest compute capability that a version of CUDA compiles for."""

_OPTIONS = ("-Xptxas=--fmad=false", "-verbose")
"""No multiply-add that is not one in the PTX; and a log that says what each kernel needs."""

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"ptxas info\s*: Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@attrs.frozen
class Resources:
    """What a thread or block of a kernel needs: registers, and bytes of static shared memory, stack and spills."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@attrs.frozen
class Cubin:
    """Machine code, and what each of its kernels needs."""

    code: bytes
    resources: dict[str, Resources]
    version: str


class Library:
    """One nvJitLink."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._calls = ctypes.CDLL(str(path))
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        if self._calls.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor)):
            raise DeviceError(f"{path} does not say its version")
        self.version = (major.value, minor.value)

    def supports(self, capability: str) -> bool:
        oldest = _OLDEST[max(v for v in _OLDEST if v <= max(self.version[0], min(_OLDEST)))]
        return level_of(capability) >= oldest

    def assemble(self, ptx: str, capability: str, *linked: str) -> Cubin:
        """PTX, and PTX of what it calls, as machine code for a compute capability.

        Raises:
            DeviceError: with what the assembler says.
        """
        options = [f"-arch={CAPABILITIES[capability][0]}", *_OPTIONS]
        texts = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        handle = ctypes.c_void_p()
        self._check(self._calls.nvJitLinkCreate(ctypes.byref(handle), len(options), texts), None, "does not start")
        try:
            status = 0
            for text in (ptx, *linked):
                data = text.encode() + b"\0"
                size = ctypes.c_size_t(len(data))
                status = status or self._calls.nvJitLinkAddData(handle, _PTX_INPUT, data, size, b"volta.ptx")
            status = status or self._calls.nvJitLinkComplete(handle)
            self._check(status, handle, f"does not take the PTX for {capability}")
            log = self._log(handle, "Info")
            size = ctypes.c_size_t()
            self._check(self._calls.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)), handle, "gives no cubin")
            code = ctypes.create_string_buffer(size.value)
            self._check(self._calls.nvJitLinkGetLinkedCubin(handle, code), handle, "gives no cubin")
        finally:
            self._calls.nvJitLinkDestroy(ctypes.byref(handle))
        return Cubin(code.raw, resources_of(log), ".".join(map(str, self.version)))

    def _check(self, status: int, handle: Any, what: str) -> None:
        if status:
            text = "" if handle is None else ":\n" + self._log(handle, "Error")
            raise DeviceError(f"nvJitLink {'.'.join(map(str, self.version))} {what} (status {status}){text}")

    def _log(self, handle: Any, which: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._calls, f"nvJitLinkGet{which}LogSize")(handle, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        getattr(self._calls, f"nvJitLinkGet{which}Log")(handle, text)
        return text.value.decode(errors="replace")


def resources_of(log: str) -> dict[str, Resources]:
    """What each kernel needs, from the assembler's log."""
    found: dict[str, Resources] = {}
    name, stack = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name = match[1]
        elif match := _STACK.search(line):
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            found[name] = Resources(int(match[1]), int(shared[1]) if shared else 0, *stack)
            name = ""
    return found


def _folders() -> list[Path]:
    """Where nvJitLink may lie: wheels on the module path, then toolkits."""
    wheels = [path for entry in sys.path for path in sorted(Path(entry or ".").glob("nvidia/*/lib"), reverse=True)]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return wheels + [Path(t) / "lib64" for t in toolkits if t]


@functools.cache
def libraries() -> Sequence[Library]:
    """All of them on this machine, newest first."""
    found = {path.resolve() for folder in _folders() for path in folder.glob("libnvJitLink.so.[0-9]*")}
    loaded = []
    for path in sorted(found):
        try:
            loaded.append(Library(path))
        except (OSError, AttributeError):  # of another machine, or another kind
            continue
    return sorted(loaded, key=lambda x: x.version, reverse=True)


def library_for(capability: str) -> Library:
    """The newest nvJitLink that compiles for a compute capability.

    Raises:
        DeviceError: there is none, or none that knows the capability.
    """
    known = libraries()
    for library in known:
        if library.supports(capability):
            return library
    if not known:
        raise DeviceError(
            "cubins need NVIDIA's nvJitLink, which is not installed: pip install 'volta[offline]' (PTX needs nothing)"
        )
    versions = ", ".join(".".join(map(str, x.version)) for x in known)
    raise DeviceError(f"nvJitLink {versions} does not know capability {capability}: pip install 'volta[cuda12]'")
