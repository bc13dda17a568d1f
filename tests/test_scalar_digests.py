"""The functions of the scalar library: the bits they always had, their special values, their errors, no libm."""

import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from tests.sampling import sampled
from tests.scalar_support import Compiled, ulp
from volta.core import contract
from volta.ops import scalar

RECORDS = json.loads((ulp.DIGESTS / "float32.json").read_text())
FLOAT64 = json.loads((ulp.DIGESTS / "float64.json").read_text())
UNARY = sorted(ulp.ORACLES)
BINARY = ("pow", "atan2", "rem", "max", "nextafter")
INF, NAN = math.inf, math.nan
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.turns(4, each=True)]


def test_every_function_is_on_record():
    """Made under the contract before this one, which has the same functions."""
    assert RECORDS["contract"] == FLOAT64["contract"] == "strict-v1" < contract.NAME
    assert sorted(RECORDS["functions"]) == sorted(FLOAT64["functions"]) == UNARY


@pytest.mark.parametrize("name", UNARY)
def test_float32_bits_are_those_on_record(name):
    assert ulp.digest(name, ulp.QUICK_STRIDE) == RECORDS["functions"][name]["sha256_every_65537"]


@pytest.mark.parametrize("name", UNARY)
def test_float32_is_within_one_ulp_on_record_and_on_a_sample(name):
    assert RECORDS["functions"][name]["max_ulp"] <= 1.0
    assert ulp.measure_float32(name, 40009)["max_ulp"] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
def test_float32_bits_of_all_inputs_are_those_on_record(name):
    assert ulp.digest(name, 1) == RECORDS["functions"][name]["sha256"]


@pytest.mark.parametrize("name", UNARY)
def test_float64_errors_are_about_those_on_record(name):
    measured = ulp.measure_float64(name, 40)["max_ulp"]
    assert measured <= FLOAT64["functions"][name]["max_ulp"] * 1.01


EVERY = [*UNARY, *BINARY]


@sampled(
    "name, dtype",
    itertools.product(EVERY, ("float32", "float64")),
    quick=lambda x: x[1] == "float32" or x[0] in EVERY[::3],
)
@pytest.mark.few(14)
def test_lanes_do_not_matter(name, dtype):
    function, count, bits = getattr(scalar, name), 2 if name in BINARY else 1, f"uint{8 * np.dtype(dtype).itemsize}"
    generator = np.random.default_rng(0)
    wild = [generator.integers(0, np.iinfo(bits).max, 3000, dtype=bits).view(dtype) for _ in range(count)]
    tame = [generator.uniform(-4, 4, 3000).astype(dtype) for _ in range(count)]
    arrays = [np.concatenate(pair) for pair in zip(wild, tame, strict=True)]
    one, eight, many = (
        Compiled(lambda b, *x: ulp.canonical(b, function(b, *x)), [dtype] * count, dtype, lanes)(*arrays).view(bits)
        for lanes in (1, 8, 32)
    )
    np.testing.assert_array_equal(one, eight)
    np.testing.assert_array_equal(one, many)


@sampled("lanes", (1, 16), quick=[16])
@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_called(name, lanes):
    function = getattr(scalar, name)
    count = 2 if name in BINARY else 1
    for dtype in ("float32", "float64"):
        text = Compiled(function, [dtype] * count, dtype, lanes).assembly()
        assert not re.search(r"\n\s+(call\w*|bl|blr)\s", text)


