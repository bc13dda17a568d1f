"""Small programs on libraries of JAX's, run on Volta: ``python -m tests.interop.jax_libraries flax_transformer``.

Each prints whether what it trained, or computed, is right.
"""

from __future__ import annotations

# ruff: noqa: I001 - volta.as_jax comes before JAX
import sys
from collections.abc import Callable
from typing import Any

import volta.as_jax  # noqa: F401 - from here on `import jax` means Volta
import jax
import jax.numpy as jnp
import jax.random as jr

IMAGES = jr.normal(jr.key(0), (16, 8, 8, 1))
LABELS = jr.randint(jr.key(3), (16,), 0, 10)
TOKENS = jr.randint(jr.key(4), (4, 12), 0, 32)
NEXT = jnp.roll(TOKENS, -1, 1)
STEPS = 20


def falls(losses: list[float], to: float = 0.7) -> bool:
    return losses[-1] < to * losses[0]


# -- optax -------------------------------------------------------------------------------------------------------------


def optax_optimizers() -> bool:
    import optax

    x = jr.normal(jr.key(0), (16, 4))
    ok = []
    for make in (optax.adam, optax.adamw, optax.sgd, optax.lamb, optax.lion, optax.adafactor, optax.rmsprop):
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), make(optax.cosine_decay_schedule(1e-1, 50)))
        params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
        loss = lambda p: optax.squared_error(x @ p["w"] + p["b"], jnp.ones((16, 2))).mean()  # noqa: E731
        state = optimizer.init(params)

        @jax.jit
        def step(params, state, optimizer=optimizer, loss=loss):
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        losses = [float(loss(params))]
        for _ in range(30):
            params, state = step(params, state)
        losses.append(float(loss(params)))
        ok.append(falls(losses, 0.8))
    return all(ok)


# -- flax --------------------------------------------------------------------------------------------------------------


def _flax(name: str) -> bool:
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(32, kernel_init=nn.initializers.orthogonal())(x.reshape(x.shape[0], -1)))
            return nn.Dense(10)(nn.Dropout(0.1, deterministic=False)(nn.LayerNorm()(x)))

    class Cnn(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), (2, 2))
            x = nn.BatchNorm(use_running_average=False)(x)
            x = nn.avg_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x, mask = nn.Embed(32, 32)(tokens), nn.make_causal_mask(tokens)
            for _ in range(2):
                x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
            return nn.Dense(32)(x)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(32)(nn.relu(nn.RMSNorm()(x))), None

    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x):
            layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return nn.Dense(10)(layers()(nn.Dense(32)(x.reshape(x.shape[0], -1)), None)[0])

    class Recurrent(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.RNN(nn.GRUCell(16))(nn.RNN(nn.LSTMCell(16))(x[..., 0]))[:, -1])

    models = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer, "scan": Scanned, "recurrent": Recurrent}
    model = models[name]()
    x, y = (TOKENS, NEXT) if name == "transformer" else (IMAGES, LABELS)
    keys = {"params": jr.key(1), "dropout": jr.key(2)}
    variables = model.init(keys, x)
    loops = name in ("scan", "recurrent")  # what is in a loop is known as a whole, or not at all
    lazy = variables if loops else model.lazy_init(keys, jax.ShapeDtypeStruct(x.shape, x.dtype))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), variables, lazy)
    rest = {k: v for k, v in variables.items() if k != "params"}
    state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.adam(1e-2))

    @jax.jit
    def step(state, rest, key):
        def loss(params):
            given = {"params": params, **rest}
            out = state.apply_fn(given, x, rngs={"dropout": key}, mutable=list(rest) or False)
            logits, new = out if rest else (out, {})
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), new, value

    losses = []
    for i in range(STEPS):
        state, rest, value = step(state, rest, jr.fold_in(jr.key(7), i))
        losses.append(float(value))
    return falls(losses) and all(jax.tree.leaves(same))


# -- haiku -------------------------------------------------------------------------------------------------------------


def _haiku(name: str) -> bool:
    import haiku as hk
    import optax

    def cnn(x):
        x = hk.BatchNorm(True, True, 0.9)(jax.nn.relu(hk.Conv2D(8, 3)(x)), True)
        x = hk.avg_pool(hk.max_pool(x, 2, 2, "SAME"), 2, 2, "SAME")
        return hk.Linear(10)(hk.dropout(hk.next_rng_key(), 0.1, hk.Flatten()(x)))

    def transformer(tokens):
        x, mask = hk.Embed(32, 32)(tokens), jnp.tril(jnp.ones((12, 12)))[None, None]
        h = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.MultiHeadAttention(4, 8, w_init=hk.initializers.VarianceScaling(1.0))(h, h, h, mask=mask)
        return hk.Linear(32)(x + hk.nets.MLP([64, 32], activation=jax.nn.gelu)(x))

    def recurrent(x):
        core = hk.LSTM(16)
        out, _ = hk.dynamic_unroll(core, jnp.swapaxes(x[..., 0], 0, 1), core.initial_state(16))
        return hk.Linear(10)(out[-1])

    def stacked(x):
        layers = hk.experimental.layer_stack(3)(lambda h: jax.nn.relu(hk.Linear(64)(h)))
        return hk.Linear(10)(layers(hk.Flatten()(x)))

    net = hk.transform_with_state(
        {"cnn": cnn, "transformer": transformer, "recurrent": recurrent, "stacked": stacked}[name]
    )
    x, y = (TOKENS, NEXT) if name == "transformer" else (IMAGES, LABELS)
    params, rest = net.init(jr.PRNGKey(0), x)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)

    @jax.jit
    def step(params, rest, state, key):
        def loss(params):
            logits, new = net.apply(params, rest, key, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), new, state, value

    losses = []
    for i in range(STEPS):
        params, rest, state, value = step(params, rest, state, jr.fold_in(jr.PRNGKey(1), i))
        losses.append(float(value))
    return falls(losses)


