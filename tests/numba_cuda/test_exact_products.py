"""Products of precision "exact", and of int8, on a GPU: tensor cores have them at every level, since integers add
exactly. No GPU is needed."""

import re

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.offline import plan_on_cuda
from volta.testing import fill
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
INSTRUCTION = {
    "8.0": r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8\.s8\.s32",
    "9.0": r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8\.s8\.s32",
    "9.0a": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.s32\.s8\.s8",
}


def exact(a, b):
    return vnp.matmul(a, b, precision="exact")


def integers(a, b):
    """Rows times rows, so that both operands lie along k."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type="int32")


def planned(f, *args):
    plan, consts = plan_on_cuda(volta.make_jaxpr(f)(*args))
    return plan, [np.asarray(c) for c in consts]


def check(f, *args, capability):
    """Assert the CPU's bits. Races that barriers of copies order seem some."""
    plan, consts = planned(f, *args)
    races = capability != "9.0a"
    found = host.run_plan(plan, args, consts, order="shuffled", kernels=KERNELS, capability=capability, races=races)
    assert found.violations == []
    assert_bits_equal(found.outputs[0], f(*args))


@sampled("capability", INSTRUCTION, quick=("9.0a",))
def test_kernels_compile_to_the_gpus_own_instruction(capability):
    plan, _ = planned(integers, *[volta.ShapeDtypeStruct((300, 208), np.int8)] * 2)
    (found,) = launches_of(plan, capability)
    text = ptx.compile_ptx([found.source], capability)
    assert re.search(INSTRUCTION[capability], text) and ptx.violations(text) == []


@sampled("capability", ("7.0", *INSTRUCTION), quick=("8.0", "9.0a"))
def test_int8_has_the_cpus_bits_and_wraps_around(capability):
    a, b = (np.random.default_rng(i).integers(-128, 128, (70, 272)).astype(np.int8) for i in range(2))
    check(integers, a, b, capability=capability)


@sampled("capability", ("7.0", *INSTRUCTION), quick=("7.0", "9.0a"))
@sampled("shape", [(40, 70, 50), (9, 300, 8), (5, 63, 9), (1, 100, 90)], quick=[(40, 70, 50)])
def test_exact_products_have_the_cpus_bits(capability, shape):
    m, k, n = shape
    check(exact, fill("ladder", (m, k), "float32"), fill("normal", (k, n), "float32"), capability=capability)


@sampled("capability", ("7.0", *INSTRUCTION), quick=("8.0",))
def test_float64_has_the_cpus_bits(capability):
    a, b = fill("ladder", (20, 70), "float64"), fill("normal", (70, 24), "float64")
    check(exact, a, b, capability=capability)


@sampled("capability", INSTRUCTION, quick=("9.0",))
def test_batches_have_the_cpus_bits(capability):
    a, b = fill("ladder", (2, 3, 20, 64), "float32"), fill("normal", (3, 64, 24), "float32")
    check(exact, a, b, capability=capability)


@pytest.mark.parametrize(
    ("f", "left", "right", "tensor"),
    [
        (integers, (64, 64), (64, 64), True),
        (integers, (64, 60), (64, 60), False),  # rows do not begin at multiples of 16 bytes
        (integers, (4, 64), (64, 64), False),  # a few rows
        (lambda a, b: lax.dot(a, b, preferred_element_type="int32"), (64, 64), (64, 64), False),
        (lambda a, b: lax.dot(a, b.T), (64, 64), (64, 64), False),  # sums in int8 are other sums
    ],
)
def test_which_products_of_int8_tensor_cores_have(f, left, right, tensor):
    plan, _ = planned(f, *(volta.ShapeDtypeStruct(s, np.int8) for s in (left, right)))
    names = [x.source.name for x in launches_of(plan, "9.0a")]
    assert any("dot_tc_int8" in name for name in names) == tensor
    assert not any("dot_tc" in x.source.name for x in launches_of(plan, "7.5"))


def test_what_joins_the_sums_runs_with_the_shortest_product():
    plan, _ = planned(exact, *[volta.ShapeDtypeStruct((2048, 2048), np.float32)] * 2)
    *before, last = launches_of(plan, "9.0a")
    assert [x.source.name.startswith("dot_tc_int8") for x in before] == [False] * 4 + [True] * 3
    assert last.source.name.startswith("dot_tc_int8") and len(last.source.text) > len(before[-1].source.text)