SPECIAL = {
    "exp": [(0, 1), (-INF, 0), (INF, INF), (1000, INF), (-1000, 0)],
    "exp2": [(0, 1), (10, 1024), (-3, 0.125), (-INF, 0), (INF, INF), (2000, INF), (-2000, 0)],
    "expm1": [(0, 0), (-0.0, -0.0), (-INF, -1), (INF, INF), (1000, INF), (-1000, -1)],
    "log": [(1, 0), (0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (-INF, NAN)],
    "log2": [(1, 0), (8, 3), (0.25, -2), (0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF)],
    "log10": [(1, 0), (1000, 3), (0, -INF), (-1, NAN), (INF, INF)],
    "log1p": [(0, 0), (-0.0, -0.0), (-1, -INF), (-2, NAN), (INF, INF)],
    "sin": [(0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0, 1), (-0.0, 1), (INF, NAN)],
    "tan": [(0, 0), (-0.0, -0.0), (INF, NAN)],
    "asin": [(0, 0), (-0.0, -0.0), (1, math.pi / 2), (-1, -math.pi / 2), (2, NAN), (-INF, NAN)],
    "acos": [(1, 0), (0, math.pi / 2), (-1, math.pi), (1.5, NAN)],
    "atan": [(0, 0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "sinh": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1000, INF), (-1000, -INF)],
    "cosh": [(0, 1), (INF, INF), (-INF, INF), (-1000, INF)],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (100, 1), (-100, -1)],
    "asinh": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1, 0), (INF, INF), (0.5, NAN), (-INF, NAN)],
    "atanh": [(0, 0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN)],
    "erf": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (10, 1)],
    "erfc": [(0, 1), (INF, 0), (-INF, 2), (100, 0), (-100, 2)],
    "erf_inv": [(0, 0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN)],
    "cbrt": [(0, 0), (-0.0, -0.0), (27, 3), (-8, -2), (INF, INF), (-INF, -INF)],
    "sqrt": [(0, 0), (-0.0, -0.0), (4, 2), (-1, NAN), (INF, INF)],
    "rsqrt": [(0, INF), (-0.0, -INF), (4, 0.5), (-1, NAN), (INF, 0)],
    "logistic": [(0, 0.5), (INF, 1), (-INF, 0), (1000, 1), (-1000, 0)],
    "lgamma": [(-INF, INF), (1, 0), (2, 0), (0, INF), (-0.0, INF), (-1, INF), (-7, INF), (INF, INF)],
    "digamma": [(-INF, NAN), (0, -INF), (-0.0, INF), (-1, NAN), (-5, NAN), (INF, INF)],
    "sign": [(0, 0), (-0.0, -0.0), (3, 1), (-INF, -1)],
}


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_special_values(name, dtype):
    x, expected = np.array([*SPECIAL[name], (NAN, NAN)], dtype).T.copy()
    _same(ulp.compile_unary(name, dtype)(x), expected)


def _same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))


CORNERS = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 2.5, -2.5, 1e30, -1e30, 1e-30, -1e-30, 7, -7, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name, reference", (("pow", np.power), ("atan2", np.arctan2), ("nextafter", np.nextafter)))
def test_special_values_of_two_operands(name, reference, dtype):
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(CORNERS, CORNERS))
    actual = Compiled(lambda b, x, y: getattr(scalar, name)(b, x, y), [dtype] * 2, dtype, 16)(x, y)
    expected = reference(x, y)
    # NumPy's own float32 functions are off by an ULP here and there; what is special must agree exactly.
    ordinary = np.isfinite(expected) & (expected != 0) & (name != "nextafter")
    np.testing.assert_allclose(actual[ordinary], expected[ordinary], rtol=2 * np.finfo(dtype).eps)
    _same(actual[~ordinary], expected[~ordinary])


@pytest.mark.parametrize("name, exact", (("pow", mp.power), ("atan2", mp.atan2)))
def test_errors_of_two_operands(name, exact):
    generator = np.random.default_rng(0)
    function = getattr(scalar, name)
    x, y = np.exp(generator.uniform(-5, 5, 2000)), generator.uniform(-17, 17, 2000)
    single = Compiled(lambda b, x, y: function(b, x, y), ["float32"] * 2, "float32", 16)
    errors = Compiled(ulp.error_in_ulp, ["float32", "float64"], "float32", 16)
    x32, y32 = x.astype("float32"), y.astype("float32")
    reference = {"pow": np.power, "atan2": np.arctan2}[name](x32.astype("float64"), y32.astype("float64"))
    assert errors(single(x32, y32), reference).max() <= 0.6
    double = Compiled(lambda b, x, y: function(b, x, y), ["float64"] * 2, "float64", 8)(x, y)
    with mp.workprec(200):
        worst = max(
            ulp.error_float64(d, exact(mp.mpf(u), mp.mpf(v)))
            for u, v, d in zip(x.tolist(), y.tolist(), double.tolist(), strict=True)
        )
    assert worst <= 1.0


