"""Models of JAX's, differentiated by JAX, train under ``volta.from_jax`` with the same bits anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
from tests.numba_cuda.test_gpu import needs_gpu
from volta.testing.bits import digest
from volta.testing.host_grid import check_on_host

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install 'volta[oracle]')")

from tests.interop.jax_models import MODELS, step_of, trained  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_jaxs(name: str) -> None:
    """100 steps diverge by rounding; the first ten are close, and the end is trained as well."""
    _, got = trained(name, 100, volta.from_jax)
    _, want = trained(name, 100, jax.jit)
    np.testing.assert_allclose(got[:10], want[:10], rtol=1e-4)
    np.testing.assert_allclose(got, want, rtol=0.05, atol=2e-3)
    assert got[-1] < got[0]


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(name, marks=SLOW) for name in list(MODELS)[1:])])
@pytest.mark.turns(6)
def test_jitted_and_eager_steps_have_the_same_bits(name: str) -> None:
    step, state, (x, y) = step_of(name)
    once = volta.from_jax(step)(state, x, y)
    with volta.disable_jit():
        eagerly = volta.from_jax(step)(state, x, y)
    assert digest(once) == digest(eagerly)


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_another_process_has_the_same_bits(name: str) -> None:
    command = [sys.executable, "-m", "tests.interop.jax_models", name, "100"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "VOLTA_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    final, _ = trained(name, 100, volta.from_jax)
    assert done.stdout.strip() == digest(final)


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_cudas_kernels_of_a_step_have_the_cpus_bits(name: str) -> None:
    step, state, (x, y) = step_of(name)
    check_on_host(lambda *args: volta.from_jax(step)(*args), state, x, y, orders=("shuffled",))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_trains_to_the_cpus_bits(name: str) -> None:
    final, losses = trained(name, 100, volta.from_jax)
    with volta.default_device("cuda"):
        on_gpu, losses_on_gpu = trained(name, 100, volta.from_jax)
    assert digest(final) == digest(on_gpu) and losses == losses_on_gpu


# -- flax and optax ----------------------------------------------------------------------------------------------------


def _flax_step(name: str) -> Any:
    nn = pytest.importorskip("flax.linen", reason="flax is not installed (pip install flax)")
    optax = pytest.importorskip("optax", reason="optax is not installed (pip install optax)")
    from flax.training.train_state import TrainState

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
            return nn.Dense(10)(nn.Dropout(0.1, deterministic=False)(nn.LayerNorm()(x)))

    class Cnn(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), (2, 2))
            x = nn.avg_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(32, 32)(tokens)
            mask = nn.make_causal_mask(tokens)
            for _ in range(2):
                x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
            return nn.Dense(32)(x)

    model = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}[name]()
    rates = optax.cosine_decay_schedule(1e-2, 100)
    optimizer = {"mlp": optax.adamw(1e-3), "cnn": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates))}
    x, y = MODELS[name][2]()
    params = model.init({"params": jax.random.key(1), "dropout": jax.random.key(2)}, x)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer.get(name, optax.lamb(1e-3)))

    def step(state, x, y, key):
        def loss(params):
            logits = state.apply_fn(params, x, rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return step, state, x, y


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_models_of_flax_train_with_optimizers_of_optax(name: str) -> None:
    step, first, x, y = _flax_step(name)
    ends, losses = [], []
    for make in (volta.from_jax, volta.from_jax, jax.jit):
        state, made, found = first, make(step), []
        for i in range(100):
            state, loss = made(state, x, y, jax.random.fold_in(jax.random.key(7), i))
            found.append(float(loss))
        ends.append(state)
        losses.append(found)
    assert digest(jax.tree.leaves(ends[0])) == digest(jax.tree.leaves(ends[1]))
    np.testing.assert_allclose(losses[0][:10], losses[2][:10], rtol=1e-3)
    np.testing.assert_allclose(losses[0], losses[2], rtol=0.05, atol=2e-3)
