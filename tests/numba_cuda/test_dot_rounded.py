"""Products below strict with weights in blocks, on the host runner: they have the bits of the product with an array."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_cuda_dot_blocks import operands
from volta import errors, nn
from volta.core.block_formats import FORMATS
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels
from volta.xla_like.compile import build_plan

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
UNPACKED = ["Q4_K", "Q5_K"]


def linear(x, w):
    with volta.default_matmul_precision("bf16"):
        return nn.linear(x, w)


def with_array(x, w):
    return vnp.matmul(x, w.dequantize().T, precision="bf16")


def planned(f, *args):
    return build_plan(volta.make_jaxpr(f)(*args), level=DeterminismLevel.DEVICE, scheduler=Schedule())


def run(f, x, w, capability="9.0a", order="shuffled"):
    """A function's result by its CUDA kernels, and their names."""
    plan, program = planned(f, x, w)
    launches = launches_of(plan, capability)
    found = host.run_plan(
        plan, (x, w.packed), program.consts, kernels=KERNELS, launches=launches, order=order, races=False
    )  # fmt: skip
    assert found.violations == []
    return found.outputs[0], [x.source.name for x in launches]


def any_scales(name):
    """Weights (40, 512) with scales and offsets that are infinite or none, subnormal, or zeros of either sign."""
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    packed = rng.integers(0, 256, (40, 2, fmt.nbytes), dtype=np.uint8)
    some = np.array([0x0001, 0x03FF, 0x8001, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000], np.uint16)
    for halves in (fmt.scale, fmt.offset):
        packed[..., halves.at : halves.at + 2] = rng.choice(some, (40, 2, 1)).view(np.uint8)
    return nn.QuantizedArray(packed.reshape(40, -1), name)


@pytest.mark.parametrize("name", UNPACKED)
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_one_kernel_makes_an_array_for_tensor_cores(name, capability):
    for m, n, blocks in ((5, 70, 3), (1, 33, 1), (70, 130, 5)):
        x, w = operands(name, m, n, blocks)
        got, names = run(linear, x, w, capability)
        assert f"volta_unpack_{name}" in names and len(names) == 3
        assert_bits_equal(got, run(with_array, x, w, capability)[0])


@pytest.mark.parametrize("name", UNPACKED)
def test_scales_of_any_bits(name):
    """The smaller numbers that rounded ones are made of lose nothing."""
    x, w = np.eye(512, dtype=np.float32), any_scales(name)
    assert_bits_equal(run(linear, x, w, "8.0")[0], run(with_array, x, w, "8.0")[0])


@pytest.mark.parametrize("name, precision", [("Q6_K", "bf16"), ("Q8_0", "bf16"), ("Q4_K", "tf32")])
def test_what_no_kernel_unpacks_is_the_product_with_numbers(name, precision):
    def other(x, w):
        with volta.default_matmul_precision(precision):
            return nn.linear(x, w)

    x, w = operands(name, 9, 40, 1024 // FORMATS[name].elements)
    got, names = run(other, x, w)
    assert not any("unpack" in x for x in names)
    assert_bits_equal(got, run(lambda x, w: vnp.matmul(x, w.dequantize().T, precision=precision), x, w)[0])


def test_older_gpus_have_no_such_product():
    plan, _ = planned(linear, *operands("Q4_K", 2, 8, 1))
    with pytest.raises(errors.UnsupportedOperationError, match="8.0 or newer"):
        launches_of(plan, "7.5")


def test_rows_are_rounded_where_they_lie_one_after_the_other():
    """Of turned ones too: one kernel, no copy."""
    x, w = operands("Q4_K", 6, 40, 2)
    turned = np.ascontiguousarray(x.reshape(6, 2, 256).transpose(1, 0, 2))
    f = lambda x, w: linear(vnp.transpose(x, (1, 0, 2)).reshape(6, 512), w)  # noqa: E731
    got, names = run(f, turned, w)
    assert len(names) == len(run(linear, x, w)[1])
    assert_bits_equal(got, run(linear, x, w)[0])


def test_strict_has_no_such_product():
    x, w = operands("Q4_K", 2, 8, 1)
    for multiply in (linear, volta.jit(linear)):
        with pytest.raises(errors.UnsupportedOperationError, match="bf16"):
            multiply(x, w)


def test_on_the_cpu_it_is_chains_of_float32():
    x, w = operands("Q4_K", 5, 40, 2)
    with volta.execution_context(level="device"):
        assert_bits_equal(np.asarray(volta.jit(linear)(x, w)), np.asarray(nn.linear(x, w)))
        got = volta.vmap(linear, in_axes=(0, None))(x, w)
        assert_bits_equal(np.asarray(got), np.asarray(nn.linear(x, w)))


def gradient(f, x, w):
    with volta.execution_context(level="device"):
        return volta.grad(lambda x: vnp.sum(f(x, w) ** 2))(x)


def test_gradients_are_those_of_the_numbers():
    x, w = operands("Q4_K", 5, 40, 2)
    assert_bits_equal(np.asarray(gradient(linear, x, w)), np.asarray(gradient(with_array, x, w)))
    plan, _ = planned(lambda x, w: gradient(linear, x, w), x, w)
    assert sum("dot_tc" in x.source.name for x in launches_of(plan, "9.0a")) == 2


def test_level_device_leaves_strict_products_their_kernels():
    """Weights of few rows are unpacked by the product at any level."""
    plan, _ = planned(nn.linear, *operands("Q4_K", 2, 40, 2))
    assert [x.source.name.startswith("volta_dot_unpack") for x in launches_of(plan, "9.0a")] == [True]
