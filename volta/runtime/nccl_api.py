"""The C functions of NVIDIA's NCCL that Volta calls, through ctypes. It moves bytes, and adds nothing up."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from volta.core.errors import DistributedError

ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """What all that join one communicator know: the first of them makes it."""

    _fields_ = [("data", ctypes.c_ubyte * ID_BYTES)]


_I, _Z, _P = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_P,),
    "ncclGetUniqueId": (_P,),
    "ncclCommInitRank": (_P, _I, UniqueId, _I),
    "ncclCommGetAsyncError": (_P, _P),
    "ncclCommAbort": (_P,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (_P, _Z, _I, _I, _P, _P),
    "ncclRecv": (_P, _Z, _I, _I, _P, _P),
}
"""Each function's arguments; all return a status."""

BYTE = 1
"""ncclUint8: elements are bytes, whatever they mean."""

SUCCESS, IN_PROGRESS = 0, 7

ERRORS = {
    1: "ncclUnhandledCudaError: a call of CUDA's failed",
    2: "ncclSystemError: a call of the system's failed",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage: it was called in a way that it does not allow",
    6: "ncclRemoteError: another worker has ended, or the network between them failed",
}

OLDEST = 21400
"""The oldest version that is used, as NCCL counts them: 2.14."""


def library() -> str:
    """Where NCCL is: in the official wheel, or wherever the system looks."""
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    for folder in found.submodule_search_locations or () if found else ():
        for path in Path(folder, "lib").glob("libnccl.so*"):
            return str(path)
    return "libnccl.so.2"


def load() -> SimpleNamespace:
    """NCCL's functions by name.

    Raises:
        DistributedError: it is not installed, or too old.
    """
    path = library()
    try:
        handle = ctypes.CDLL(path)
        functions = {}
        for name, arguments in SIGNATURES.items():
            function = functions[name] = getattr(handle, name)
            function.argtypes, function.restype = arguments, _I
    except (OSError, AttributeError) as error:
        text = f"distributed.initialize: the engine 'nccl' cannot be used ({error})"
        raise DistributedError(f"{text}; pip install 'volta[nccl]' brings NVIDIA's library") from None
    return SimpleNamespace(**functions)
