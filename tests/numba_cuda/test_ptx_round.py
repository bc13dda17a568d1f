"""Rounding to bfloat16 on a GPU: an instruction where there is one, and the CPU's bits either way."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels
from volta.xla_like.compile import build_plan

KERNELS = HostKernels()


def values():
    """Every exponent, ties, numbers at the ends of the range, subnormals, infinities and NaN, as bfloat16."""
    x = np.random.default_rng(0).integers(0, 1 << 32, 2000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ends = np.float32([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, 1e-40, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875])
    with np.errstate(all="ignore"):
        return vnp.asarray(np.concatenate([x, ends]), "bfloat16")


PROGRAMS = {
    "elementwise": lambda x: (x * x + x, x * 1.7, x - 0.3, vnp.where(x > 0, x, 2 * x) / 3),
    "softmax": lambda x: nn.softmax(vnp.where(vnp.abs(x) < 9, x, 0)[:2000].reshape(4, 500), -1),
    "column sums": lambda x: vnp.sum(vnp.where(vnp.abs(x) < 9, x, 0)[:2000].reshape(500, 4) * 0.1, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arithmetic_in_bfloat16_has_the_cpus_bits(name):
    f, x = PROGRAMS[name], values()
    plan, program = build_plan(volta.make_jaxpr(f)(x))
    found = host.run_plan(plan, [np.asarray(x)], program.consts, kernels=KERNELS)
    assert found.violations == []
    for got, want in zip(found.outputs, volta.tree.leaves(volta.jit(f)(x)), strict=True):
        assert_bits_equal(got, want)


@pytest.mark.parametrize(("capability", "there"), [("7.0", False), ("7.5", False), ("8.0", True), ("9.0a", True)])
def test_the_instruction_is_used_where_it_is_there(capability, there):
    plan = build_plan(volta.make_jaxpr(PROGRAMS["elementwise"])(values()))[0]
    text = ptx.compile_ptx([x.source for x in launches_of(plan, capability)], capability)
    assert ("cvt.rn.bf16x2.f32" in text) == there
    assert ptx.violations(text) == []
