"""Parts of concatenations are computed in their place: fewer calls and less memory, and the same bits."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.testing import assert_bits_equal
from volta.xla_like.compile import CompileOptions

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


def plan_of(f, *args, **options):
    with volta.execution_context(options=CompileOptions(**options)):
        return volta.jit(f).lower(*args).compile().plan


def both(x):
    y = vnp.sin(x)
    return [y + 1, y * 2]


CASES = {
    "one after the other": (lambda x: vnp.concatenate(both(x)), 1),
    "side by side": (lambda x: vnp.concatenate(both(x), 1), 1),
    "stacked": (lambda x: vnp.stack(both(x), 2), 1),
    "a part of a part": (lambda x: vnp.concatenate([vnp.stack(both(x), 2), vnp.ones((4, 6, 1), "float32")], 2), 2),
    "interleaved": (lambda x: vnp.stack([vnp.concatenate(both(x)), vnp.concatenate(both(-x))], 2), 1),
    "reshaped before": (lambda x: vnp.concatenate([y.reshape(4, 2, 3) for y in both(x)], 1), 1),
    "in other pieces": (lambda x: vnp.concatenate([y.reshape(2, 12) for y in both(x)], 1), 3),
    "copied as well": (lambda x: vnp.concatenate([*both(x), x]), 2),
    "read by others": (lambda x: (lambda y: (vnp.concatenate([y[0], y[1]]), vnp.cumsum(y[0])))(both(x)), 3),
    "a result itself": (lambda x: (lambda y: (vnp.concatenate(y), y[0]))(both(x)), 2),
    "twice": (lambda x: (lambda y: vnp.concatenate([y, y]))(vnp.sin(x)), 3),
    "not in order": (lambda x: vnp.concatenate([y.T for y in both(x)]), 3),
    "sums": (lambda x: vnp.stack([vnp.sum(x, 1), vnp.max(x, 1)]), 4),
    "nothing": (lambda x: vnp.concatenate([vnp.sin(x[:0]), vnp.cos(x)]), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_computed_for_a_concatenation_is_written_where_it_belongs(case):
    f, calls = CASES[case]
    assert len(plan_of(f, X).calls) == calls


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_copies(case):
    f, _ = CASES[case]
    with volta.execution_context(options=CompileOptions(placing=False)):
        apart = volta.jit(f)(X)
    assert_bits_equal(volta.jit(f)(X), apart)


def test_parts_in_their_place_take_no_memory():
    def f(x):
        return vnp.cumsum(vnp.concatenate(both(x)))

    placed, copied = (plan_of(f, np.ones(4096, np.float32), placing=p) for p in (True, False))
    assert placed.arena_bytes == 2 * 4 * 4096
    assert copied.arena_bytes == 4 * 4 * 4096


def test_an_argument_that_is_given_up_is_read_before_its_memory_is_written():
    def f(x, y):
        return vnp.concatenate([vnp.sin(x), vnp.cos(y[3:] + x[:3])]), vnp.sum(y)

    f = volta.jit(f, donate_argnums=1)
    x, y = np.float32([1, 2, 3]), np.float32([1, 2, 3, 4, 5, 6])
    with volta.execution_context(options=CompileOptions(placing=False)):
        want = volta.jit(f.__wrapped__)(x, y)
    assert_bits_equal(f(x, vnp.asarray(y)), want)


def test_what_a_loop_carries_is_put_together_in_place():
    def step(i, x):
        return vnp.concatenate([x[3:] * 2, x[:3] + x[3:]])

    def f(x):
        return lax.fori_loop(0, 5, step, x)

    with volta.execution_context(options=CompileOptions(placing=False)):
        want = volta.jit(f)(X.ravel()[:6])
    assert_bits_equal(volta.jit(f)(X.ravel()[:6]), want)
