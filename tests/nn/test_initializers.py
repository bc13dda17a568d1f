"""Initializers: their variances; those that are matrices and uniform ones beside JAX's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta
from volta import nn

KEY = volta.random.key(5)


@pytest.mark.parametrize(("shape", "axis"), [((3, 3), -1), ((5, 3), -1), ((3, 5), -1), ((2, 3, 4), 0), ((4, 2, 3), 1)])
def test_rows_or_columns_are_orthonormal(shape: tuple[int, ...], axis: int) -> None:
    w = np.asarray(nn.initializers.orthogonal(2.0, axis)(KEY, shape))
    assert w.shape == shape and w.dtype == np.float32
    matrix = np.moveaxis(w, axis, -1).reshape(-1, shape[axis])
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix.T @ matrix, 4 * np.eye(matrix.shape[1]), atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 2, 2, 4), (1, 2, 3, 2, 5)])
def test_delta_kernels_are_a_matrix_in_the_middle(shape: tuple[int, ...]) -> None:
    w = np.array(nn.initializers.delta_orthogonal()(KEY, shape))
    middle = tuple((n - 1) // 2 for n in shape[:-2])
    np.testing.assert_array_equal(w[middle], nn.initializers.orthogonal()(KEY, shape[-2:]))
    w[middle] = 0
    assert not w.any()


@pytest.mark.parametrize(("name", "shape"), [("orthogonal", (4, 6)), ("delta_orthogonal", (3, 3, 4, 6))])
@pytest.mark.turns(2)
def test_they_are_jaxs(name: str, shape: tuple[int, ...]) -> None:
    jax = pytest.importorskip("jax")
    got = getattr(nn.initializers, name)()(np.asarray(jax.random.key_data(jax.random.key(5))), shape)
    np.testing.assert_allclose(got, getattr(jax.nn.initializers, name)()(jax.random.key(5), shape), atol=2e-6)


def test_shapes_that_are_none_of_theirs_are_named() -> None:
    init = nn.initializers
    assert init.orthogonal()(KEY, (0, 3)).shape == (0, 3)
    for make, shape, says in (
        (init.orthogonal, (3,), "orthogonal: matrices have at least two axes"),
        (init.delta_orthogonal, (3, 3), "delta_orthogonal: kernels have 3, 4 or 5 axes"),
        (init.delta_orthogonal, (3, 4, 2), "4 channels into 2 cannot keep lengths"),
    ):
        with pytest.raises(volta.errors.ShapeError, match=says):
            make()(KEY, shape)


@pytest.mark.parametrize("name", "glorot_uniform glorot_normal lecun_uniform lecun_normal he_uniform he_normal".split())
def test_initializers_have_the_declared_variance(name: str) -> None:
    w = np.asarray(getattr(nn.initializers, name)()(KEY, (100, 300)))
    fan = {"g": 200, "l": 100, "h": 50}[name[0]]
    assert w.dtype == np.float32
    assert w.var() * fan == pytest.approx(1, rel=0.05)
    assert abs(w.mean()) < 0.01
    bound = math.sqrt(3 / fan) if name.endswith("uniform") else 2 / math.sqrt(fan) / 0.8796
    assert abs(w).max() <= bound * 1.001


@pytest.mark.turns(2)
def test_uniform_initializers_equal_jax() -> None:
    jax = pytest.importorskip("jax")
    key = jax.random.key_data(jax.random.key(5))
    for name in ("glorot_uniform", "he_uniform"):
        want = getattr(jax.nn.initializers, name)()(jax.random.key(5), (7, 9))
        found = getattr(nn.initializers, name)()(np.asarray(key), (7, 9))
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_simple_initializers() -> None:
    init = nn.initializers
    assert init.zeros(KEY, (2,)).tolist() == [0, 0] and init.ones(KEY, (2,)).tolist() == [1, 1]
    assert init.constant(3)(KEY, (2,), "int32").tolist() == [3, 3]
    assert np.asarray(init.normal(0.5)(KEY, (10000,))).std() == pytest.approx(0.5, rel=0.05)
    assert np.asarray(init.truncated_normal(0.5)(KEY, (1000,))).max() <= 1.0
    assert 0 <= np.asarray(init.uniform(0.5)(KEY, (1000,))).max() <= 0.5
    with pytest.raises(volta.errors.ShapeError, match="at least two axes"):
        init.glorot_uniform()(KEY, (3,))
    with pytest.raises(ValueError, match="mode must be"):
        init.variance_scaling(1.0, "fan", "normal")


@pytest.mark.parametrize("name", ["glorot_uniform", "he_normal", "lecun_normal", "lecun_uniform"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_weights_lie_in_a_disc(name, dtype):
    weights = np.asarray(getattr(nn.initializers, name)()(KEY, (300, 200), dtype))
    fan = {"glorot": 250, "he": 300 / 2, "lecun": 300}[name.partition("_")[0]]
    assert weights.dtype == dtype
    assert abs(np.abs(weights) ** 2).mean() * fan == pytest.approx(1, rel=0.03)  # of real and imaginary parts together
    most = np.sqrt(2) if "uniform" in name else 2 / 0.95311164380491208
    assert 0.98 * most < np.abs(weights).max() * np.sqrt(fan) <= most * (1 + 1e-6)
    assert abs(weights.mean()) < 0.02 / np.sqrt(fan)
    again = volta.jit(lambda key: getattr(nn.initializers, name)()(key, (300, 200), dtype))(KEY)
    assert np.asarray(again).tobytes() == weights.tobytes()
