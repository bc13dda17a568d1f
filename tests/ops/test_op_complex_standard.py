"""Every special value that the Python array API states of a function of complex numbers, and of its conjugates."""

import itertools
import math

import numpy as np
import pytest

import volta.numpy as vnp
from volta.core import dtypes

INF, NAN, PI = math.inf, math.nan, math.pi
FINITE = (0.0, -0.0, 1.0, -1.0, 0.7, -2.0, 3.0, -4.5, 100.0, -800.0)
KINDS = {
    "+0": (0.0,),
    "-0": (-0.0,),
    "0": (0.0, -0.0),
    "1": (1.0,),
    "-1": (-1.0,),
    "finite": FINITE,
    "nonzero": FINITE[2:],
    "positive": tuple(x for x in FINITE if x > 0),
    "inf": (INF,),
    "-inf": (-INF,),
    "infs": (INF, -INF),
    "nan": (NAN,),
    "!0": (*FINITE[2:], INF, -INF, NAN),
    "any": (*FINITE, INF, -INF, NAN),
}
"""Words of the table -> numbers. Of results a ``~`` leaves the sign open, and ``cis`` is a factor of both parts."""

LOGARITHM = """finite inf: inf pi/2; finite nan: nan nan; -inf positive: inf pi; inf positive: inf +0;
    -inf inf: inf 3pi/4; inf inf: inf pi/4; infs nan: inf nan; nan finite: nan nan; nan inf: inf nan;
    nan nan: nan nan"""
TABLE = {
    "acos": """0 +0: pi/2 -0; 0 nan: pi/2 nan; finite inf: pi/2 -inf; nonzero nan: nan nan; -inf positive: pi -inf;
        inf positive: +0 -inf; -inf inf: 3pi/4 -inf; inf inf: pi/4 -inf; infs nan: nan ~inf; nan finite: nan nan;
        nan inf: nan -inf; nan nan: nan nan""",
    "acosh": """0 +0: +0 pi/2; finite inf: inf pi/2; nonzero nan: nan nan; +0 nan: nan ~pi/2; -inf positive: inf pi;
        inf positive: inf +0; -inf inf: inf 3pi/4; inf inf: inf pi/4; infs nan: inf nan; nan finite: nan nan;
        nan inf: inf nan; nan nan: nan nan""",
    "asinh": """+0 +0: +0 +0; positive inf: inf pi/2; finite nan: nan nan; inf positive: inf +0; inf inf: inf pi/4;
        nan +0: nan +0; nan nonzero: nan nan; nan inf: ~inf nan; nan nan: nan nan""",
    "atanh": """+0 +0: +0 +0; +0 nan: +0 nan; 1 +0: inf +0; positive inf: +0 pi/2; nonzero nan: nan nan;
        inf positive: +0 pi/2; inf inf: +0 pi/2; inf nan: +0 nan; nan finite: nan nan; nan inf: ~0 pi/2;
        nan nan: nan nan""",
    "cosh": """+0 +0: 1 +0; +0 inf: nan ~0; +0 nan: nan ~0; nonzero inf: nan nan; nonzero nan: nan nan; inf +0: inf +0;
        inf nonzero: inf cis; inf inf: ~inf nan; inf nan: inf nan; nan 0: nan ~0; nan nonzero: nan nan;
        nan nan: nan nan""",
    "exp": """0 +0: 1 +0; finite inf: nan nan; finite nan: nan nan; inf +0: inf +0; -inf finite: +0 cis;
        inf nonzero: inf cis; -inf inf: ~0 ~0; inf inf: ~inf nan; -inf nan: ~0 ~0; inf nan: ~inf nan; nan +0: nan +0;
        nan !0: nan nan""",
    "expm1": """0 +0: +0 +0; finite inf: nan nan; finite nan: nan nan; inf +0: inf +0; inf nonzero: inf cis;
        -inf inf: -1 ~0; inf inf: ~inf nan; -inf nan: -1 ~0; inf nan: ~inf nan; nan +0: nan +0; nan !0: nan nan""",
    "log": f"-0 +0: -inf pi; +0 +0: -inf +0; {LOGARITHM}",
    "log1p": f"-1 +0: -inf +0; {LOGARITHM}",
    "sign": "0 0: ~0 ~0; nan any: nan nan; any nan: nan nan",
    "sinh": """+0 +0: +0 +0; +0 inf: ~0 nan; +0 nan: ~0 nan; positive inf: nan nan; positive nan: nan nan;
        inf +0: inf +0;
        inf positive: inf cis; inf inf: ~inf nan; inf nan: ~inf nan; nan +0: nan +0; nan nonzero: nan nan;
        nan nan: nan nan""",
    "sqrt": """0 +0: +0 +0; any inf: inf inf; finite nan: nan nan; -inf positive: +0 inf; inf positive: inf +0;
        -inf nan: nan ~inf; inf nan: inf nan; nan finite: nan nan; nan nan: nan nan""",
    "tanh": """+0 +0: +0 +0; nonzero inf: nan nan; +0 inf: +0 nan; nonzero nan: nan nan; +0 nan: +0 nan;
        inf positive: 1 +0; inf inf: 1 ~0; inf nan: 1 ~0; nan +0: nan +0; nan !0: nan nan""",
}
ROWS = [(name, *map(str.strip, row.split(":"))) for name, rows in TABLE.items() for row in rows.split(";")]
ODD = ("asinh", "atanh", "sinh", "tanh")
VALUES = {"+0": 0.0, "0": 0.0, "-0": -0.0, "pi": PI, "3pi/4": 3 * PI / 4, "pi/2": PI / 2, "pi/4": PI / 4}


