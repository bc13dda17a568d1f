"""Law 6 on random programs: a GPU computes the CPU's bits, forward and backward, and the other laws hold on it too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
from tests.laws.test_law_programs import VARIANTS, few, kinds, operands
from volta.testing import assert_bits_equal
from volta.testing.strategies import programs

pytestmark = pytest.mark.gpu


def on_gpu(xs):
    return volta.device_put(xs, "cuda")


@given(programs(), kinds, st.integers(0, 99))
@few
def test_a_gpu_computes_the_cpus_bits(p, kind, seed) -> None:
    xs = operands(p, kind, seed)
    want = p(*xs)
    given_xs = on_gpu(xs)
    assert_bits_equal(volta.jit(p)(*given_xs), want, "compiled")
    with volta.default_device("cuda"):
        assert_bits_equal(p(*given_xs), want, "eager")
    for name in ("plain", "without fusion"):
        with volta.execution_context(options=VARIANTS[name]):
            assert_bits_equal(volta.jit(lambda *a: p(*a))(*given_xs), want, name)


@given(programs(max_steps=6, smooth=True), kinds)
@few
def test_gradients_on_a_gpu_have_the_cpus_bits(p, kind) -> None:
    xs = operands(p, kind)
    gradient = volta.value_and_grad(p.loss)
    want = volta.jit(gradient)(*xs)
    assert_bits_equal(volta.jit(gradient)(*on_gpu(xs)), want, "jit")
    assert_bits_equal(volta.jit(volta.value_and_grad(volta.checkpoint(p.loss)))(*on_gpu(xs)), want, "checkpoint")


@given(programs(max_steps=6), kinds)
@few
def test_batching_on_a_gpu_changes_no_bit(p, kind) -> None:
    xs = operands(p, kind, batch=(3,))
    alone = [p(*(x[i] for x in xs)) for i in range(3)]
    want = tuple(np.stack([np.asarray(one[k]) for one in alone]) for k in range(len(p.outputs)))
    assert_bits_equal(volta.jit(volta.vmap(p))(*on_gpu(xs)), want)


@given(programs(), kinds)
@few
def test_donating_on_a_gpu_changes_no_bit(p, kind) -> None:
    xs = operands(p, kind)
    want = p(*xs)
    given_away = on_gpu(xs)
    assert_bits_equal(volta.jit(lambda *a: p(*a), donate_argnums=(0, 1, 2))(*given_away), want)
    assert all(x.is_deleted() for x in given_away)