HARD = {
    "exp": [709.782712893384, -745.1332191019411, -708.4546741477827, 5e-324],
    "exp2": [1023.9999999999999, -1074.0, -1022.374106772153],
    "expm1": [709.78, 0.3925, -40.0, 1e-308],
    "sinh": [710.4, 1.0, 0.9999999999999999],
    "cosh": [710.4],
    "sin": [6381956970095103.0 * 2.0**797, 2.0**1023, 1e22, 5.319372648326541e255, 355.0, 2.0**20, 2.0**20 * math.pi],
    "cos": [6381956970095103.0 * 2.0**797, 2.0**1023, 1e22, 5.319372648326541e255, 11 * math.pi / 2, 2.0**20],
    "tan": [6381956970095103.0 * 2.0**797, 2.0**1023, 1e22, 5.319372648326541e255, math.pi / 2, 2.0**20],
    "log": [5e-324, 1e-310, 1 - 2.0**-53, 1 + 2.0**-52, 1.7976931348623157e308],
    "log1p": [-1 + 2.0**-53, 1.7e308, 5e-324, -(2.0**-53)],
    "acosh": [1 + 2.0**-52, 2.0**28, 1.7e308],
    "asinh": [1.7e308, 2.0**28 + 1, 5e-324],
    "atanh": [1 - 2.0**-53, 5e-324],
    "acos": [1 - 2.0**-53, -1 + 2.0**-53, 0.5, 0.5000000000000001],
    "asin": [1 - 2.0**-53, 0.5, 0.5000000000000001],
    "cbrt": [5e-324, 1.7e308, 1e-310],
    "rsqrt": [5e-324, 1.7e308, 1e-310],
    "erfc": [26.5, 0.5, -1e-300],
    "erf_inv": [1 - 2.0**-53, 0.5, 5e-324],
}


@pytest.mark.parametrize("name", sorted(HARD))
def test_float64_at_the_edges(name):
    exact, results = ulp.EXACT.get(name) or getattr(mp, name), ulp.compile_unary(name, "float64")(np.array(HARD[name]))
    with mp.workprec(2500):
        for x, y in zip(HARD[name], results.tolist(), strict=True):
            assert ulp.error_float64(y, exact(mp.mpf(x))) <= 3.0, (x, y)


def test_integer_powers_by_squaring():
    x = np.random.default_rng(0).uniform(-3, 3, 100).astype("float32")
    for exponent in (0, 1, 2, 3, 7, 10, -1, -3):
        actual = Compiled(lambda b, v, n=exponent: scalar.integer_pow(b, v, n), ["float32"], "float32", 16)(x)
        np.testing.assert_allclose(actual, x.astype("float64") ** exponent, rtol=1e-6)
    small = np.arange(-5, 5, dtype="int8")
    cubes = Compiled(lambda b, v: scalar.integer_pow(b, v, 3), ["int8"], "int8", 16)(small)
    np.testing.assert_array_equal(cubes, small**3)
    with pytest.raises(TypeError, match="integer_pow of int8 by the negative exponent -1"):
        Compiled(lambda b, v: scalar.integer_pow(b, v, -1), ["int8"], "int8", 1)


@pytest.mark.parametrize("dtype", ("int8", "int32", "uint16", "int64"))
def test_sign_and_magnitude_of_integers(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 5], dtype)
    np.testing.assert_array_equal(Compiled(scalar.sign, [dtype], dtype, 8)(x), np.sign(x))
    np.testing.assert_array_equal(Compiled(scalar.abs, [dtype], dtype, 8)(x), np.abs(x))


_OTHER_PROCESSOR = """
import sys
sys.path.insert(0, {tests!r})
from tests.scalar_support import ulp
from volta.numba_cpu import target
assert not target.machine().has("avx512f")
print(*[ulp.digest(name, ulp.QUICK_STRIDE) for name in {names!r}])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the other processor is an x86 one")
def test_an_older_processor_gives_the_same_bits():
    names = ["exp", "log", "sin", "erf", "atanh", "cbrt", "lgamma"]
    tests = Path(__file__).resolve().parent
    environment = os.environ | {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt",
        "PYTHONPATH": os.pathsep.join(p for p in (str(tests.parent), os.environ.get("PYTHONPATH")) if p),
    }
    program = _OTHER_PROCESSOR.format(tests=str(tests), names=names)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [RECORDS["functions"][name]["sha256_every_65537"] for name in names]
