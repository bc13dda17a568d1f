"""Errors and digests of the scalar functions: see `--help`. Also compiles a scalar function for the tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from volta.emit import builder as emit
from volta.numba_cpu import target


class Compiled:
    """A scalar function `f(b, *values)` compiled into a loop over arrays."""

    def __init__(self, function: Callable[..., Any], in_dtypes: Sequence[str], out_dtype: str, lanes: int) -> None:
        module = ir.Module("scalar")
        pointer, word = ir.PointerType(), ir.IntType(64)
        n_in = len(in_dtypes)
        kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * (n_in + 1) + [word]), "kernel")
        irb = ir.IRBuilder(kernel.append_basic_block("entry"))
        loop, end, entry = kernel.append_basic_block("loop"), kernel.append_basic_block("end"), irb.block
        irb.cbranch(irb.icmp_signed(">", kernel.args[-1], word(0)), loop, end)
        irb.position_at_end(loop)
        i = irb.phi(word)
        i.add_incoming(word(0), entry)
        b = emit.Builder(irb, lanes)

        def at(k: int, dtype: str) -> ir.Value:
            step = irb.mul(i, word(emit.item_size(dtype)))
            return irb.gep(kernel.args[k], [step], source_etype=ir.IntType(8))

        result = function(b, *[b.load(at(k, d), d) for k, d in enumerate(in_dtypes)])
        b.store(result, at(n_in, out_dtype), out_dtype)
        following = irb.add(i, word(lanes))
        i.add_incoming(following, irb.block)
        irb.cbranch(irb.icmp_signed("<", following, kernel.args[-1]), loop, end)
        irb.position_at_end(end)
        irb.ret_void()
        self.codegen = target.new_codegen("scalar")
        parsed = target.parse(str(module), self.codegen)
        target.optimise(parsed, self.codegen)
        self.assembly = target.emit_assembly(parsed, self.codegen)
        address = target.load_object(target.emit_object(parsed, self.codegen), ["kernel"], self.codegen)["kernel"]
        self.entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (n_in + 1), ctypes.c_int64)(address)
        self.in_dtypes, self.out_dtype, self.lanes = in_dtypes, out_dtype, lanes

    def run(self, arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Fill `out`; the length must be a multiple of the lanes."""
        assert out.size % self.lanes == 0
        self.entry(*[a.ctypes.data for a in arrays], out.ctypes.data, out.size)

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The function of arrays of any (equal) length; half kinds are given and returned as uint16."""
        size = arrays[0].size
        padded_size = -(-size // self.lanes) * self.lanes
        inputs = []
        for array, dtype in zip(arrays, self.in_dtypes, strict=True):
            padded = np.ones(padded_size, _memory_dtype(dtype))
            padded[:size] = array
            inputs.append(padded)
        out = np.empty(padded_size, _memory_dtype(self.out_dtype))
        self.run(inputs, out)
        return out[:size]


def _memory_dtype(dtype: str) -> np.dtype:
    return np.dtype("uint16" if dtype in emit.HALF_DTYPES else dtype)