def part_is(got: float, want: str, factor: float, dtype: np.dtype) -> bool:
    value = VALUES[want.lstrip("~")] if want.lstrip("~") in VALUES else float(want.lstrip("~"))
    if math.isnan(value):
        return math.isnan(got)
    value *= factor
    if want.startswith("~"):
        got, value = abs(got), abs(value)
    if value in (0.0, INF, -INF):
        return got == value and math.copysign(1, got) == math.copysign(1, value)
    return abs(got - value) <= np.finfo(dtype).eps * abs(value)


def is_as_said(got: complex, want: str, y: float, dtype: np.dtype) -> bool:
    first, second = want.split()
    if second == "cis":
        return part_is(got.real, first, math.cos(y), dtype) and part_is(got.imag, first, math.sin(y), dtype)
    return part_is(got.real, first, 1.0, dtype) and part_is(got.imag, second, 1.0, dtype)


@pytest.mark.parametrize("dtype", [pytest.param(np.complex64, marks=pytest.mark.slow), np.complex128])
@pytest.mark.parametrize("name", TABLE)
def test_special_values_are_the_standards(name, dtype):
    """At each number of a row; at conjugates the conjugate; of odd functions the negative at the negative."""
    points = [
        (x, y, want)
        for row, operand, want in ROWS
        if row == name
        for x, y in itertools.product(*(KINDS[kind] for kind in operand.split()))
    ]
    z = np.array([complex(x, y) for x, y, _ in points]).astype(dtype)
    part = dtypes.part_dtype(np.dtype(dtype))
    function = getattr(vnp, name)
    images = {
        "there": (np.asarray(function(vnp.asarray(z))), lambda x, y: True),
        "at the conjugate": (np.conj(np.asarray(function(vnp.asarray(np.conj(z))))), lambda x, y: not math.isnan(y)),
        "at the negative": (
            -np.asarray(function(vnp.asarray(-z))),
            lambda x, y: name in ODD and not (math.isnan(x) or math.isnan(y)),
        ),
    }
    for where, (got, holds) in images.items():
        for (x, y, want), value in zip(points, got, strict=True):
            assert not holds(x, y) or is_as_said(complex(value), want, y, part), (name, where, x, y, value, want)


@pytest.mark.parametrize("name, hyperbolic", [("sin", "sinh"), ("tan", "tanh"), ("asin", "asinh"), ("atan", "atanh")])
def test_trigonometric_functions_are_hyperbolic_ones_turned(name, hyperbolic):
    """f(z) = -i g(i z), to the bit (NaNs are one value): so the rows of these hold for those."""
    numbers = [x for x in KINDS["any"] if not math.isnan(x)]
    plane = np.array([complex(x, y) for x in numbers for y in numbers])
    there = np.asarray(getattr(vnp, hyperbolic)(vnp.asarray(np.array([complex(-z.imag, z.real) for z in plane]))))
    got = np.asarray(getattr(vnp, name)(vnp.asarray(plane)))
    for ours, turned in ((got.real, there.imag), (got.imag, -there.real)):
        np.testing.assert_array_equal(ours, turned)
        known = ~np.isnan(ours)
        np.testing.assert_array_equal(np.signbit(ours[known]), np.signbit(turned[known]))


def test_of_minus_infinity_expm1_is_minus_one_with_a_zero_that_has_the_sine_s_sign():
    z = np.array([complex(-INF, y) for y in FINITE])
    got = np.asarray(vnp.expm1(vnp.asarray(z)))
    assert np.array_equal(got.real, np.full(len(z), -1.0))
    assert np.array_equal(np.signbit(got.imag), np.signbit(np.sin(z.imag))) and not np.any(got.imag)
