"""CUDA kernels on the host at lengths where blocks, chains and tiles begin and end, in every dtype."""

import gc
import weakref

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn
from volta.numba_cuda.host import host
from volta.testing import fill
from volta.testing.host_grid import HostKernels, check_on_host

pytestmark = [pytest.mark.skipif(bool(host.why_not()), reason=host.why_not()), pytest.mark.turns(6)]

KERNELS = HostKernels()
LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1023, 1025, 4095, 4096, 4097, 16385, 70001)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8", "int64", "bool")


def check(f, *args):
    check_on_host(f, *args, orders=["shuffled"], kernels=KERNELS)


@sampled("n", LENGTHS, quick=(65,))
def test_reductions(n):
    for shape, axis in (((3, n), 1), ((n, 5), 0), ((n,), 0), ((2, n, 3), 1)):
        x = fill("cancel", shape, "float32", n)

        def several(x, axis=axis):
            return vnp.sum(x, axis), vnp.mean(vnp.exp(-x * x), axis)

        check(several, x)
        if n:
            check(lambda x, axis=axis: (vnp.argmax(x, axis), vnp.max(x, axis), vnp.prod(x, axis)), x)
            check(lambda x, axis=axis: nn.softmax(x, axis), x)


@sampled("n", LENGTHS, quick=(65,))
def test_scans_and_sorts(n):
    x = fill("normal", (3, n), "float32", n)
    check(lambda x: (vnp.cumsum(x, 1), lax.cummax(x, 1, reverse=True)), x)
    check(lambda x: vnp.cumsum(x.T, 0), x)
    if n < 20000:
        check(lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1)), np.round(x * 3))


@sampled("dtype", DTYPES, quick=("bfloat16",))
def test_dtypes(dtype):
    x = fill("normal", (7, 300), "float32", 1)
    x = np.asarray(vnp.asarray(x * 3).astype(dtype))
    check(lambda x: (vnp.sort(x, 1), vnp.argsort(x, 0)), x)
    check(lambda x: (vnp.max(x, 0), vnp.argmin(x, 1)), x)
    check(lambda x: vnp.where(x > x[0], x, x[::-1])[:, ::-3], x)
    if dtype != "bool":
        check(lambda x: (vnp.sum(x, 1), vnp.sum(x, 0), vnp.cumsum(x, 1)), x)
        check(lambda x: x @ x.T, x)
        check(lambda x: x.at[vnp.arange(40) % 5].add(x[vnp.arange(40) % 7]), x)


@sampled("dtype", DTYPES[:-1], quick=("bfloat16", "int8"))
def test_division_powers_and_next_floats(dtype):
    """What is defined at zeros, infinities and the ends of the range."""
    floats = dtype in DTYPES[:4]
    values = [0.0, -0.0, 1, -2.5, 7, np.inf, -np.inf, np.nan, 1e-40] if floats else [0, 1, 3, 64, 127, -1, -128]
    with np.errstate(all="ignore"):
        x, y = np.meshgrid(*[np.asarray(vnp.asarray(np.array(values)).astype(dtype))] * 2)
    check(lambda x, y: (x // y, x % y, vnp.fmod(x, y), lax.div(x, y), lax.rem(x, y)), x, y)
    check(lambda x, y: vnp.nextafter(x, y) if floats else x**y, x, y)


@pytest.mark.parametrize("mode", ("drop", "clip"))
def test_indices_beyond_int64(mode):
    i = np.array([2**63, 2**64 - 1, 3, 50], np.uint64)
    check(lambda x, i: (x[i], x.at[i].add(1.0, mode=mode), vnp.take(x, i, mode="wrap")), np.ones(40, np.float32), i)
    check(lambda x, i: lax.dynamic_slice(x, i[:1], (3,)), np.arange(40), i)
    check(lambda x, i: lax.dynamic_slice(x, (i[0] - 5,), (3,)), np.arange(40), np.int8([2, 0]))


@sampled("k", (0, 1, 15, 16, 17, 255, 256, 257, 511, 513, 1000), quick=(17,))
def test_products(k):
    for m, n in ((1, 1), (1, 130), (130, 1), (33, 65), (64, 128), (129, 127)):
        x, y = fill("normal", (m, k), "float32", k), fill("normal", (k, n), "float32", k + 1)
        check(lambda x, y: x @ y, x, y)
    x, y = fill("normal", (3, k, 20), "float32", 1), fill("normal", (3, 24, k), "float32", 2)
    check(lambda x, y: vnp.matmul(vnp.swapaxes(x, 1, 2), vnp.swapaxes(y, 1, 2)), x, y)
    check(lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((0,), (0,))), precision="highest"), x, y)


@pytest.mark.parametrize("kind", ["add", "set", "mul", "max"])
@sampled("count", (0, 1, 5, 257, 1025, 5000), quick=(257,))
def test_scatters(kind, count):
    x, updates = fill("normal", (50, 33), "float32", 1), fill("normal", (count, 33), "float32", 2)
    where = np.random.default_rng(count).integers(-3, 53, count).astype(np.int32)
    check(lambda x, u, i: getattr(x.at[i], kind)(u), x, updates, where)
    check(lambda x, u, i: getattr(x.at[i], kind)(u), x[:, 0], updates[:, 0], where)


def test_gradients_of_an_embedding_and_a_norm():
    table, tokens = fill("normal", (40, 96), "float32", 1), np.arange(130, dtype=np.int32) * 7 % 40

    def loss(table, scale):
        return vnp.sum(nn.layer_norm(table[tokens], scale) ** 2)

    check(volta.grad(loss, argnums=(0, 1)), table, np.ones(96, np.float32))


def test_kernels_that_refer_to_themselves_are_collected():
    """Garbage collection ends the parts of a cycle in any order; LLVM's in another than theirs ends the process."""
    kernels = HostKernels()
    check_on_host(lambda x: x * 2, np.ones(10, np.float32), kernels=kernels)
    (module,) = kernels._modules.values()
    module.itself, gone = module, weakref.ref(module)
    del kernels, module
    gc.collect()
    assert gone() is None
