"""Caches of keys and values: attention through them has the bits of attention to all tokens at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
from volta import nn
from volta.core.errors import ShapeError
from volta.testing import assert_bits_equal

RNG = np.random.default_rng(0)
B, T, N, K, H = 2, 13, 4, 2, 8
Q = RNG.standard_normal((B, T, N, H)).astype(np.float32)
KEYS, VALUES = RNG.standard_normal((2, B, T, K, H)).astype(np.float32)


def whole(window=None):
    near = None if window is None else (window - 1, 0)
    return np.asarray(nn.dot_product_attention(Q, KEYS, VALUES, is_causal=True, local_window_size=near))


def plain(length):
    """Filled with NaNs, which would show if a key were read that is not visible."""
    made = nn.KeyValueCache.zeros(B, length, heads=K, size=H)
    return nn.KeyValueCache(made.keys * np.nan, made.values * np.nan)


def paged(length, page=4):
    """Each row's pages in an order of its own, in a memory with further ones."""
    count = -(-length // page)
    table = np.random.default_rng(1).permutation(B * count + 3)[: B * count].reshape(B, count)
    made = nn.PagedKeyValueCache.zeros(B * count + 3, page, heads=K, size=H, table=table)
    return nn.PagedKeyValueCache(made.keys * np.nan, made.values * np.nan, made.table)


@volta.jit
def piece(cache, start, q, k, v):
    cache = cache.update(k, v, start)
    return cache, cache.attend(q, start)


@given(st.lists(st.integers(1, T), min_size=1, max_size=6), st.integers(0, 5), st.sampled_from([plain, paged]))
@settings(max_examples=10)
def test_pieces_have_the_bits_of_all_at_once(sizes, more, make):
    cache, at, found = make(T + more), 0, []
    for size in [*sizes, T]:
        part = slice(at, min(at + size, T))
        if part.start < part.stop:
            cache, y = piece(cache, np.full(B, at, np.int32), Q[:, part], KEYS[:, part], VALUES[:, part])
            found.append(np.asarray(y))
            at = part.stop
    assert_bits_equal(np.concatenate(found, 1), whole())


@pytest.mark.parametrize("make", [plain, paged])
def test_rows_stand_at_positions_of_their_own(make):
    """The second row is three tokens behind; what it is padded with changes nothing, and is overwritten."""
    cache = make(T).update(KEYS[:, :8], VALUES[:, :8], np.array([0, -3 + 3]))
    start = np.array([8, 5], np.int32)
    k, v, q = (np.stack([x[0, 8:10], x[1, 5:7]]) for x in (KEYS, VALUES, Q))
    found = cache.update(k, v, start).attend(q, start)
    assert_bits_equal(found, np.stack([whole()[0, 8:10], whole()[1, 5:7]]))


@pytest.mark.parametrize("window", [1, 3, 40])
def test_windows(window):
    cache = plain(T).update(KEYS, VALUES, np.zeros(B, np.int32))
    last = cache.attend(Q[:, -1:], np.full(B, T - 1), window=window)
    assert_bits_equal(last, whole(window)[:, -1:])
    if window == 1:
        np.testing.assert_allclose(last[:, 0], np.repeat(VALUES[:, -1], N // K, axis=1), rtol=1e-6)


@pytest.mark.parametrize("make", [plain, paged])
def test_what_does_not_fit_is_dropped(make):
    cache = make(8)
    full = cache.update(KEYS[:, :8], VALUES[:, :8], np.zeros(B, np.int32))
    beyond = full.update(KEYS[:, :4], VALUES[:, :4], np.full(B, 8))
    assert_bits_equal([x[:, :8] for x in beyond.rows()], [x[:, :8] for x in full.rows()])


def test_a_page_that_is_none_is_not_written():
    cache = nn.PagedKeyValueCache.zeros(2, 4, heads=K, size=H, table=np.array([[0], [-1]]))
    found = cache.update(KEYS[:, :2], VALUES[:, :2], np.zeros(B, np.int32))
    assert np.asarray(found.keys)[0, :2].any() and not np.asarray(found.keys)[1].any()


@pytest.mark.parametrize("make", [plain, paged])
def test_keys_of_another_shape_are_refused(make):
    with pytest.raises(ShapeError, match=r"keys \(2, 3, 4, 8\) do not fit: wanted \(2, tokens, 2, 8\)"):
        make(8).update(Q[:, :3], Q[:, :3], np.zeros(B, np.int32))
