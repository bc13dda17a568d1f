"""The cheaper ways of a GPU's threads to quotients, roots and functions have the bits of the plain ones."""

import hashlib
import json

import numpy as np
import pytest

from tests.scalar_support import Compiled, ulp
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.ops import scalar
from volta.testing import assert_bits_equal, fill

pytestmark = pytest.mark.turns(6)

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


@pytest.mark.parametrize("low", [-2.0, None])
def test_numbers_between_two_stay_and_so_does_what_is_no_number(low):
    f = Compiled(on_thread(lambda b, x: b.between(x, low, 10.0)), ["float32"], "float32", 1)
    x = fill("specials", (150,), "float32", 1)
    assert np.isnan(x).any()
    assert_bits_equal(f(x), np.clip(x, low, 10))


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
    f = Compiled(on_thread(lambda b, x, y: b.short_quotient(x, y, far)), ["float64"] * 2, "float64", 4)
    rng = np.random.default_rng(2)
    x, y = short_numbers(rng, 1 << 18), short_numbers(rng, 1 << 18)
    x[::7] = -x[::7]
    step = 400 if far else 60
    x, y = (np.ldexp(v, rng.integers(-step, step, v.size)) for v in (x, y))
    assert_bits_equal(f(x, y), x / y)


def units_between(x, y):
    return np.abs(x.view(np.int64) - y.view(np.int64)).max()


@pytest.mark.parametrize("far", [False, True])
def test_a_quotient_and_a_root_are_next_to_the_rounded_ones(far):
    rng = np.random.default_rng(3)
    x, y = (np.ldexp(rng.uniform(1, 2, 1 << 18), rng.integers(-40, 40, 1 << 18)) for _ in range(2))
    y = np.ldexp(y, rng.integers(-400, 400, y.size)) if far else y
    assert units_between(x / y, quotient := thread_of_two(lambda b, x, y: b.quotient(x, y, far))(x, y)) <= 1
    assert (quotient == x / y).mean() > 0.6
    assert units_between(1 / y, thread_of_two(lambda b, x, y: b.quotient(1.0, y, far))(x, y)) <= 1
    root = thread_of_two(lambda b, x, y: b.root(x, b.cast(x, "float32")))
    assert units_between(np.sqrt(x), root(x, x)) <= 1
    assert root(np.zeros(1), np.zeros(1))[0] == 0


def thread_of_two(f):
    return Compiled(on_thread(f), ["float64"] * 2, "float64", 4)


def test_a_near_reciprocal_is_within_its_bound_for_every_significand():
    f = Compiled(on_thread(lambda b, x: b.near_reciprocal(x)), ["float32"], "float32", 16)
    significands = np.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)
    for exponent in (-98, 0, 98):
        x = np.ldexp(significands, exponent)
        assert np.abs(f(x).astype(np.float64) * x - 1).max() < 2.0**-19


HALVES = {  # what the high half of a float64 says, and for which numbers that is all
    "split": lambda b, x: b.split(x, 0x3FE5555560000000)[0],
    "power": lambda b, x: b.cast(b.split(x, 0x3FE5555560000000)[1], "float64"),
    "split, short": lambda b, x: b.split(x, 0x3FE6A09E << 32)[0],
    "times_power": lambda b, x: b.times_power(x, b.cast(b.bitcast(x, "int64") & 63, "int32") - 31),
    "times_power, long": lambda b, x: b.times_power(x, (b.bitcast(x, "int64") & 63) - 31),
    "within": lambda b, x: b.within(x * 1000.0, 200.0) * b.select(abs(x) > 0.2, b.const("float64", 0.0), 1.0),
}


@pytest.mark.parametrize("name", HALVES)
def test_what_is_found_by_the_high_half_is_what_the_whole_gives(name):
    rng = np.random.default_rng(4)
    x = np.ldexp(rng.uniform(1, 2, 1 << 16), rng.integers(-140, 127, 1 << 16))
    x = np.concatenate([x, np.array([2 / 3, 0.5**0.5, 0.2, 1, 2], np.float32).astype(np.float64), np.float64([2 / 3])])
    found, plain = (Compiled(f, ["float64"], "float64", 4) for f in (on_thread(HALVES[name]), HALVES[name]))
    assert_bits_equal(found(x), plain(x))


def test_beyond_a_limit_a_number_keeps_its_sign():
    x = np.float64([200.0, 200.1, 1e300, np.inf, -200.1, -1e300, -np.inf])
    for f in (on_thread(lambda b, x: b.within(x, 200.0)), lambda b, x: b.within(x, 200.0)):
        found = Compiled(f, ["float64"], "float64", 1)(x)
        np.testing.assert_allclose(found, np.clip(x, -200, 200), rtol=1e-3)


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_what_some_lanes_need_is_computed_for_those(lanes):
    def f(b, x):
        return b.where_any(x > 2.0, lambda: [b.sqrt(x)], [x])[0]

    x = np.float32([1, 4, 9, -1, *[0.5] * 28, *[25] * 16])
    for g in (f, on_thread(f)):
        assert_bits_equal(Compiled(g, ["float32"], "float32", lanes)(x), np.where(x > 2, np.sqrt(abs(x)), x))


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
