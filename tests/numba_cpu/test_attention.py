"""Attention's kernels have the bits of the definition, for all sizes, strides and dtypes, whatever hidden keys hold."""

import itertools

import numpy as np
import pytest

from tests import attention_reference as reference
from tests.sampling import sampled
from volta import lax
from volta.core import dtypes, errors
from volta.ops.attention import attention_dkv_p
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

DTYPES = {"f4": np.float32, "f8": np.float64, "f2": np.float16, "bf16": dtypes.bfloat16}


def operands(b, n, k, t, s, h, hv, dtype="f4", seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((b, n, t, h), (b, k, s, h), (b, k, s, hv), (b, n, t, hv))
    return [rng.normal(size=shape).astype(DTYPES[dtype]) for shape in shapes]


@np.errstate(all="ignore")
def check(q, k, v, do, **params):
    """All three kernels against the definition."""
    params.setdefault("scale", 0.3)
    want = reference.attention(q, k, v, **params)
    assert_bits_equal(list(lax.attention(q, k, v, **params)), want, "forward")
    out, m, l = want  # noqa: E741
    work = m.dtype
    delta = (do.astype(work) * out.astype(work)).sum(-1)
    given = (q, k, v, do, m, l, delta)
    assert_bits_equal(lax.attention_dq(*given, **params), reference.attention_dq(*given, **params), "dq")
    assert_bits_equal(list(lax.attention_dkv(*given, **params)), reference.attention_dkv(*given, **params), "dkv")


SIZES = [  # B, N, K, T, S, H, Hv
    (1, 1, 1, 1, 1, 1, 1),
    (2, 2, 1, 5, 63, 3, 2),
    (1, 4, 2, 64, 64, 16, 16),
    (1, 1, 1, 65, 129, 24, 40),
    (1, 2, 2, 130, 70, 17, 33),
    (1, 1, 1, 7, 200, 64, 32),
    (2, 6, 2, 1, 130, 8, 16),
    (1, 70, 1, 1, 66, 48, 80),
]


@pytest.mark.parametrize("causal", [False, True])
@sampled("sizes", SIZES, quick=(SIZES[0], SIZES[3], SIZES[6]), ids=str)
@pytest.mark.few(3)
def test_sizes(sizes, causal):
    check(*operands(*sizes), causal=causal)


@pytest.mark.parametrize("dtype", ["f8", "f2", "bf16"])
@sampled("sizes", [(1, 2, 1, 66, 67, 9, 5), (1, 1, 1, 3, 130, 16, 32)], quick=[(1, 2, 1, 66, 67, 9, 5)])
def test_dtypes(sizes, dtype):
    check(*operands(*sizes, dtype), causal=True)


@sampled("start", [[0, 60], [-3, -200], [63, 1 << 30], [64, -(1 << 31)]], quick=[[0, 60], [63, 1 << 30]], ids=str)
def test_starts(start):
    check(*operands(2, 1, 1, 70, 140, 8, 8), causal=True, start=np.array(start, np.int32))


MASKS = [(2, 2, 70, 130), (1, 1, 70, 130), (2, 1, 1, 130), (1, 2, 70, 1), (1, 1, 1, 1)]


@sampled(
    "shape, causal",
    itertools.product(MASKS, (False, True)),
    quick=[(shape, i % 4 == 0) for i, shape in enumerate(MASKS) if i % 2 == 0],
    ids=str,
)
def test_masks(shape, causal):
    mask = np.random.default_rng(1).random(shape) < 0.7
    if shape[2] == 70:
        mask[..., 3, :] = mask[..., 68, :] = False  # rows that see no key
        mask[..., 64:] &= shape[3] != 130
    check(*operands(2, 2, 1, 70, 130, 8, 16), causal=causal, mask=mask)


@pytest.mark.parametrize("shape", [(2, 6, 1, 130), (1, 6, 1, 1), (2, 1, 1, 130)])
def test_one_row_of_heads_that_share_keys(shape):
    """The kernel takes the heads of a group together: each at the same position, with a mask of its own."""
    mask = np.random.default_rng(4).random(shape) < 0.7
    given = operands(2, 6, 2, 1, 130, 8, 8)
    check(*given, mask=mask)
    check(*given, mask=mask, causal=True, start=np.int32([3, 99]))
    check(*given, causal=True, start=np.int32([-1, 1 << 20]))


def test_masks_that_leave_out_whole_blocks():
    mask = np.zeros((1, 1, 1, 200), bool)
    mask[..., 130:150] = True
    check(*operands(1, 1, 1, 66, 200, 8, 8), mask=mask)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_hidden_keys_hold_changes_nothing(bad):
    q, k, v, do = operands(1, 2, 2, 70, 150, 8, 8)
    seen = np.random.default_rng(2).random((1, 2, 70, 150)) < 0.5
    seen[..., [5, 64, 149]] = False
    params = {"scale": 0.3, "causal": True, "mask": seen}
    clean = [np.asarray(x) for x in lax.attention(q, k, v, **params)]
    delta = (do * clean[0]).sum(-1)
    for x in (k, v):
        x[:, :, [5, 64, 149]] = bad
        x[:, :, 70:] = bad
    assert_bits_equal(list(lax.attention(q, k, v, **params)), clean)
    assert np.isfinite(np.asarray(lax.attention_dq(q, k, v, do, *clean[1:], delta, **params))).all()
    check(q, k, v, do, **params)


@sampled("bad", [np.nan, np.inf, -np.inf, 3e38, 0.0, -0.0, 1e-40], quick=[np.nan, 3e38])
def test_special_values_among_visible_keys(bad):
    for which in range(4):
        given = operands(1, 1, 1, 66, 70, 4, 4)
        given[which][0, 0, [0, 5, 64]] = bad
        check(*given, causal=True)


def test_zeros_of_both_signs():
    """Products that underflow leave a -0 in a chain; a hidden key must not touch it, and merging makes it +0."""
    q, k, v, do = operands(1, 1, 1, 70, 130, 4, 4)
    q[:] = 0
    v[:] = -1e-45
    v[:, :, 1::2] = 1e-45
    mask = np.random.default_rng(3).random((1, 1, 70, 130)) < 0.5
    check(q, k, v, do * 1e-30, mask=mask)
    k[:] = -0.0
    check(-q, k, v, do, causal=True)


def test_nothing_to_attend_to():
    for b, t, s in ((0, 3, 3), (1, 0, 3), (1, 3, 0)):
        q, k, v, do = operands(b, 2, 1, t, s, 4, 4)
        check(q, k, v, do)
        check(q, k, v, do, causal=True)


def test_a_prefix_is_the_same_in_pieces():
    """Prefill at once, in chunks, and row by row: the same bits, whatever the cache holds behind."""
    q, k, v, _ = operands(2, 4, 2, 150, 200, 16, 16)
    whole = [np.asarray(x) for x in lax.attention(q, k, v, causal=True)]
    k[:, :, 150:] = np.nan
    for step in (1, 7, 64, 100):
        for first in range(0, 150, step):
            rows = slice(first, min(first + step, 150))
            start = np.full(2, first, np.int32)
            piece = lax.attention(q[:, :, rows], k, v, causal=True, start=start)
            assert_bits_equal(list(piece), [x[:, :, rows] for x in whole], f"rows from {first} on, by {step}")


LONG = [  # sizes, dtype, params: the cotangents of keys and values are sums over more than 4096 queries
    ((1, 2, 1, 4097, 5, 3, 2), "f4", {}),
    ((1, 1, 1, 8192 + 70, 66, 4, 4), "f4", {"causal": True}),
    ((2, 2, 2, 4200, 3, 4, 2), "bf16", {"causal": True, "start": np.array([1, -4100], np.int32)}),
    ((1, 1, 1, 12300, 2, 2, 3), "f8", {"mask": np.arange(12300)[:, None] % 7 > np.arange(2) * 5}),
]


@sampled("sizes, dtype, params", LONG, quick=lambda x: x[0][3] < 5000, ids=lambda x: f"{x[1]}-{x[0]}")
def test_sums_over_many_queries_are_joined_in_pairs(sizes, dtype, params):
    if "mask" in params:
        params = {**params, "mask": params["mask"][None, None]}
    check(*operands(*sizes, dtype), **params)


def test_the_primitive_sums_over_one_block_of_queries():
    q, k, v, do = operands(1, 1, 1, 4097, 2, 3, 2)
    rows = [np.ones(q.shape[:3], np.float32)] * 3
    params = {"scale": 1.0, "causal": False, "started": False, "masked": False}
    with pytest.raises(errors.ShapeError, match=r"attention_dkv\(.*: sums over 4096 queries at most"):
        attention_dkv_p.bind(q, k, v, do, *rows, **params)
