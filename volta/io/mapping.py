"""Files whose pages are the memory of arrays: nothing is copied, and what is never read is never loaded."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.runtime.array import ConcreteArray
from volta.runtime.memory import Buffer
from volta.runtime.shared_buffer import SharedBuffer


def mapped_file(file: BinaryIO) -> memoryview:
    """The bytes of a whole file, read as they are asked for. The mapping lives as long as anything made of it."""
    if not os.fstat(file.fileno()).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def array_of(x: np.ndarray) -> ConcreteArray:
    """An array whose memory is that of a contiguous view of a mapping; a copy where such memory will not do.

    That is where elements do not lie at multiples of their size, and of bools, whose bytes may be any in a file.
    """
    dtype, address = dtypes.canonicalize(x.dtype), x.ctypes.data
    if not x.nbytes or address % dtype.itemsize or dtype == dtypes.bool_ or not x.dtype.isnative:
        return ConcreteArray.from_numpy(x)
    # shared from the start: the memory of a donated array would be written to
    memory = SharedBuffer(address, x.nbytes, Buffer(address, x.nbytes, x))
    return ConcreteArray(ShapedArray(x.shape, dtype), memory, address)
