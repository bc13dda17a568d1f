"""Passes: what they rewrite, what they must leave alone, and that no bit moves."""

import itertools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.testing.bits import assert_bits_equal
from volta.xla_like.passes import optimize

NUMBERS = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.0], np.float32)


def names(f, *args):
    return [eqn.primitive.name for eqn in optimize(volta.make_jaxpr(f)(*args)).eqns]


def padded(x, low, high, value=0.0):
    return lax.pad(x, vnp.asarray(value, x.dtype), [(0, 0, 0), (low, high, 0)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_paddings_side_by_side_are_a_concatenation(order, dtype):
    def f(*parts):
        terms = [padded(x, 8 * i, 16 - 8 * i) for i, x in enumerate(parts)]
        return terms[order[0]] + terms[order[1]] + terms[order[2]]

    numbers = np.arange(-4, 4) if dtype == "int32" else NUMBERS
    parts = [vnp.asarray((i + 1) * numbers[None], dtype) for i in range(3)]
    found = names(f, *parts)
    assert found[-1] == "concatenate" and "pad" not in found
    assert_bits_equal(volta.jit(f)(*parts), f(*parts))


def test_the_cotangent_of_all_slices_is_a_concatenation():
    def f(x):
        return sum(vnp.sum(vnp.sin(x[:, :, i]) * (i + 2.0)) for i in range(3))

    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)
    assert {"concatenate"} == {"pad", "concatenate"} & set(names(volta.grad(f), x))
    assert_bits_equal(volta.jit(volta.grad(f))(x), volta.grad(f)(x))


@pytest.mark.turns(6)
def test_many_slices_do_not_take_long():
    """The sum is as deep as it has terms."""

    def f(x):
        return sum(vnp.sum(vnp.sin(x[i])) for i in range(1200))

    assert "pad" not in names(volta.grad(f), np.zeros((1200, 2), np.float32))


LEFT_ALONE = {
    "a gap": lambda x: padded(x, 0, 9) + padded(x, 9, 0),
    "they meet": lambda x: padded(x, 0, 7) + padded(x, 7, 0),
    "the same place": lambda x: padded(x, 0, 8) + padded(x, 0, 8),
    "not zeros": lambda x: padded(x, 0, 8, 1.0) + padded(x, 8, 0),
    "minus zeros": lambda x: padded(x, 0, 8, -0.0) + padded(x, 8, 0, -0.0),
    "cut": lambda x: padded(x, -1, 9) + padded(x, 8, 0),
    "between": lambda x: lax.pad(x, vnp.float32(0), [(0, 0, 0), (0, 1, 1)]) + padded(x, 8, 0),
    "other axes": lambda x: (
        lax.pad(x, vnp.float32(0), [(0, 1, 0), (0, 0, 0)]) + padded(vnp.broadcast_to(x, (2, 8))[:, 4:], 4, 0)
    ),
    "something else": lambda x: padded(x, 0, 8) + padded(x, 8, 0)[:, ::-1],
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_other_sums_of_paddings_stay(case):
    x = NUMBERS[None]
    assert "concatenate" not in names(LEFT_ALONE[case], x)
    assert_bits_equal(volta.jit(LEFT_ALONE[case])(x), LEFT_ALONE[case](x))


def test_a_padding_that_is_read_elsewhere_stays():
    def f(x):
        left = padded(x, 0, 8)
        return left + padded(x, 8, 0), left * 2

    assert "pad" in names(f, NUMBERS[None])


def test_programs_that_are_only_inlined_keep_what_passes_would_join() -> None:
    program = volta.make_jaxpr(lambda x: volta.jit(vnp.sin)(x) + volta.jit(vnp.sin)(x))(np.float32(1))
    names = [[e.primitive.name for e in optimize(program, only_inline=only).eqns] for only in (True, False)]
    assert names == [["sin", "sin", "add"], ["sin", "add"]]
