"""Level device on a GPU: tensor cores run, differ from strict, and give the same bits run to run and batch to batch."""

import ctypes

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_gpu import needs_gpu, normal
from volta import errors, nn
from volta.numba_cuda.codegen.ptx_tensor_map import map_words
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal
from volta.xla_like.compile import CompileOptions

pytestmark = [pytest.mark.gpu, needs_gpu]
PRECISIONS = ("bf16", "tf32")
BOUND = {"bf16": 2.0**-7, "tf32": 2.0**-9}
"""Largest error, in products of the absolute values: two roundings of operands, with room for sums in float32."""


def product(precision):
    return lambda x, w: vnp.matmul(x, w, precision=precision)


def on_gpu(f, *args):
    with volta.execution_context(level="device"):
        return volta.jit(f)(*volta.device_put(args, "cuda"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tensor_cores_run_and_are_as_exact_as_their_format(precision):
    x, w = normal(300, 500), normal(500, 200)
    found, strict = np.asarray(on_gpu(product(precision), x, w)), np.asarray(x @ vnp.asarray(w))
    assert (found != strict).mean() > 0.5, "the test is blind: level device computed what strict does"
    exact, scale = x.astype("f8") @ w.astype("f8"), np.abs(x).astype("f8") @ np.abs(w).astype("f8")
    assert (np.abs(found - exact) / scale).max() < BOUND[precision]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (300, 520, 200), (37, 259, 51), (1, 1000, 8), (513, 16, 1), (130, 72, 390)]
)
def test_where_every_sum_is_exact_the_bits_are_those_of_strict(precision, dtype, shape):
    m, k, n = shape
    rng = np.random.default_rng(m)
    x, w = (vnp.asarray(rng.integers(-8, 9, s), dtype) for s in ((2, m, k), (2, k, n)))
    f = product(precision)
    for left, right, g in (
        (x, w, f),
        (vnp.swapaxes(x, 1, 2), w, lambda a, b: f(vnp.swapaxes(a, 1, 2), b)),
        (x, vnp.swapaxes(w, 1, 2), lambda a, b: f(a, vnp.swapaxes(b, 1, 2))),
    ):
        with volta.execution_context(level="device"):
            assert_bits_equal(on_gpu(g, left, right), g(left, right))


@pytest.mark.parametrize(("precision", "dtype"), [("tf32", "float32"), ("bf16", "bfloat16"), ("bf16", "float16")])
@pytest.mark.parametrize("shape", [(4096, 768, 1024), (2052, 130, 2056), (3, 1100, 520, 1304)])
def test_an_epilogue_changes_no_bit(precision, dtype, shape):
    *batch, m, k, n = shape
    x, w, c, r = (vnp.asarray(normal(*s), dtype) for s in ((*batch, m, k), (*batch, k, n), (n,), (*batch, m, n)))

    def dense(x, w, c, r):
        return nn.gelu(product(precision)(x, w) + c) * r

    with volta.execution_context(options=CompileOptions(epilogues=False)):
        apart = on_gpu(dense, x, w, c, r)
    for _ in range(3):
        assert_bits_equal(on_gpu(dense, x, w, c, r), apart)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_has_the_bits_that_it_has_in_a_batch(precision, dtype):
    """Other tiles, other ways to load, other instructions: an element's sum goes the same way."""
    f, k = product(precision), 777
    xs, w = vnp.asarray(normal(70, 9, k), dtype), vnp.asarray(normal(k, 520), dtype)
    with volta.execution_context(level="device"):
        xs, w = volta.device_put((xs, w), "cuda")
        batched, whole = volta.vmap(f, (0, None))(xs, w), f(xs.reshape(-1, k), w)
        assert_bits_equal(whole.reshape(batched.shape), batched)
        for i in (0, 13, 69):
            assert_bits_equal(f(xs[i], w), batched[i])
            assert_bits_equal(f(xs[i, 3], w), batched[i, 3])
            assert_bits_equal(f(xs[i, 2:4], w[:, 5:8]), batched[i, 2:4, 5:8])
        copies = f(xs[0], vnp.stack([w, w * 2])[0]), volta.jit(f)(xs[0], w)
        for copy in copies:
            assert_bits_equal(copy, batched[0])


