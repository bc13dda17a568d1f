"""Products with weights in blocks on the host runner: CUDA's kernel has the CPU's bits, in every format."""

import numpy as np
import pytest

import volta
from tests.block_weights import random_blocks
from volta import nn
from volta.core.block_formats import FORMATS
from volta.nn import quantized
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import kernel_class

KERNELS = HostKernels()
CAPABILITIES = ["9.0", "9.0a"]  # the second has another kernel for formats that it can copy


def operands(name, m, n, blocks):
    x = np.random.default_rng(m).standard_normal((m, blocks * FORMATS[name].elements)).astype(np.float32)
    return x, nn.QuantizedArray(random_blocks(name, n, blocks), name)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(1)
def test_every_format_has_the_cpus_bits(name, capability):
    for m, n, blocks in ((1, 70, 3), (3, 33, 1), (8, 5, 2)):
        check_on_host(
            nn.linear, *operands(name, m, n, blocks), orders=("shuffled",), kernels=KERNELS, capability=capability
        )


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(1)
def test_scales_of_any_bits(name, capability):
    """Infinite scales, and none; subnormal ones; integers of every size: where the numbers are put together in another
    order than the definition's, nothing is lost."""
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    packed = rng.integers(0, 256, (40, 2, fmt.nbytes), dtype=np.uint8)
    for halves in (fmt.scale, fmt.offset):
        if halves is not None:
            some = np.array([0x0001, 0x03FF, 0x8001, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000], np.uint16)
            finite, which = rng.integers(0, 1 << 14, (40, 2, 1)), rng.random((40, 2, 1)) < 0.5
            bits = np.where(which, rng.choice(some, (40, 2, 1)), finite)
            packed[..., halves.at : halves.at + 2] = bits.astype(np.uint16).view(np.uint8)
    w = nn.QuantizedArray(packed.reshape(40, -1), name)
    for x in (np.eye(3, w.shape[1], dtype=np.float32), -np.eye(1, w.shape[1], 5, dtype=np.float32)):
        with np.errstate(invalid="ignore"):
            assert_bits_equal(np.asarray(nn.linear(x, w)), np.asarray(volta.numpy.matmul(x, w.dequantize().T)))
        check_on_host(nn.linear, x, w, orders=("shuffled",), kernels=KERNELS, capability=capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.few(1)
def test_rows_of_any_size(name, capability):
    """Rows that cannot be made larger, and such that are subnormal, infinite or no number."""
    x, w = operands(name, 4, 40, 512 // FORMATS[name].elements)
    x *= np.float32(2.0) ** np.array([[0], [90], [-140], [60]], np.float32)
    x[3, 300] = np.float32(2.0) ** 79
    x[2, 7::64] = 0
    check_on_host(nn.linear, x, w, orders=("shuffled",), kernels=KERNELS, capability=capability)
    x[0, 300], x[3, 9] = np.inf, np.nan
    check_on_host(nn.linear, x[[0, 3]], w, orders=("shuffled",), kernels=KERNELS, capability=capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["7.0", "7.5", "8.6", "9.0"])
def test_every_gpu_has_room_for_it(capability):
    for name in ("Q8_0", "Q6_K"):
        check_on_host(nn.linear, *operands(name, 2, 40, 9), orders=("shuffled",), capability=capability)


@pytest.mark.slow
def test_long_sums():
    check_on_host(nn.linear, *operands("Q4_K", 2, 9, 37), orders=("shuffled",), kernels=KERNELS)


def test_few_rows_are_unpacked_in_the_product_and_many_before_it(monkeypatch):
    monkeypatch.setattr(quantized, "_AT_ONCE", 1 << 18)
    for rows, kernels in ((1, ["dot"]), (8, ["dot"]), (9, None)):
        x, w = operands("Q4_K", rows, 600, 2)
        plan, _ = build_plan(volta.make_jaxpr(nn.linear)(x, w), scheduler=Schedule())
        names = [kernel_class(call.kernel) for call in plan.calls]
        assert (names == kernels) if kernels else "while" in names
