"""The matrix-product kernels have the bits of the definition: every shape, layout, dtype, width and cut into tasks."""

import itertools

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from tests.numba_cpu.dot_oracle import bits, oracle, product_of, run
from tests.sampling import sampled
from volta.numba_cpu import dot_schedule, target
from volta.numba_cpu.dot_schedule import QuadSpec, TileSpec, for_tiles
from volta.numba_cpu.schedule import KERNELS
from volta.xla_like.dot import DotSpec, fold_batch

pytestmark = pytest.mark.turns(6)

F32 = TileSpec("float32", "float32", "float32")
WIDTHS = [bits_ for bits_ in (512, 256, 128) if bits_ <= target.vector_bits()][:2]


def spec(lhs="float32", rhs=None, out=None, precision="default", width=WIDTHS[0]):
    return TileSpec(lhs, rhs or lhs, out or lhs, precision, width)


def fill(shape, dtype, rng):
    """Numbers of many magnitudes, so that every change of order or rounding shows."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(dtype)


def check(spec, lhs, rhs, parts=(1,), out=None):
    expected = bits(oracle(spec, lhs, rhs))
    for count in parts:
        got = run(spec, lhs, rhs, parts=count, out=out)
        np.testing.assert_array_equal(bits(got), expected, err_msg=f"{spec} {lhs.shape} {rhs.shape} parts={count}")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("k", [0, 1, 2, 15, 16, 255, 256, 257, 513])
@pytest.mark.few(8)
def test_shapes(width, k):
    rng = np.random.default_rng(k)
    sizes = [0, 1, 2, 6, 13, 14, 15, 16, 17, 28, 31, 32, 33, 65]
    for m in sizes:
        for n in sizes:
            lhs, rhs = fill((1, 1, m, k), "f4", rng), fill((1, 1, k, n), "f4", rng)
            check(spec(width=width), lhs, rhs)


LONG = (4096, 4097, 8192, 8193, 12289, 7 * 4096 - 1, 69633)


@sampled(
    "k, width",
    itertools.product(LONG, WIDTHS),
    quick=lambda x: x[0] in (4097, 12289, 69633) and x[1] == WIDTHS[0],
)
def test_blocks_of_long_sums_are_joined_in_pairs(width, k):
    rng = np.random.default_rng(k)
    for m, n in [(1, 1), (1, 40), (40, 1), (3, 33), (16, 32), (40, 70)]:
        lhs, rhs = fill((1, 1, m, k), "f4", rng), fill((1, 1, k, n), "f4", rng)
        for left, right in (("plain", "plain"), ("transposed", "transposed")):
            check(spec(width=width), laid_out(lhs, left, rng), laid_out(rhs, right, rng), parts=(2,))


@sampled(
    "dtypes",
    [("float64",), ("bfloat16",), ("float32", None, None, "highest"), ("int8", None, "int32")],
    quick=[("float32", None, None, "highest")],
    ids=str,
)
def test_long_sums_of_other_dtypes(dtypes):
    rng, one = np.random.default_rng(3), spec(*dtypes)
    for batch, m, k, n in [((1, 2), 5, 12289, 40), ((1, 1), 130, 8193, 33), ((2, 1), 1, 20481, 70)]:
        lhs, rhs = fill((*batch, m, k), one.lhs, rng), fill((*batch, k, n), one.rhs, rng)
        check(one, lhs, rhs)
        check(one, lhs, laid_out(rhs, "transposed", rng))


@pytest.mark.slow
def test_long_sums_of_large_shapes_use_every_path():
    rng = np.random.default_rng(4)
    for m, k, n in [(300, 8200, 600), (130, 12289, 1100), (17, 9000, 2050)]:
        lhs, rhs = fill((1, 1, m, k), "f4", rng), fill((1, 1, k, n), "f4", rng)
        check(F32, lhs, rhs, parts=(1, 3))
        check(F32, laid_out(lhs, "transposed", rng), laid_out(rhs, "transposed", rng))


def laid_out(x, layout, rng):
    """The same numbers in another memory layout."""
    if layout == "transposed":
        return np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3)
    if layout == "negative":
        return np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    if layout == "spaced":
        wide = fill((*x.shape[:3], 2 * x.shape[3] + 3), x.dtype, rng)
        wide[..., 1 : 2 * x.shape[3] : 2] = x
        return wide[..., 1 : 2 * x.shape[3] : 2]
    if layout == "rows apart":
        wide = fill((*x.shape[:3], x.shape[3] + 5), x.dtype, rng)
        wide[..., 2 : 2 + x.shape[3]] = x
        return wide[..., 2 : 2 + x.shape[3]]
    if layout == "batch inside":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    return x


LAYOUTS = ["plain", "transposed", "negative", "spaced", "rows apart", "batch inside"]


@sampled(
    "right, left, width",
    itertools.product(LAYOUTS, LAYOUTS, WIDTHS),
    quick=lambda x: x[2] == WIDTHS[0] or "transposed" in x,
)
def test_layouts(width, left, right):
    rng = np.random.default_rng(7)
    for batch, m, k, n in [((1, 1), 35, 300, 48), ((2, 3), 33, 17, 33), ((1, 18), 20, 9, 40), ((1, 1), 1, 260, 70)]:
        lhs = laid_out(fill((*batch, m, k), "f4", rng), left, rng)
        rhs = laid_out(fill((*batch, k, n), "f4", rng), right, rng)
        check(spec(width=width), lhs, rhs, parts=(1, 3))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "shape",
    [(300, 270, 600), (130, 33, 1500), (1, 513, 520), (513, 513, 1), (1, 600, 4), (30, 64, 700), (530, 260, 1090)],
)
def test_large_shapes_use_every_path(width, shape):
    m, k, n = shape
    rng = np.random.default_rng(3)
    lhs, rhs = fill((1, 1, m, k), "f4", rng), fill((1, 1, k, n), "f4", rng)
    check(spec(width=width), lhs, rhs, parts=(1, 2, 7))
    check(spec(width=width), laid_out(lhs, "transposed", rng), laid_out(rhs, "transposed", rng), parts=(2,))


@pytest.mark.parametrize("n", [1, 24, 48, 300])
def test_broadcast_operands(n):
    rng = np.random.default_rng(n)
    for m in (1, 40, 100):
        lhs, rhs = fill((2, 20, m, 30), "f4", rng), fill((2, 20, 30, n), "f4", rng)
        for axis in (0, 1, 2, 3):
            check(F32, np.broadcast_to(lhs.take([0], axis), lhs.shape), rhs, parts=(1, 5))
            check(F32, lhs, np.broadcast_to(rhs.take([0], axis), rhs.shape), parts=(1, 5))
        both = rhs[:1, :1]
        check(F32, lhs, np.broadcast_to(both, rhs.shape), parts=(1, 5))


DTYPES = [
    ("float64", None, None, "default"),
    ("bfloat16", None, "float32", "default"),
    ("bfloat16", None, "bfloat16", "default"),
    ("float16", None, "float16", "default"),
    ("float16", "float32", "float32", "default"),
    ("float32", "bfloat16", "float32", "default"),
    ("float32", None, "float32", "highest"),
    ("bfloat16", "float32", "float32", "highest"),
    ("float16", None, "float16", "highest"),
    ("float32", None, "float64", "default"),
    *[(d, None, None, "default") for d in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")],
    ("int8", "uint8", "int32", "default"),
    ("int32", None, "int64", "default"),
]


@sampled(
    "dtypes, width",
    itertools.product(DTYPES, WIDTHS),
    quick=lambda x: x[0] in (DTYPES[::3] if x[1] == WIDTHS[0] else DTYPES[1::6]),
    ids=str,
)
@pytest.mark.few(4)
def test_dtypes(width, dtypes):
    rng = np.random.default_rng(11)
    one = spec(*dtypes, width=width)
    for batch, m, k, n in [
        ((1, 1), 130, 300, 77),
        ((4, 5), 15, 33, 40),
        ((1, 1), 3, 0, 5),
        ((1, 1), 40, 257, 1),
        ((1, 1), 1, 258, 99),
    ]:
        lhs, rhs = fill((*batch, m, k), one.lhs, rng), fill((*batch, k, n), one.rhs, rng)
        for left in ("plain", "transposed", "spaced"):
            for right in ("plain", "transposed", "spaced"):
                check(one, laid_out(lhs, left, rng), laid_out(rhs, right, rng), parts=(2,))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_special_values(width, dtype):
    rng = np.random.default_rng(5)
    one = spec(dtype, width=width)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    huge = float(ml_dtypes.finfo(dtype).max)
    specials = np.array([0.0, -0.0, tiny, -3 * tiny, 1.0, -1.0, huge, -huge, 1e-3, np.inf, -np.inf, np.nan])
    for usable in (2, 6, 9, 12):  # signed zeros; subnormals; overflow; everything
        for m, k, n in [(17, 5, 33), (40, 260, 64), (1, 3, 40)]:
            lhs = specials[rng.integers(0, usable, (1, 1, m, k))].astype(dtype)
            rhs = specials[rng.integers(0, usable, (1, 1, k, n))].astype(dtype)
            with np.errstate(all="ignore"):
                check(one, lhs, rhs)
                check(one, laid_out(lhs, "transposed", rng), laid_out(rhs, "transposed", rng))


def test_an_underflowing_product_keeps_its_sign():
    lhs, rhs = (np.full((1, 1, 1, 1), x, "f4") for x in (-1e-30, 1e-30))
    assert np.signbit(run(F32, lhs, rhs)).all()
    assert not np.signbit(run(F32, lhs[..., :0], rhs[..., :0, :])).any()


def test_the_order_is_the_declared_one():
    """A large number that meets its negative shows which terms were added in between (FPRev's method)."""
    big = np.float32(2.0**40)
    for k in (9, 256, 300, 600):
        for i in range(0, k, 7):
            for j in range(i + 1, k, 31):
                lhs = np.ones((1, 1, 1, k), "f4")
                lhs[..., i], lhs[..., j] = big, -big
                ci, cj = i // 256, j // 256
                lost = j - i - 1 + i % 256
                if ci != cj:  # the whole chunk of j is absorbed, and every chunk from the first on
                    lost = min(k, (cj + 1) * 256) - 2
                kept = k - 2 - lost
                assert run(F32, lhs, np.ones((1, 1, k, 1), "f4"))[0, 0, 0, 0] == kept, (k, i, j)


@sampled("k", [4097, 8192, 8193, 12289, 69633], quick=(4097, 12289))
def test_the_order_of_blocks_is_the_declared_one(k):
    """The large number and its negative lie in all pairs of blocks; what is left came together after they had met."""
    big = np.float32(2.0**40)
    blocks = -(-k // 4096)
    for i in range(blocks):
        for j in range(i + 1, blocks):
            lhs = np.ones((1, 1, 1, k), "f4")
            lhs[..., 4096 * i], lhs[..., min(4096 * j + 300, k - 1)] = big, -big
            level = (i ^ j).bit_length()
            first = i >> level << level
            met = min(k, (first + (1 << level)) * 4096) - first * 4096
            for right in (np.ones((1, 1, k, 1), "f4"), np.ones((1, 1, k, 33), "f4")):
                assert (run(F32, lhs, right) == k - met).all(), (k, i, j)


def test_output_rows_may_lie_apart():
    rng = np.random.default_rng(2)
    for m, n in [(40, 33), (40, 1), (1, 70)]:
        lhs, rhs = fill((2, 3, m, 20), "f4", rng), fill((2, 3, 20, n), "f4", rng)
        room = np.full((2, 3, m, n + 4), 5, "f4")
        check(F32, lhs, rhs, parts=(1, 4), out=room[..., 2 : 2 + n])
        assert (room[..., :2] == 5).all() and (room[..., 2 + n :] == 5).all()


def test_batch_item_alone_has_the_same_bits():
    rng = np.random.default_rng(9)
    lhs, rhs = fill((1, 40, 9, 300), "f4", rng), fill((1, 40, 300, 31), "f4", rng)
    together = run(F32, lhs, rhs)
    for item in (0, 17, 39):
        alone = run(F32, lhs[:, item : item + 1], rhs[:, item : item + 1])
        np.testing.assert_array_equal(bits(alone[0, 0]), bits(together[0, item]))


def test_a_mutant_order_differs():
    """The comparison can fail: chunks of another length give other bits on the same numbers."""
    rng = np.random.default_rng(1)
    lhs, rhs = fill((1, 1, 8, 512), "f4", rng), fill((1, 1, 512, 8), "f4", rng)
    halves = [oracle(F32, lhs[..., a : a + 128], rhs[..., a : a + 128, :]) for a in range(0, 512, 128)]
    other = (halves[0] + halves[1]) + (halves[2] + halves[3])
    assert (bits(other) != bits(oracle(F32, lhs, rhs))).any()


def test_fold_batch():
    assert fold_batch((4, 5, 6), (300, 60, 10), (300, 60, 10), (300, 60, 10)) == ((1, 120), (0, 10), (0, 10), (0, 10))
    assert fold_batch((4, 1, 6), (60, 9, 10), (0, 9, 10), (60, 9, 10)) == ((4, 6), (60, 10), (0, 10), (60, 10))
    assert fold_batch((2, 3, 4), (1, 2, 6), (24, 8, 2), (24, 8, 2)) is None
    assert fold_batch((), (), (), ()) == ((1, 1), (0, 0), (0, 0), (0, 0))


@pytest.mark.parametrize(
    "bad",
    [
        ("float32", "int32", "float32"),
        ("float64", "float64", "float32"),
        ("bool", "bool", "bool"),
        ("int8", "int8", "float32"),
    ],
)
def test_undefined_products_are_refused(bad):
    with pytest.raises(ValueError, match="dot|float64"):
        DotSpec(*bad)
    with pytest.raises(ValueError, match="highest"):
        DotSpec("float64", "float64", "float64", "highest")


def test_kernels_of_several_specs_share_a_module():
    module = ir.Module("unit")
    for one in (F32, spec("bfloat16", out="float32"), spec("float64"), spec(precision="highest")):
        for which in ("dot", "dot_pack", "dot_row"):
            KERNELS[which](module, f"{which}_{one.lhs}_{one.out}_{one.precision}", one)
    llvm.parse_assembly(str(module)).verify()


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_bytes_along_k_are_multiplied_four_at_a_time(width, flipped, monkeypatch):
    """By the instruction for bytes, where it is there, and without it; extremes of sums and odd shapes among them."""
    if flipped and not target.has_byte_products():
        pytest.skip("this processor has no products of bytes")
    monkeypatch.setattr(dot_schedule, "has_byte_products", lambda: flipped)
    rng, one = np.random.default_rng(6), spec("int8", None, "int32", width=width)
    for batch, m, k, n in [((1, 1), 130, 300, 77), ((2, 3), 15, 1200, 40), ((1, 1), 1, 260, 99), ((1, 1), 70, 5000, 1)]:
        lhs, rhs = (rng.integers(-128, 128, s).astype("i1") for s in ((*batch, m, k), (*batch, k, n)))
        lhs[..., : m // 2, :], rhs[..., : n // 2] = -128, -128
        right = laid_out(rhs, "transposed", rng)
        dot, strides = product_of(one, lhs, right, np.empty((*batch, m, n), "i4"))
        assert isinstance(for_tiles(dot, strides, width)[0], QuadSpec)
        check(one, lhs, right, parts=(2,))


def test_words_of_bytes_need_both_operands_along_k():
    rng, one = np.random.default_rng(6), spec("int8", None, "int32")
    for m, k, n, left, right in [
        (8, 64, 8, "plain", "plain"),
        (8, 66, 8, "plain", "transposed"),
        (2, 8, 2, "plain", "transposed"),
    ]:
        lhs, rhs = (laid_out(np.zeros(s, "i1"), how, rng) for s, how in (((1, 1, m, k), left), ((1, 1, k, n), right)))
        found = for_tiles(*product_of(one, lhs, rhs, np.empty((1, 1, m, n), "i4")), 512)
        assert type(found[0]) is TileSpec and found[1].k == k