def attended(causal):
    """Attention and its gradients, (B, T, N, H)."""

    def value(*args):
        return vnp.sum(nn.dot_product_attention(*args, is_causal=causal).astype("float32") ** 2)

    return lambda *args: (nn.dot_product_attention(*args, is_causal=causal), *volta.grad(value, (0, 1, 2))(*args))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("head", "causal"), [(64, True), (64, False), (128, True)])
def test_attention_on_tensor_cores_is_exact_but_for_bfloat16_and_the_same_in_any_batch(head, causal, dtype):
    """The host runner's tests have the bound of each element; this is one of the largest. The queries equal the keys,
    so most of a query's weight is on one of them, and a score's gradient is a small difference of large numbers:
    rounding them to bfloat16 changes a gradient by up to 4 % of the largest, also in float64 otherwise."""
    rounded = [vnp.asarray(normal(2, n, 3, head), "bfloat16") for n in (200, 230, 230)]
    drawn = volta.device_put([x.astype(dtype) for x in rounded], "cuda")
    strict = [np.asarray(x, np.float32) for x in volta.jit(attended(causal))(*drawn)]
    with volta.execution_context(level="device"), volta.default_matmul_precision("bfloat16"):
        f = volta.jit(attended(causal))
        found, again, alone = f(*drawn), f(*drawn), f(*(x[1:, :, 2:] for x in drawn))
    assert_bits_equal(again, found)
    for x, one, want in zip(found, alone, strict, strict=True):
        assert_bits_equal(one, x[1:, :, 2:])
        got = np.asarray(x, np.float32)
        assert (got != want).mean() > 0.01, "the test is blind: level device computed what strict does"
        assert np.abs(got - want).max() < 2.0**-4 * np.abs(want).max()


@pytest.mark.parametrize(("item", "kind"), [(2, 1), (4, 2)])  # elements as CUtensorMapDataType counts them
def test_tensor_maps_are_those_that_the_driver_writes(item, kind):
    device = devices.gpu("cuda:0")
    if device.info.capability != (9, 0):
        pytest.skip("only Hopper's tensor maps are made")
    sizes, strides, lines = [4104, 777, 5, 3], [8208 * item, 8208 * 800 * item, 8208 * 800 * 10000 * item], 200
    address, room = 0x7F1234567000, (ctypes.c_uint64 * 32)()
    first = -ctypes.addressof(room) % 128 // 8
    boxes = (ctypes.c_uint32 * 4)(128 // item, lines, 1, 1)
    device.enter()
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(room) + 8 * first), kind, 4, ctypes.c_void_p(address),
        (ctypes.c_uint64 * 4)(*sizes), (ctypes.c_uint64 * 3)(*strides), boxes, (ctypes.c_uint32 * 4)(1, 1, 1, 1),
        0, 3, 0, 0,
    )  # fmt: skip
    assert status == 0
    assert list(room[first : first + 16]) == [address, *map_words(item, sizes, strides, lines)[1:]]


def test_a_training_step_repeats_its_bits():
    def loss(w, x):
        return vnp.mean(nn.log_softmax(nn.gelu(x @ w["a"]) @ w["b"])[:, 0])

    w, x = {"a": normal(96, 300), "b": normal(300, 50)}, normal(200, 96)
    with volta.execution_context(level="device"), volta.default_matmul_precision("bfloat16"):
        step = volta.jit(volta.grad(loss))
        w, x = volta.device_put((w, x), "cuda")
        assert_bits_equal(step(w, x), step(w, x))
        assert_bits_equal(step(w, x), volta.jit(volta.grad(volta.checkpoint(loss)))(w, x))


def test_strict_refuses_on_the_gpu_as_everywhere():
    x = volta.device_put(normal(8, 8), "cuda")
    with pytest.raises(errors.UnsupportedOperationError, match="tensor cores"):
        product("tf32")(x, x)
