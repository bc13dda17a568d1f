"""What a model costs from its configuration, and batches in parts with the bits of the whole."""

from typing import Any

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import models, optim, scaling
from volta.core import pytrees
from volta.runtime import memory
from volta.runtime.gateway import compile as gateway_compile
from volta.testing.bits import bits
from volta.testing.transformer import Transformer
from volta.xla_like.passes import inline_calls
from volta.xla_like.scheduled import work_of

RATES = scaling.Rates(1e12, 1e11)
LLAMA = models.Config(97, 24, 3, 4, 2, 6, 40, context=64)
GPT2 = models.Config(101, 32, 2, 4, 4, 8, 128, context=48, kind="gpt2")


@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_parameters_and_operations_are_those_of_the_model(config: models.Config) -> None:
    """Beside the arrays of a model of this shape, and the products of its traced forward pass."""
    found = scaling.estimate(config, batch=2, length=10, rates=RATES, moments=0)
    model = volta.eval_shape(lambda: models.random_decoder(config).params)
    assert found.parameters == sum(x.size for x in pytrees.leaves(model))
    assert found.state_bytes == 2 * 4 * found.parameters

    def forward(params: Any, tokens: Any) -> Any:
        caches = models.Decoder(config, params).caches(2, 10)
        return models.Decoder(config, params)(tokens, caches, vnp.zeros(2, np.int32))[0]

    program = inline_calls(volta.jit(forward).trace(model, volta.ShapeDtypeStruct((2, 10), "int32")).jaxpr)
    products = sum(work_of(e) for e in program.eqns if e.primitive.name == "dot_general" and e.inputs[0].aval.ndim < 4)
    seen = 4 * 2 * config.layers * config.heads * config.head_size * sum(range(1, 11))
    assert sum(p.operations for p in found.parts) - seen == products


def test_estimates_are_a_table_and_follow_the_rates() -> None:
    found = scaling.estimate(GPT2, batch=4, length=32, rates=RATES)
    assert found.bytes == found.state_bytes + found.kept_bytes
    faster = scaling.estimate(GPT2, batch=4, length=32, rates=scaling.Rates(2e12, 2e11))
    assert faster.steps_per_second == pytest.approx(2 * found.steps_per_second)
    lines = str(found).splitlines()
    assert lines[0].split() == ["part", "count", "parameters", "operations"] and len(lines) == 8
    windowed = attrs.evolve(GPT2, window=4)
    assert scaling.estimate(windowed, 4, 32, rates=RATES).operations < found.operations
    for wrong in ((0, 32), (4, 0), (4, 49)):
        with pytest.raises(volta.errors.ArgumentError, match=r"scaling\.estimate: batch"):
            scaling.estimate(GPT2, *wrong, rates=RATES)


def test_rates_are_measured() -> None:
    found = scaling.measured_rates(64)
    assert found.operations > 0 and found.bytes > 0


@pytest.mark.parametrize("parts", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.turns(2)
def test_a_batch_in_parts_has_the_bits_of_the_whole(parts: int) -> None:
    """A transformer, whose table is read twice and whose targets are gathered; also where blocks of 4096 are cut."""
    model = Transformer(layers=1, batch=9, length=32, width=32, heads=2)
    params, batch = model.init(volta.random.key(0)), model.draw(volta.random.key(1))
    f = volta.value_and_grad(model.loss)
    assert bits(scaling.accumulate(f, parts, (1, 2))(params, *batch)) == bits(volta.jit(f)(params, *batch))


def test_a_step_with_its_optimizer_and_a_scaled_loss_in_parts() -> None:
    optimizer, scale = optim.adam(1e-2), optim.StaticLossScale(vnp.float32(1024))
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(8, 5)).astype(np.float32), "b": np.zeros(5, np.float32)}
    x = rng.normal(size=(5000, 8)).astype(np.float32)

    def step(params: Any, state: Any, x: Any) -> Any:
        loss = lambda p: scale.scale(vnp.mean(vnp.tanh(x @ p["w"] + p["b"]) ** 2))  # noqa: E731
        gradients = scale.unscale(volta.grad(loss)(params))
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

    state = optimizer.init(params)
    assert bits(scaling.accumulate(step, 3, 2)(params, state, x)) == bits(volta.jit(step)(params, state, x))


@pytest.mark.turns(2)
def test_parts_take_turns_in_memory() -> None:
    """Four parts need less than half of what the whole does, as measured."""
    params = [np.full((64, 64), 0.01, np.float32)] * 4
    x = vnp.asarray(np.random.default_rng(0).normal(size=(32768, 64)).astype(np.float32))

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = vnp.sin(x @ w)
        return vnp.mean(x)

    f, pool = volta.grad(loss), memory.default_pool()

    def peak(run: Any) -> int:
        run(params, x)  # compiled
        before = pool.stats().live
        pool.reset_peak()
        run(params, x)
        return pool.stats().peak - before

    assert peak(scaling.accumulate(f, 4, 1)) * 2 < peak(volta.jit(f))


def test_an_accumulated_function_is_compiled_once_for_each_kind_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def counting(program: Any, **kwargs: Any) -> Any:
        names.append(kwargs["name"])
        return gateway_compile(program, **kwargs)

    monkeypatch.setattr("volta.runtime.turns.gateway.compile", counting)
    f = scaling.accumulate(lambda w, x: vnp.sum(x @ w), 2, 1)
    w, x = np.ones((3, 2), np.float32), np.ones((10, 3), np.float32)
    f(w, x)
    first = len(names)
    f(w, x)
    assert len(names) == first > 0
    f(w, np.ones((12, 3), np.float32))
    assert len(names) > first


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(TypeError, match=r"scaling\.accumulate"):
        scaling.accumulate(3, 2, 0)  # type: ignore[arg-type]
    for parts, argnums in ((0, 0), (2, ()), (2, -1), (True, 0), (2.0, 0)):
        with pytest.raises(volta.errors.ArgumentError, match="parts must be a positive integer"):
            scaling.accumulate(vnp.sum, parts, argnums)  # type: ignore[arg-type]
    f = scaling.accumulate(vnp.sum, 4, 0)
    for x in (1.0, np.ones((3, 2))):
        with pytest.raises(volta.errors.ArgumentError, match="a row for each at least"):
            f(x)
    with pytest.raises(volta.errors.ArgumentError, match="0 positional arguments and 1 by name"):
        f(a=np.ones(8))