# -- equinox -----------------------------------------------------------------------------------------------------------


def _fitted(model: Any, x: Any, y: Any) -> bool:
    import equinox as eqx
    import optax

    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(STEPS):
        model, state, value = step(model, state)
        losses.append(float(value))
    return falls(losses)


def equinox_mlp() -> bool:
    import equinox as eqx

    model = eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), eqx.nn.MLP(64, 10, 32, 2, key=jr.key(0))])
    return _fitted(model, IMAGES, LABELS)


def equinox_cnn() -> bool:
    """The network of equinox's example on MNIST."""
    import equinox as eqx

    one, two, three = jr.split(jr.key(0), 3)
    layers = [
        eqx.nn.Conv2d(1, 3, 3, key=one), eqx.nn.MaxPool2d(2), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(75, 32, key=two), eqx.nn.Lambda(jax.nn.sigmoid), eqx.nn.Linear(32, 10, key=three),
    ]  # fmt: skip
    return _fitted(eqx.nn.Sequential(layers), jnp.transpose(IMAGES, (0, 3, 1, 2)), LABELS)


def equinox_rnn() -> bool:
    """The network of equinox's example of spirals."""
    import equinox as eqx

    class Rnn(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear

        def __call__(self, x):
            hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(16), x[..., 0])
            return self.linear(hidden)

    one, two = jr.split(jr.key(0))
    return _fitted(Rnn(eqx.nn.GRUCell(8, 16, key=one), eqx.nn.Linear(16, 10, key=two)), IMAGES, LABELS)


def equinox_filters() -> bool:
    """Ensembles, recomputation, loops and runtime errors."""
    import equinox as eqx

    keys = jr.split(jr.key(0), 5)
    ensemble = eqx.filter_vmap(lambda key: eqx.nn.MLP(2, 1, 8, 2, key=key))(keys)
    of_each = eqx.filter_vmap(lambda model, x: model(x), in_axes=(eqx.if_array(0), None))(ensemble, jnp.ones(2))
    model = eqx.nn.MLP(2, 1, 8, 2, key=keys[0])
    loss = lambda model: jnp.sum(eqx.filter_checkpoint(lambda m, x: m(x))(model, jnp.ones(2)))  # noqa: E731
    grad = eqx.filter_grad(loss)(model).layers[-1].bias
    power = lambda x: eqx.internal.while_loop(  # noqa: E731
        lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * x), (0, 1.0), max_steps=8, kind="bounded"
    )[1]
    checked = eqx.filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
    try:
        checked(checked(jnp.float32(1)) - 2)
    except Exception as error:
        said = "negative" in str(error)
    return of_each.shape == (5, 1) and grad.tolist() == [1.0] and float(jax.grad(power)(2.0)) == 80.0 and said


# -- libraries of the array API ----------------------------------------------------------------------------------------


def arrays_scipy() -> bool:
    """SciPy's array-API mode."""
    import os

    os.environ["SCIPY_ARRAY_API"] = "1"
    from scipy import fft, ndimage, special, stats

    x = jr.normal(jr.key(0), (4, 5))
    results = (
        special.logsumexp(x, axis=0), special.log_softmax(x), special.rel_entr(x**2, x**2), stats.zscore(x), fft.dct(x),
        stats.tmean(x), stats.pearsonr(x[0], x[1]).statistic, ndimage.gaussian_filter(x, 1.0),
    )  # fmt: skip
    near = jnp.allclose(results[0], jax.nn.logsumexp(x, axis=0)) and jnp.allclose(results[5], x.mean())
    return all(isinstance(y, jax.Array) for y in results) and bool(near)


def arrays_extra() -> bool:
    """array-api-extra, which changes arrays by x.at[...]."""
    import array_api_extra as xpx

    x = jnp.arange(6.0).reshape(2, 3)
    changed = xpx.at(x)[0, 0].set(9.0)
    chosen = xpx.apply_where(x > 1, x, lambda a: a * 2, fill_value=0.0)
    results = (changed, chosen, xpx.pad(x, 1), xpx.create_diagonal(x[0]), xpx.isclose(x, x), xpx.nunique(x))
    right = changed[0, 0] == 9 and chosen.tolist() == [[0, 0, 4], [6, 8, 10]] and x[0, 0] == 0
    return all(isinstance(y, jax.Array) for y in results) and bool(right)


def arrays_einops() -> bool:
    import einops

    x = jnp.arange(6.0).reshape(2, 3)
    turned = jax.jit(lambda x: einops.rearrange(x, "a b -> (b a)"))(x)
    means = einops.reduce(x, "a b -> a", "mean")
    return turned.tolist() == [0, 3, 1, 4, 2, 5] and means.tolist() == [1, 4]


FLAX = "mlp cnn transformer scan recurrent".split()
HAIKU = "cnn transformer recurrent stacked".split()
PROGRAMS: dict[str, Callable[[], bool]] = {
    "optax_optimizers": optax_optimizers,
    **{f"flax_{n}": lambda n=n: _flax(n) for n in FLAX},
    **{f"haiku_{n}": lambda n=n: _haiku(n) for n in HAIKU},
    "equinox_mlp": equinox_mlp,
    "equinox_cnn": equinox_cnn,
    "equinox_rnn": equinox_rnn,
    "equinox_filters": equinox_filters,
    "arrays_scipy": arrays_scipy,
    "arrays_extra": arrays_extra,
    "arrays_einops": arrays_einops,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, PROGRAMS[name]())
