"""Packing: every element in its place, and nothing beside what is said to be written."""

import ctypes
import functools

import numpy as np
import pytest

from tests.numba_cpu.dot_oracle import compile_one
from volta.emit.loops import load_args, load_pointer
from volta.numba_cpu import target
from volta.numba_cpu.dot_pack import pack
from volta.numba_cpu.kernel_abi import new_kernel

LANES = target.vector_bits() // 32


@functools.cache
def packing(dtype: str, accumulator: str, lanes: int, parts: bool):
    """args: those of the function that packs."""

    def build(module, name):
        function, b = new_kernel(module, name)
        args = function.args[0]
        to, source = load_pointer(b, args, 0), load_pointer(b, args, 3)
        to_k, to_strip = load_args(b, args, 2, first=1)
        b.call(
            pack(module, dtype, accumulator, lanes, parts=parts),
            [to, to_k, to_strip, source, *load_args(b, args, 4, first=4)],
        )
        b.ret_void()

    what = (dtype, accumulator, lanes, parts)
    return compile_one("_".join(map(str, ("t_pack", *what))), f"pack {what}", build)


def every_other(values: np.ndarray, first: int) -> np.ndarray:
    """As a part of complex numbers lies: what is between the elements and beside them is no number."""
    whole = np.full((*values.shape[:-1], 2 * values.shape[-1]), -99, values.dtype)
    whole[..., first::2] = values
    return whole[..., first::2]


LAYOUTS = {
    "along lanes": lambda x: x,
    "along k": np.asfortranarray,
    "first parts along lanes": lambda x: every_other(x, 0),
    "other parts along lanes": lambda x: every_other(x, 1),
    "first parts along k": lambda x: every_other(x.T.copy(), 0).T,
    "other parts along k": lambda x: every_other(x.T.copy(), 1).T,
    "apart": lambda x: np.repeat(np.repeat(x, 3, 0), 3, 1)[::3, ::3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [("float32", "float32"), ("float64", "float64"), ("float32", "float64"), ("int8", "int32")],
)
@pytest.mark.parametrize("lanes", [2, LANES])
def test_packing_writes_its_vectors_and_nothing_else(layout: str, dtype: str, accumulator: str, lanes: int) -> None:
    for depth in (1, 2, 3, 4, 5, 8, 11):
        for width in (1, lanes - 1, lanes, lanes + 1, 3 * lanes):
            strips = -(-width // lanes)
            values = np.arange(1, depth * width + 1).reshape(depth, width).astype(dtype)
            source = LAYOUTS[layout](values)
            before = np.full(
                (strips + 1, depth + 1, lanes), -7, accumulator
            )  # a vector and a strip more than asked for
            out = before.copy()
            sizes = (out.ctypes.data, out.strides[1], out.strides[0], source.ctypes.data, *source.strides, width, depth)
            words = (ctypes.c_int64 * 8)(*sizes)
            packing(dtype, accumulator, lanes, "parts" in layout)(ctypes.addressof(words), 0, 1, 0)
            lanes_of = out[:-1, :-1].transpose(1, 0, 2).reshape(depth, -1)
            assert (lanes_of[:, :width] == values.astype(accumulator)).all(), (depth, width)
            assert (out[-1] == before[-1]).all() and (out[:, -1] == before[:, -1]).all(), (depth, width)
