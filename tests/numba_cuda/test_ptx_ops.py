"""Operations that only PTX has: what the host does in their place is what the GPU does."""

import ctypes

import numpy as np
import pytest
from llvmlite import ir

from volta.emit.loops import I1, I32, I64, VOID, load_arg, offset
from volta.numba_cuda.codegen import modules, ptx_mma, ptx_ops, ptx_redux, threads
from volta.numba_cuda.codegen.ptx import KernelSource, compile_ptx
from volta.numba_cuda.device import driver
from volta.numba_cuda.host import host
from volta.numba_cuda.host.host import Range
from volta.numba_cuda.host.host_runtime import READ, WRITE
from volta.runtime import devices

pytestmark = pytest.mark.turns(6)

F32, F64 = ir.FloatType(), ir.DoubleType()
NUMPY = {str(I1): np.int32, str(I32): np.int32, str(I64): np.int64, str(F32): np.float32, str(F64): np.float64}
SIMPLE = {name: op for name, op in ptx_ops.OPS.items() if op.result != VOID and all(str(a) in NUMPY for a in op.args)}
"""Operations on values alone, which can be called with any."""

NEAR = {"near_power": (np.exp2, 0, 3e-6), "near_logarithm": (np.log2, 5e-6, 0)}
"""Operations that are nearly right, each machine in bits of its own: what is meant, absolute and relative error."""


def at(b, base, index, size):
    return offset(b, base, b.mul(index, I64(size)))


def results_of(op):
    return list(op.result.elements) if isinstance(op.result, ir.LiteralStructType) else [op.result]


def values_for(op, kind, rng):
    """Values for one argument in all lanes: small whole numbers where a product's order is the GPU's own."""
    if op.name.endswith("_bf16") and kind == I32:
        pairs = rng.integers(-8, 9, (32, 2)).astype(np.float32).view(np.uint32) >> 16
        return (pairs[:, 0] | pairs[:, 1] << 16).astype(np.uint32).view(np.int32)
    if op.name.endswith("_tf32") and kind == I32:
        return rng.integers(-8, 9, 32).astype(np.float32).view(np.int32)
    if op.name.startswith("redux"):
        return rng.integers(-100, 100, 32).astype(np.int32)
    if kind == F32 and op.name.startswith("round"):
        return (rng.standard_normal(32) * 2.0 ** rng.integers(-130, 120, 32)).astype(np.float32)
    if op.name in NEAR:
        return (1 + rng.random(32) * 2.0 ** rng.integers(0, 5, 32)).astype(np.float32)
    if kind == F32:
        return rng.integers(-8, 9, 32).astype(np.float32)
    if kind == F64:
        return rng.standard_normal(32) * 2.0 ** rng.integers(-20, 20, 32)
    return rng.integers(0, 2 if kind == I1 else 32, 32).astype(NUMPY[str(kind)])


def call_of(op):
    """A kernel that calls an operation in one warp: arrays of arguments by lane, then of results."""

    def build(b, arrays):
        lane = threads.thread_index(b)
        args = []
        for kind, array in zip(op.args, arrays, strict=False):
            plain = I32 if kind == I1 else kind
            value = b.load(at(b, array, lane, np.dtype(NUMPY[str(kind)]).itemsize), typ=plain)
            args.append(b.trunc(value, I1) if kind == I1 else value)
        found = ptx_ops.call(b, op, args)
        kinds = results_of(op)
        parts = (
            [found]
            if len(kinds) == 1 and found.type == kinds[0]
            else [b.extract_value(found, i) for i in range(len(kinds))]
        )
        for kind, array, value in zip(kinds, arrays[len(op.args) :], parts, strict=True):
            b.store(value, at(b, array, lane, np.dtype(NUMPY[str(kind)]).itemsize))

    rng = np.random.default_rng(len(op.name))
    arrays = [values_for(op, kind, rng) for kind in op.args]
    return build, [*arrays, *(np.zeros(32, NUMPY[str(kind)]) for kind in results_of(op))]


def matrices(count, transposed):
    """A kernel that brings matrices from shared memory."""

    def build(b, arrays):
        lane = threads.thread_index(b)
        space = threads.shared_memory(b.module, b, "space", 32 * 16)
        for i in range(4):
            here = b.add(b.mul(lane, I64(16)), I64(4 * i))
            b.store(b.load(offset(b, arrays[0], here), typ=I32), offset(b, space, here))
        threads.barrier(b)
        words = ptx_mma.load_matrices(b, at(b, space, lane, 16), count, transposed)
        for i, word in enumerate(words):
            b.store(word, at(b, arrays[1], b.add(b.mul(lane, I64(count)), I64(i)), 4))

    return build, [np.arange(256, dtype=np.int16), np.zeros((32, count), np.int32)]


