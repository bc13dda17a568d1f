"""Division with a remainder, powers, and steps between floats: at zeros, infinities, ends of range and ties."""

import ml_dtypes
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
NAMES = ("floor_divide", "remainder", "fmod")
EDGES = [0.0, 1.0, 2.5, 7.0, 0.1, 1e-40, 3e38, np.inf]


def both(name):
    f = getattr(vnp, name)
    return f, volta.jit(f), volta.vmap(f)


def assert_bits(got, want):
    """Equal numbers of equal sign, or both NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    if np.issubdtype(want.dtype, np.integer):
        return np.testing.assert_array_equal(got, want)
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (got[~same], want[~same])


def operands(values, dtype):
    with np.errstate(over="ignore"):
        return np.meshgrid(*[np.asarray(values).astype(dtype)] * 2)


@sampled("dtype", FLOATS, quick=("float16", "float32"))
@pytest.mark.parametrize("name", NAMES)
def test_floats_as_numpy_and_the_array_api(name, dtype):
    """Signs of zeros too. The array API allows NumPy's and Python's results where one operand is infinite."""
    x, y = operands([*EDGES, *(-e for e in EDGES), np.nan], dtype)
    with np.errstate(all="ignore"):
        wide = np.float32 if dtype == "bfloat16" else dtype  # NumPy's own bfloat16 rounds in between
        want = getattr(np, name)(x.astype(wide), y.astype(wide)).astype(dtype)
    for f in both(name):
        assert_bits(f(x, y), want)


@sampled("dtype", INTEGERS, quick=("int8", "uint32"))
@pytest.mark.parametrize("name", NAMES)
def test_integers_and_by_zero(name, dtype):
    limits = np.iinfo(dtype)
    values = [0, 1, 2, 5, limits.max, limits.max - 1, limits.min, limits.min + 1] + [-1, -5] * (limits.min < 0)
    x, y = operands(np.array(values, dtype), dtype)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x, y)
    for f in both(name):
        assert_bits(f(x, y), want)


def test_python_numbers():
    assert float(vnp.asarray(1.0) // 0.0) == np.inf and float(vnp.asarray(-1.0) // 0.0) == -np.inf
    assert vnp.divmod(1.0, 0.0)[0] == np.inf and np.isnan(vnp.divmod(1.0, 0.0)[1])
    assert int(vnp.asarray(5) % 0) == 0 and int(vnp.asarray(5) // 0) == 0
    assert np.signbit(vnp.asarray(-0.0) // 1.0) and np.signbit(vnp.asarray(0.0) % -1.0)
    assert (vnp.asarray(5) // 2).weak_type == vnp.asarray(5).weak_type


def test_division_of_lax_by_zero_is_that_of_its_definition():
    x = np.int32([5, -5, 0])
    assert lax.div(x, np.int32(0)).tolist() == [-1, -1, -1] and lax.rem(x, np.int32(0)).tolist() == [5, -5, 0]


@pytest.mark.parametrize("x, y, by_x, by_y", [(4.0, 2.0, 1.0, -2.0), (-5.0, 2.0, 1.0, 3.0), (0.0, -3.0, 1.0, 0.0)])
def test_derivatives(x, y, by_x, by_y):
    """Of the remainder 1 and -floor(x / y), also where it is 0; of the quotient 0, also of a zero."""
    assert volta.grad(vnp.remainder)(x, y) == by_x and volta.grad(vnp.remainder, 1)(x, y) == by_y
    assert volta.grad(vnp.floor_divide)(x, y) == 0.0 and volta.grad(vnp.floor_divide, 1)(x, y) == 0.0


@sampled("dtype", INTEGERS, quick=("int8", "int64"))
def test_integer_powers_wrap_around_at_any_exponent(dtype):
    limits, width = np.iinfo(dtype), 8 * np.dtype(dtype).itemsize
    base = np.array([0, 1, 2, 3, 6, 7, limits.max, limits.max - 1, limits.min, limits.min + 1], dtype)
    exponent = np.array([0, 1, 2, 3, 62, 63, 64, 65, 66, 100, 127, limits.max, limits.max - 1], dtype)[:, None]
    exact = [[pow(int(x), int(e), 2**width) for x in base] for (e,) in exponent]
    want = np.array(exact, np.uint64).astype(f"uint{width}").view(dtype)
    for power in (vnp.power, volta.jit(vnp.power)):
        np.testing.assert_array_equal(power(base, exponent), want)


@sampled("dtype", FLOATS, quick=("float16",))
def test_next_floats(dtype):
    """Every half float, and of the wider ones those where something changes, towards everything."""
    kind = np.dtype(dtype)
    if kind.itemsize == 2:
        x = np.arange(2**16, dtype=np.uint16).view(kind)
    else:
        info = np.finfo(kind)
        x = np.array([0.0, info.smallest_subnormal, info.tiny, 1.0, 2.0, 3.0, info.max, np.inf, np.nan], kind)
        x = np.concatenate([x, -x])
    for towards in (0.0, -0.0, 1.5, np.inf, -np.inf, np.nan):
        y = np.full_like(x, towards)
        with np.errstate(all="ignore"):
            want = np.where(x == y, y, np.nextafter(x, y))  # of equal ones NumPy gives now x, now y
        assert_bits(vnp.nextafter(x, y), want)
    with np.errstate(all="ignore"):
        assert_bits(vnp.spacing(x), np.copysign(np.nextafter(np.abs(x), np.full_like(x, np.inf)) - np.abs(x), x))


def test_next_floats_in_one_program_with_others():
    x = np.asarray([1.0, 2.0, 4.0], ml_dtypes.bfloat16)
    y = volta.jit(lambda x: vnp.nextafter(x * 1, 0 * x) - 1)(x)
    assert_bits(y, np.asarray([-0.00390625, 0.9921875, 2.984375]).astype(ml_dtypes.bfloat16))
