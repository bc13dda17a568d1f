"""The vocabulary of the one scalar emitter: exact where it is exact, defined where LLVM is not, alike for all lanes."""

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from tests.scalar_support import Compiled, ulp
from volta.emit.builder import Builder
from volta.emit.values import round_to_half
from volta.ops import scalar
from volta.ops.scalar import exponential, narrower

LANES = (1, 16)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
BITS = {"float32": "uint32", "float64": "uint64"}
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.turns(4, each=True)]


def any_floats(dtype: str, size: int = 4000, seed: int = 0) -> np.ndarray:
    """Bit patterns of all kinds, and the special values in front."""
    info = np.finfo(dtype)
    tiny = float(info.smallest_subnormal)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, float(info.max), float(info.tiny), 0.5, 2.5]
    bits = np.random.default_rng(seed).integers(0, 2 ** (8 * info.dtype.itemsize), size, dtype=BITS[dtype])
    values = bits.view(dtype)
    values[: len(special)] = special
    return values


def any_integers(dtype: str, size: int = 2000, seed: int = 0) -> np.ndarray:
    """Integers of all magnitudes, and the special values in front."""
    info, generator = np.iinfo(dtype), np.random.default_rng(seed)
    values = generator.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
    values >>= generator.integers(0, info.bits, size).astype(dtype)
    values[:5] = [info.min, info.max, 0, 1, info.max - 1]
    return values


