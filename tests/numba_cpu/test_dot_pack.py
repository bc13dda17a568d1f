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
def packing(dtype: str, accumulator: str, lanes: int):
    """args: those of the function that packs."""

    def build(module, name):
        function, b = new_kernel(module, name)
        args = function.args[0]
        to, source = load_pointer(b, args, 0), load_pointer(b, args, 3)
        to_k, to_strip = load_args(b, args, 2, first=1)
        b.call(pack(module, dtype, accumulator, lanes), [to, to_k, to_strip, source, *load_args(b, args, 4, first=4)])
        b.ret_void()

    return compile_one(f"t_pack_{dtype}_{accumulator}_{lanes}", f"pack {dtype} {accumulator} {lanes}", build)


@pytest.mark.parametrize("layout", ["along lanes", "along k", "apart"])
@pytest.mark.parametrize(("dtype", "accumulator"), [("float32", "float32"), ("int8", "int32")])
@pytest.mark.parametrize("lanes", [2, LANES])
def test_packing_writes_its_vectors_and_nothing_else(layout: str, dtype: str, accumulator: str, lanes: int) -> None:
    for depth in (1, 2, 3, 4, 5, 8, 11):
        for width in (1, lanes - 1, lanes, lanes + 1, 3 * lanes):
            strips = -(-width // lanes)
            values = np.arange(1, depth * width + 1).reshape(depth, width).astype(dtype)
            whole = np.zeros((depth, 2 * width), dtype)
            whole[:, ::2] = values
            source = {"along lanes": values, "along k": np.asfortranarray(values), "apart": whole[:, ::2]}[layout]
            before = np.full(
                (strips + 1, depth + 1, lanes), -7, accumulator
            )  # a vector and a strip more than asked for
            out = before.copy()
            sizes = (out.ctypes.data, out.strides[1], out.strides[0], source.ctypes.data, *source.strides, width, depth)
            words = (ctypes.c_int64 * 8)(*sizes)
            packing(dtype, accumulator, lanes)(ctypes.addressof(words), 0, 1, 0)
            lanes_of = out[:-1, :-1].transpose(1, 0, 2).reshape(depth, -1)
            assert (lanes_of[:, :width] == values.astype(accumulator)).all(), (depth, width)
            assert (out[-1] == before[-1]).all() and (out[:, -1] == before[:, -1]).all(), (depth, width)
