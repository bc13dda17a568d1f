"""Programs written for JAX, with their arguments: what ``from_jax`` is held up against JAX on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)
IMAGES = np.linspace(-1, 1, 150).astype(np.float32).reshape(2, 5, 5, 3)
WINDOW = np.linspace(-1, 1, 108).astype(np.float32).reshape(3, 3, 3, 4)
WHERE = np.int32([2, 0, -1, 5])
FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def _program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def entered(function: Callable[..., Any]) -> Callable[..., Any]:
        FOUND[function.__name__] = function, args
        return function

    return entered


def _conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pool(x: Any, start: float, combine: Any) -> Any:
    return lax.reduce_window(x, start, combine, (2, 2), (1, 2), "SAME")


# -- elements ----------------------------------------------------------------------------------------------------------


@_program(X)
def activations(x):
    return jax.nn.relu(x), jax.nn.gelu(x), jax.nn.silu(x), jax.nn.softmax(x), jax.nn.logsumexp(x), jnp.var(x)


@_program(X)
def powers(x):
    y = jnp.abs(x) + 0.5
    return (
        y ** jnp.int32(3),
        y**x,
        x**2,
        jnp.round(x),
        lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        x // 0.3,
        x % 0.3,
    )


@_program(X)
def narrow_types(x):
    half = x.astype(jnp.bfloat16)
    return half @ half.T, lax.reduce_precision(x, 5, 10), lax.bitcast_convert_type(x, jnp.int32), half + 1


@_program(np.uint32([0, 1, 7, 2**31]))
def integers(x):
    return lax.clz(x), lax.population_count(x), x << 2, x ^ 5, ~x, x // 3, x.astype(jnp.int32) >> 1, (x == 7) | (x < 1)


@_program(X)
def second_derivatives(x):
    return jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3))(x)


# -- complex numbers and Fourier transforms ----------------------------------------------------------------------------

Z = (X + 1j * X[::-1, ::-1]).astype(np.complex64)


@_program(Z)
def complex_elements(z):
    parts = jnp.real(z), jnp.imag(z), jnp.conj(z), jnp.abs(z), jnp.angle(z), lax.complex(z.real, z.imag), z == z[0]
    whole = jnp.exp(z), jnp.log(z), jnp.sin(z), jnp.tanh(z), jnp.sqrt(z), z / (z + 2), z**3, z ** (1 + 2j), jnp.sign(z)
    return parts, whole, jnp.cumsum(z, 1), jnp.prod(z, 0), jnp.sort(z, 1), jnp.var(z), z.at[1].add(1j), z.real + 0j


@_program(Z)
def complex_products(z):
    return z @ z.conj().T, jnp.vdot(z, z), jnp.einsum("ij,kj->ik", z, z), jnp.take(z, jnp.array([0, 9]), 0)


@_program(Z)
def complex_gradient(z):
    holomorphic = jax.vmap(jax.grad(lambda z: jnp.exp(z) * z**3, holomorphic=True))(z[0])
    return jax.grad(lambda z: jnp.sum(jnp.abs(jnp.sin(z) * (z + 2))))(z), holomorphic


@_program(Z)
def complex_loops(z):
    turned = lax.while_loop(lambda c: jnp.abs(c) < 10, lambda c: c * (1 + 1j), jnp.complex64(1))
    return lax.scan(lambda c, x: (c * x, c), jnp.ones(4, jnp.complex64), z), turned, lax.cond(True, jnp.sin, jnp.cos, z)


@_program(Z)
def fourier(z):
    there = jnp.fft.fft(z), jnp.fft.fft2(z), jnp.fft.rfft(z.real), jnp.fft.rfft2(z.real)
    return there, jnp.fft.ifft(z, axis=0), jnp.fft.irfft(z, 7), jnp.fft.fftshift(z)


@_program(X)
def fourier_gradient(x):
    return jax.grad(lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2))(x)


@_program(Z)
def complex_equations(z):
    h = z @ z.conj().T + 4 * jnp.eye(3)
    return jnp.linalg.solve(h, z), jnp.linalg.inv(h), jnp.linalg.cholesky(h), jnp.linalg.eigh(h)[0]


@_program(np.float32([0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1]), np.int32([-5, 2**31 - 1, 7, -(2**31)]))
def orders_and_upper_halves(x, i):
    u = lax.bitcast_convert_type(i, jnp.uint32)
    return jnp.sort(x), lax.mulhi(i, i[::-1]), lax.mulhi(u, u[::-1])


# -- movement and products ---------------------------------------------------------------------------------------------


@_program(X)
def movement(x):
    tiled = jnp.tile(jnp.stack([x, x]), (2, 1, 1))
    return tiled.reshape(-1)[::-1], jnp.pad(x, 1), jnp.split(x, 2, 1), jnp.roll(x, 1, 0), x.T[None], jnp.eye(3) + 1


@_program(X)
def products(x):
    return jnp.einsum("ij,kj->ik", x, x, precision="highest"), jnp.vdot(x, x), jnp.outer(x[0], x[1])


@_program(IMAGES, WINDOW)
def convolution(x, w):
    return _conv(x, w)


@_program(IMAGES, WINDOW)
def convolution_gradient(x, w):
    return jax.grad(lambda x, w: jnp.sum(_conv(x, w) ** 2), (0, 1))(x, w)


# -- reductions --------------------------------------------------------------------------------------------------------


@_program(X)
def running(x):
    return jnp.cumsum(x, 1), jnp.cumprod(x, 1), lax.cummax(x, 0, reverse=True), lax.cumlogsumexp(x, 1)


@_program(X)
def ordering(x):
    return jnp.sort(x, 0), jnp.argsort(-x), jnp.argmax(x), jnp.median(x), jnp.unique(x, size=3), lax.top_k(x, 2)


@_program(X)
def pooling(x):
    return _pool(x, -jnp.inf, lax.max), _pool(x, jnp.inf, lax.min), _pool(x, 0.0, lax.add), _pool(x, 1.0, lax.mul)


@_program(X)
def pooling_gradient(x):
    return jax.grad(lambda x: jnp.sum(_pool(x, -jnp.inf, lax.max) ** 2))(x)


@_program(X)
def pooling_tangent(x):
    return jax.jvp(lambda x: _pool(x, jnp.inf, lax.min), (x,), (x + 1,))


@_program(np.uint8([[1, 2, 7], [3, 3, 3]]))
def reductions_of_bits(x):
    return jnp.bitwise_xor.reduce(x, 1), jnp.any(x > 5, 0), jnp.all(x > 1), lax.reduce(x, np.uint8(0), lax.max, (1,))


# -- indexing ----------------------------------------------------------------------------------------------------------


@_program(X, WHERE)
def rows(x, i):
    return x[i], x[:, i], x[i[:, None], i], x[1:, i[:2]], x[i, 1:3], x[::2, 1]


@_program(X, WHERE)
def taken(x, i):
    kept = jnp.take(x, i, axis=1, fill_value=3.0), jnp.take(x, i, axis=0, mode="clip")
    return kept, jnp.take_along_axis(x, jnp.argsort(x, 1), 1), jnp.take(x.astype(jnp.int32), i, 1, mode="fill")


@_program(X, np.int32(2))
def boxes(x, i):
    cut = lax.dynamic_slice(x, (i, 1), (2, 2))
    many = jax.vmap(lambda k: lax.dynamic_slice(x, (k, k), (2, 3)))(jnp.arange(4) - 1)
    return cut, many, lax.dynamic_update_slice(x, cut, (i, i)), jax.vmap(lambda r, k: r[k])(x, jnp.array([3, 0, 9]))


@_program(X, np.int32([[2, 2], [-1, 1], [1, 3]]))
def gathers_of_boxes(x, corners):
    numbers = lax.GatherDimensionNumbers((0, 1), (), (0, 1))
    return [lax.gather(x, corners, lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 2), mode=m) for m in _MODES] + [
        lax.gather(x, corners[0], numbers, (1, 4), mode="fill"),
        lax.gather(x, corners[:, :1], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3), mode="clip"),
    ]


_MODES = "clip", "fill"


@_program(X, np.int32([[2, 2], [-1, 1], [1, 2]]))
def scatters_of_boxes(x, corners):
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    updates = jnp.arange(12.0).reshape(3, 2, 2)
    return [lax.scatter_add(x, corners, updates, numbers, mode=mode) for mode in _MODES]


@_program(X, np.int32([0, 0, 7, -1]))
def updates(x, i):
    return x.at[1].set(5.0), x.at[i, 1:3].add(5.0), x.at[:].add(x), x.at[i].mul(2.0), x.at[i].max(0.1), x.at[i].min(0.0)


@_program(X)
def indexing_gradient(x):
    return jax.grad(lambda x: jnp.sum(x[jnp.array([2, 0, -1, 2])] ** 2))(x)


@_program(X)
def segments(x):
    return jax.ops.segment_sum(x, jnp.array([0, 2, 0]), 3), jnp.bincount(jnp.array([1, 1, 3]), length=5)


# -- programs in programs ----------------------------------------------------------------------------------------------


@_program(X)
def scans(x):
    return (
        lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(4), x),
        lax.map(jnp.sin, x),
        lax.fori_loop(0, 3, lambda i, x: x * i, x),
    )


@_program(X)
def scan_gradient(x):
    return jax.grad(lambda x: jnp.sum(lax.scan(lambda c, x: (jnp.tanh(c + x), c), jnp.zeros(4), x)[1]))(x)


@_program(X)
def loops(x):
    return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 2), (0, x))


@_program(X)
def choices(x):
    return (
        lax.cond(x[0, 0] < 0, jnp.sin, jnp.cos, x),
        lax.switch(7, [jnp.sin, jnp.cos], x),
        jnp.piecewise(x, [x < 0, x > 0.5], [jnp.sin, jnp.cos, 0.0]),
    )


@_program(X)
def kept_names(x):
    named = checkpoint_name
    keep = jax.checkpoint_policies.save_only_these_names("h")
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.sin(named(jnp.cos(x), "h")), policy=keep)(x)))(x)


@_program(X)
def platforms(x):
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin)


@_program(X)
def callbacks(x):
    return jax.pure_callback(lambda x: np.sin(x), x, x)


# -- matrices ----------------------------------------------------------------------------------------------------------


def _positive(x):
    return x @ x.T + jnp.eye(3)


@_program(X)
def decompositions(x):
    return (
        jnp.linalg.qr(x.T)[1] ** 2,
        jnp.linalg.svd(x)[1],
        jnp.linalg.eigh(x @ x.T)[0],
        jnp.linalg.cholesky(_positive(x)),
    )


@_program(X)
def equations(x):
    return jnp.linalg.solve(_positive(x), x), jnp.linalg.inv(_positive(x)), jnp.linalg.slogdet(_positive(x))


@_program(X)
def reflectors(x):
    factors, c = jnp.full(2, 0.5, x.dtype), jnp.ones((x.shape[0], 2), x.dtype)
    q = lax.linalg.householder_product(x[:, :2], factors)
    turned = lax.linalg.ormqr(x[:, :2], factors, c, transpose=True)
    return q, turned, lax.linalg.symmetric_product(x, x @ x.T, alpha=2.0, beta=0.5, symmetrize_output=True)


@_program(X)
def equations_gradient(x):
    return jax.grad(lambda x: jnp.sum(jnp.linalg.solve(_positive(x), x)))(x)


# -- random numbers ----------------------------------------------------------------------------------------------------


@_program(jax.random.key(3))
def keys(key):
    split = jax.random.split(key, (2, 3))
    return split[:, 1], split[1].reshape(3, 1), jax.random.fold_in(key, 5), jax.random.key(7), jax.random.clone(key)


@_program(jax.random.key(3))
def samples_of_many_keys(key):
    return jax.vmap(lambda k: jax.random.normal(k, (2,)))(jax.random.split(key, 4))


@_program(jax.random.PRNGKey(3))
def samples(key):
    shape = (5,)
    return (
        jax.random.bits(key, shape, "uint8"), jax.random.uniform(key, shape), jax.random.randint(key, shape, 0, 10),
        jax.random.permutation(key, 10), jax.random.bernoulli(key, 0.3, shape),
        jax.random.categorical(key, jnp.ones(5)),
        jax.random.choice(key, 10, shape, replace=False), jax.random.truncated_normal(key, -1.0, 1.0, shape),
    )  # fmt: skip


@_program(np.int32(5))
def seeds(seed):
    return jax.random.uniform(jax.random.key(seed), (2, 3)), jax.random.gamma(
        jax.random.key(seed), jnp.array([1.0, 2.0])
    )