def pairs(values: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values against the others, with the special ones in front all against all."""
    head = [a.ravel() for a in np.meshgrid(values[:13], others[:13])]
    return np.concatenate([head[0], values]), np.concatenate([head[1], others])


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits, all NaNs alike."""
    assert actual.dtype == expected.dtype
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    integer = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(actual[~nan].view(integer), expected[~nan].view(integer))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic_is_ieee(dtype, lanes):
    x, y = pairs(any_floats(dtype), any_floats(dtype, seed=1))
    for emit, expected in (
        (lambda b, x, y: x + y, x + y),
        (lambda b, x, y: x - y, x - y),
        (lambda b, x, y: x * y, x * y),
        (lambda b, x, y: x / y, x / y),
        (lambda b, x, y: b.rem(x, y), np.fmod(x, y)),
        (lambda b, x, y: b.copysign(x, y), np.copysign(x, y)),
        (lambda b, x, y: b.sqrt(x), np.sqrt(x)),
        (lambda b, x, y: b.floor(x), np.floor(x)),
        (lambda b, x, y: b.ceil(x), np.ceil(x)),
        (lambda b, x, y: b.trunc(x), np.trunc(x)),
        (lambda b, x, y: b.round_even(x), np.rint(x)),
        (lambda b, x, y: -x, -x),
        (lambda b, x, y: abs(x), abs(x)),
    ):
        same(Compiled(emit, [dtype] * 2, dtype, lanes)(x, y), expected)


@pytest.mark.parametrize("lanes", LANES)
def test_fma_rounds_once(lanes):
    # The exact product and sum of float32 numbers this close in size fit in an extended float.
    generator = np.random.default_rng(0)
    x, y, z = (generator.uniform(0.5, 2, 4000).astype("float32") for _ in range(3))
    z = (-(x * y) * (1 + z * 2**-20)).astype("float32")
    exact = x.astype("longdouble") * y.astype("longdouble") + z.astype("longdouble")
    same(Compiled(lambda b, x, y, z: b.fma(x, y, z), ["float32"] * 3, "float32", lanes)(x, y, z), exact.astype("f4"))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_and_sums_are_never_contracted(dtype, lanes):
    generator = np.random.default_rng(0)
    x, y = (generator.uniform(0.5, 2, 4000).astype(dtype) for _ in range(2))
    z = -(x * y)
    same(Compiled(lambda b, x, y, z: x * y + z, [dtype] * 3, dtype, lanes)(x, y, z), np.zeros(4000, dtype))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_of_floats(dtype, lanes):
    x, y = pairs(any_floats(dtype), any_floats(dtype, seed=1))
    for name, reference in (("max", np.maximum), ("min", np.minimum)):
        kernel = Compiled(lambda b, x, y, name=name: getattr(b, name)(x, y), [dtype] * 2, dtype, lanes)
        expected = reference(x, y)
        both_zero = (x == 0) & (y == 0)
        plus = np.signbit(x) & np.signbit(y) if name == "max" else np.signbit(x) | np.signbit(y)
        expected[both_zero] = np.where(plus, -0.0, 0.0)[both_zero]
        same(kernel(x, y), expected)
        np.testing.assert_array_equal(kernel(x, y).view(BITS[dtype]), kernel(y, x).view(BITS[dtype]))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_comparisons(dtype, lanes):
    make = any_floats if dtype in FLOATS else any_integers
    x, y = pairs(make(dtype), make(dtype, seed=1))
    y[::3] = x[::3]
    for name, reference in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        kernel = Compiled(lambda b, x, y, name=name: getattr(b, name)(x, y), [dtype] * 2, "bool", lanes)
        np.testing.assert_array_equal(kernel(x, y), reference(x, y))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps_and_divides_by_anything(dtype, lanes):
    info = np.iinfo(dtype)
    x, y = pairs(any_integers(dtype), any_integers(dtype, seed=1))
    if info.min < 0:
        x[:3], y[:3] = [info.min, info.min, 5], [-1, 0, 0]
    for name, reference in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        kernel = Compiled(lambda b, x, y, name=name: getattr(b, name)(x, y), [dtype] * 2, dtype, lanes)
        same(kernel(x, y), reference(x, y))
    quotients = Compiled(lambda b, x, y: b.div(x, y), [dtype] * 2, dtype, lanes)(x, y)
    remainders = Compiled(lambda b, x, y: b.rem(x, y), [dtype] * 2, dtype, lanes)(x, y)
    for u, v, quotient, remainder in zip(*(a.tolist() for a in (x, y, quotients, remainders)), strict=True):
        if v == 0:
            assert (quotient, remainder) == (-1 if info.min < 0 else info.max, u)
            continue
        whole = abs(u) // abs(v) * (1 if (u < 0) == (v < 0) else -1)
        expected = (info.min, 0) if whole > info.max else (whole, u - whole * v)
        assert (quotient, remainder) == expected


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_out_of_range_and_bit_counts(dtype, lanes):
    info, x = np.iinfo(dtype), any_integers(dtype)
    amounts = np.random.default_rng(2).integers(-3 if info.min < 0 else 0, info.bits + 4, x.size).astype(dtype)
    mask = (1 << info.bits) - 1

    def wrap(value: int) -> int:
        value &= mask
        return value - mask - 1 if info.min < 0 and value >> (info.bits - 1) else value

    legal = [(u, a, 0 <= a < info.bits) for u, a in zip(x.tolist(), amounts.tolist(), strict=True)]
    for name, expected in (
        ("shl", [wrap(u << a) if ok else 0 for u, a, ok in legal]),
        ("shr_logical", [wrap((u & mask) >> a) if ok else 0 for u, a, ok in legal]),
        ("shr_arithmetic", [wrap(_signed(u, info.bits) >> (a if ok else info.bits - 1)) for u, a, ok in legal]),
    ):
        kernel = Compiled(lambda b, x, y, name=name: getattr(b, name)(x, y), [dtype] * 2, dtype, lanes)
        assert kernel(x, amounts).tolist() == expected
    count = Compiled(lambda b, x: b.popcount(x), [dtype], dtype, lanes)(x)
    assert count.tolist() == [(u & mask).bit_count() for u in x.tolist()]
    zeros = Compiled(lambda b, x: b.clz(x), [dtype], dtype, lanes)(x)
    assert zeros.tolist() == [info.bits - (u & mask).bit_length() for u in x.tolist()]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ("uint32", "uint64"))
