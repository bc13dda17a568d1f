"""Nothing reads which NaN it is: eagerly, compiled, by CUDA's kernels and in files there is one NaN."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta import io, lax
from volta.core import contract, dtypes
from volta.testing.host_grid import HostKernels, check_on_host

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
FLOATS = sorted(contract.NAN_BITS)


def unsigned(dtype: str) -> np.dtype:
    return np.dtype(f"u{dtypes.canonicalize(dtype).itemsize}")


def of_payloads(dtype: str) -> np.ndarray:
    """NaNs of both signs, quiet and signalling, of many payloads; and the numbers next to them."""
    kind, infinity = unsigned(dtype), contract.INFINITY_BITS[dtype]
    mantissa = (contract.NAN_BITS[dtype] ^ infinity) * 2 - 1
    sizes = [infinity + p for p in {1, 2, mantissa // 2, mantissa // 2 + 1, mantissa // 2 + 2, mantissa}]
    sizes += [infinity, infinity - 1, 0, 1]
    raw = np.array(sizes + [s | 1 << (8 * kind.itemsize - 1) for s in sizes], kind)
    return raw.view(dtypes.canonicalize(dtype))


def one_nan(x: np.ndarray) -> np.ndarray:
    bits = x.view(unsigned(x.dtype.name))
    size = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    return np.where(size > contract.INFINITY_BITS[x.dtype.name], bits.dtype.type(contract.NAN_BITS[x.dtype.name]), bits)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_nan_is_read_as_the_one_nan(dtype) -> None:
    x = of_payloads(dtype)
    f = lambda x: (  # noqa: E731
        lax.bitcast_convert_type(x, unsigned(dtype)), vnp.signbit(x), vnp.copysign(vnp.ones_like(x), x),
    )  # fmt: skip
    for g in (f, volta.jit(f)):
        bits, negative, sign = map(np.asarray, g(x))
        np.testing.assert_array_equal(bits, one_nan(x))
        np.testing.assert_array_equal(negative, one_nan(x) >> (8 * x.dtype.itemsize - 1) == 1)
        np.testing.assert_array_equal(sign.astype(np.float64), np.where(negative, -1.0, 1.0))
    check_on_host(f, x, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: vnp.maximum(x, x[::-1]),
        lambda x: (x - x) * x[::-1],
        lambda x: vnp.where(x > 0, -x, abs(x)),
        lambda x: lax.sqrt(-abs(x)) + x,
    ],
    ids=["maximum", "arithmetic", "moves", "sqrt"],
)
def test_what_made_a_nan_does_not_show_in_its_bits(dtype, make) -> None:
    x = vnp.asarray(of_payloads(dtype))  # so that all of it is computed by Volta
    f = lambda x: lax.bitcast_convert_type(make(x), unsigned(dtype))  # noqa: E731
    eager = np.asarray(f(x))
    np.testing.assert_array_equal(eager, one_nan(np.asarray(make(x))))
    np.testing.assert_array_equal(eager, np.asarray(volta.jit(f)(x)))
    check_on_host(f, x, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_folded_by_a_compiler_has_the_bits_of_one_computed(dtype) -> None:
    def f():
        x = vnp.full((2,), math.inf, dtype)
        return vnp.signbit(x - x), lax.bitcast_convert_type(x - x, unsigned(dtype))

    for g in (f, volta.jit(f)):
        negative, bits = map(np.asarray, g())
        assert not negative.any()
        assert (bits == contract.NAN_BITS[dtype]).all()
    check_on_host(f, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.parametrize("old, new", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_the_halves_read_as_each_other(old, new) -> None:
    x = of_payloads(old)
    f = lambda x: lax.bitcast_convert_type(x, new)  # noqa: E731
    expected = one_nan(x).view(dtypes.canonicalize(new))
    for g in (f, volta.jit(f)):
        np.testing.assert_array_equal(np.asarray(g(x)).astype(np.float64), expected.astype(np.float64))


@given(
    st.lists(
        st.integers(0, 2**32 - 1) | st.integers(0x7F800001, 0x7FFFFFFF) | st.integers(2**32 - 2**23 + 1, 2**32 - 1)
    )
)
def test_any_bits(words) -> None:
    x = np.array(words, np.uint32).view(np.float32)
    np.testing.assert_array_equal(np.asarray(lax.bitcast_convert_type(x, np.uint32)), one_nan(x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_states_that_differ_in_nans_alone_are_one_file(dtype, tmp_path) -> None:
    x = of_payloads(dtype).reshape(2, -1)
    files = []
    for number, values in enumerate((x, one_nan(x).view(x.dtype), np.asfortranarray(x))):
        io.save(tmp_path / str(number), {"x": values, "scalar": values[0, 0], "step": math.nan})
        files.append((tmp_path / str(number)).read_bytes())
    assert files[0] == files[1] == files[2]
    np.testing.assert_array_equal(np.asarray(io.load(tmp_path / "0")["x"]).view(unsigned(dtype)), one_nan(x))
