"""Law 6 without a GPU: CUDA kernels of random programs, run on the host, have the CPU's bits and keep to their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.test_law_programs import few, kinds, operands
from volta import value_and_grad
from volta.testing.host_grid import HostKernels, check_on_host
from volta.testing.strategies import programs

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
@given(programs(max_steps=6, smooth=True), kinds)
@few
def test_kernels_of_gradients_have_the_cpus_bits(p, kind) -> None:
    check_on_host(value_and_grad(p.loss), *operands(p, kind), orders=("shuffled",), kernels=KERNELS)