def test_upper_half_of_products(dtype, lanes):
    x, y = pairs(any_integers(dtype), any_integers(dtype, seed=1))
    bits = np.iinfo(dtype).bits
    expected = [u * v >> bits for u, v in zip(x.tolist(), y.tolist(), strict=True)]
    assert Compiled(lambda b, x, y: b.mulhi(x, y), [dtype] * 2, dtype, lanes)(x, y).tolist() == expected


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.few(5)
def test_conversions_of_integers(dtype, lanes):
    info, integers = np.iinfo(dtype), any_integers(dtype)
    for source in FLOATS:
        near = np.random.default_rng(3).uniform(-1.5, 1.5, 500) * float(info.max)
        x = np.concatenate([any_floats(source), near.astype(source)])
        saturated = [0 if v != v else int(min(max(v, info.min), info.max)) for v in x.tolist()]
        assert Compiled(lambda b, x: b.cast(x, dtype), [source], dtype, lanes)(x).tolist() == saturated
        same(Compiled(lambda b, x, s=source: b.cast(x, s), [dtype], source, lanes)(integers), integers.astype(source))
    for target in INTEGERS:
        cast = Compiled(lambda b, x, t=target: b.cast(x, t), [dtype], target, lanes)
        same(cast(integers), integers.astype(target))
    to_bool = Compiled(lambda b, x: b.cast(x, "bool"), [dtype], "bool", lanes)
    np.testing.assert_array_equal(to_bool(integers), integers != 0)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("half, numpy_dtype", (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)))
def test_half_kinds_live_in_memory_only(half, numpy_dtype, lanes):
    every = np.arange(65536).astype("uint16")
    same(Compiled(lambda b, x: x, [half], "float32", lanes)(every), every.view(numpy_dtype).astype("float32"))
    x = any_floats("float32", 100_000)
    ties = every[:-1].view(numpy_dtype).astype("float64") / 2 + every[1:].view(numpy_dtype).astype("float64") / 2
    x = np.concatenate([x, ties.astype("float32")])
    expected = x.astype(numpy_dtype).view("uint16")
    expected[np.isnan(x)] = 0x7E00 if half == "float16" else 0x7FC0
    same(Compiled(lambda b, x: x, ["float32"], half, lanes)(x), expected)


@pytest.mark.parametrize("lanes", LANES)
def test_float64_to_float16_rounds_once(lanes):
    every = np.arange(0x7C00).astype("uint16").view("float16").astype("float64")
    ties = (every[:-1] + every[1:]) / 2
    x = np.concatenate([ties, ties * (1 + 2.0**-50), ties * (1 - 2.0**-50), -ties, [np.inf, 1e300, 1e-300, -0.0]])
    kernel = Compiled(lambda b, x: b.cast(x, "float16"), ["float64"], "float16", lanes)
    same(kernel(x), x.astype("float16").view("uint16"))


def test_bools_are_bytes_in_memory():
    x = np.random.default_rng(0).integers(0, 2, 100).astype(bool)
    y = np.random.default_rng(1).integers(0, 2, 100).astype(bool)
    for emit, expected in (
        (lambda b, x, y: x & y, x & y),
        (lambda b, x, y: x + y, x | y),
        (lambda b, x, y: ~x, ~x),
        (lambda b, x, y: b.max(x, y), x | y),
    ):
        result = Compiled(emit, ["bool"] * 2, "bool", 16)(x, y)
        np.testing.assert_array_equal(result.view("uint8"), expected.astype("uint8"))
    counts = Compiled(lambda b, x: b.cast(x, "float32"), ["bool"], "float32", 16)(x)
    np.testing.assert_array_equal(counts, x.astype("float32"))


def test_constants_have_exactly_the_bits_asked_for():
    def bits_of(dtype: str, number: float) -> int:
        kernel = Compiled(lambda b, x: b.const(dtype, number) + x * 0, [dtype], dtype, 1)
        return int(kernel(np.ones(1, dtype)).view(f"u{np.dtype(dtype).itemsize}")[0])

    for number in (0.1, 1e-45, 3.4028235e38, 1e39, -2.5, 1 / 3):
        assert bits_of("float32", number) == int(np.float32(number).view("uint32"))
        assert bits_of("float64", number) == int(np.float64(number).view("uint64"))
    assert bits_of("int32", 2**31) == 2**31
    assert bits_of("uint8", -1) == 255


