"""Running one expression in NumPy, Volta and JAX, and comparing the outcomes."""

import numpy as np

import volta.numpy as vnp


def rng():
    return np.random.default_rng(7)


def floats(*shape, low=-3.0, high=3.0):
    return rng().uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=-9, high=10):
    return rng().integers(low, high, shape).astype(np.int32)


def leaves(x):
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (list, tuple)) else [x]


def assert_same(got, want, rtol=2e-6, atol=2e-6):
    """Shapes and values; every result of Volta must be an array."""
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert isinstance(g, vnp.ndarray), type(g)
        w = np.asarray(w)
        assert g.shape == w.shape
        np.testing.assert_allclose(np.asarray(g, np.float64), w.astype(np.float64), rtol=rtol, atol=atol)


def same_as_numpy(expression, *args, rtol=2e-6, atol=2e-6):
    """``expression(np, *args)`` equals ``expression(vnp, *arrays)``, eagerly and with NumPy operands."""
    with np.errstate(all="ignore"):
        want = expression(np, *args)
    assert_same(expression(vnp, *(vnp.asarray(a) for a in args)), want, rtol, atol)


def same_types_as_jax(jax, expression, *args):
    """dtype and weak type agree with JAX's (32-bit arguments only)."""
    want = leaves(expression(jax.numpy, *(jax.numpy.asarray(a) for a in args)))
    got = leaves(expression(vnp, *(vnp.asarray(a) for a in args)))
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.weak_type) == (np.dtype(w.dtype), w.weak_type)
        assert g.shape == w.shape
        np.testing.assert_allclose(
            np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=1e-5, atol=1e-5, equal_nan=True
        )
