"""Pooling over space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.core.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal

X = np.random.default_rng(0).standard_normal((2, 7, 6, 3)).astype("f4")


def windows(x: Any, shape: tuple[int, int], strides: tuple[int, int]) -> Any:
    found = np.lib.stride_tricks.sliding_window_view(x, shape, axis=(1, 2))
    return found[:, :: strides[0], :: strides[1]]


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_pooling_is_numpy_s_reduction_of_windows(strides: Any) -> None:
    seen = windows(X, (3, 2), strides)
    assert_bits_equal(nn.max_pool(X, (3, 2), strides), seen.max((-1, -2)))
    assert_bits_equal(nn.min_pool(X, (3, 2), strides), seen.min((-1, -2)))
    np.testing.assert_allclose(nn.avg_pool(X, (3, 2), strides), seen.mean((-1, -2)), rtol=1e-5, atol=1e-6)


def test_padding_counts_or_does_not() -> None:
    x = vnp.ones((5, 1))
    np.testing.assert_allclose(nn.avg_pool(x, (3,), padding="SAME").ravel(), [2 / 3, 1, 1, 1, 2 / 3], rtol=1e-6)
    for padding in ("SAME", [(1, 1)]):
        assert_bits_equal(nn.avg_pool(x, (3,), padding=padding, count_include_pad=False), x)


def test_more_batch_axes_or_none() -> None:
    one = nn.max_pool(X[0], (2, 2), (2, 2))
    assert_bits_equal(nn.max_pool(X, (2, 2), (2, 2))[0], one)
    assert_bits_equal(nn.max_pool(X[None], (2, 2), (2, 2))[0, 0], one)


def test_a_mean_gives_every_element_of_a_window_its_share() -> None:
    found = volta.grad(lambda x: vnp.sum(nn.avg_pool(x, (2,), (2,))))(np.ones((6, 1), "f4"))
    assert_bits_equal(found, np.full((6, 1), 0.5, "f4"))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ShapeError, match=r"max_pool: a window \(2, 2\)"):
        nn.max_pool(np.ones((4, 4), "f4"), (2, 2))
    with pytest.raises(ShapeError, match="a stride for each"):
        nn.avg_pool(X, (2, 2), (2,))
    with pytest.raises(DTypeError, match="takes floats"):
        nn.avg_pool(np.ones((4, 1), "i4"), (2,))
