"""The cheaper ways of a GPU's threads to quotients, roots and functions have the bits of the plain ones."""

import hashlib
import json

import numpy as np
import pytest

from tests.scalar_support import Compiled, ulp
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.ops import scalar
from volta.testing import assert_bits_equal, fill

RECORDS = json.loads((ulp.DIGESTS / "float32.json").read_text())["functions"]


def on_thread(f):
    """A function of a thread's builder, compiled for this machine."""

    def emit(b, *values):
        own = ThreadBuilder(b.irbuilder, b.lanes)
        return f(own, *(own.value(x.ir, x.dtype) for x in values))

    return emit


def digest(name, stride, lanes):
    function = getattr(scalar, name)
    f = Compiled(on_thread(lambda b, x: ulp.canonical(b, function(b, x))), ["float32"], "float32", lanes)
    result = hashlib.sha256()
    for x in ulp.inputs(stride):
        result.update(f(x).tobytes())
    return result.hexdigest()


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_functions_of_a_thread_have_the_bits_on_record(name):
    assert digest(name, ulp.QUICK_STRIDE, 4) == RECORDS[name]["sha256_every_65537"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_functions_of_a_thread_have_the_bits_on_record_for_all_inputs(name):
    assert digest(name, 1, 16) == RECORDS[name]["sha256"]


def test_numbers_between_two_stay_and_so_does_what_is_no_number():
    f = Compiled(on_thread(lambda b, x: b.between(x, -2.0, 10.0)), ["float32"], "float32", 1)
    x = fill("specials", (150,), "float32", 1)
    assert np.isnan(x).any()
    assert_bits_equal(f(x), np.clip(x, -2, 10))


def test_an_inverse_root_is_rounded_for_every_significand_as_the_plain_one_is():
    found, plain = (Compiled(f, ["float32"], "float32", 16) for f in (on_thread(scalar.rsqrt), scalar.rsqrt))
    significands = np.arange(0x3F800000, 0x40800000, dtype=np.uint32).view(np.float32)
    assert_bits_equal(found(significands), plain(significands))
    x = np.concatenate([fill(kind, (150,), "float32", 1) for kind in ("specials", "subnormal", "ladder", "normal")])
    assert_bits_equal(found(x), plain(x))


def short_numbers(rng, n, bits=27):
    return rng.integers(1 << (bits - 1), 1 << bits, n).astype(np.float64)


@pytest.mark.parametrize("far", [False, True])
def test_a_quotient_of_short_numbers_is_the_rounded_one(far):
    f = Compiled(on_thread(lambda b, x, y: b.quotient(x, y, far)), ["float64"] * 2, "float64", 4)
    rng = np.random.default_rng(2)
    x, y = short_numbers(rng, 1 << 18), short_numbers(rng, 1 << 18)
    x[::7], y[::5] = -x[::7], -y[::5]
    step = 400 if far else 60
    x, y = (np.ldexp(v, rng.integers(-step, step, v.size)) for v in (x, y))
    assert_bits_equal(f(x, y), x / y)


def test_an_inverse_is_near_it_and_a_root_is_rounded():
    y = np.ldexp(short_numbers(np.random.default_rng(3), 1 << 18), -20)
    inverse = Compiled(on_thread(lambda b, x: b.inverse(x)), ["float64"], "float64", 4)(y)
    assert np.abs(inverse * y - 1).max() < 2.0**-46
    one = Compiled(on_thread(lambda b, x: b.quotient(1.0, x)), ["float64"], "float64", 4)(y)
    assert_bits_equal(one, 1 / y)
    root = Compiled(on_thread(lambda b, x: b.root(x)), ["float64"], "float64", 4)
    assert_bits_equal(root(y), np.sqrt(y))
    assert root(np.zeros(1))[0] == 0


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
