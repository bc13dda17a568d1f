"""Rotary embeddings: the turns that the formula says, in both orders of pairs, at any position."""

import numpy as np
import pytest

import volta
from volta import nn
from volta.core.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal

X = np.random.default_rng(0).standard_normal((2, 5, 3, 8)).astype(np.float32)


def turned(x, positions, base, interleaved):
    """By complex numbers, in float64."""
    size = x.shape[-1]
    pairs = (
        x.reshape(*x.shape[:-1], size // 2, 2)
        if interleaved
        else x.reshape(*x.shape[:-1], 2, size // 2).swapaxes(-1, -2)
    )
    angles = np.asarray(positions)[..., None] * base ** (-2.0 * np.arange(size // 2) / size)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[..., None, :]
    both = np.stack([z.real, z.imag], -1)
    return (both if interleaved else both.swapaxes(-1, -2)).reshape(x.shape)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_turned_by_their_positions(interleaved):
    positions = np.array([[0, 1, 2, 3, 4], [7, 100, 1000, 3, 2]])
    found = nn.rotary_embedding(X, positions, interleaved=interleaved)
    np.testing.assert_allclose(found, turned(X, positions, 10000.0, interleaved), rtol=2e-4, atol=2e-4)
    assert_bits_equal(found[:, :1][0], nn.rotary_embedding(X[0, :1], positions[0, :1], interleaved=interleaved))


def test_each_position_has_the_bits_it_has_alone():
    whole = volta.jit(nn.rotary_embedding)(X, np.arange(5))
    for t in range(5):
        assert_bits_equal(whole[:, t : t + 1], nn.rotary_embedding(X[:, t : t + 1], np.array([t])))


def test_some_of_a_head_and_factors():
    frequencies = nn.rotary_frequencies(4, 500.0, np.float32([1, 8]))
    np.testing.assert_allclose(frequencies, [1, 500**-0.5 / 8], rtol=1e-6)
    found = nn.rotary_embedding(X, np.arange(5), frequencies)
    assert_bits_equal(found[..., 4:], X[..., 4:])
    assert not np.array_equal(found[:, 1:, :, :4], X[:, 1:, :, :4])


def test_halves_are_computed_in_float32():
    half = X.astype(np.float16)
    found = nn.rotary_embedding(half, np.arange(5))
    assert found.dtype == np.float16
    assert_bits_equal(found, nn.rotary_embedding(half.astype(np.float32), np.arange(5)).astype(np.float16))


def test_what_is_refused():
    with pytest.raises(ShapeError, match="3 elements are no pairs"):
        nn.rotary_frequencies(3)
    with pytest.raises(ShapeError, match=r"x \(2, 5, 3, 8\) and positions \(4,\) do not fit"):
        nn.rotary_embedding(X, np.arange(4))
    with pytest.raises(DTypeError, match="positions are integers, not float32"):
        nn.rotary_embedding(X, np.float32([0, 1, 2, 3, 4]))
    with pytest.raises(ShapeError, match=r"frequencies \(5,\) are for more than heads of 8"):
        nn.rotary_embedding(X, np.arange(5), np.ones(5, np.float32))
