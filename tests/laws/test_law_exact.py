"""Products of precision "exact" are those of the definition, by Python's integers; no order of terms shows in them."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.laws.law_orders import declared_exact
from tests.sampling import sampled
from tests.thread_support import run_threads
from volta import errors, lax
from volta.testing import assert_bits_equal, fill
from volta.xla_like import exact as definition


def exact(a, b):
    return vnp.matmul(a, b, precision="exact")


@sampled(
    "shape", [(3, 5, 4), (1, 1, 1), (6, 0, 3), (5, 63, 1), (1, 64, 9), (9, 270, 17)], quick=[(5, 63, 1), (9, 270, 17)]
)
@pytest.mark.parametrize("kind", ["normal", "ladder", "subnormal", "specials"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.few(4)
def test_every_bit_is_that_of_the_definition(shape, kind, dtype) -> None:
    m, k, n = shape
    a, b = fill(kind, (m, k), dtype, seed=m), fill(kind, (k, n), dtype, seed=n)
    want = declared_exact(a, b)
    assert_bits_equal(exact(a, b), want)
    assert_bits_equal(exact(b.T, a.T), want.T)
    assert_bits_equal(volta.jit(exact)(a, b), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_rounded_once(dtype) -> None:
    a, b = fill("ladder", (4, 90), dtype, seed=1), fill("normal", (90, 5), dtype, seed=2)
    assert_bits_equal(exact(a, b), declared_exact(a, b))
    wide = lax.dot(a, b, "exact", preferred_element_type="float32")
    assert_bits_equal(wide, declared_exact(a.astype(np.float32), b.astype(np.float32)))


@given(st.integers(0, 2**31), st.integers(1, 200))
def test_no_order_of_terms_shows(seed, k) -> None:
    rng = np.random.default_rng(seed)
    a, b = (fill("ladder", s, "float32", seed=seed % 1000) for s in ((3, k), (k, 2)))
    order = rng.permutation(k)
    assert_bits_equal(exact(a[:, order], b[order]), exact(a, b))


def test_float32_chains_show_their_order_on_the_same_data() -> None:
    a, b = fill("ladder", (3, 200), "float32"), fill("ladder", (200, 2), "float32")
    order = np.random.default_rng(0).permutation(200)
    assert not np.array_equal(np.asarray(vnp.matmul(a[:, order], b[order])), np.asarray(vnp.matmul(a, b)))


def test_zeros_infinities_and_nans() -> None:
    """What is not finite is NaN in its whole row and column; a zero is +0, of nothing too."""
    a, b = np.ones((4, 3), np.float32), np.ones((3, 2), np.float32)
    a[0, 1], a[1, 2], a[2] = np.inf, np.nan, -0.0
    found = np.asarray(exact(a, b))
    assert np.isnan(found[:2]).all() and not np.signbit(found[2]).any() and (found[2:] == [[0, 0], [3, 3]]).all()
    empty = np.asarray(exact(np.full((2, 0), np.nan, np.float32), np.ones((0, 2), np.float32)))
    assert empty.shape == (2, 2) and not empty.any() and not np.signbit(empty).any()
    largest = np.finfo(np.float32).max
    assert_bits_equal(exact(np.float32([[largest, largest]]), np.float32([[1], [1]])), np.float32([[np.inf]]))
    assert_bits_equal(exact(np.float32([[largest, -largest, 1]]), np.float32([[1], [1], [1]])), np.float32([[0]]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [0, 8, 30])
@pytest.mark.few(2)
def test_errors_are_within_the_bound(spread, dtype) -> None:
    rng = np.random.default_rng(spread)
    a, b = (rng.standard_normal(s) * np.exp2(rng.integers(-spread, spread + 1, s)) for s in ((8, 300), (300, 8)))
    a, b = a.astype(dtype), b.astype(dtype)
    found = np.asarray(exact(a, b)).tolist()
    share, ulp = (2.0**-25, 2.0**-24) if dtype == "float32" else (2.0**-49, 2.0**-53)
    for i, x in enumerate(a.tolist()):
        for j, y in enumerate(b.T.tolist()):
            total = sum(Fraction(p) * Fraction(q) for p, q in zip(x, y, strict=True))
            bound = 300 * share * max(map(abs, x)) * max(map(abs, y)) + abs(total) * Fraction(ulp)
            assert abs(Fraction(found[i][j]) - total) <= bound


def test_results_of_float64_at_the_ends_of_its_range() -> None:
    """Powers of two beyond float64 are two factors, so that nothing is lost on the way."""
    a, b = (fill("normal", s, "float64", seed=i) for i, s in enumerate(((3, 40), (40, 3))))
    for left, right in ((1000, -1000), (-1000, 1000), (-500, -560), (-1060, 30), (500, 520), (900, 900)):
        with np.errstate(over="ignore"):
            x, y = a * 2.0**left if left > -1020 else a * 2.0**-1000 * 2.0**-60, b * 2.0**right
        assert_bits_equal(exact(x, y), declared_exact(x, y))


def test_small_integers_are_exact_where_chains_of_float32_are_not() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-16_000, 16_000, (5, 400)), rng.integers(-16_000, 16_000, (400, 5))
    want = (a @ b).astype(np.float32)
    assert_bits_equal(exact(a.astype(np.float32), b.astype(np.float32)), want)
    assert not np.array_equal(np.asarray(a.astype(np.float32) @ vnp.asarray(b.astype(np.float32))), want)


def test_long_products_go_by_blocks_that_int32_holds(monkeypatch) -> None:
    """Every digit at its largest: a term is 49152 (float64: 98304), and those of a block are within 31 bits."""
    for digits, block in definition.BLOCK.items():
        assert block * sum(128 * 128 if 0 < i < digits - 1 else 64 * 128 for i in range(digits)) < 2**31
    a, b = fill("ladder", (3, 300), "float32"), fill("normal", (300, 4), "float32")
    want = np.asarray(exact(a, b))
    monkeypatch.setattr(definition, "BLOCK", {4: 70})
    assert_bits_equal(volta.jit(lambda a, b: exact(a, b))(a, b), want)


def test_a_product_of_more_terms_than_a_block() -> None:
    largest = np.full((1, 100_000), np.nextafter(np.float32(1), np.float32(0)))
    found = np.asarray(exact(largest, largest.T), np.float64)
    assert abs(found[0, 0] - 100_000 * (1 - 2.0**-23)) <= 2.0**-7


def test_too_many_terms_are_refused() -> None:
    x = volta.ShapeDtypeStruct(((1 << 26) + 1,), np.float32)
    with pytest.raises(errors.ShapeError, match="at most 67108864 terms.*leave the precision at None"):
        volta.eval_shape(lambda x: vnp.dot(x, x, precision="exact"), x)
    x = volta.ShapeDtypeStruct((1 << 26,), np.float32)
    assert volta.eval_shape(lambda x: vnp.dot(x, x, precision="exact"), x).shape == ()


def test_batches_and_layouts() -> None:
    a, b = fill("ladder", (2, 3, 5, 70), "float32"), fill("normal", (3, 70, 4), "float32", seed=1)
    found = np.asarray(exact(a, b))
    for i in range(2):
        for j in range(3):
            assert_bits_equal(found[i, j], declared_exact(a[i, j], b[j]))
    assert_bits_equal(volta.vmap(exact, (1, 0))(a, b), np.moveaxis(found, 1, 0))
    assert_bits_equal(vnp.einsum("abmk,bkn->anmb", a, b, precision="exact"), found.transpose(0, 3, 2, 1))
    two = vnp.tensordot(a, a, ((1, 3), (1, 3)), precision="exact")
    flat = a.transpose(0, 2, 1, 3).reshape(10, 210)
    assert_bits_equal(two, np.asarray(declared_exact(flat, flat.T)).reshape(2, 5, 2, 5))


def test_convolutions_are_exact_over_their_windows() -> None:
    x, w = fill("ladder", (1, 3, 7, 6), "float32"), fill("normal", (4, 3, 2, 3), "float32")
    found = np.asarray(lax.conv(x, w, (1, 1), "VALID", precision="exact"))
    for i, j in ((0, 0), (2, 1), (5, 3)):
        window = x[0, :, i : i + 2, j : j + 3].transpose(1, 2, 0).reshape(1, -1)
        assert_bits_equal(found[:, :, i, j], declared_exact(window, w.transpose(2, 3, 1, 0).reshape(-1, 4)))


@pytest.mark.parametrize("precision", ["highest", "exact"])
def test_convolutions_have_the_precision_that_is_asked_for(precision) -> None:
    x, w = fill("normal", (1, 1, 4000), "float32"), fill("normal", (1, 1, 4000), "float32", seed=1)
    found = np.asarray(lax.conv(x, w, (1,), "VALID", precision=precision)).ravel()
    assert_bits_equal(found, np.asarray(vnp.matmul(x[0], w[0, 0], precision=precision)))
    assert found[0] != np.asarray(lax.conv(x, w, (1,), "VALID")).ravel()[0]


def test_gradients_are_exact_too() -> None:
    a, b, g = fill("ladder", (5, 30), "float32"), fill("normal", (30, 4), "float32"), fill("cancel", (5, 4), "float32")
    for f in (exact, volta.jit(exact)):
        left, right = volta.vjp(f, a, b)[1](g)
        assert_bits_equal(left, declared_exact(g, b.T))
        assert_bits_equal(right, declared_exact(a.T, g))
        _, tangent = volta.jvp(lambda a, f=f: f(a, b), (a,), (a[::-1],))
        assert_bits_equal(tangent, declared_exact(a[::-1], b))


def test_threads_loops_and_branches() -> None:
    a = fill("ladder", (40, 40), "float32")
    want = np.asarray(exact(exact(a, a), a))
    assert_bits_equal(volta.jit(lambda a: lax.fori_loop(0, 2, lambda i, c: exact(c, a), a))(a), want)
    assert_bits_equal(volta.jit(lambda a: lax.cond(a[0, 0] < 9e9, exact, lambda a, b: a, a, a))(a), exact(a, a))
    with volta.default_matmul_precision("exact"):
        assert_bits_equal(volta.jit(lambda a: a @ a @ a)(a), want)
    run_threads(lambda _: assert_bits_equal(exact(exact(a, a), a), want), 4)


def test_attention_and_complex_products_have_one_precision() -> None:
    q = fill("normal", (1, 9, 2, 8), "float32")
    z = q[0, :, 0].astype(np.complex64)
    plain = volta.nn.dot_product_attention(q, q, q), vnp.matmul(z, z.T)
    with volta.default_matmul_precision("exact"):
        assert_bits_equal(volta.nn.dot_product_attention(q, q, q), plain[0])
        assert_bits_equal(vnp.matmul(z, z.T), plain[1])
