"""The C functions of NVIDIA's driver that Volta calls, through ctypes: no package of bindings is needed."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from types import SimpleNamespace
from typing import Any

from volta.core.errors import DeviceError

_I, _U, _Z, _P = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
_D = ctypes.c_uint64  # an address in device memory

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceTotalMem_v2": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetStreamPriorityRange": (_P, _P),
    "cuMemGetInfo_v2": (_P, _P),
    "cuMemAlloc_v2": (_P, _Z),
    "cuMemFree_v2": (_D,),
    "cuMemHostAlloc": (_P, _Z, _U),
    "cuMemFreeHost": (_P,),
    "cuMemcpyHtoDAsync_v2": (_D, _P, _Z, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _D, _Z, _P),
    "cuMemcpyDtoDAsync_v2": (_D, _D, _Z, _P),
    "cuMemcpy3DAsync_v2": (_P, _P),
    "cuMemcpyPeerAsync": (_D, _P, _D, _P, _Z, _P),
    "cuStreamCreate": (_P, _U),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamWaitValue32_v2": (_P, _D, _U, _U),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuLinkCreate_v2": (_U, _P, _P, _P),
    "cuLinkAddData_v2": (_P, _I, _P, _Z, ctypes.c_char_p, _U, _P, _P),
    "cuLinkComplete": (_P, _P, _P),
    "cuLinkDestroy": (_P,),
    "cuModuleLoadDataEx": (_P, _P, _U, _P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncGetAttribute": (_P, _I, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "cuGraphCreate": (_P, _U),
    "cuGraphAddKernelNode": (_P, _P, _P, _Z, _P),
    "cuGraphAddNode": (_P, _P, _P, _Z, _P),
    "cuGraphAddDependencies_v2": (_P, _P, _P, _P, _Z),
    "cuGraphConditionalHandleCreate": (_P, _P, _P, _U, _U),
    "cuGraphKernelNodeSetAttribute": (_P, _I, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
    "cuGraphDestroy": (_P,),
}
"""Each function's symbol in the library and the types of its arguments; all return a status."""

SINCE_12_3 = ("cuGraphAddNode", "cuGraphAddDependencies_v2", "cuGraphConditionalHandleCreate")
"""Functions that older drivers do not have: loops and choices need them, and kernels that begin early."""

OLDEST_DRIVER = 12000
"""The version of CUDA that the driver must know at least, as it counts them: 12.0."""

OLDEST_CAPABILITY = (7, 0)
"""The oldest compute capability that kernels are written for."""

OUT_OF_MEMORY, INVALID_PTX, INVALID_IMAGE, NO_BINARY, NOT_READY, UNSUPPORTED_PTX = 2, 218, 200, 209, 600, 222

STICKY = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""Errors after which a context answers every call with the same error: the process has lost the device."""


def name_of(symbol: str) -> str:
    """A function's name without the version that its symbol carries."""
    return symbol.removesuffix("_v2")


def load() -> SimpleNamespace:
    """The driver's functions by name.

    Raises:
        DeviceError: there is no driver, or it is too old to have them.
    """
    path = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(path)
    except OSError:
        raise DeviceError(f"there is no NVIDIA driver on this machine ({path} cannot be loaded)") from None
    functions: dict[str, Any] = {}
    for symbol, arguments in SIGNATURES.items():
        try:
            function = getattr(library, symbol)
        except AttributeError:
            if symbol in SINCE_12_3:
                functions[name_of(symbol)] = None
                continue
            raise DeviceError(f"the NVIDIA driver is too old: it has no {symbol}; install one for CUDA 12") from None
        function.argtypes, function.restype = arguments, _I
        functions[name_of(symbol)] = function
    return SimpleNamespace(**functions)


def address_of(function: Any) -> int:
    """Where a C function lies, for native code that calls it."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
