"""The functions that are more than a bind: composites, indices along one axis, Python numbers."""

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from volta import lax
from volta.core.interp import get_aval

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def same(actual, expected):
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_python_numbers_take_the_dtype_of_their_partner():
    for dtype in (np.float32, np.float64, np.int8):
        out = lax.add(np.ones(2, dtype), 1)
        assert get_aval(out).dtype == dtype and not get_aval(out).weak_type
    assert get_aval(lax.add(1.0, 2)).weak_type and get_aval(lax.add(1.0, 2)).dtype == np.float64
    assert get_aval(lax.mul(lax.add(1.0, 2.0), 3)).weak_type


def test_nothing_is_bound_where_nothing_changes():
    assert lax.reshape(X, (2, 3, 4)) is X
    assert lax.transpose(X, (0, 1, 2)) is X
    assert lax.slice(X, (0, 0, 0), (2, 3, 4)) is X
    assert lax.pad(X, 0.0, [(0, 0, 0)] * 3) is X
    assert lax.rev(X, ()) is X
    assert lax.convert_element_type(X, np.float32) is X
    assert lax.integer_pow(X, 1) is X
    assert lax.concatenate([X], 0) is X


def test_shaping():
    same(lax.expand_dims(X, (0, -1)), X[None, ..., None])
    same(lax.squeeze(X[:1], 0), X[0])
    same(lax.collapse(X, 1), X.reshape(2, 12))
    same(lax.collapse(X, 0, 2), X.reshape(6, 4))
    same(lax.broadcast(X, (5,)), np.broadcast_to(X, (5, 2, 3, 4)))
    same(lax.slice_in_dim(X, 1, None, 2, axis=-1), X[..., 1::2])
    same(lax.slice_in_dim(X, -2, -1, axis=1), X[:, -2:-1])
    same(lax.index_in_dim(X, -1, 1), X[:, -1:])
    same(lax.index_in_dim(X, 0, 2, keepdims=False), X[..., 0])


def test_constants():
    same(lax.iota(np.int32, 4), np.arange(4, dtype=np.int32))
    same(lax.broadcasted_iota(np.float32, (2, 3), 1), np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)))
    same(lax.full((2,), 3, np.float32), np.full(2, 3, np.float32))
    same(lax.full_like(X, 2), np.full_like(X, 2))
    same(lax.zeros_like(X, np.int32), np.zeros_like(X, np.int32))
    same(lax.ones_like(X), np.ones_like(X))
    same(lax.full((2,), np.float64(1.5), np.float32), np.full(2, 1.5, np.float32))


def test_arithmetic():
    x = np.float32([1.0, 2.0, -4.0])
    same(lax.square(x), x * x)
    same(lax.reciprocal(x), 1 / x)
    same(lax.clamp(-1.0, x, 1.0), np.clip(x, -1, 1))
    same(lax.select(x > 0, x, 0.0), np.where(x > 0, x, np.float32(0)))
    same(lax.integer_pow(x, -2), np.float32([1.0, 0.25, 0.0625]))
    same(lax.stop_gradient(x), x)
    same(lax.bitcast_convert_type(x, np.int32), x.view(np.int32))
    same(lax.dot(np.eye(3, dtype=np.float32), x), x)


def test_dynamic():
    same(lax.dynamic_slice(X, (1, 0, 9), (1, 2, 2)), X[1:2, 0:2, 2:4])
    same(lax.dynamic_slice(X, np.array([1, 0, 9], np.int32), (1, 2, 2)), X[1:2, 0:2, 2:4])
    same(lax.dynamic_slice_in_dim(X, np.int32(1), 2, axis=1), X[:, 1:3])
    same(lax.dynamic_index_in_dim(X, np.int32(1), 1, keepdims=False), X[:, 1])
    expected = X.copy()
    expected[:, 1] = -1
    same(lax.dynamic_update_index_in_dim(X, np.full((2, 4), -1, np.float32), np.int32(1), 1), expected)
    same(lax.dynamic_update_slice_in_dim(X, np.full((2, 1, 4), -1, np.float32), 1, 1), expected)


def test_sorting():
    x = np.float32([[3, 1, np.nan, 1], [0, -0.0, 5, 2]])
    same(lax.sort(x), np.sort(x))
    keys, places = lax.sort_key_val(x, lax.broadcasted_iota(np.int32, x.shape, 1))
    same(keys, np.sort(x))
    same(places, np.argsort(x, kind="stable").astype(np.int32))
    values, places = lax.top_k(x, 3)
    same(values, np.float32([[np.nan, 3, 1], [5, 2, 0]]))
    same(places, np.int32([[2, 0, 1], [2, 3, 0]]))
    pair = lax.sort((np.int32([1, 0, 1, 0]), np.int32([0, 3, -1, 2])), num_keys=2)
    same(pair[0], np.int32([0, 0, 1, 1]))
    same(pair[1], np.int32([2, 3, -1, 0]))


def test_scatter_keeps_the_last_update_and_drops_what_is_outside():
    x, i = np.zeros(4, np.float32), np.int32([1, 1, 7, -1])
    u = np.float32([1, 2, 3, 4])
    same(lax.scatter(x, u, [i], (0,)), np.float32([0, 2, 0, 0]))
    same(lax.scatter(x, u, [i], (0,), op="add"), np.float32([0, 3, 0, 0]))
    same(lax.scatter(x, u, [i], (0,), mode="clip"), np.float32([4, 2, 0, 3]))


@pytest.mark.parametrize("mode,expected", [("fill", np.nan), ("zero", 0.0), ("clip", 3.0)])
def test_gather_out_of_range(mode, expected):
    x = np.float32([0, 1, 2, 3])
    same(lax.gather(x, [np.int32([1, 9])], (0,), mode=mode), np.float32([1, expected]))


def test_barrier_is_the_identity():
    a, b = lax.optimization_barrier(X, np.int32(3))
    same(a, X)
    same(b, np.int32(3))
