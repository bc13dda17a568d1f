"""Kernels of the user's own for GPUs: what numba-cuda writes for them, and (on a GPU) what they compute."""

import math
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import volta
import volta.numba as vn
import volta.numpy as vnp
from tests.numba.test_numba_functions import FUNCTIONS as PRIMITIVES
from tests.numba.test_numba_functions import numbers
from tests.sampling import sampled
from volta.errors import KernelError, UnsupportedOperationError
from volta.numba_cuda import device_plan
from volta.numba_cuda.codegen import nvjitlink, ptx
from volta.numba_cuda.codegen.numba_tools import tools
from volta.numba_cuda.launches import every
from volta.numba_cuda.schedule import Schedule
from volta.testing import assert_bits_equal
from volta.testing.kernel_kinds import has_numba_cuda
from volta.xla_like.compile import build_plan

if not has_numba_cuda():
    pytest.skip("numba-cuda is not installed (pip install 'volta[numba-cuda]')", allow_module_level=True)
cuda = tools().cuda
X = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32)


@volta.kernel(out=lambda x, k: x)
@numba.njit
def smooth(x, k, out):
    n = x.shape[0]
    for i in range(n):
        out[i] = x[i] * k + (x[max(i - 1, 0)] + x[min(i + 1, n - 1)]) / np.float32(4)