def copies(nbytes):
    """A kernel that copies through shared memory, the last bytes of every other piece as zeros."""

    def build(b, arrays):
        lane = threads.thread_index(b)
        space = threads.shared_memory(b.module, b, "space", 32 * nbytes)
        half = b.trunc(b.and_(lane, I64(1)), I32)
        valid = b.sub(I32(nbytes), b.mul(half, I32(nbytes // 2)))
        ptx_ops.copy_async(b, at(b, space, lane, nbytes), at(b, arrays[0], lane, nbytes), nbytes, valid)
        ptx_ops.commit_copies(b)
        ptx_ops.wait_copies(b, 0)
        threads.barrier(b)
        other = b.xor(lane, I64(31))
        for i in range(nbytes // 4):
            word = b.load(offset(b, at(b, space, other, nbytes), 4 * i), typ=I32)
            b.store(word, offset(b, at(b, arrays[1], lane, nbytes), 4 * i))

    return build, [np.arange(32 * nbytes, dtype=np.uint8), np.zeros(32 * nbytes, np.uint8)]


CASES = {
    **{op.name: call_of(op) for op in SIMPLE.values()},
    **{f"ldmatrix {n} {t}": matrices(n, t) for n in (1, 2, 4) for t in (False, True)},
    **{f"copies of {n}": copies(n) for n in (4, 8, 16)},
}


def source_of(name, build, count):
    def whole(module, symbol):
        function, b = threads.new_entry(module, symbol, 32)
        build(b, [threads.device_pointer(b, load_arg(b, function.args[0], i)) for i in range(count)])
        b.ret_void()

    symbol = "test_" + "".join(c if c.isalnum() else "_" for c in name)
    return KernelSource(symbol, name, whole)


def on_host(name):
    build, arrays = CASES[name]
    arrays = [x.copy() for x in arrays]
    source = source_of(name, build, len(arrays))
    words = np.array([x.ctypes.data for x in arrays], np.int64)
    ranges = [Range("args", words.ctypes.data, words.nbytes, READ)]
    ranges += [Range(f"array {i}", x.ctypes.data, x.nbytes, READ | WRITE) for i, x in enumerate(arrays)]
    assert host.HostModule([source]).run(source.name, words.ctypes.data, 1, 32, ranges, "shuffled") == []
    return arrays


def on_gpu(name):
    build, arrays = CASES[name]
    arrays = [x.copy() for x in arrays]
    device, source = devices.gpu("cuda:0"), source_of(name, build, len(arrays))
    function = modules.functions_of(device, [source])[source.name]
    stream, bound = device.main, []
    for x in arrays:
        bound.append(device.allocate(x.nbytes))
        device.to_device(bound[-1], x.ctypes.data, x.nbytes, stream)
    words = np.array(bound, np.int64)
    table = device.allocate(words.nbytes)
    device.to_device(table, words.ctypes.data, words.nbytes, stream)
    value = ctypes.c_uint64(table)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    device.check(device.api.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream.handle, params, None))
    for x, address in zip(arrays, bound, strict=True):
        device.to_host(x.ctypes.data, address, x.nbytes, stream)
    return arrays


@pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())
@pytest.mark.parametrize("name", CASES)
def test_every_operation_runs_on_the_host(name):
    found, given = on_host(name), CASES[name][1]
    assert any(x.tobytes() != y.tobytes() for x, y in zip(found, given, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(bool(driver.why_none()), reason=f"no GPU: {driver.why_none()}")
@pytest.mark.parametrize("name", CASES)
def test_the_host_does_what_the_gpu_does(name):
    for here, there in zip(on_host(name), on_gpu(name), strict=True):
        if name not in NEAR:
            np.testing.assert_array_equal(here.view(np.uint8), there.view(np.uint8))
    if name in NEAR:
        assert_near(name, on_gpu(name))


def assert_near(name, arrays):
    exact, absolute, relative = NEAR[name]
    given, found = arrays
    want = exact(given.astype(np.float64))
    assert (np.abs(found - want) <= absolute + relative * np.abs(want)).all()


@pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())
@pytest.mark.parametrize("name", NEAR)
def test_powers_and_logarithms_are_near_on_the_host(name):
    assert_near(name, on_host(name))


@pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())
@pytest.mark.parametrize("kind,wanted", [("max", np.max), ("min", np.min)])
def test_the_extreme_of_a_warp_is_one_instruction_where_a_gpu_has_it(kind, wanted):
    def build(b, arrays):
        lane = threads.thread_index(b)
        word = b.load(at(b, arrays[0], lane, 4), typ=I32)
        b.store(ptx_redux.redux(b, kind, word), at(b, arrays[1], lane, 4))

    given, found = on_host(f"redux_{kind}")
    assert (found == wanted(given)).all()
    source = source_of(f"extreme {kind}", build, 2)
    for capability, has in (("7.5", False), ("8.0", True), ("9.0a", True)):
        assert (f"redux.sync.{kind}.s32" in compile_ptx([source], capability)) is has


WITH_THEIR_KERNELS = (
    "multiply_group", "fence_tensor", "mbarrier", "copy_box", "acquire_map",
    "await_semaphore", "semaphore_is", "release_semaphore", "read_serial", "write_serial", "pin_reads", "near_",
    "prefetch", "registers_", "once", "copy_bulk", "grid_", "turn_",
)  # fmt: skip
"""Operations that mean something only among others: the kernels that use them are compared."""


def test_no_operation_is_left_out():
    known = {*CASES, *(f"ldmatrix_x{n}{t}" for n in (1, 2, 4) for t in ("", "_trans"))}
    left = {op.name for op in ptx_ops.OPS.values()} - known
    assert all(name.startswith(("cp_async", *WITH_THEIR_KERNELS)) for name in left), left
