"""The cheaper ways of a GPU's threads to a quotient have the bits of a division."""

import numpy as np
import pytest

from tests.scalar_support import Compiled
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.testing import assert_bits_equal, fill


def on_thread(f):
    """A function of a thread's builder, compiled for this machine."""
    return lambda b, *values: f(ThreadBuilder(b.irbuilder), *values)


def test_a_reciprocal_is_the_rounded_one_for_every_significand_but_that_of_ones():
    f = Compiled(on_thread(lambda b, x: b.reciprocal(x)), ["float32"], "float32", 1)
    significands = np.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)
    for exponent in (-98, 0, 98):
        x = np.ldexp(significands, exponent)
        found, quotient = f(x), np.float32(1) / x
        assert_bits_equal(found[:-1], quotient[:-1])
        assert found[-1] == np.nextafter(quotient[-1], np.float32(0))


def test_at_most_takes_the_limit_for_what_is_no_number():
    f = Compiled(on_thread(lambda b, x: b.at_most(x, 10.0)), ["float32"], "float32", 1)
    x = fill("specials", (150,), "float32", 1)
    assert np.isnan(x).any()
    assert_bits_equal(f(x), np.where(x < 10, x, np.float32(10)))


def pairs(kind):
    rng = np.random.default_rng(1)
    n = 1 << 18
    if kind == "any bits":
        return [rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32) for _ in range(2)]
    if kind == "adversarial":
        x = np.concatenate([fill(k, (150,), "float32", 1) for k in ("specials", "subnormal", "ladder", "normal")])
        return np.repeat(x, 600), np.tile(x, 600)
    if kind == "subnormal and halfway":  # few bits, so that a quotient can lie exactly between two floats
        half, y = rng.integers(0, 1 << 11, n) + 0.5, rng.integers(1, 1 << 12, n).astype(np.float32)
        return (half * y * 2.0**-149).astype(np.float32), y
    y, middle = (rng.integers(1 << k, 2 << k, n) for k in (23, 24))  # next to halfway
    product = y * middle
    shift = np.where(product >> 48, 25, 24)
    return ((product >> shift) + rng.integers(-1, 2, n)).astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize("kind", ["any bits", "adversarial", "subnormal and halfway", "next to halfway"])
def test_a_product_with_a_reciprocal_is_the_rounded_quotient(kind):
    f = Compiled(on_thread(lambda b, x, y: b.divide_by(x, b.reciprocal_above(y))), ["float32"] * 2, "float32", 1)
    x, y = pairs(kind)
    with np.errstate(all="ignore"):
        assert_bits_equal(f(x, y), x / y)
