"""``volta.to_jax``: Volta's functions under JAX's transforms."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install 'volta[oracle]')")
jnp = jax.numpy

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)


def both(x, n):
    return {"wave": vnp.sin(x) * n, "last": vnp.argmax(x)}


def test_values_have_voltas_bits_jitted_too() -> None:
    f = volta.to_jax(both)
    want = both(vnp.asarray(X), 2)
    for got in (f(X, 2), jax.jit(f)(X, 2)):
        assert np.asarray(got["wave"]).tobytes() == np.asarray(want["wave"]).tobytes()
        assert int(got["last"]) == 11 and isinstance(got["wave"], jax.Array)


@sampled("method", ["sequential", "broadcast_all"], ["broadcast_all"])
def test_derivatives_are_voltas(method: str) -> None:
    loss = lambda x, w: vnp.sum(both(x, w)["wave"] ** 2)  # noqa: E731
    f = volta.to_jax(loss, vmap_method=method)
    want = volta.grad(loss, (0, 1))(vnp.asarray(X), vnp.float32(3.0))
    got = jax.jit(jax.grad(f, (0, 1)))(X, 3.0)
    assert all(np.asarray(g).tobytes() == np.asarray(w).tobytes() for g, w in zip(got, want, strict=True))
    rows = jax.vmap(jax.grad(f), (0, None))(X, 3.0)
    assert np.asarray(rows).tobytes() == np.asarray(got[0]).tobytes()


def test_integers_have_no_derivatives_and_trees_go_through() -> None:
    f = volta.to_jax(lambda tree: (tree["x"] * 2, tree["n"] + 1))
    (y, n), pull = jax.vjp(f, {"x": jnp.ones(2), "n": jnp.arange(2)})
    assert y.tolist() == [2.0, 2.0] and n.tolist() == [1, 2]
    (ct,) = pull((jnp.ones(2), np.zeros(2, jax.dtypes.float0)))
    assert ct["x"].tolist() == [2.0, 2.0] and ct["n"].dtype == jax.dtypes.float0


def test_there_and_back() -> None:
    f = volta.from_jax(jax.grad(volta.to_jax(lambda x: vnp.sum(vnp.sin(x)))))
    np.testing.assert_allclose(f(X), np.cos(X), rtol=1e-6)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(volta.errors.ArgumentError, match="vmap_method is one of sequential, broadcast_all"):
        volta.to_jax(both, vmap_method="expand_dims")


def test_forward_derivatives_are_refused_by_jax() -> None:
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(volta.to_jax(vnp.sin), (X,), (X,))
