"""The words of generated kernels as Numba functions, for the CPU: intrinsics that write what the LLVM kernels have."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from volta.emit.loops import I8, I64, PTR
from volta.numba_cpu.kernel_abi import KERNEL_TYPE
from volta.numba_source.intrinsics import Intrinsics
from volta.numba_source.words import WORDS

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": False, "boundscheck": False, "nogil": True}
"""How generated functions are compiled: no division raises, nothing is reassociated or contracted."""

ENTRY: dict[str, Any] = {"error_model": "numpy", "fastmath": False, "nopython": True}
"""The same for the C function that a launch table calls."""

KERNEL = types.void(types.CPointer(types.int64), types.int64, types.int64, types.int64)
"""The ABI of the launch table, as Numba types."""

njit = numba.njit(**OPTIONS)


def _pointer(b: ir.IRBuilder, address: ir.Value, distance: ir.Value) -> ir.Value:
    return b.gep(b.inttoptr(address, PTR), [distance], source_etype=I8)


@intrinsic
def _run_kernel(typing: Any, address: Any, args: Any, first: Any, begin: Any, end: Any, scratch: Any) -> Any:
    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        address, args, first, *rest = given
        block = b.gep(b.bitcast(args, PTR), [first], source_etype=I64)
        b.call(b.inttoptr(address, KERNEL_TYPE.as_pointer()), [block, *rest])
        return context.get_dummy_value()

    word = types.int64
    return types.void(word, args, word, word, word, word), generate


NAMES: dict[str, Any] = {
    **Intrinsics(intrinsic, _pointer).names(),
    "run_kernel": _run_kernel,
    "njit": njit,
    "np": np,
    "nan": np.nan,
    "inf": np.inf,
}
"""What generated text finds under the words."""

assert set(NAMES) == WORDS

__all__ = sorted(WORDS)  # noqa: PLE0605 - a text imports them all
globals().update(NAMES)
