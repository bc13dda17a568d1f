"""Volta's transforms of translated functions: derivatives by Volta of what JAX traced, with the rules that it has."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.testing.bits import digest

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install 'volta[oracle]')")
jnp = jax.numpy

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)


@jax.custom_jvp
def scaled_sine(x, n):
    return jnp.sin(x) * n


@scaled_sine.defjvp
def _(primals, tangents):
    (x, n), (dx, _) = primals, tangents
    return scaled_sine(x, n), 7.0 * dx  # no derivative of sin, so that the rule is seen


@jax.custom_vjp
def clipped(x, y):
    return x * y, jnp.argmax(x)


clipped.defvjp(lambda x, y: (clipped(x, y), (x, y)), lambda kept, cts: (10 * cts[0] * kept[1], None))


def layers(x):
    return jnp.sum(jax.nn.relu(x @ x.T) * jax.nn.softplus(x[:, :3]) + jax.nn.logsumexp(x))


def recomputed(x):
    policy = jax.checkpoint_policies.dots_saveable
    return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ x.T) @ x), policy=policy)(x))


def looped(x):
    carry, ys = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), jnp.zeros(4), x)
    return jnp.sum(carry) + jnp.sum(ys**2)


def chosen(x):
    return jnp.sum(jax.lax.cond(x[0, 0] < 0, jnp.sin, jnp.cos, x)) + jnp.sum(x[jnp.array([0, 0, 2])] ** 2)


def solved(x):
    return jnp.sum(jnp.linalg.solve(x @ x.T + jnp.eye(3), x))


@pytest.mark.parametrize(
    "f", [looped, *(pytest.param(f, marks=pytest.mark.slow) for f in (layers, recomputed, chosen, solved))]
)
@pytest.mark.turns(2)
def test_voltas_gradients_are_jaxs(f) -> None:
    got = volta.grad(volta.from_jax(f))(vnp.asarray(X))
    np.testing.assert_allclose(got, jax.grad(f)(X), rtol=2e-4, atol=2e-5)


def test_rules_for_forward_derivatives_are_kept() -> None:
    f = volta.from_jax(lambda x: jnp.sum(scaled_sine(x, 2)))
    assert np.asarray(volta.grad(f)(vnp.asarray(X))).tolist() == np.full_like(X, 7).tolist()
    assert float(volta.jvp(f, (vnp.asarray(X),), (vnp.ones_like(X),))[1]) == 84.0
    assert not np.asarray(volta.hessian(f)(vnp.asarray(X))).any()


def test_rules_for_reverse_derivatives_are_kept() -> None:
    f = volta.from_jax(lambda x, y: jnp.sum(clipped(x, y)[0]))
    grads = volta.grad(f, (0, 1))(vnp.asarray(X), vnp.asarray(X))
    assert digest(grads[0]) == digest(10 * vnp.asarray(X)) and not np.asarray(grads[1]).any()
    with pytest.raises(volta.errors.NotDifferentiableError, match="custom_vjp"):
        volta.jvp(f, (vnp.asarray(X), vnp.asarray(X)), (vnp.asarray(X), vnp.asarray(X)))


def test_rules_are_mapped() -> None:
    rows = volta.vmap(volta.from_jax(lambda x: clipped(x, 2 * x)[0]))
    want = volta.grad(volta.from_jax(lambda x: jnp.sum(clipped(x, 2 * x)[0])))(vnp.asarray(X))
    assert digest(volta.grad(lambda x: vnp.sum(rows(x)))(vnp.asarray(X))) == digest(want)
    each = volta.vmap(volta.grad(volta.from_jax(lambda x: scaled_sine(x, 1))))(vnp.asarray(X[0]))
    assert each.tolist() == [7.0] * 4


def test_a_batch_has_the_bits_of_its_examples() -> None:
    f = volta.from_jax(lambda x: jax.nn.softmax(jnp.tanh(x) @ jnp.ones((4, 4))))
    assert digest(volta.vmap(f)(vnp.asarray(X))) == digest(vnp.stack([f(row) for row in X]))


@pytest.mark.slow
def test_second_derivatives() -> None:
    f = lambda x: jnp.sum(jax.nn.softplus(x) * jax.nn.gelu(x))  # noqa: E731
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(volta.hessian(volta.from_jax(f))(x), jax.hessian(f)(x), rtol=1e-5, atol=1e-6)


def test_a_policy_moves_no_bit() -> None:
    plain = lambda x: jnp.sum(jnp.sin(jnp.sin(x @ x.T) @ x))  # noqa: E731
    x = vnp.asarray(X)
    assert digest(volta.grad(volta.from_jax(recomputed))(x)) == digest(volta.grad(volta.from_jax(plain))(x))


def test_batches_by_volta_are_those_of_the_functions_rule() -> None:
    @jax.custom_batching.custom_vmap
    def scaled(x, y):
        return x * 2 + y

    scaled.def_vmap(lambda size, mapped, x, y: (x * 3 + y, True))
    f = volta.from_jax(lambda x: scaled(x, jnp.float32(1)))
    x = np.float32([1, 2, 3])
    assert f(x).tolist() == [3, 5, 7] and volta.vmap(f)(x).tolist() == [4, 7, 10]
    assert volta.grad(f)(np.float32(1)) == 2.0
