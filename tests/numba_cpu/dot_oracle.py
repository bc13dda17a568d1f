"""The definition of DOT, written down once more as plain scalar loops: what the kernels' bits are compared with."""

import ctypes
import functools

import numpy as np
from llvmlite import ir

from volta.emit.builder import Builder
from volta.emit.dot_args import dot_words
from volta.emit.loops import fma, for_range, load_args, load_pointer, loop, minimum, offset
from volta.numba_cpu import unit
from volta.numba_cpu.dot_schedule import TileSpec, dot_plan, for_tiles
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.lower import source_of
from volta.xla_like.dot import BLOCK, CHUNK, Dot, DotSpec, DotStrides, canonical, column_as_row
from volta.xla_like.kernels import LibraryKernel

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def compile_one(name: str, text: str, build) -> object:
    """Compile one kernel and give it as a Python callable."""
    return _callable(unit.KernelSource(name, text, build))


def _callable(source: unit.KernelSource) -> object:
    addresses = unit.compile_kernels([source])
    kernel = KERNEL(addresses[source.name])
    kernel.code = addresses  # type: ignore[attr-defined]  # machine code lives as long as somebody holds it
    return kernel


def _build_chain(module, name, dtype):
    """args: lhs, rhs, out, m, n, k; contiguous operands of one dtype; a sum of chunks of FMA chains: one block's."""
    function, b = new_kernel(module, name)
    args = function.args[0]
    lhs, rhs, out = (load_pointer(b, args, i) for i in range(3))
    m, n, k = load_args(b, args, 3, first=3)
    kind = {"float32": ir.FloatType(), "float64": ir.DoubleType()}[dtype]
    builder, i64 = Builder(b), ir.IntType(64)

    def at(pointer, row, columns, column):
        return b.gep(pointer, [b.add(b.mul(row, columns), column)], source_etype=kind)

    with for_range(b, 0, m) as i, for_range(b, 0, n) as j:
        b.store(kind(0.0), at(out, i, n, j))
        with for_range(b, 0, k, CHUNK) as start:
            with loop(b, start, b.add(start, minimum(b, b.sub(k, start), CHUNK)), init=[kind(0.0)]) as it:
                x = builder.load(at(lhs, i, k, it.index), dtype).ir
                y = builder.load(at(rhs, it.index, n, j), dtype).ir
                it.advance(fma(b, x, y, it.values[0]))
            before = b.load(at(out, i, n, j), typ=kind)
            total = b.select(b.icmp_signed("==", start, i64(0)), it.results[0], b.fadd(before, it.results[0]))
            b.store(total, offset(b, at(out, i, n, j), 0))
    b.ret_void()


@functools.cache
def _chain(dtype):
    return compile_one(f"oracle_dot_{dtype}", f"oracle dot {dtype}", lambda m, n: _build_chain(m, n, dtype))


def oracle(spec: DotSpec, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """``lhs @ rhs`` over (b0, b1, m, k) and (b0, b1, k, n) by the definition, in the output dtype of `spec`."""
    batch, (m, k), n = lhs.shape[:2], lhs.shape[2:], rhs.shape[-1]
    out_dtype = np.dtype(spec.out)
    if "int" in spec.out:
        return np.matmul(lhs.astype(np.uint64), rhs.astype(np.uint64)).astype(out_dtype)
    kind = spec.accumulator
    out = np.empty((*batch, m, n), kind)
    for b0, b1 in np.ndindex(*batch):
        blocks = []
        for first in range(0, max(k, 1), BLOCK):
            a = np.ascontiguousarray(lhs[b0, b1, :, first : first + BLOCK], dtype=kind)
            b = np.ascontiguousarray(rhs[b0, b1, first : first + BLOCK], dtype=kind)
            c = np.empty((m, n), kind)
            sizes = (m, n, a.shape[1])
            _chain(kind)(np.array([a.ctypes.data, b.ctypes.data, c.ctypes.data, *sizes]).ctypes.data, 0, 1, 0)
            blocks.append(c)
        out[b0, b1] = in_pairs(blocks)
    return out.astype(out_dtype)


def in_pairs(blocks: list[np.ndarray]) -> np.ndarray:
    """Neighbours in pairs, level by level; an odd one out waits for the next level."""
    while len(blocks) > 1:
        odd = blocks[-1:] if len(blocks) % 2 else []
        with np.errstate(all="ignore"):
            blocks = [a + b for a, b in zip(blocks[::2], blocks[1::2], strict=False)] + odd
    return blocks[0]


@functools.cache
def kernel(which: str, spec: TileSpec) -> object:
    """One of the kernels of a spec, by name."""
    source = source_of(LibraryKernel(which, spec))
    return _callable(source)


def aligned(nbytes: int) -> np.ndarray:
    """64-byte aligned memory, filled with NaN patterns, so that reading what was never written shows."""
    raw = np.full(nbytes + 128, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes + 64]


def product_of(
    spec: DotSpec, lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray
) -> tuple[Dot, DotStrides]:  # fmt: skip
    """The product of NumPy arrays of rank 4 as they lie in memory."""
    strides = DotStrides(lhs.strides, rhs.strides, out.strides)
    return canonical(Dot(spec, out.shape[:2], *out.shape[2:], lhs.shape[3]), strides)


def run(
    spec: TileSpec, lhs: np.ndarray, rhs: np.ndarray, *, parts: int = 1, out: np.ndarray | None = None
) -> np.ndarray:
    """``lhs @ rhs`` by the kernels, each launch cut into `parts` ranges of tasks, run last part first."""
    if out is None:
        out = np.full((*lhs.shape[:3], rhs.shape[3]), 77).astype(np.dtype(spec.out))
    product = product_of(spec, lhs, rhs, out)
    turned = column_as_row(*product)
    if turned is not None:
        product, lhs, rhs = turned, rhs, lhs
    dot, strides = product
    plan = dot_plan(dot, strides, spec.vector_bits)
    spec, dot, strides = for_tiles(dot, strides, spec.vector_bits)
    workspace, scratch = aligned(plan.workspace_bytes), aligned(plan.scratch_bytes)
    addresses = [x.ctypes.data for x in (lhs, rhs, out, workspace)]
    for launch in plan.launches:
        args = np.array([*addresses, launch.batch1, *dot_words(dot, strides)[1:], *launch.tiling], np.int64)
        for part in reversed(range(parts)):
            begin, end = launch.tasks * part // parts, launch.tasks * (part + 1) // parts
            kernel(launch.name, spec)(args.ctypes.data, begin, end, scratch.ctypes.data)
    assert (workspace[plan.workspace_bytes :] == 0xFF).all() and (scratch[plan.scratch_bytes :] == 0xFF).all()
    return out


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of an array, with all NaNs as one."""
    raw = x.view(f"u{x.dtype.itemsize}").copy()
    if x.dtype.kind not in "iu":
        raw[np.isnan(x.astype(np.float64))] = 1
    return raw
