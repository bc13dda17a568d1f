"""Elementwise functions against NumPy (values) and JAX (dtypes, weak types)."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numpy.vnp_compare import assert_same, floats, ints, same_as_numpy, same_types_as_jax
from volta.errors import DTypeError, ShapeError

X, Y = floats(3, 4), floats(3, 4)[::-1] * 0.7
M, N = ints(3, 4), ints(3, 4)[:, ::-1].copy()
N[N == 0] = 3
B = M > 0
SPECIAL = np.float32([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e38, 1e-40])

UNARY = (
    "exp exp2 expm1 sin cos tan arctan sinh cosh tanh arcsinh cbrt floor ceil trunc rint "
    "negative positive absolute fabs sign square reciprocal deg2rad rad2deg sinc isfinite isnan isinf isposinf "
    "isneginf signbit logical_not nan_to_num round"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    same_as_numpy(lambda np, x: getattr(np, name)(x), X, rtol=1e-5)
    skip = {"exp", "exp2", "expm1", "sinh", "cosh", "sin", "cos", "tan", "square", "reciprocal", "sinc"}
    if name not in skip:
        same_as_numpy(lambda np, x: getattr(np, name)(x), SPECIAL, rtol=1e-5)


@pytest.mark.parametrize("name", "log log2 log10 log1p sqrt arcsin arccos arctanh".split())
def test_unary_on_its_domain(name):
    same_as_numpy(lambda np, x: getattr(np, name)(x), floats(20, low=0.05, high=0.95), rtol=1e-5)


def test_arccosh():
    same_as_numpy(lambda np, x: np.arccosh(x), floats(20, low=1.1, high=9.0), rtol=1e-5)


BINARY = "add subtract multiply divide arctan2 maximum minimum fmax fmin equal not_equal less less_equal "
BINARY += "greater greater_equal fmod remainder floor_divide copysign hypot logaddexp logaddexp2 heaviside "
BINARY += "logical_and logical_or logical_xor"


@pytest.mark.parametrize("name", BINARY.split())
def test_binary(name):
    same_as_numpy(lambda np, x, y: getattr(np, name)(x, y), X, Y, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", "fmax fmin maximum minimum copysign heaviside hypot logaddexp".split())
def test_binary_special_values(name):
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    same_as_numpy(lambda np, x, y: getattr(np, name)(x, y), x, y, rtol=2e-5)


INTEGER = "add subtract multiply floor_divide remainder fmod maximum bitwise_and bitwise_xor".split()


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name):
    same_as_numpy(lambda np, x, y: getattr(np, name)(x, y), M, N)


def test_round_scales_float64_in_float64():
    """10**decimals is a Python number: rounded to float32 first, 11 places moved the ninth digit."""
    x = np.float64([1.23456789012345678, -0.1])
    np.testing.assert_array_equal(vnp.round(x, 11), np.round(x, 11))


def test_integer_corners():
    same_as_numpy(lambda np, x, y: np.divmod(x, y), M, N)
    same_as_numpy(lambda np, x, y: np.divmod(x, y), X, Y, rtol=1e-4, atol=1e-4)
    same_as_numpy(lambda np, x: np.invert(x), M)
    same_as_numpy(lambda np, x: np.bitwise_count(x), M)
    same_as_numpy(lambda np, x: np.left_shift(x, 3), M)
    same_as_numpy(lambda np, x: np.right_shift(x, 2), M)
    same_as_numpy(lambda np, x: np.right_shift(x, 2), M.astype(np.uint32))
    same_as_numpy(lambda np, x, y: np.power(x, y), M, np.abs(N))
    same_as_numpy(lambda np, x: np.ldexp(x, np.int32([[3], [-2], [0]])), X)
    same_as_numpy(lambda np, x: np.modf(x), X)
    same_as_numpy(lambda np, x: np.round(x, 2), X, rtol=1e-5)
    same_as_numpy(lambda np, x: np.sign(x) * np.absolute(x), M)


def test_powers():
    positive = np.abs(X) + np.float32(0.1)
    same_as_numpy(lambda np, x, y: np.power(x, y), positive, Y, rtol=1e-5)
    for exponent in (-2, -1, 0, 1, 2, 3, 0.5, 2.0, 1.5, -1.0):
        same_as_numpy(lambda np, x, exponent=exponent: x**exponent, positive, rtol=1e-5)
    same_as_numpy(lambda np, x: 2**x, X, rtol=1e-5)
    with pytest.raises(DTypeError, match="no negative integer powers"):
        vnp.asarray(M) ** -1
    with pytest.raises(DTypeError, match="no negative integer powers"):
        vnp.asarray(M > 0) ** -1


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_negative_powers_of_integers_round_to_zero(dtype):
    least = np.iinfo(dtype).min
    base = np.asarray([-2, -1, 0, 1, 2, least, -least - 1, least + 1], dtype)
    exponent = np.asarray([-1, -2, -7, -64, least], dtype)
    expected = np.where(base == 1, 1, np.where(base == -1, np.where(exponent[:, None] % 2, -1, 1), 0)).astype(dtype)
    for power in (vnp.power, volta.jit(vnp.power), volta.vmap(vnp.power, in_axes=(None, 0))):
        np.testing.assert_array_equal(power(base, exponent[:, None]), expected)


def test_python_numbers_must_fit():
    for use in (
        lambda: vnp.zeros(2, "uint8") + 300,  # the user's line
        lambda: vnp.zeros(2, "uint8") - -1,  # the user's line
        lambda: vnp.full(3, 300, "uint8"),  # the user's line
    ):
        with pytest.raises(OverflowError, match=r"does not fit uint8, which holds 0 to 255(.|\n)*# the user's line"):
            use()
    for too_long in (lambda: vnp.asarray(2**70), lambda: vnp.ones(2) + 2**70):
        with pytest.raises(DTypeError, match="1180591620717411303424"):
            too_long()


TYPED = {
    "float+int": lambda np, x, i: x + i,
    "float*2": lambda np, x, i: x * 2,
    "int/int": lambda np, x, i: i / i,
    "int//2": lambda np, x, i: i // 2,
    "weak": lambda np, x, i: np.asarray(2.0) * np.asarray(3),
    "weak exp": lambda np, x, i: np.exp(np.asarray(2)),
    "weak where": lambda np, x, i: np.where(i > 0, 1.0, 0),
    "compare": lambda np, x, i: x < 1,
    "exp(int)": lambda np, x, i: np.exp(i),
    "bool+bool": lambda np, x, i: (i > 0) + (i > 1),
    "bool sum": lambda np, x, i: (i > 0).sum(),
    "mean int": lambda np, x, i: i.mean(),
    "int8+int": lambda np, x, i: i.astype("int8") + 1,
    "uint8*int8": lambda np, x, i: i.astype("uint8") * i.astype("int8"),
    "half*float": lambda np, x, i: x.astype("float16") * 2.5,
    "half+float32": lambda np, x, i: x.astype("float16") + x,
    "bf16*half": lambda np, x, i: x.astype("bfloat16") + x.astype("float16"),
    "clip": lambda np, x, i: np.clip(i, 0, 3),
    "argmax": lambda np, x, i: np.argmax(x, 1),
    "linspace": lambda np, x, i: np.linspace(0, 1, 5),
    "arange": lambda np, x, i: np.arange(5),
    "arange float": lambda np, x, i: np.arange(0, 2, 0.5),
    "eye": lambda np, x, i: np.eye(3),
    "array": lambda np, x, i: np.array([1, 2.5]),
    "scalar": lambda np, x, i: np.array(3),
    "full": lambda np, x, i: np.full((2,), 7),
    "int8 sum": lambda np, x, i: i.astype("int8").sum(0),
    "uint8 cumsum": lambda np, x, i: abs(i).astype("uint8").cumsum(0),
    "pow": lambda np, x, i: x**2,
    "int pow": lambda np, x, i: i**2,
    "half mean": lambda np, x, i: x.astype("float16").mean(),
    "-bool": lambda np, x, i: ~(i > 0),
    "at": lambda np, x, i: x.at[0].set(1),
    "round": lambda np, x, i: np.round(i),
    "floor int": lambda np, x, i: np.floor(i),
}


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.few(10)
@pytest.mark.turns(6)
def test_dtypes_and_weak_types_are_jax(name):
    jax = pytest.importorskip("jax")
    same_types_as_jax(jax, TYPED[name], X, M)


def test_float64_lives_beside_float32():
    wide = np.float64([1.0, 2.0])
    assert vnp.add(wide, 1).dtype == np.float64
    assert (vnp.asarray(wide) * vnp.asarray(X[0, :2])).dtype == np.float64
    assert vnp.sin(wide).dtype == np.float64
    assert vnp.asarray(np.int64([1])).dtype == np.int64


def test_operators_with_numpy_on_either_side():
    x = vnp.asarray(X)
    for result in (X + x, x + X, np.float32(2) * x, X @ x.T, X > x, 1 - x, 2.0 / x):
        assert isinstance(result, vnp.ndarray)
    assert_same(1 - x, 1 - X)
    assert_same(divmod(x, 2), np.divmod(X, 2))
    assert_same(-x, -X)
    assert_same(abs(x), abs(X))
    assert_same(+x, X)
    x += 1
    assert_same(x, X + 1)
    assert (vnp.asarray(3) in vnp.asarray([1, 2, 3])) is True


def test_choice():
    same_as_numpy(lambda np, x, b: np.where(b, x, 0), X, B)
    same_as_numpy(lambda np, x, b: np.where(b[:1], x, x[:, :1]), X, B)
    same_as_numpy(lambda np, x: np.select([x < -1, x < 1], [x * 2, x + 10], 7), X)
    same_as_numpy(lambda np, x: np.clip(x, -1, 1), X)
    same_as_numpy(lambda np, x: np.clip(x, None, 1), X)
    same_as_numpy(lambda np, x: np.clip(x, x[:1], 1), X)
    same_as_numpy(lambda np, x: np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, 3.0]), X)


def test_closeness():
    a = np.float32([1.0, np.inf, np.nan, 0.0])
    b = np.float32([1.0 + 5e-6, np.inf, np.nan, 1e-7])
    same_as_numpy(lambda np, x, y: np.isclose(x, y), a, b)
    same_as_numpy(lambda np, x, y: np.isclose(x, y, equal_nan=True), a, b)
    assert bool(vnp.allclose(a[:2], b[:2])) and not bool(vnp.allclose(a, b))
    assert bool(vnp.array_equal(a[:2], a[:2])) and not bool(vnp.array_equal(a, a[:2]))
    assert bool(vnp.array_equal(a, a, equal_nan=True)) and bool(vnp.array_equiv(a[:1], np.ones((2, 1))))


def test_saturating_casts():
    x = vnp.array([1.9, -1.9, 3e9, -3e9, np.nan])
    assert vnp.astype(x, "int32").tolist() == [1, -1, 2**31 - 1, -(2**31), 0]
    assert vnp.array([300.7, -5.0], dtype="uint8").tolist() == [255, 0]
    assert x.astype(bool).tolist() == [True] * 5


def test_errors_name_the_way_out():
    x = vnp.zeros((3, 4))
    with pytest.raises(ShapeError, match=r"add: shapes \(3, 4\) and \(3, 5\).*axis -1 has 4 and 5") as caught:
        x + vnp.zeros((3, 5))
    assert "test_vnp_elementwise.py" in str(caught.value) and "x + vnp.zeros((3, 5))" in str(caught.value)
    with pytest.raises(DTypeError, match=r"add: operands must be arrays or numbers, not list.*volta.numpy.array"):
        x + [1, 2, 3, 4]
    with pytest.raises(DTypeError, match="subtract: not defined for bool"):
        (x > 0) - (x > 1)
    with pytest.raises(DTypeError, match="bitwise_and: operands must be integers"):
        x & x
    with pytest.raises(OverflowError):
        vnp.asarray(np.uint8([1])) + 300
    with pytest.raises(TypeError):
        x + "text"
