"""Constants that are given to kernels: another constant needs no other code, and no bit depends on which are given."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.numba_cpu import unit
from volta.runtime import eager
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal
from volta.testing.host_grid import check_on_host
from volta.xla_like import constants
from volta.xla_like.kernels import ConstValue, GivenValue, bits_of, number_of

pytestmark = pytest.mark.turns(6)

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.0, 0.5, 1024.0, 2.0**-14, np.inf, -np.inf, np.nan])
def test_what_makes_faster_code_stays_in_the_code(dtype, value):
    instr, bits = constants.constant_of(value, volta.numpy.dtype(dtype), "mul")
    assert isinstance(instr, ConstValue) and bits is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [0.1, -3.0, 1e-3, 1.7e-7])
def test_other_floats_are_given(dtype, value):
    instr, bits = constants.constant_of(value, volta.numpy.dtype(dtype), "mul")
    assert type(instr) is GivenValue
    assert number_of(instr.dtype, bits) == np.asarray(value).astype(instr.dtype).item()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_given_but_to_divisions(dtype):
    kind = np.dtype(dtype)
    assert type(constants.constant_of(100, kind, "add")[0]) is GivenValue
    for value, reader in ((100, "div"), (100, "rem"), (100, "shift_left"), (64, "add"), (0, "add"), (1, "mul")):
        assert type(constants.constant_of(value, kind, reader)[0]) is ConstValue
    most = np.iinfo(kind).max
    assert number_of(kind, bits_of(np.asarray(most, kind).tobytes())) == most


def test_powers_and_booleans_are_not_given():
    assert type(constants.constant_of(0.1, np.dtype("f4"), "pow")[0]) is ConstValue
    assert type(constants.constant_of(True, np.dtype(bool), "select_n")[0]) is ConstValue


X = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)


def with_constant(c):
    n = round(c * 1000)
    return [
        volta.jit(lambda x: vnp.where(x > c, x * c + c, vnp.minimum(x / c, -c)))(X),
        volta.jit(lambda x: vnp.sum(vnp.exp(x) * c, 1) - c)(X),
        volta.jit(lambda x: vnp.pad(x, 1, constant_values=c))(X),
        volta.jit(lambda x: vnp.concatenate([x, vnp.full((5, 2), c)], 1))(X),
        volta.jit(lambda x: (x @ x.T) * c)(X),
        volta.jit(lambda x: lax.scan(lambda s, r: (s * c + r, s - c), vnp.zeros(7), x))(X),
        volta.jit(lambda x: x.astype("int32") * n + (n + 1))(X),
        volta.grad(lambda x: vnp.sum(vnp.tanh(x * c) * c))(X),
    ]


def test_another_constant_compiles_nothing():
    with_constant(0.3)
    before = unit.stats().compiled + unit.stats().loaded
    for n in range(5):
        with_constant(0.301 + n / 1000)
    assert unit.stats().compiled + unit.stats().loaded == before


@pytest.mark.parametrize("c", [0.3, -1.7])
def test_no_bit_depends_on_where_a_constant_is(c, monkeypatch):
    given = with_constant(c)
    eager._executables.clear()
    PLAN_CACHE.clear()
    monkeypatch.setattr(constants, "PLAIN", frozenset())
    before = unit.stats().compiled + unit.stats().loaded
    assert_bits_equal(given, with_constant(c))
    assert unit.stats().compiled + unit.stats().loaded > before
    PLAN_CACHE.clear()
    eager._executables.clear()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_every_dtype_is_given_its_bits(dtype):
    x = vnp.asarray(np.arange(12), dtype)
    for c in (0.3, 1e-3, -1.1) if dtype in FLOATS else (3, 100, 7):
        number = vnp.asarray(c, dtype).item()

        def f(x, number=number):
            return vnp.where(x > number, x * number, x + number)

        assert_bits_equal(volta.jit(f)(x), f(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64"])
def test_kernels_of_a_gpu_are_given_the_same(dtype):
    c = 0.3 if dtype in FLOATS else 100
    x = np.asarray(vnp.asarray(np.arange(40).reshape(4, 10), dtype))
    check_on_host(lambda x: (vnp.where(x > c, x * c, x + c), vnp.sum(x * c, 1), vnp.pad(x, 1, constant_values=c)), x)


def test_plans_say_what_they_give():
    text = volta.jit(lambda x: x * 0.3 + 7).lower(X).compile().as_text()
    assert "given=[0.30000001192092896, 7.0]" in text and "given f32" in text
