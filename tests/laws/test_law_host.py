"""Law 6 without a GPU: CUDA kernels of random programs, run on the host, have the CPU's bits and keep to their own."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.laws.test_law_programs import few, kinds, operands
from volta import jit, value_and_grad
from volta.errors import NotDifferentiableError
from volta.numba_cuda.host.host import run_plan
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import bits
from volta.testing.host_grid import HostKernels, check_on_host
from volta.testing.strategies import programs
from volta.xla_like import offload
from volta.xla_like.compile import build_plan

KERNELS = HostKernels()


@given(programs(max_steps=4), kinds, st.integers(0, 99))
@settings(few, max_examples=5)
def test_kernels_of_random_programs_have_the_cpus_bits(p, kind, seed) -> None:
    check_on_host(p, *operands(p, kind, seed), orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
@given(programs(), kinds, st.integers(0, 99))
@few
def test_kernels_of_larger_programs_have_the_cpus_bits_in_any_order_of_threads(p, kind, seed) -> None:
    check_on_host(p, *operands(p, kind, seed), kernels=KERNELS)


@pytest.mark.slow
@given(programs(max_steps=25, smooth=True), kinds, st.sampled_from([0.9, 0.75]))
@settings(few, max_examples=20)
def test_values_that_wait_in_the_hosts_memory_change_no_bit(p, kind, share) -> None:
    """Whatever may be sent there is, as though the copies cost nothing."""
    xs = operands(p, kind)
    try:
        program = jit(value_and_grad(p.loss)).trace(*xs).jaxpr
    except NotDifferentiableError:
        return
    free, plain = build_plan(program, scheduler=Schedule())
    budget = int(free.arena_bytes * share)
    with mock.patch.multiple(offload, LEAST=0, BESIDE=1e-9, HIDDEN=0):
        plan, moving = build_plan(program, scheduler=Schedule(), excess=lambda x: x.arena_bytes - budget)
    event(f"moved: {min(plan.moved[0], 3)}")
    found = []
    for each, made in ((free, plain), (plan, moving)) if plan.moved[0] else ():
        report = run_plan(each, xs, [np.asarray(c) for c in made.consts], kernels=KERNELS)
        assert not report.violations
        found.append(bits(report.outputs))
    assert found[:1] == found[1:]


@pytest.mark.slow
@given(programs(max_steps=6, smooth=True), kinds)
@few
def test_kernels_of_gradients_have_the_cpus_bits(p, kind) -> None:
    check_on_host(value_and_grad(p.loss), *operands(p, kind), orders=("shuffled",), kernels=KERNELS)