@smooth.cuda(grid=lambda x, k: -(-x.size // 128), block=128)
@cuda.jit
def _(x, k, out):
    i, n = cuda.grid(1), x.shape[0]
    if i < n:
        out[i] = x[i] * k + (x[max(i - 1, 0)] + x[min(i + 1, n - 1)]) / np.float32(4)


@volta.kernel(out=lambda x: x, grid=8, block=lambda x: 128)
@cuda.jit
def reverse_by_blocks(x, out):
    """Each block turns its elements around, in shared memory; only those that there are."""
    shared = cuda.shared.array(128, numba.float32)
    i = cuda.grid(1)
    shared[cuda.threadIdx.x] = x[i] if i < x.shape[0] else 0
    cuda.syncthreads()
    j = cuda.blockIdx.x * 128 + (127 - cuda.threadIdx.x)
    if i < x.shape[0] and j < x.shape[0]:
        out[i] = shared[127 - cuda.threadIdx.x]


@volta.kernel(out=lambda x: x)
@numba.njit
def softplus(x, out):
    for i in range(x.size):
        out[i] = vn.log1p(vn.exp(x[i])) * vn.tanh(x[i])


@softplus.cuda(grid=lambda x: -(-x.size // 256))
@cuda.jit
def _(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = vn.log1p(vn.exp(x[i])) * vn.tanh(x[i])


def batched(x):
    return volta.vmap(smooth, in_axes=(0, None))(vnp.sin(x), np.float32(0.5)) * 2


def planned(f, *args):
    """The plan for a GPU, where there is none."""
    plan, _ = build_plan(volta.make_jaxpr(f)(*args), scheduler=Schedule())
    return device_plan.device_plan(plan, "9.0")


def launches(f, *args):
    return list(every(planned(f, *args).launches))


def test_its_ptx_has_no_operation_that_is_not_strict() -> None:
    found = launches(batched, X)
    labels = [x.label for x in found]
    at = labels.index("smooth")
    assert labels[at - 1] == "clear" and labels[-1] == "map(mul)" and len(labels) == len(set(labels))
    own = found[at]
    assert (own.grid, own.threads, own.alone) == (8, 128, True)
    (text,) = own.source.linked_texts()
    assert not ptx.violations(text) and "fma" not in text and ".rn.f32" in text
    entry = ptx.compile_ptx([own.source], "9.0")
    assert f".extern .func  (.param .b64 func_retval0) {own.source.name.rpartition('_')[0]}" in entry.replace("\n", "")


def test_entry_and_function_link() -> None:
    own = next(x for x in launches(batched, X) if x.label == "smooth").source
    try:
        library = nvjitlink.library_for("9.0")
    except volta.errors.DeviceError as reason:
        pytest.skip(str(reason))
    code = library.assemble(ptx.compile_ptx([own], "9.0"), "9.0", *own.linked_texts()).code
    assert code[:4] == b"\x7fELF" and own.name.encode() in code


def test_voltas_functions_are_those_of_its_kernels() -> None:
    (own,) = [x.source for x in launches(softplus, X[0]) if x.label == "softplus"]
    text, functions = own.linked_texts()
    for name in ("exp", "log1p", "tanh"):
        symbol = f"volta_function_{name}_float32"
        assert f".visible .func  (.param .b32 func_retval0) {symbol}" in functions.replace("\n", "")
        assert f"{symbol}," in text  # it is called
    assert not ptx.violations(text) and not ptx.violations(functions)
    try:
        library = nvjitlink.library_for("9.0")
    except volta.errors.DeviceError as reason:
        pytest.skip(str(reason))
    assert own.name.encode() in library.assemble(ptx.compile_ptx([own], "9.0"), "9.0", *own.linked_texts()).code


FUNCTIONS = {name: getattr(vn, name) for name in vn.__all__ if hasattr(getattr(vn, name), "volta_primitive")}


def elementwise(name):
    """A kernel that applies a function of `volta.numba`, and numbers for it."""
    function, (_, count) = FUNCTIONS[name], FUNCTIONS[name].volta_primitive

    def one(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i])

    def two(x, y, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i], y[i])

    def three(x, y, z, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = function(x[i], y[i], z[i])

    kernel = volta.kernel(out=lambda *xs: xs[0], grid=lambda *xs: -(-xs[0].size // 128), block=128)
    return kernel(cuda.jit((one, two, three)[count - 1])), [np.float32, np.float64], count


@sampled("name", sorted(FUNCTIONS), quick=("atan2",))
def test_every_function_of_volta_numba_is_strict_in_cuda_code(name) -> None:
    kernel, dtypes, count = elementwise(name)
    for dtype in dtypes:
        own = next(x.source for x in launches(kernel, *[np.ones(3, dtype)] * count) if x.label == kernel.__name__)
        texts = own.linked_texts()
        assert not any(map(ptx.violations, texts))
        assert f"volta_function_{name}_{np.dtype(dtype).name}" in "".join(texts)


def test_the_first_kernel_of_a_process_may_call_voltas_functions() -> None:
    """What numba-cuda knows is loaded before Volta's functions are made known to it: in another order entries had no
    meaning, for this kernel and for all later ones."""
    code = """
import numpy as np
from tests.numba_cuda import test_user_functions as tests
kernel, (dtype, _), count = tests.elementwise("atan2")
assert tests.launches(kernel, *[np.ones(3, dtype)] * count)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_of_volta_numba_has_the_cpus_bits_on_a_gpu(name) -> None:
    kernel, dtypes, count = elementwise(name)
    for dtype in dtypes:
        operands = [numbers(dtype, 300, seed) for seed in range(count)]
        want = np.asarray(PRIMITIVES[name].bind(*operands))
        with volta.default_device("cuda"):
            assert_bits_equal(np.asarray(kernel(*map(volta.device_put, operands))), want)


def test_the_mathematics_library_is_refused_at_level_strict() -> None:
    @volta.kernel(out=lambda x: x, grid=4)
    @cuda.jit
    def approximate(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = math.exp(x[i])

    with pytest.raises(UnsupportedOperationError, match="`approximate` has operations that level 'strict' has not"):
        planned(approximate, X[0])


def test_a_write_to_an_operand_and_a_grid_that_is_none() -> None:
    @volta.kernel(out=lambda x: x, grid=(2, 2))
    @cuda.jit
    def plane(x, out):
        out[0] = x[0]

    @volta.kernel(out=lambda x: x, grid=2)
    @cuda.jit
    def writes(x, out):
        x[0] = 1

    with pytest.raises(KernelError, match=r"grid=\(2, 2\).*each along one dimension"):
        planned(plane, X[0])
    with pytest.raises(KernelError, match="does not compile for GPUs"):
        planned(writes, X[0])
    with pytest.raises(KernelError, match="needs a grid"):
        volta.kernel(out=lambda x: x)(cuda.jit(lambda x, out: None))
    with pytest.raises(KernelError, match="grid and block are of @numba.cuda.jit functions"):
        volta.kernel(out=lambda x: x, grid=3)(numba.njit(lambda x, out: None))
    with pytest.raises(KernelError, match="decorates an @numba.cuda.jit function"):
        smooth.cuda(grid=3)(lambda x, out: None)


def test_a_kernel_for_gpus_alone_says_so_on_the_cpu() -> None:
    with pytest.raises(UnsupportedOperationError, match="`reverse_by_blocks` has a function for GPUs only"):
        reverse_by_blocks(X[0])


@pytest.mark.gpu
def test_on_a_gpu_it_gives_the_cpus_bits() -> None:
    def looped(x):
        return volta.lax.fori_loop(0, 5, lambda i, x: smooth(x, np.float32(0.5)), x)

    def run():
        x = volta.device_put(X)
        return [
            np.asarray(y) for y in (volta.jit(batched)(x), smooth(x[0], 0.5), volta.jit(looped)(x[0]), softplus(x[0]))
        ]

    with volta.default_device("cpu"):
        expected = run()
    with volta.default_device("cuda"):
        found = run()
    assert_bits_equal(found, expected)


@pytest.mark.gpu
def test_on_a_gpu_threads_of_a_block_share_memory() -> None:
    with volta.default_device("cuda"):
        out = np.asarray(volta.jit(volta.vmap(reverse_by_blocks))(X[:, :896]))
    assert_bits_equal(out[:, :896], X[:, :896].reshape(5, 7, 128)[:, :, ::-1].reshape(5, 896))
