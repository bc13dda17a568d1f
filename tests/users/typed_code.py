"""Programs as users write them, with types: mypy and pyright accept this file (``test_typed_code.py``), and it runs.

A line that ends in ``# refused`` is one that they must not accept.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, assert_type

import numpy as np

import volta
import volta.numpy as vnp
import volta.scipy.linalg
import volta.scipy.special
from volta import Array, lax, nn, optim, random
from volta.sharding import NamedSharding, PartitionSpec

# -- arrays ------------------------------------------------------------------------------------------------------------


def double(x: Array) -> Array:
    return x * 2


def operators(x: Array, y: Array, n: int, host: np.ndarray) -> None:
    for z in (x + y, 1 - x, x / 2.5, x // 2, x % 3, x**2, -x, abs(x), x @ y, x & y, x | 1, ~x, x == y, x < 0):
        assert_type(z, Array)
    assert_type(divmod(x, y), tuple[Array, Array])
    where: tuple[Array, ...] = vnp.where(x > 0)
    assert_type(vnp.where(x > 0, x, 0.0), Array)
    assert_type(vnp.linspace(0, 1, 3), Array)
    assert_type(x[0], Array)
    powers: Array = 2**x  # of which typeshed says that it is anything
    assert_type(x[1:, None, ..., y], Array)
    assert_type(x.at[0].set(1.0), Array)
    assert_type(x.at[y].add(y), Array)
    assert_type(x + host, Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(len(x), int)
    assert_type([row.sum() for row in x], list[Array])
    assert_type(float(x[0]), float)
    if x.ndim > n and bool((x > 0).all()):
        print(np.asarray(x).tolist(), where, powers)


def methods(x: Array) -> None:
    for y in (
        x.T,
        x.mT,
        x.real,
        x.sum(),
        x.mean(axis=0, keepdims=True),
        x.max((0, 1)),
        x.astype("bfloat16"),
        x.ravel(),
    ):
        assert_type(y, Array)
    for y in (
        x.reshape(-1, 2),
        x.reshape((2, -1)),
        x.transpose(1, 0),
        x.clip(0, 1),
        x.cumsum(0),
        x.argmax(),
        x.round(2),
    ):
        assert_type(y, Array)
    assert_type(x.block_until_ready(), Array)
    assert_type(x.device, str)
    assert_type(x.nonzero(size=3), tuple[Array, ...])


def functions(x: Array, host: np.ndarray) -> None:
    for y in (
        vnp.sin(x),
        vnp.exp(1.0),
        vnp.add(x, host),
        vnp.sum(host, axis=0),
        vnp.zeros((2, 3)),
        vnp.asarray([1, 2]),
    ):
        assert_type(y, Array)
    for y in (vnp.concatenate([x, x]), vnp.stack((x, x)), vnp.matmul(x, x), vnp.arange(3), vnp.einsum("ij,jk", x, x)):
        assert_type(y, Array)
    for y in (nn.softmax(x), nn.relu(x), nn.gelu(x), nn.one_hot(x, 10), nn.layer_norm(x), nn.logsumexp(x)):
        assert_type(y, Array)
    for y in (random.normal(random.key(0), (3,)), random.uniform(random.key(0)), random.fold_in(random.key(0), 1)):
        assert_type(y, Array)
    for y in (
        lax.add(x, x),
        lax.exp(x),
        lax.dynamic_slice(x, (0,), (1,)),
        lax.stop_gradient(x),
        lax.clamp(0.0, x, 1.0),
    ):
        assert_type(y, Array)


# -- transforms --------------------------------------------------------------------------------------------------------


@volta.jit
def step(x: Array, scale: float = 1.0) -> Array:
    return x * scale


@volta.jit(static_argnames="n")
def power(x: Array, n: int) -> Array:
    return x**n


@functools.partial(volta.jit, static_argnums=1)
def power_too(x: Array, n: int) -> Array:
    return x**n


@volta.checkpoint
def block(x: Array, *, scale: float) -> Array:
    return vnp.tanh(x) * scale


@volta.checkpoint(static_argnums=1)
def block_of(x: Array, n: int) -> Array:
    return x**n


def loss(w: Array, x: Array, *, decay: float = 0.0) -> Array:
    return vnp.sum((x @ w) ** 2) + decay * vnp.sum(w * w)


def loss_and_count(w: Array, x: Array) -> tuple[Array, int]:
    return loss(w, x), x.shape[0]


def transforms(w: Array, x: Array) -> None:
    assert_type(step(x, scale=2.0), Array)
    assert_type(power(x, n=3), Array)
    assert_type(block(x, scale=2.0), Array)
    assert_type(block_of(x, 2), Array)
    assert_type(volta.jit(loss)(w, x, decay=0.1), Array)
    assert_type(volta.vmap(double)(x), Array)
    assert_type(volta.vmap(loss, in_axes=(None, 0))(w, x), Array)
    assert_type(volta.value_and_grad(loss)(w, x, decay=0.1), tuple[Array, Any])
    assert_type(volta.value_and_grad(loss_and_count, has_aux=True)(w, x), tuple[tuple[Array, int], Any])
    assert_type(volta.grad(loss_and_count, has_aux=True)(w, x), tuple[Any, int])
    gradient: Array = volta.grad(loss)(w, x)
    both: tuple[Array, Array] = volta.grad(loss, argnums=(0, 1))(w, x)
    hessian: Array = volta.hessian(loss)(w, x)
    out, pullback = volta.vjp(loss, w, x)
    assert_type(out, Array)
    w_bar, x_bar = pullback(1.0)
    assert_type(volta.jvp(double, (x,), (x,)), tuple[Array, Array])
    assert_type(volta.linearize(double, x)[0], Array)
    print(gradient, both, hessian, w_bar, x_bar, volta.make_jaxpr(loss)(w, x), step.lower(x).compile())


def mistakes(x: Array) -> None:
    step()  # refused
    step(x, scales=2.0)  # refused
    volta.vmap(double)(x, x)  # refused
    volta.grad(loss)(x)  # refused
    volta.jit(double)("x")  # refused
    volta.jit(double, backend="cpu")  # refused
    block(x, 2.0)  # refused
    x + "1"  # refused
    x.summ()  # refused
    x.at[0].sett(1)  # refused
    clipped(x, x)  # refused
    volta.checkpoint(layer, policy=3)(x, x)  # refused
    vnp.linalg.solve(x)  # refused
    random.gamma(x, shap=(3,))  # refused


# -- rules of one's own, kept values, calls, workers -------------------------------------------------------------------


@volta.custom_jvp
def clipped(x: Array) -> Array:
    return vnp.clip(x, 0, 1)


@clipped.defjvp
def _clipped(primals: Any, tangents: Any) -> Any:
    return clipped(*primals), tangents[0]


@volta.custom_vjp
def scaled(x: Array, s: float) -> Array:
    return x * s


def _forwards(x: Array, s: float) -> tuple[Array, Any]:
    return x * s, s


def _backwards(s: Any, g: Array) -> tuple[Array, Any]:
    return g * s, None


scaled.defvjp(_forwards, _backwards)


@volta.checkpoint(policy=volta.checkpoint_policies.dots_saveable)
def layer(x: Array, w: Array) -> Array:
    return vnp.tanh(x @ w)


def rules_and_calls(x: Array) -> None:
    for y in (clipped(x), scaled(x, 2.0), layer(x, x), volta.vmap(clipped, axis_name="i")(x), lax.axis_index("i")):
        assert_type(y, Array)
    mean: Array = lax.pmean(x, axis_name="i")
    host: Array = volta.pure_callback(np.sin, volta.ShapeDtypeStruct(x.shape, x.dtype), x)
    told: Array = volta.experimental.io_callback(np.sin, x, x)
    root: Array = lax.custom_root(lambda v: v**2 - 2, x, lambda f, v: v, lambda g, v: v / g(1.0))
    volta.debug.print("{} {}", mean, host)
    volta.debug.callback(lambda v: None, told, ordered=True)
    with volta.debug_nans(True):
        clipped(root)


def workers(x: Array) -> None:
    mesh = volta.make_mesh((1,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    placed: Array = volta.device_put(x, sharding)
    assert_type(volta.jit(clipped, in_shardings=sharding, out_shardings=sharding)(placed), Array)
    data = PartitionSpec("data")
    shared: Array = volta.shard_map(clipped, mesh=mesh, in_specs=data, out_specs=data)(x)
    print(shared.sum())


def newer_functions(x: Array, key: Array) -> None:
    for y in (
        lax.conv_general_dilated(x, x, (1, 1), "SAME"),
        nn.max_pool(x, (2, 2), strides=(2, 2), padding="SAME"),
        vnp.linalg.solve(x, x),
        vnp.linalg.norm(x),
        vnp.linalg.cholesky(x),
        vnp.linalg.eigh(x).eigenvalues,
        vnp.linalg.slogdet(x).logabsdet,
        volta.scipy.linalg.expm(x),
        volta.scipy.linalg.cho_solve(volta.scipy.linalg.cho_factor(x), x),
        volta.scipy.special.gammaln(x),
        vnp.fft.fft(x),
    ):
        assert_type(y, Array)
    u, s, vh = vnp.linalg.svd(x)
    again: Array = u @ vnp.diag(s) @ vh
    print(again)
    for y in (
        random.gamma(key, 2.0, (3,)),
        random.poisson(key, 3.0),
        random.categorical(key, x),
        random.choice(key, x, (2,)),
        random.split(key, 3),
    ):
        assert_type(y, Array)


# -- a model -----------------------------------------------------------------------------------------------------------


class Params(NamedTuple):
    w: Array
    b: Array


Optimizer = optim.GradientTransformation


def init(key: Array, sizes: tuple[int, int]) -> Params:
    return Params(w=random.normal(key, sizes) * 0.1, b=vnp.zeros(sizes[1]))


def predict(params: Params, x: Array) -> Array:
    return nn.log_softmax(x @ params.w + params.b)


def cross_entropy(params: Params, x: Array, labels: Array) -> Array:
    return -vnp.mean(vnp.sum(predict(params, x) * nn.one_hot(labels, 3), axis=-1))


def make_step(optimizer: Optimizer) -> Callable[[Params, Any, Array, Array], tuple[Params, Any, Array]]:
    @volta.jit
    def train(params: Params, state: Any, x: Array, labels: Array) -> tuple[Params, Any, Array]:
        value, gradient = volta.value_and_grad(cross_entropy)(params, x, labels)
        updates, state = optimizer.update(gradient, state, params)
        new: Params = optim.apply_updates(params, updates)
        return new, state, value

    return train


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @functools.partial(volta.jit, static_argnums=0)
    def apply(self, x: Array) -> Array:
        return x * self.scale

    @volta.jit
    @staticmethod
    def plain(x: Array) -> Array:
        return x + 1


def cumulate(xs: Array) -> tuple[Array, Array]:
    def body(total: Array, x: Array) -> tuple[Array, Array]:
        return total + x, total

    return lax.scan(body, vnp.zeros(()), xs)


def newton(x: Array) -> Array:
    out: Array = lax.while_loop(lambda y: vnp.abs(y * y - x) > 1e-3, lambda y: (y + x / y) / 2, x)
    return out


def main() -> None:
    key, subkey = random.split(random.key(0))
    params = init(key, (4, 3))
    x, labels = random.normal(subkey, (8, 4)), vnp.arange(8) % 3
    optimizer = optim.adam(1e-2)
    state = optimizer.init(params)
    train = make_step(optimizer)
    for _ in range(3):
        params, state, value = train(params, state, x, labels)
        print(f"{float(value):.3f}")
    print({k: v.shape for k, v in params._asdict().items()})
    methods(x)
    transforms(params.w[:, 0], x)
    rules_and_calls_of = volta.vmap(lambda v: lax.pmean(clipped(v), "i"), axis_name="i")
    print(rules_and_calls_of(x).shape, scaled(x, 2.0).shape, layer(x, params.w).shape)
    workers(x)
    print(cumulate(x[0]), newton(vnp.asarray(2.0)), Model(2.0).apply(x).sum(), power_too(x, 2).sum())


if __name__ == "__main__":
    main()