@pytest.mark.parametrize("half, numpy_dtype", (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)))
def test_constants_of_half_kinds_are_rounded(half, numpy_dtype):
    generator = np.random.default_rng(0)
    numbers = np.concatenate(
        [any_floats("float32", 200), generator.normal(size=200) * 10.0 ** generator.integers(-9, 6, 200)]
    )
    for number in numbers.astype("float32").tolist():
        expected = float(np.float32(number).astype(numpy_dtype))
        assert round_to_half(half, number) == expected or number != number


def test_operands_of_two_kinds_are_refused():
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    b = Builder(ir.IRBuilder(function.append_basic_block()), 4)
    with pytest.raises(TypeError, match="float32 and int32"):
        b.add(b.const("float32", 1), b.const("int32", 1))
    with pytest.raises(ValueError, match="shift of int8 by the constant 8"):
        b.shl(b.const("int8", 1), 8)
    with pytest.raises(TypeError, match="bitcast of int32 to float64"):
        b.bitcast(b.const("int32", 1), "float64")


@pytest.mark.parametrize("lanes", LANES)
def test_strided_memory_lookup_and_lanes(lanes):
    table = (10.0, 20.0, 30.0, 40.0)
    index = np.random.default_rng(0).integers(0, 4, 64)
    found = Compiled(lambda b, i: b.lookup(table, "float32", i), ["int64"], "float32", lanes)(index)
    np.testing.assert_array_equal(found, np.array(table, "float32")[index])
    lanes_of = Compiled(lambda b, x: b.iota("int32") + b.splat(b.lane(x, 0)), ["int32"], "int32", lanes)
    x = np.arange(100, 164, dtype="int32")
    np.testing.assert_array_equal(lanes_of(x), x.reshape(-1, lanes)[:, :1].repeat(lanes, 1).ravel() + x % lanes * 0
                                  + np.arange(64) % lanes)  # fmt: skip


@pytest.mark.parametrize("lanes", LANES)
def test_rare_code_changes_only_the_lanes_that_need_it(lanes):
    def emit(b, x):
        return b.rarely(x > 5.0, lambda one, v: [v * 100.0], [x], [-x])[0]

    x = np.random.default_rng(0).uniform(0, 6, 512).astype("float32")
    same(Compiled(emit, ["float32"], "float32", lanes)(x), np.where(x > 5, x * np.float32(100), -x))


@pytest.mark.parametrize("lanes", LANES)
def test_exps_for_fewer_arguments_are_exp(lanes):
    whole, moderate, down = (
        Compiled(f, ["float32"], "float32", lanes)
        for f in (exponential.exp, exponential.exp_moderate, exponential.exp_of_negative)
    )
    x = np.concatenate([np.random.default_rng(0).uniform(-80, 80, 200_000), [0.0, -0.0, 80, -80]]).astype("f4")
    same(moderate(x), whole(x))
    x = np.concatenate([-abs(any_floats("float32", 100_000)), -abs(x) * 1.5, np.linspace(-106, -86, 100_000)])
    same(down(x.astype("f4")), whole(x.astype("f4")))


@pytest.mark.parametrize("lanes", LANES)
def test_functions_of_a_known_range_are_the_general_ones(lanes):
    x = any_floats("float32", 100_000)
    x = np.concatenate([x, np.linspace(-20, 20, 100_000, dtype="f4"), np.float32([0.0, -0.0, np.inf, np.nan])])
    for chain in narrower.NARROWER:

        def emit(b, v, last, names=chain[:0:-1]):
            for name in names:
                v = getattr(scalar, name)(b, v)
            return ulp.canonical(b, last(b, v))

        general, own = getattr(scalar, chain[0]), narrower.narrower([*chain, "sin"])
        found, whole = (
            Compiled(lambda b, v, f=f: emit(b, v, f), ["float32"], "float32", lanes) for f in (own, general)
        )
        same(found(x), whole(x))
    assert narrower.narrower(["log1p", "exp", "neg"]) is None
